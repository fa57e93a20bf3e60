"""Writes: who removes a temporary file, what a new file looks like, what reaches the disk in which order."""

import errno
import fcntl
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imdb_transformer.store import files, metrics
from imdb_transformer.store.files import new_folder, whole_file, whole_folder, write_whole

WRITER = """
import sys, time
from pathlib import Path
from imdb_transformer.store import files, metrics
with getattr(files, sys.argv[1])(Path(sys.argv[2])) as temporary:
    print(flush=True)
    time.sleep(60)
"""


@contextmanager
def writing(kind: str, path: Path) -> Iterator[None]:
    """Another process is writing `path`; at the end it is killed."""
    command = [sys.executable, "-c", WRITER, kind, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        try:
            yield
        finally:
            process.kill()


def write(kind: str, path: Path) -> None:
    with getattr(files, kind)(path) as temporary:
        (temporary / "a" if temporary.is_dir() else temporary).write_text("new")


@pytest.mark.parametrize("kind", ["whole_file", "whole_folder"])
def test_a_temporary_file_is_removed_once_its_writer_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "weights"

    def unknown(*_: object) -> None:
        raise ProcessLookupError

    with writing(kind, path):
        with monkeypatch.context() as other_namespace:  # where the writer's number is nobody's
            other_namespace.setattr(os, "kill", unknown)
            write(kind, path)
        assert len(list(tmp_path.iterdir())) == 2
    write(kind, path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("where", ["on another machine", "without locks"])
def test_without_a_visible_lock_a_temporary_file_is_removed_after_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    host = "elsewhere" if where == "on another machine" else platform.node()
    left = tmp_path / f".weights.{host}.0badcafe.tmp"
    left.touch()
    if where == "without locks":
        monkeypatch.setattr(fcntl, "flock", _no_locks)
    os.utime(left, (0, time.time() - (7 * 24 - 1) * 3600))
    write_whole(tmp_path / "weights", b"new")
    assert left.exists()
    os.utime(left, (0, time.time() - (7 * 24 + 1) * 3600))
    write_whole(tmp_path / "weights", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def _no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_temporary_file_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, removed = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with whole_file(tmp_path / "a") as temporary:
        assert temporary.exists()
        assert temporary not in removed


def test_a_users_file_with_a_similar_name_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / ".a.b.tmp").touch()
    os.utime(tmp_path / ".a.b.tmp", (0, 0))
    write_whole(tmp_path / "a", b"new")
    assert (tmp_path / ".a.b.tmp").exists()


def test_a_write_to_a_symlink_replaces_its_target(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    target.unlink()
    write_whole(link, b"again")
    assert link.is_symlink()
    assert target.read_bytes() == b"again"


def test_a_file_keeps_its_mode_and_a_new_one_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        for mode in (0o600, 0o664, 0o444):
            path = tmp_path / f"{mode:o}"
            path.write_bytes(b"old")
            path.chmod(mode)
            with whole_file(path) as temporary:
                temporary.write_bytes(b"new")
                assert temporary.stat().st_mode & 0o077 == mode & 0o077
            assert path.stat().st_mode & 0o777 == mode
        write_whole(tmp_path / "new", b"new")
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is synced and renamed, by inode, in order."""
    told: list[tuple[str, int]] = []
    sync, rename, replace = os.fsync, Path.rename, Path.replace

    def synced(descriptor: int) -> None:
        told.append(("sync", os.fstat(descriptor).st_ino))
        sync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        told.append(("rename", path.stat().st_ino))
        return (replace if path.is_file() else rename)(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(Path, "replace", renamed)
    return told


def test_a_file_is_synced_before_its_rename_and_its_folder_after(
    tmp_path: Path, events: list[tuple[str, int]]
) -> None:
    write_whole(tmp_path / "a", b"new")
    file, folder = (tmp_path / "a").stat().st_ino, tmp_path.stat().st_ino
    assert events == [("sync", file), ("rename", file), ("sync", folder)]


@pytest.mark.parametrize("kind", [whole_folder, new_folder])
def test_a_folder_is_synced_before_its_rename_and_its_parent_after(
    tmp_path: Path, events: list[tuple[str, int]], kind: "type[whole_folder]"
) -> None:
    path = tmp_path / "run"
    with kind(path) as temporary:
        (temporary / "a").write_text("a")
    inodes = [(path / "a").stat().st_ino, path.stat().st_ino, tmp_path.stat().st_ino]
    assert events == [
        ("sync", inodes[0]), ("sync", inodes[1]), ("rename", inodes[1]), ("sync", inodes[2])
    ]  # fmt: skip


def test_lines_of_metrics_are_synced_when_they_are_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, on_disk = tmp_path / metrics.FILE_NAME, []

    def synced(descriptor: int) -> None:
        assert os.path.samestat(os.fstat(descriptor), path.stat())
        on_disk.append(path.read_text())

    monkeypatch.setattr(os, "fsync", synced)
    metrics.append(tmp_path, [{"step": 1}, {"step": 2}])
    assert on_disk == ['{"step": 1}\n{"step": 2}\n']
