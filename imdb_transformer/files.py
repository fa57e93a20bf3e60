"""Writes that are whole or absent: a temporary name, fsync, rename. Hashes of what was written, and locks."""

import errno
import fcntl
import glob
import hashlib
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imdb_transformer.errors import RunError


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def naming(path: Path, *aliases: Path) -> Iterator[None]:
    """Errors of writing say to which file, where the system or a library does not (a full disk, for one),
    or says one of its `aliases`."""
    try:
        yield
    except Exception as error:
        if getattr(error, "filename", None) in (None, *map(str, aliases)):
            error.filename = str(path)  # type: ignore[attr-defined]
        raise


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives a temporary name to write to; on success it replaces `path`, which a crash leaves as it was."""
    temporary = _temporary_name(path)
    try:
        with naming(path, temporary):
            yield temporary
            _sync_file(temporary)
            temporary.replace(path)
            _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that a crash leaves either as it was or as it is to be."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Gives an empty folder to fill; it takes the name `path` on success, never the place of something.

    An empty folder may be there. Raises OSError where it is not empty, or came to be meanwhile.
    """
    with _temporary_folder(path) as temporary:
        yield temporary
        _sync_contents(temporary)
        if path.exists():
            path.rmdir()
        temporary.rename(path)
        _sync_folder(path.parent)


@contextmanager
def whole_folder(path: Path, *, former: Path | None = None) -> Iterator[Path]:
    """Gives an empty folder to fill; it takes the name `path`, and the place of what was there, on success.

    The folder that was there is renamed to `former`, and replaces any folder of that name; without `former`
    it is deleted. A crash between the two renames leaves it under its new name: `recover_folder` puts it
    back.
    """
    with _temporary_folder(path) as temporary:
        yield temporary
        _sync_contents(temporary)
        recover_folder(path, former=former)
        old = former or _old_name(path)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        try:
            temporary.rename(path)
        except OSError:
            recover_folder(path, former=former)
            raise
        _sync_folder(path.parent)
        if former is None:
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        with naming(path):
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def current_folder(path: Path, *, former: Path | None = None) -> Path:
    """Where to read what `whole_folder` wrote to `path`, also while it is being replaced."""
    old = former or _old_name(path)
    return old if old.exists() and not path.exists() else path


def recover_folder(path: Path, *, former: Path | None = None) -> None:
    """Undoes, or without `former` finishes, a `whole_folder` that was killed between its renames."""
    old = former or _old_name(path)
    if not path.exists():
        if old.exists():
            old.rename(path)
    elif former is None:
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes of this machine from working in a folder meanwhile; one that dies lets go of it.

    Raises RunError where another is at it. Does nothing where the file system has no such locks.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not _lock(descriptor):
            raise RunError(f"Another process is at work in {folder}.")
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Whether the lock was free, or there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.EINVAL, errno.ENOLCK):
            raise
    return True


def _temporary_name(path: Path) -> Path:
    """A name beside `path` that no other process uses; what killed processes left under such names goes."""
    host = platform.node() or "host"
    for left in path.parent.glob(f".{glob.escape(path.name)}.{glob.escape(host)}.*.tmp"):
        number = left.name.split(".")[-2]
        if number.isdigit() and not _is_alive(int(number)):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{host}.{os.getpid()}.tmp")


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def _old_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _sync_contents(folder: Path) -> None:
    for file in folder.iterdir():
        if file.is_file():
            _sync_file(file)
    _sync_folder(folder)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
