"""A run directory: everything that one training made, complete enough to predict on another machine.

config.toml        the whole resolved config
tokenizer.json     text to ids (a linear model: ngrams.txt)
run.json           what it is and how far it came (`RunInfo`)
environment.json   versions, hardware, command line
metrics.jsonl      one JSON object a step and a validation
soft_labels.npy    what a teacher said of the unlabelled reviews, where there was one
checkpoints/best   the weights to use
checkpoints/last   what `--resume` continues from;  checkpoints/previous   the one before it
evaluation/        what `imdb-tx eval` found, a JSON file a split
"""

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from imdb_transformer import config_file
from imdb_transformer.config import Config
from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.store.environment import describe
from imdb_transformer.store.files import current_folder, new_folder, sha256_of
from imdb_transformer.store.sealed import read_sealed, write_sealed

INFO, CONFIG, ENVIRONMENT = "run.json", "config.toml", "environment.json"
SOFT_LABELS = "soft_labels.npy"

Status = Literal["running", "interrupted", "diverged", "finished"]
CheckpointName = Literal["best", "last", "previous"]
LAST: Final = "last"
PREVIOUS: Final = "previous"

# An encoder pretrained on text alone, a classifier on top of an encoder, or a linear baseline.
Kind = Literal["encoder", "classifier", "linear"]
Weighting = Literal["nb", "tfidf"]

COMMANDS: dict[Kind, str] = {"classifier": "train", "encoder": "pretrain"}  # those that --resume


class RunInfo(BaseModel):
    """What a run is, and how far it came."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind = "classifier"
    weighting: Weighting | None = None
    """of a linear model's n-grams"""
    status: Status
    started: str
    ended: str = ""
    classes: tuple[str, ...]
    vocab_size: int
    corpus_hash: str
    tokenizer_hash: str
    config_hash: str = ""
    soft_labels_hash: str = ""
    origin_hash: str = ""
    """of the checkpoints that it started from and was taught by, where there were any"""
    temperature: float = 1.0
    """what the best checkpoint's logits are divided by"""

    @property
    def is_linear(self) -> bool:
        """Whether it is a linear model over n-grams of words, not an encoder."""
        return self.kind == "linear"


class Vocabulary(Protocol):
    """What turns text into what a model counts or embeds: our tokenizer, or a linear model's n-grams."""

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""

    @property
    def content_hash(self) -> str:
        """Differs whenever some text may become other ids."""

    def save(self, folder: Path) -> None:
        """Writes it into a run's folder."""


class Run(NamedTuple):
    """An open run directory."""

    folder: Path
    config: Config
    info: RunInfo

    @property
    def checkpoints(self) -> Path:
        """Folder to write checkpoints to."""
        return self.folder / "checkpoints"

    def checkpoint(self, name: CheckpointName) -> Path:
        """Folder to read a checkpoint from, also while it is being replaced."""
        former = self.checkpoints / PREVIOUS if name == LAST else None
        return current_folder(self.checkpoints / name, former=former)

    def temperature_of(self, checkpoint: Path) -> float:
        """What a checkpoint's logits are divided by: fitted for `best`; `last` is a state of training."""
        return self.info.temperature if checkpoint.name.strip(".").startswith("best") else 1.0

    def with_status(self, status: Status) -> "Run":
        """The run with its new status written to disk."""
        ended = "" if status == "running" else _now()
        info = self.info.model_copy(update={"status": status, "ended": ended})
        write_sealed(self.folder / INFO, info)
        return self._replace(info=info)

    def with_temperature(self, temperature: float) -> "Run":
        """The run with its temperature written to disk."""
        info = self.info.model_copy(update={"temperature": temperature})
        write_sealed(self.folder / INFO, info)
        return self._replace(info=info)


def check_free(folder: Path) -> None:
    """Raises RunError where a folder already holds something, or cannot give its place to a run's."""
    if folder.exists() and any(folder.iterdir()):
        raise RunError(
            f"{folder} is not empty; continue it with --resume {folder}, or name another --run-dir."
        )
    if folder.is_symlink() or folder.is_mount() or folder.resolve() == Path.cwd():
        raise RunError(
            f"{folder} cannot become a run itself; name a folder in it: --run-dir {folder / 'run'}."
        )


