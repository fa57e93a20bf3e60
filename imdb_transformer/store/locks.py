"""Locks between the processes of one machine. The system drops the lock of a process that dies.

They are `flock`'s. A network file system may show them to one machine only, or have none.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imdb_transformer.errors import RunError

WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EINVAL, errno.ENOLCK, errno.EBADF)


def take(descriptor: int, *, wait: bool = False) -> bool | None:
    """Takes the lock of an open file or folder, and says whether it was free; None where there are no locks.

    With `wait` it returns when the lock is taken.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        return None
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes of this machine from working in a folder meanwhile.

    Raises RunError where another is at it. Does nothing where the file system has no locks.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if take(descriptor) is False:
            raise RunError(f"Another process is at work in {folder}.")
        yield
    finally:
        os.close(descriptor)


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Lets one process of this machine at a time make or replace `path`; the others wait.

    The lock is that of an empty file beside it, which goes at the end. Does nothing where the file system has
    no locks.
    """
    file = path.with_name(f".{path.name}.lock")
    descriptor = _waited_for(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(descriptor)


def _waited_for(file: Path) -> int:
    """A descriptor of a lock's file, which is made where there is none."""
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        take(descriptor, wait=True)
        # The process that had the lock removed its file, and a third may have made another one.
        if file.exists() and os.path.samestat(file.stat(), os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)
