"""Whether every file of a run is what it was when it was written."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from imdb_transformer import checkpoint, metrics, run
from imdb_transformer.errors import RunError
from imdb_transformer.inference.encoder import tokenizer_of
from imdb_transformer.inference.linear import Ngrams


class Verdict(NamedTuple):
    """One part of a run, and what is wrong with it, if anything is."""

    part: str
    problem: str = ""


def verify(folder: Path) -> list[Verdict]:
    """Checks config, vocabulary, soft labels, metrics and every checkpoint that is there against its hash.

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
    for path in sorted((folder / "checkpoints").glob("[!.]*")):
        checks[f"checkpoints/{path.name}"] = lambda path=path: _check_checkpoint(opened, path)  # type: ignore[misc]
    return [_verdict(part, check) for part, check in checks.items()]


def _verdict(part: str, check: Callable[[], object]) -> Verdict:
    try:
        check()
    except RunError as error:
        return Verdict(part, str(error))
    return Verdict(part)


def _check_vocabulary(opened: run.Run) -> None:
    if opened.info.kind not in ("tfidf", "nb"):
        tokenizer_of(opened)
    elif Ngrams.load(opened.folder).content_hash != opened.info.tokenizer_hash:
        raise RunError(f"The n-grams of {opened.folder} are not those that it was fitted with.")


def _check_metrics(opened: run.Run) -> None:
    path = opened.folder / metrics.FILE_NAME
    if not path.exists():
        return
    try:
        num_lines = len(path.read_text(encoding="utf-8").splitlines())
    except UnicodeDecodeError:
        raise RunError(f"{path} is damaged: not UTF-8.") from None
    num_whole = len(metrics.read(opened.folder))
    if num_whole < num_lines:
        raise RunError(f"{path}: line {num_whole + 1} of {num_lines} is damaged.")


def _check_checkpoint(opened: run.Run, folder: Path) -> None:
    meta = checkpoint.read_meta(folder, tokenizer_hash=opened.info.tokenizer_hash)
    for name in meta.file_hashes:
        checkpoint.load_tensors(folder, name, meta)
