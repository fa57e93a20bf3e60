"""Checks that every file of a run is as it was written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from imdb_transformer.errors import RunError
from imdb_transformer.store import checkpoint, metrics, run


def verify(folder: Path) -> dict[str, str]:
    """Each part of a run, and what is wrong with it: an empty text if it is whole.

    Raises RunError if the folder is no run, or if its run.json or config.toml is damaged, and
    PermissionError if a file may not be read.
    """
    opened = run.open_run(folder)
    hashes = opened.info.file_hashes
    problems = {name: _problem(run.check_file, opened.folder, opened.info, name) for name in hashes}
    if not opened.is_shipped:  # comes without
        problems[metrics.FILE_NAME] = _problem(_check_metrics, opened)
    names = {path.name for path in opened.checkpoints.glob("[!.]*")}
    for name in sorted(names | _required_checkpoints(opened)):
        # After a kill, a checkpoint of an unfinished run may still have its former name.
        may_move = opened.info.status != "finished" and name in get_args(run.CheckpointName)
        path = opened.checkpoint(name) if may_move else opened.checkpoints / name  # type: ignore[arg-type]
        problems[f"checkpoints/{name}"] = _problem(_check_checkpoint, opened, path)
    return problems


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
    if not path.exists():
        if is_finished and opened.info.kind != "linear":
            raise RunError(f"{path} is missing.")
        return
    try:
        num_lines = len(path.read_text(encoding="utf-8").splitlines())
    except UnicodeDecodeError:
        raise RunError(f"{path} is damaged: not UTF-8.") from None
    num_whole = len(metrics.read(opened.folder))
    # A crash or a full disk cuts the last line only, and a resumed run drops it.
    if num_whole < num_lines - (not is_finished):
        raise RunError(f"{path}: line {num_whole + 1} of {num_lines} is damaged.")


def _check_checkpoint(opened: run.Run, folder: Path) -> None:
    meta = checkpoint.read_meta(folder, tokenizer_hash=opened.info.tokenizer_hash)
    for name in meta.file_hashes:
        checkpoint.load_arrays(folder, name, meta)
