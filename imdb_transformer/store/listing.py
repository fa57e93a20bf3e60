"""The runs below a folder: what they are, how they stand, how large they are, and what they need no more."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from imdb_transformer.errors import RunError
from imdb_transformer.store import checkpoint, run
from imdb_transformer.store.locks import locked
from imdb_transformer.store.run import Kind


class Listed(BaseModel):
    """A run in a list."""

    run: str
    started: str
    source: str
    """of its reviews"""
    kind: Kind
    status: str
    """as in run.json; `killed` if it says `running` and no process is at it"""
    step: int
    """of the last checkpoint"""
    validation_accuracy: float | None
    """of a classifier's best checkpoint"""
    num_bytes: int


def runs_in(folder: Path) -> list[Listed]:
    """The runs below a folder, the one that began last at the end. A damaged one is left out."""
    listed = []
    for path in folder.glob(f"*/{run.INFO}"):
        with suppress(RunError):
            listed.append(_listed(run.open_run(path.parent)))
    return sorted(listed, key=lambda each: each.started)


def prune(folder: Path) -> Iterator[tuple[Path, int]]:
    """Deletes `last` and `previous` of the finished runs below a folder; yields each run and the bytes freed.

    Predicting needs `best` alone. Raises RunError if a process is using such a run.
    """
    for listed in runs_in(folder):
        opened = run.open_run(Path(listed.run))
        names = [path for name in (run.LAST, run.PREVIOUS) if (path := opened.checkpoints / name).exists()]
        if listed.status == "finished" and names:
            with locked(opened.folder):
                opened.updated(pruned=True)
                freed = sum(map(_num_bytes, names))
                for path in names:
                    shutil.rmtree(path)
            yield opened.folder, freed


def _listed(opened: run.Run) -> Listed:
    info = opened.info
    counters: dict[str, Any] = {}
    for folder in (opened.checkpoint("best"), opened.checkpoint("last")):  # the last has come farthest
        with suppress(RunError):
            counters = checkpoint.read_meta(folder, tokenizer_hash=info.tokenizer_hash).counters or counters
    best = counters.get("best") if info.kind == "classifier" else None
    status: str = info.status
    if status == "running":
        with suppress(RunError), locked(opened.folder):  # otherwise a process is at it
            status = "killed"
    return Listed(
        run=str(opened.folder), started=info.started, source=opened.config.data.source, kind=info.kind,
        status=status, step=counters.get("step", 0),
        validation_accuracy=best["accuracy"] if best else None, num_bytes=_num_bytes(opened.folder),
    )  # fmt: skip


def _num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
