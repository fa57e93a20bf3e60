"""Locks between the processes of one machine. The system drops the lock of a process that dies.

They use `flock`. On a network file system, other machines may not see them, or there may be none.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from imdb_transformer.errors import RunError

WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EINVAL, errno.ENOLCK, errno.EBADF)


def take(descriptor: int, *, wait: bool = False) -> bool | None:
    """Takes the lock of an open file or folder. Returns whether it was free; None if there are no locks.

    With `wait`, it returns when the lock is taken.
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
    """Keeps other processes of this machine out of a folder. Does nothing if the file system has no locks.

    Raises RunError if another process is using the folder.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if take(descriptor) is False:
            raise RunError(f"Another process is using {folder}.")
        yield
    finally:
        os.close(descriptor)


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Lets one process of this machine at a time make or replace `path`; the others wait.

    It locks an empty file beside `path` and removes it at the end, and their folder if it is new and still
    empty. Does nothing without locks.
    """
    file = path.with_name(f".{path.name}.lock")
    is_new = not file.parent.exists()
    descriptor = _wait_for(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(descriptor)
        if is_new:
            with suppress(OSError):
                file.parent.rmdir()


def _wait_for(file: Path) -> int:
    """A descriptor that holds the lock of a file. Creates the file if it does not exist."""
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # the last holder removed the folder
            continue
        take(descriptor, wait=True)
        # The last holder removed its file, and a third process may have made another one.
        with suppress(FileNotFoundError):
            if os.path.samestat(file.stat(), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)
