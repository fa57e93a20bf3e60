"""Writes that are whole or absent: a temporary name, fsync, rename. Hashes of what was written.

What is being written has a temporary name beside its own, and whoever writes holds a lock on it. The
system drops the lock of a process that dies, so that the next to write there knows what was abandoned.
"""

import glob
import hashlib
import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from imdb_transformer.store.locks import take

WEEK_SECONDS = 7 * 24 * 3600


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
    """Gives an empty file to write to; on success it replaces `path`, which a crash leaves as it was.

    The new file has the mode of the old one. A symlink stays, and the file that it names is replaced.
    """
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    with _temporary(target, Path.touch) as temporary:
        if target.exists():
            temporary.chmod(target.stat().st_mode | 0o600)  # nobody else reads it meanwhile; we write
        yield temporary
        _sync_file(temporary)
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
        _sync_folder(target.parent)


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
    with _temporary(path, Path.mkdir) as temporary:
        yield temporary


def current_folder(path: Path, *, former: Path | None = None) -> Path:
    """Where to read what `whole_folder` wrote to `path`, also while it is being replaced."""
    old = former or _old_name(path)
    return old if old.exists() and not path.exists() else path


def is_settled(path: Path) -> bool:
    """Whether there is a folder, and no `whole_folder` without `former` is replacing it or was killed."""
    return path.exists() and not _old_name(path).exists()


def recover_folder(path: Path, *, former: Path | None = None) -> None:
    """Undoes, or without `former` finishes, a `whole_folder` that was killed between its renames."""
    old = former or _old_name(path)
    if not path.exists():
        if old.exists():
            old.rename(path)
    elif former is None:
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _temporary(path: Path, make: Callable[[Path], object]) -> Iterator[Path]:
    """What `make` makes under a new name beside `path`, locked until it goes. Clears what was abandoned."""
    host = platform.node() or "host"
    _remove_abandoned(path, host)
    temporary, descriptor = _made(path, host, make)
    try:
        with naming(path, temporary):
            yield temporary
    finally:
        _remove(temporary)
        os.close(descriptor)


def _made(path: Path, host: str, make: Callable[[Path], object]) -> tuple[Path, int]:
    """A new file or folder, and the descriptor that holds its lock."""
    while True:
        temporary = path.with_name(f".{path.name}.{host}.{secrets.token_hex(4)}.tmp")
        with naming(path, temporary):
            make(temporary)
        with suppress(FileNotFoundError):  # before it was locked, another process took it for abandoned
            descriptor = _open(temporary)
            if take(descriptor) is not False and temporary.exists():
                return temporary, descriptor
            os.close(descriptor)


def _remove_abandoned(path: Path, host: str) -> None:
    """Removes the temporary files and folders of `path` whose makers are dead.

    A lock may be invisible to other machines, and some file systems have none: there a week must pass.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.{'[0-9a-f]' * 8}.tmp"):
        with suppress(OSError):  # it is gone meanwhile, or somebody else's
            descriptor = _open(left)
            free = take(descriptor)
            is_old = time.time() - os.fstat(descriptor).st_mtime > WEEK_SECONDS
            is_near = left.name.startswith(f".{path.name}.{host}.")
            if free is not False and (is_old or (free and is_near)):
                _remove(left)
            os.close(descriptor)


def _open(path: Path) -> int:
    """A descriptor that can be locked; some network file systems lock only files that are open to write."""
    return os.open(path, os.O_NOFOLLOW | (os.O_RDONLY if path.is_dir() else os.O_RDWR))


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


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
