"""Progress bars, notes and errors of a command, and its end.

The first word of a note or an error has a colour. A signal becomes an exception, and an exception becomes a
sentence and an exit code (`errors.py`).
"""

import os
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import Any, TextIO

from imdb_transformer import progress
from imdb_transformer.errors import (
    USER_ERRORS,
    DataWarning,
    Interrupted,
    ResourceError,
    RunError,
    interrupted,
    reason_of,
    requests_to_stop,
)
from imdb_transformer.report import terminal
from imdb_transformer.report.terminal import BOLD, CYAN, PLAIN, RED, YELLOW

OPENINGS = {"error:": RED, "warning:": YELLOW, "note:": YELLOW, "next:": CYAN}
# The bar shrinks until the line fits the terminal; 4 columns stay free, for ^C.
FORMAT = "{desc} {n:,} of {total:,} {bar:-4} {remaining} left{postfix}"
FORMAT_WITHOUT_TOTAL = "{desc} {n:,}, {elapsed}"
ERASE_LINE = "\r\x1b[2K"
SECONDS_BEFORE = 0.5  # quicker work shows no bar

IS_FIRST = os.environ.get("RANK", "0") == "0"  # one of torchrun's processes shows progress
READER_LEFT = 128 + signal.SIGPIPE
OUT_OF_DISK = ("No space left on device", "Disk quota exceeded", "File too large")
SIGNS_OF_DAMAGE = ("damaged", "cannot be read", "has changed", "missing", "is not a run", "another version")
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Unable to allocate", "Storage size calculation")

_bars: list[Any] = []


def show(text: str, stream: TextIO | None = None, *, erases_line: bool = False) -> None:
    """Prints text, on stdout by default. With colours, the first word of an error or a next step has one.

    `erases_line` replaces the terminal's current line. One write does both: a ^C would come between two.
    """
    text, stream = terminal.visible(text), stream or sys.stdout
    if terminal.has_colours(stream):
        text = "\n".join(map(_coloured, text.split("\n")))
    erases_line &= stream.isatty() and os.environ.get("TERM") != "dumb"
    print(f"{ERASE_LINE * erases_line}{text}\n", end="", file=terminal.beneath(stream), flush=True)


def note(text: str) -> None:
    """Prints lines on stderr, above the bar if there is one. Of several processes only the first does."""
    if not IS_FIRST:
        return
    # A bar that has appeared: tqdm would draw another too early after a line, and never erase it.
    bars = [each for each in _bars if not each.disable and each.last_print_t >= each.start_t + each.delay]
    with bars[-1].external_write_mode(file=terminal.beneath(sys.stderr)) if bars else nullcontext():
        show(text, sys.stderr, erases_line=bool(bars))  # the terminal's ^C stands behind the bar


def show_warning(message: Warning | str, category: type[Warning], *place: Any, **_: Any) -> None:
    """Shows a warning about reviews as a sentence, and any other as Python does, with file and line."""
    is_ours = issubclass(category, DataWarning)
    note(f"warning: {message}" if is_ours else warnings.formatwarning(message, category, *place[:2]).rstrip())


@contextmanager
def bar(work: str, total: int | None = None, *, done: int = 0) -> Iterator[Any]:
    """A progress bar on stderr, which is erased at the end.

    There is none if stderr is not a terminal, or if the process is not the first. Nested work has no bar.
    """
    from tqdm import tqdm

    outer, progress.watch = progress.watch, None
    shown: Any = tqdm(
        desc=work, total=total, initial=done, file=terminal.beneath(sys.stderr), leave=False,
        disable=None if IS_FIRST else True, dynamic_ncols=True, delay=SECONDS_BEFORE,
        bar_format=FORMAT_WITHOUT_TOTAL if total is None else FORMAT,
    )  # fmt: skip
    _bars.append(shown)
    try:
        yield shown
    finally:
        close_bars()
        progress.watch = outer


def tracked(items: Iterable[Any], work: str, total: int | None) -> Iterator[Any]:
    """The items, with a bar."""
    if total == 1:
        yield from items
        return
    with bar(work, total) as shown:
        for item in items:
            yield item
            shown.update()


def close_bars() -> None:
    """Erases the bars."""
    while _bars:
        _bars.pop().close()


def _coloured(line: str) -> str:
    opening, blank, rest = line.partition(" ")
    colour = OPENINGS.get(opening)
    return f"{BOLD}{colour}{opening}{PLAIN}{blank}{rest}" if colour else line


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Ends the process with a sentence and an exit code if the block raises. A defect keeps its traceback."""
    for number in requests_to_stop():
        signal.signal(number, _interrupt)
    try:
        yield
    except Interrupted as stopped:
        exit_with(str(stopped), stopped.exit_code)
    except USER_ERRORS as error:
        exit_with(f"error: {error}{_remedy(error)}", error.exit_code)
    except Exception as error:
        sentence = _resource_sentence(error)
        if sentence is None:
            raise
        exit_with(f"error: {sentence}", ResourceError.exit_code)


@contextmanager
def until_reader_leaves() -> Iterator[None]:
    """Ends the process quietly when the reader of stdout, such as `head`, closes it."""
    try:
        yield
        try:
            sys.stdout.flush()  # now: errors at the interpreter's exit could not be reported
        except OSError as error:
            _discard_stdout()
            error.filename = "standard output"
            raise
    except BrokenPipeError:
        _discard_stdout()
        sys.exit(0)


def _discard_stdout() -> None:
    """Redirects stdout to /dev/null, or the interpreter would try to flush it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(number: int, _: FrameType | None) -> None:
    raise interrupted(signal.Signals(number), ". Files written before are whole.")


def exit_with(sentence: str, exit_code: int) -> None:
    """Ends the process with a sentence on a line of its own: bars and the terminal's ^C are erased."""
    close_bars()
    with suppress(OSError):  # a terminal may be closed
        sys.stdout.flush()  # the sentence is the last line, also where stdout and stderr go into one file
    with suppress(OSError):
        show(sentence, sys.stderr, erases_line=True)
    sys.exit(exit_code)


def _remedy(error: object) -> str:
    """Advice if the error is about a damaged file of the package."""
    from imdb_transformer.store.run import SHIPPED

    problem = str(error).partition(str(SHIPPED))[2]  # empty if it is about another folder
    is_damage = isinstance(error, RunError) and any(sign in problem for sign in SIGNS_OF_DAMAGE)
    return " It is a file of the package: install imdb-tx again." if is_damage else ""


def _resource_sentence(error: Exception) -> str | None:
    """A message for a full disk, exhausted memory or an unusable file; None for all other errors."""
    detail = reason_of(error, 1000)
    file = getattr(error, "filename", None) or "standard output, or a file,"
    reason = getattr(error, "strerror", None) or detail
    if any(sign in detail for sign in OUT_OF_DISK):
        return (
            f"The disk is full: {file} cannot be written ({reason}). Free some space; other files are whole."
        )
    if isinstance(error, MemoryError) or any(sign in detail for sign in OUT_OF_MEMORY):
        return "Memory ran out. A smaller train.batch_tokens or tokenizer.max_length needs less."
    if isinstance(error, OSError):
        return f"{file} cannot be read or written: {reason}."
    return None
