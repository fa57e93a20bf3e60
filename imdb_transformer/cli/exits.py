"""How the process ends: a signal becomes an exception, an exception a sentence and an exit code.

0 done; 1 a defect of this program; 2 usage or config; 3 data; 4 run or checkpoint; 5 training diverged;
6 out of disk or memory, or a file that cannot be written; 130 and 143 interrupted; 141 the reader left.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from imdb_transformer.cli import screen
from imdb_transformer.errors import USER_ERRORS, Interrupted, ResourceError, RunError

READER_LEFT = 128 + signal.SIGPIPE
OUT_OF_DISK = ("No space left on device", "Disk quota exceeded", "File too large")
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Unable to allocate", "Storage size calculation")


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Ends the process with a sentence and an exit code if the block raises. A defect keeps its traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        yield
    except Interrupted as stopped:
        _fail(str(stopped), stopped.exit_code)
    except USER_ERRORS as error:
        _fail(f"error: {error}{_remedy(error)}", error.exit_code)
    except Exception as error:
        sentence = _resource_sentence(error)
        if sentence is None:
            raise
        _fail(f"error: {sentence}", ResourceError.exit_code)


@contextmanager
def until_reader_leaves() -> Iterator[None]:
    """Ends the process quietly when the reader of stdout, such as `head`, closes it."""
    try:
        yield
        _flush_stdout()
    except BrokenPipeError:
        _discard_stdout()
        sys.exit(0)


def _flush_stdout() -> None:
    """Writes buffered text now: errors at the interpreter's exit could not be reported."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard_stdout()
        error.filename = "standard output"
        raise


def _discard_stdout() -> None:
    """Redirects stdout to nowhere, or the interpreter would try to flush it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
    raise Interrupted(f"Stopped{by}. Files written before are whole.", exit_code=128 + number)


def _fail(sentence: str, exit_code: int) -> None:
    screen.end(sentence)
    sys.exit(exit_code)


def _remedy(error: object) -> str:
    """What to do about a file of the package that is damaged."""
    from imdb_transformer.store.run import SHIPPED

    is_of_package = isinstance(error, RunError) and str(SHIPPED) in str(error)
    return " It is a file of the package: install imdb-tx again." if is_of_package else ""


def _resource_sentence(error: Exception) -> str | None:
    """A message for a full disk, exhausted memory or an unusable file; None for all other errors."""
    detail = " ".join(str(error).split())
    file = getattr(error, "filename", None) or "A file"
    if any(sign in detail for sign in OUT_OF_DISK):
        return (
            f"The disk is full: {file} cannot be written ({detail}). Free some space; other files are whole."
        )
    if isinstance(error, MemoryError) or any(sign in detail for sign in OUT_OF_MEMORY):
        return "Memory ran out. A smaller train.batch_tokens or tokenizer.max_length needs less."
    if isinstance(error, OSError):
        return f"{file} cannot be read or written: {error.strerror or detail}."
    return None
