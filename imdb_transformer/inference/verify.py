"""Whether every file of a run is what it was when it was written."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, get_args

from imdb_transformer.errors import RunError
from imdb_transformer.inference.linear import Ngrams
from imdb_transformer.inference.transformer import tokenizer_of
from imdb_transformer.store import checkpoint, metrics, run


class Verdict(NamedTuple):
    """One part of a run, and what is wrong with it, if anything is."""

    part: str
    problem: str = ""


def verify(folder: Path) -> list[Verdict]:
    """Checks config, vocabulary, soft labels and every checkpoint against its hash, and metrics to be JSON.

    Raises RunError where the folder is no run, or its own description is damaged.
    """
    opened = run.open_run(folder)
    checks: dict[str, Callable[[], object]] = {
        "config.toml and run.json": lambda: opened,
        "vocabulary": lambda: _check_vocabulary(opened),
        "metrics.jsonl": lambda: _check_metrics(opened),
    }
    if opened.info.soft_labels_hash:
        checks["soft_labels.npy"] = lambda: run.soft_labels_of(opened)
    there = {path.name for path in opened.checkpoints.glob("[!.]*")}
    for name in sorted(there | _needed(opened.info)):
        # In a run that was killed, one may still have its former name.
        moved = opened.info.status != "finished" and name in get_args(run.CheckpointName)
        path = opened.checkpoint(name) if moved else opened.checkpoints / name  # type: ignore[arg-type]
        checks[f"checkpoints/{name}"] = lambda path=path: _check_checkpoint(opened, path)  # type: ignore[misc]
    return [_verdict(part, check) for part, check in checks.items()]


def _needed(info: run.RunInfo) -> set[str]:
    """The checkpoints that a run must have."""
    if info.is_linear:
        return {"best"}
    return {"best", "last"} if info.status == "finished" else {"last"}


def _verdict(part: str, check: Callable[[], object]) -> Verdict:
    try:
        check()
    except RunError as error:
        return Verdict(part, str(error))
    return Verdict(part)


def _check_vocabulary(opened: run.Run) -> None:
    if not opened.info.is_linear:
        tokenizer_of(opened)
    elif Ngrams.load(opened.folder).content_hash != opened.info.tokenizer_hash:
        raise RunError(f"The n-grams of {opened.folder} are not those that it was fitted with.")


def _check_metrics(opened: run.Run) -> None:
    path = opened.folder / metrics.FILE_NAME
    if not path.exists():
        if opened.info.status == "finished" and not opened.info.is_linear:
            raise RunError(f"{path} is missing.")
        return
    try:
        num_lines = len(path.read_text(encoding="utf-8").splitlines())
    except UnicodeDecodeError:
        raise RunError(f"{path} is damaged: not UTF-8.") from None
    num_whole = len(metrics.read(opened.folder))
    # A line that a crash or a full disk cut short is the last one, and a run that goes on forgets it.
    if num_whole < num_lines - (opened.info.status != "finished"):
        raise RunError(f"{path}: line {num_whole + 1} of {num_lines} is damaged.")


def _check_checkpoint(opened: run.Run, folder: Path) -> None:
    meta = checkpoint.read_meta(folder, tokenizer_hash=opened.info.tokenizer_hash)
    for name in meta.file_hashes:
        checkpoint.load_tensors(folder, name, meta)
