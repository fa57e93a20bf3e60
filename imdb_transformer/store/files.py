"""Writes that are whole or absent, JSON files with a checksum, and hashes.

A file or folder is written under a temporary name beside its final one, flushed to disk, and renamed. The
writer holds a lock on the temporary name. The system drops the lock when the process dies, and the next
writer removes what was abandoned.
"""

import errno
import glob
import hashlib
import json
import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.store.locks import take

CHECKSUM = "sha256"  # key of a JSON file's own checksum

M = TypeVar("M", bound=BaseModel)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, content: BaseModel) -> None:
    """Writes a model's fields and their checksum as JSON, whole or not at all."""
    fields = content.model_dump(mode="json")
    write_whole(path, json.dumps({CHECKSUM: _checksum(fields), **fields}, indent=1).encode())


def read_json(path: Path, kind: type[M]) -> M:
    """Reads a file of `write_json`. The checksum reveals any flipped bit.

    Raises OSError if it cannot be read, and ValueError (as pydantic's ValidationError is) if it is damaged.
    """
    try:
        fields = json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(fields, dict) or fields.pop(CHECKSUM, None) != _checksum(fields):
        raise ValueError("not a JSON object with the right checksum")
    return kind.model_validate(fields)


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@contextmanager
def errors_name(path: Path, alias: Path | None = None) -> Iterator[None]:
    """Adds `path` to errors without a file, such as a full disk. In others it takes the place of `alias`."""
    try:
        yield
    except Exception as error:
        name = getattr(error, "filename", None)
        if name is None:
            error.filename = str(path)  # type: ignore[attr-defined]
        elif alias and Path(name).is_relative_to(alias):
            error.filename = str(path / Path(name).relative_to(alias))  # type: ignore[attr-defined]
        raise


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields an empty temporary file, which replaces `path` on success. A crash leaves `path` as it was.

    The new file gets the mode of the old one. If `path` is a symlink, the target is replaced.
    """
    target = _target(path)
    with _temporary(target, Path.touch) as temporary:
        if target.exists():
            temporary.chmod(target.stat().st_mode | 0o600)  # no wider than the old file, but writable
        yield temporary
        _sync(temporary)
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
        _sync(target.parent)


def check_writable(option: str, path: Path, endings: Sequence[str]) -> None:
    """Raises ConfigError unless an option names an ordinary file, old or new, with one of the endings.

    `whole_file` would replace a pipe or a device. Raises OSError if the folder cannot be written.
    """
    advice = f"name a file that ends in {' or '.join(endings)}"
    problems = {
        f"it is a folder; {advice}": path.is_dir(),
        f"it is not an ordinary file; {advice}": path.exists() and not path.is_file(),
        f"there is no folder {path.parent}": not path.parent.is_dir(),
        advice: path.suffix.lower() not in endings,
    }
    if problem := next((problem for problem, exists in problems.items() if exists), ""):
        raise ConfigError(f"{option} {path}: {problem}.")
    with _temporary(_target(path), Path.touch):
        pass


def _target(path: Path) -> Path:
    """The file that a symlink leads to."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file. A crash leaves either the old content or the new."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields an empty temporary folder, which is renamed to `path` on success.

    `path` may be an empty folder. Raises RunError if it is not empty by then.
    """
    with _temporary(path, lambda new: new.mkdir(parents=True)) as temporary:
        yield temporary
        _sync_contents(temporary)
        try:
            temporary.rename(path)  # replaces an empty folder
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            problem = f"Another command created {path} in the meantime; name another --run-dir."
            raise RunError(problem) from None
        _sync(path.parent)


@contextmanager
def whole_folder(path: Path, *, former: Path | None = None) -> Iterator[Path]:
    """Yields an empty temporary folder, which replaces `path` on success.

    The old folder is renamed to `former` and replaces any folder of that name. Without `former` it is
    deleted. After a crash between the two renames, `recover_folder` puts it back.
    """
    with _temporary(path, lambda new: new.mkdir(parents=True)) as temporary:
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
        _sync(path.parent)
        if former is None:
            shutil.rmtree(old, ignore_errors=True)


def current_folder(path: Path, *, former: Path | None) -> Path:
    """The folder that `whole_folder` wrote to `path`; while it is replaced, it has another name."""
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
def _temporary(path: Path, make: Callable[[Path], object]) -> Iterator[Path]:
    """A new file or folder beside `path`, made by `make` and locked; removed at the end if still there."""
    host = platform.node() or "host"
    _remove_abandoned(path, host)
    temporary, descriptor = _make_locked(path, host, make)
    try:
        with errors_name(path, temporary):
            yield temporary
    finally:
        _remove(temporary)
        os.close(descriptor)


def _make_locked(path: Path, host: str, make: Callable[[Path], object]) -> tuple[Path, int]:
    """A new file or folder, and the descriptor that holds its lock."""
    while True:
        temporary = path.with_name(f".{path.name}.{host}.{secrets.token_hex(4)}.tmp")
        with errors_name(path, temporary):
            make(temporary)
        with suppress(FileNotFoundError):  # another process removed it as abandoned before we had the lock
            descriptor = _open(temporary)
            if take(descriptor) is not False and temporary.exists():
                return temporary, descriptor
            os.close(descriptor)


def _remove_abandoned(path: Path, host: str) -> None:
    """Removes the temporary files and folders of `path` whose writers are dead.

    Other machines may not see a lock, and some file systems have no locks. Then a week must pass.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.{'[0-9a-f]' * 8}.tmp"):
        with suppress(OSError):  # it has just been removed, or belongs to another user
            descriptor = _open(left)
            is_free = take(descriptor)
            is_old = time.time() - os.fstat(descriptor).st_mtime > 7 * 24 * 3600  # seconds
            is_ours = left.name.startswith(f".{path.name}.{host}.")
            if is_free is not False and (is_old or (is_free and is_ours)):
                _remove(left)
            os.close(descriptor)


def _open(path: Path) -> int:
    """A descriptor to lock. Some network file systems lock only files that are open for writing."""
    return os.open(path, os.O_NOFOLLOW | (os.O_RDONLY if path.is_dir() else os.O_RDWR))


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _old_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _sync_contents(folder: Path) -> None:
    for path in (*filter(Path.is_file, folder.iterdir()), folder):
        _sync(path)


def _sync(path: Path) -> None:
    """Waits until a file or a folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
