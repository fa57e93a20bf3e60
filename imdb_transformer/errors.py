"""Errors that a user may meet, each with the exit code of the process.

0 is success. 1 is a defect of this program, with a traceback. 129, 130 and 143 are interruptions; 141 is in
`cli/screen.py`, and the others are below. Every message is a sentence that says what is wrong, where, and
what would be right.
"""

import inspect
import re
import shlex
import signal
import warnings
from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, `kill`, and a terminal that closes


class ConfigError(Exception):
    """The command line or the config asks for something that does not exist or is not possible."""

    exit_code = 2


class DataError(Exception):
    """A source, a stored corpus or an encoded split is missing or damaged."""

    exit_code = 3


class EmptyError(DataError):
    """A table has no row that can be read."""


class DataWarning(UserWarning):
    """The reviews can be used, but the user should know something about them."""


def warn(message: str) -> None:
    """Gives a DataWarning, which names the line outside the package that began the work."""
    inside = (__name__.partition(".")[0], "contextlib")
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in inside:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, DataWarning, stacklevel=level)


class RunError(Exception):
    """A run or a checkpoint is missing or damaged, or does not fit."""

    exit_code = 4


class DivergedError(Exception):
    """Training reached a loss or gradient that is not finite."""

    exit_code = 5


class ResourceError(Exception):
    """Disk or memory ran out."""

    exit_code = 6


class Interrupted(BaseException):
    """A signal ended the work, and the progress was saved.

    Like KeyboardInterrupt it is not an Exception: a library's `except Exception` must not catch it.
    """

    def __init__(self, message: str, *, exit_code: int = 128 + signal.SIGINT) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def interrupted(number: signal.Signals, rest: str) -> Interrupted:
    """The error that ends the work after a signal: `Stopped by SIGTERM`, and the rest of its message."""
    by = "" if number == signal.SIGINT else f" by {number.name}"
    return Interrupted(f"Stopped{by}{rest}", exit_code=128 + number)


USER_ERRORS = (ConfigError, DataError, RunError, DivergedError, ResourceError, Interrupted)


def requests_to_stop() -> list[signal.Signals]:
    """`SIGNALS` without the ignored ones: under `nohup` that is SIGHUP, and after `&` in a script SIGINT."""
    return [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]


def reason_of(error: BaseException, length: int = 250) -> str:
    """A library's message in one line, without a full stop at the end."""
    return " ".join(str(error).split())[:length].rstrip(". ")


def one_line(text: str) -> str:
    """
    >>> one_line("two\\nlines\\tand a tab")
    'two lines and a tab'
    """
    return re.sub(r"\s", " ", text)


def shortened(text: str, length: int) -> str:
    """The text in one line, cut at the end of a word if it is longer than `length` characters.

    >>> shortened("a long and winding review", 15)
    'a long and…'
    """
    text = one_line(text[: length + 1])  # the rest may be long
    if len(text) <= length:
        return text
    return (text[:length].rpartition(" ")[0].rstrip() or text[: length - 1]) + "…"


def is_utf8(name: str) -> bool:
    """Whether the bytes of a file's name are UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def check_utf8(name: str) -> None:
    """Raises ConfigError for a name with bytes that are not UTF-8."""
    if not is_utf8(name):
        raise ConfigError(f"{name} is not UTF-8, and a config can only hold UTF-8. Rename it.")


def with_home(path: str) -> str:
    """The path with the home folder for a leading `~/`, which a shell leaves inside a word or in quotes."""
    return str(Path(path).expanduser()) if path.startswith("~/") else path


def command_line(*words: object) -> str:
    """A command of imdb-tx, quoted for a shell.

    >>> command_line("eval", "runs/my run")
    "imdb-tx eval 'runs/my run'"
    """
    return shlex.join(["imdb-tx", *map(str, words)])
