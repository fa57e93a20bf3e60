"""How the process ends: signals become exceptions, exceptions become a sentence and an exit code.

0 done; 1 a defect of ours; 2 usage or config; 3 data; 4 run or checkpoint; 5 training diverged;
6 out of disk or memory, or a file that cannot be written; 130 and 143 interrupted; 141 the reader left.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from imdb_transformer.errors import USER_ERRORS, Interrupted, ResourceError

READER_LEFT = 128 + signal.SIGPIPE
OUT_OF_DISK = ("No space left on device", "Disk quota exceeded", "File too large")
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Unable to allocate", "Storage size calculation")


@contextmanager
def exiting() -> Iterator[None]:
    """Ends the process with the right code where the block raises. A defect of ours keeps its traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        yield
    except USER_ERRORS as error:
        _fail(str(error), error.exit_code)
    except Exception as error:
        sentence = _resource_sentence(error)
        if sentence is None:
            raise
        _fail(sentence, ResourceError.exit_code)


@contextmanager
def until_reader_leaves() -> Iterator[None]:
    """Ends the process quietly when whoever reads stdout, such as `head`, has seen enough."""
    try:
        yield
        flush_stdout()
    except BrokenPipeError:
        _drop_stdout()
        sys.exit(0)


def flush_stdout() -> None:
    """Writes what stdout still holds, while an error can be told: at the interpreter's end it cannot."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _drop_stdout()
        error.filename = "standard output"
        raise


def _drop_stdout() -> None:
    """What is left for stdout goes nowhere, or the interpreter would try once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    name = signal.Signals(number).name
    raise Interrupted(f"{name}: stopped; what had been written before is whole.", exit_code=128 + number)


def _fail(sentence: str, exit_code: int) -> None:
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(exit_code)


def _resource_sentence(error: Exception) -> str | None:
    """What to tell about a full disk, exhausted memory or a file that cannot be used; None for all else."""
    detail = " ".join(str(error).split())
    where = getattr(error, "filename", None) or "A file"
    if any(sign in detail for sign in OUT_OF_DISK):
        return (
            f"The disk is full: {where} cannot be written ({detail}). What had been written before is whole; "
            "free some space."
        )
    if isinstance(error, MemoryError) or any(sign in detail for sign in OUT_OF_MEMORY):
        return "Memory ran out. A smaller train.batch_tokens or tokenizer.max_length needs less."
    if isinstance(error, OSError):
        return f"{where} cannot be read or written: {error.strerror or detail}."
    return None