def create(
    folder: Path,
    config: Config,
    *,
    kind: Kind = "classifier",
    weighting: Weighting | None = None,
    vocabulary: Vocabulary,
    classes: tuple[str, ...],
    corpus_hash: str,
    hardware: str,
    soft_labels: NDArray[np.float32] | None = None,
    origin_hash: str = "",
    fill: Callable[[Run], None],
) -> Run:
    """A new run directory, there whole or not at all; `fill` writes its first checkpoint.

    Raises RunError where the folder holds something.
    """
    check_free(folder)
    info = RunInfo(
        kind=kind,
        weighting=weighting,
        status="running",
        started=_now(),
        classes=classes,
        vocab_size=vocabulary.vocab_size,
        corpus_hash=corpus_hash,
        tokenizer_hash=vocabulary.content_hash,
        origin_hash=origin_hash,
    )
    with _free(folder), new_folder(folder) as temporary:
        if soft_labels is not None:
            np.save(temporary / SOFT_LABELS, soft_labels, allow_pickle=False)
            info = info.model_copy(update={"soft_labels_hash": sha256_of(temporary / SOFT_LABELS)})
        (temporary / CONFIG).write_text(config_file.dump(config), encoding="utf-8")
        info = info.model_copy(update={"config_hash": sha256_of(temporary / CONFIG)})
        (temporary / ENVIRONMENT).write_text(json.dumps(describe(hardware), indent=1))
        write_sealed(temporary / INFO, info)
        vocabulary.save(temporary)
        (temporary / "checkpoints").mkdir()
        fill(Run(temporary, config, info))
    return Run(folder, config, info)


@contextmanager
def _free(folder: Path) -> Iterator[None]:
    """Says so where another command has made a run in the folder meanwhile."""
    try:
        yield
    except OSError as error:
        is_there = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
        if not is_there or str(folder) not in (error.filename, error.filename2):
            raise
        raise RunError(f"Another command has made {folder} meanwhile; name another --run-dir.") from None


def open_run(folder: Path) -> Run:
    """The run in a folder. Raises RunError where there is none or it is damaged."""
    path = folder / INFO
    try:
        info = read_sealed(path, RunInfo)
    except FileNotFoundError:
        raise RunError(f"{folder} is no run: it has no {INFO}.") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise RunError(f"{path} is damaged.") from None
    try:
        if info.config_hash and sha256_of(folder / CONFIG) != info.config_hash:
            raise RunError(
                f"{folder / CONFIG} is not as it was written: a run keeps the config of its making."
            )
        config = config_file.parse(config_file.read(folder / CONFIG), origin=str(folder / CONFIG))
    except OSError as error:
        raise RunError(f"{folder / CONFIG} cannot be read: {error.strerror}.") from None
    except ConfigError as error:
        raise RunError(f"{folder} was made by another version of imdb-tx: {error}") from None
    return Run(folder, config, info)


def locate(path: Path) -> tuple[Run, Path]:
    """The run and checkpoint that a path names: a run (its best checkpoint) or one of its checkpoints."""
    if path.parent.name == "checkpoints" and path.name in get_args(CheckpointName):
        return open_run(path.parent.parent), path
    if not path.exists():
        raise RunError(f"There is no run {path}; `imdb-tx train` makes one under runs/.")
    run = open_run(path)
    return run, run.checkpoint("best")


def soft_labels_of(run: Run) -> NDArray[np.float32] | None:
    """What a run's teacher said, where it had one. Raises RunError where that is missing or damaged."""
    if not run.info.soft_labels_hash:
        return None
    path = run.folder / SOFT_LABELS
    if not path.exists() or sha256_of(path) != run.info.soft_labels_hash:
        raise RunError(f"{path} is missing or damaged.")
    labels: NDArray[np.float32] = np.load(path, allow_pickle=False)
    return labels


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
