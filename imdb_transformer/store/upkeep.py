"""Names new runs, lists runs, deletes checkpoints that they no longer need, and checks their files."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, count
from operator import itemgetter
from pathlib import Path
from typing import Any

from imdb_transformer.errors import RunError, reason_of, warn
from imdb_transformer.store import checkpoint, metrics, run
from imdb_transformer.store.locks import locked

SECONDS_BETWEEN_TRIES = (0.05, 0.2, 1.0)
MAX_NAME_BYTES = 60  # of the reviews' name in a run's name; a file system allows 255 in all


def run_name(usual: str, config: str, source: str, *, ending: str = "") -> str:
    """A new run's name: `usual`, or that of the reviews and `ending` if a shipped config trains on a table.

    A folder with `train.csv` or the like counts as a table.
    """
    path = Path(source)
    is_table = path.is_file() and not path.name.endswith((".tar.gz", ".tgz", ".tar"))
    if Path(config).is_file() or not (is_table or any(path.glob("[Tt][Rr][Aa][Ii][Nn].*"))):
        return usual
    name = path.name.split(".")[0] if is_table else path.resolve().name
    name = "-".join(name.split())  # it needs no quotes
    while len(os.fsencode(name)) > MAX_NAME_BYTES:
        name = name[:-1]
    return (name or usual) + ending


def unused(folder: Path) -> Path:
    """The folder, or else the first of FOLDER-2, FOLDER-3 and so on that does not exist yet.

    A run of the package has its name for itself.
    """
    others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(
        path for path in chain([folder], others) if not (path.exists() or (run.SHIPPED / path.name).exists())
    )


def run_files(folder: Path) -> list[Path]:
    """The `run.json` of each run below a folder. Hidden folders are abandoned ones."""
    return sorted(folder.glob(f"[!.]*/{run.INFO}"))


def runs_in(folder: Path) -> list[dict[str, Any]]:
    """The runs below a folder, oldest first. A damaged one is left out."""
    listed = []
    for path in run_files(folder):
        with suppress(RunError, PermissionError):
            listed.append(_summary(run.open_run(path.parent)))
    return sorted(listed, key=itemgetter("started"))


def prune(folder: Path) -> Iterator[tuple[Path, int]]:
    """Prunes the finished runs below a folder; yields each run and the bytes that were freed.

    Warns of a run that cannot be pruned.
    """
    for path in (Path(listed["run"]) for listed in runs_in(folder)):
        try:
            if freed := prune_run(run.open_run(path)):
                yield path, freed
        except (RunError, OSError) as error:
            warn(f"{path} was not pruned: {reason_of(error)}")


def prune_run(opened: run.Run) -> int:
    """Deletes `last` and `previous` of a finished run; returns the number of bytes.

    Predicting, and starting from the run, need `best` alone. A run whose `best` is damaged is left as it is.
    Raises RunError if a process is using the run.
    """
    paths = [path for name in (run.LAST, run.PREVIOUS) if (path := opened.checkpoints / name).exists()]
    if opened.info.status != "finished" or not paths:
        return 0
    with locked(opened.folder):
        if problem := _problem(_check_checkpoint, opened, opened.checkpoint("best")):
            warn(f"{opened.folder} keeps all checkpoints, because of the best one: {problem}")
            return 0
        opened.write_info(pruned=True, counters=_counters(opened, run.LAST) or opened.info.counters)
        freed = sum(map(_num_bytes, paths))
        for path in paths:
            shutil.rmtree(path)
    return freed


def _summary(opened: run.Run) -> dict[str, Any]:
    """A run in a list: what it is, the step of its last checkpoint, the accuracy of its best, and its size.

    The status is as in run.json, or `killed` if that is `running` and no process has the run.
    """
    info, status = opened.info, str(opened.info.status)
    counters = info.counters or _counters(opened, run.LAST) or _counters(opened, "best") or {}
    best = counters.get("best") if info.kind != "encoder" else None
    if status == "running":
        with suppress(RunError), locked(opened.folder):  # RunError: a process has the run
            status = "killed"
    return {
        "run": str(opened.folder), "started": info.started, "source": opened.config.data.source,
        "kind": info.kind, "status": status, "step": counters.get("step", 0),
        "validation_accuracy": best["accuracy"] if best else None, "num_bytes": _num_bytes(opened.folder),
    }  # fmt: skip


def _counters(opened: run.Run, name: run.CheckpointName) -> dict[str, Any] | None:
    """The counters of a checkpoint; None if it cannot be read."""
    with suppress(RunError):
        folder = opened.checkpoint(name)
        return checkpoint.read_meta(folder, tokenizer_hash=opened.info.tokenizer_hash).counters
    return None


def _num_bytes(folder: Path) -> int:
    num_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a training has just replaced it
                num_bytes += Path(parent, name).lstat().st_size
    return num_bytes


def verify(folder: Path) -> dict[str, str]:
    """Each part of a run, with a sentence about its damage. The sentence is empty if the part is whole.

    Raises RunError if the folder is not a run, or if its run.json or config.toml is damaged, and
    PermissionError if a file may not be read.
    """
    opened = run.open_run(folder)
    hashes = opened.info.file_hashes
    problems = {name: _problem(run.check_file, opened.folder, opened.info, name) for name in hashes}
    if not opened.is_shipped:  # comes without
        problems[metrics.FILE_NAME] = _problem(_check_metrics, opened)
    names = {path.name for path in opened.checkpoints.glob("[!.]*")}
    for name in sorted(names | _required_checkpoints(opened)):
        problems[f"checkpoints/{name}"] = _checkpoint_problem(opened, name)
    return problems


def _checkpoint_problem(opened: run.Run, name: str) -> str:
    """The problem of a checkpoint. In an unfinished run it looks again: a training may be replacing it."""
    if opened.info.status == "finished":
        return _problem(_check_checkpoint, opened, opened.checkpoints / name)
    for seconds in (0, *SECONDS_BETWEEN_TRIES):
        time.sleep(seconds)
        # After a kill, a checkpoint of an unfinished run may still have its former name.
        path = opened.checkpoint(name)  # type: ignore[arg-type]
        if not (problem := _problem(_check_checkpoint, opened, path)):
            break
    return problem


def _required_checkpoints(opened: run.Run) -> set[str]:
    info = opened.info
    if info.kind == "linear" or info.pruned or opened.is_shipped:
        return {"best"}
    return {"best", "last"} if info.status == "finished" else {"last"}


def _problem(check: Callable[..., None], *arguments: Any) -> str:
    try:
        check(*arguments)
    except RunError as error:
        return str(error)
    return ""


def _check_metrics(opened: run.Run) -> None:
    path = opened.folder / metrics.FILE_NAME
    is_finished = opened.info.status == "finished"
    if not path.is_file():
        if path.exists() or (is_finished and opened.info.kind != "linear"):
            raise RunError(f"{path} is missing.")
        return
    lines = metrics.parsed(opened.folder)
    # A crash or a full disk cuts the last line only, and a resumed run drops it.
    if None in lines[: len(lines) - (not is_finished)]:
        raise RunError(f"{path}: line {lines.index(None) + 1} of {len(lines)} is damaged.")


def _check_checkpoint(opened: run.Run, folder: Path) -> None:
    meta = checkpoint.read_meta(folder, tokenizer_hash=opened.info.tokenizer_hash)
    for name in meta.file_hashes:
        checkpoint.load_arrays(folder, name, meta)
