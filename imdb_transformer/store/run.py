"""A run directory: what a training and `eval` write. It still predicts when moved to another machine.

"Files of a run" in `cli/README.md` says what each of its files is.
"""

import json
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from imdb_transformer import __version__, config_file
from imdb_transformer.config import Config
from imdb_transformer.errors import ConfigError, RunError, command_line
from imdb_transformer.store.files import current_folder, new_folder, read_json, sha256_of, write_json
from imdb_transformer.store.locks import locked

INFO, CONFIG, ENVIRONMENT, SOFT_LABELS = "run.json", "config.toml", "environment.json", "soft_labels.npy"
CARD, CARD_MARK = "README.md", b"library_name: imdb-tx"  # the model card, and what is in it
VERSIONED = ("torch", "tokenizers", "datasets", "numpy", "scikit-learn", "safetensors", "pyarrow")

Status = Literal["running", "interrupted", "diverged", "finished"]
CheckpointName = Literal["best", "last", "previous"]
LAST: Final = "last"
PREVIOUS: Final = "previous"
SHIPPED = Path(__file__).parent.parent / "shipped"  # runs that come with the package, by name
AUTO, SHIPPED_ENCODER, SHIPPED_CLASSIFIER = "auto", "imdb-encoder", "imdb"  # `auto` is one of the two

# An encoder pretrained on text alone, a classifier on top of an encoder, or a linear baseline.
Kind = Literal["encoder", "classifier", "linear"]
Weighting = Literal["nb", "tfidf"]

NO_RUN = "There is no run {}. `imdb-tx runs` lists runs, and `imdb-tx train` makes one."
# Keys of [model] that may differ between pretraining and fine-tuning: the encoder's weights fit either value.
FREE_MODEL_KEYS = {"dropout", "word_dropout", "dropout_mask", "embedding_std"}
COMMANDS: dict[Kind, str] = {"classifier": "train", "encoder": "pretrain"}  # those with --resume


class RunInfo(BaseModel, extra="forbid", frozen=True):
    """`run.json`: what a run is, and its status."""

    kind: Kind
    weighting: Weighting | None = None  # of a linear model's n-grams
    status: Status
    started: str
    ended: str = ""
    classes: tuple[str, ...]
    vocab_size: int  # of the tokenizer, or of a linear model's n-grams
    corpus_hash: str
    tokenizer_hash: str  # of the tokenizer, or of the n-grams; it changes if some text may get other ids
    file_hashes: dict[str, str]
    """of the files that were written once: config, vocabulary, environment, soft labels"""
    requested_hash: str = ""
    """of the config that was asked for, before `auto` and 0 became values that suit the reviews"""
    origin_hash: str = ""  # of each checkpoint that it started from or learnt from; empty if there are none
    teachers: tuple[str, ...] = ()
    """runs whose predictions for the unlabelled reviews it learnt, or for an encoder: whose features"""
    temperature: float = 1.0  # divides the logits of the best checkpoint
    characters_per_piece: float = 0.0  # of the training reviews, by its tokenizer; 0 for a linear model
    pruned: bool = False  # whether `last` and `previous` were deleted, to save space
    counters: dict[str, Any] | None = None
    """those of the last step, for runs without a checkpoint `last`: pruned runs and linear ones"""


class Run(NamedTuple):
    """An open run directory."""

    folder: Path
    config: Config
    info: RunInfo

    @property
    def checkpoints(self) -> Path:
        """Folder to write checkpoints to."""
        return self.folder / "checkpoints"

    @property
    def is_shipped(self) -> bool:
        """Whether it comes with the package. Nothing is written there."""
        return self.folder.parent == SHIPPED

    @property
    def reports(self) -> Path:
        """Folder for reports about a run: the run's; for a run of the package, runs/NAME."""
        return Path("runs") / self.folder.name if self.is_shipped else self.folder

    def checkpoint(self, name: CheckpointName) -> Path:
        """Folder to read a checkpoint from, also while it is being replaced."""
        former = self.checkpoints / PREVIOUS if name == LAST else None
        return current_folder(self.checkpoints / name, former=former)

    def temperature_of(self, checkpoint: Path) -> float:
        """The divisor of a checkpoint's logits. It is fitted for `best` only, and 1 for the others."""
        return self.info.temperature if checkpoint.name.strip(".").startswith("best") else 1.0

    def write_status(self, status: Status) -> "Run":
        """The run with its new status written to disk."""
        return self.write_info(status=status, ended="" if status == "running" else _now())

    def write_info(self, **changes: Any) -> "Run":
        """The run with other values in its `RunInfo`, written to disk."""
        info = self.info.model_copy(update=changes)
        write_json(self.folder / INFO, info)
        return self._replace(info=info)


def has_other_readme(folder: Path) -> bool:
    """Whether a folder has a README.md that is no model card: one of the user's own."""
    path = folder / CARD
    return path.exists() and CARD_MARK not in path.read_bytes()


def check_free(folder: Path) -> None:
    """Raises RunError if a folder is a file or not empty, or if a run's folder cannot replace it."""
    if folder.is_file():
        raise RunError(f"{folder} is a file; name another --run-dir.")
    if folder.exists() and any(folder.iterdir()):
        advice = ""
        with suppress(RunError):
            info = open_info(folder)
            if info.kind in COMMANDS and info.status in ("running", "interrupted"):
                command = command_line(COMMANDS[info.kind], "--resume", folder)
                with locked(folder):  # RunError if another process is training in it
                    advice = f"continue it with `{command}`, or "
        raise RunError(f"{folder} is not empty; {advice}name another --run-dir.")
    if folder.is_symlink() or folder.is_mount() or folder.resolve() == Path.cwd():
        raise RunError(f"{folder} cannot become a run; name a folder inside it: --run-dir {folder / 'run'}.")


@contextmanager
def create(
    folder: Path, config: Config, *, save_vocabulary: Callable[[Path], None], hardware: str,
    soft_labels: NDArray[np.float32] | None = None, **fields: Any,
) -> Iterator[Run]:  # fmt: skip
    """Yields a new run, to write its first checkpoint. It comes to `folder` at the end, whole or not at all.

    `fields` are those of its `RunInfo`: kind, classes, tokenizer_hash and so on. Raises RunError if the
    folder holds something.
    """
    check_free(folder)
    with new_folder(folder) as temporary:
        if soft_labels is not None:
            np.save(temporary / SOFT_LABELS, soft_labels, allow_pickle=False)
        (temporary / CONFIG).write_text(config_file.dump(config), encoding="utf-8")
        (temporary / ENVIRONMENT).write_text(json.dumps(_environment(hardware), indent=1))
        save_vocabulary(temporary)
        hashes = {path.name: sha256_of(path) for path in sorted(temporary.iterdir())}
        info = RunInfo(status="running", started=_now(), file_hashes=hashes, **fields)
        write_json(temporary / INFO, info)
        yield Run(temporary, config, info)


def _environment(hardware: str) -> dict[str, Any]:
    versions = {"imdb-tx": __version__} | {name: metadata.version(name) for name in VERSIONED}
    system = {"platform": platform.platform(), "python": platform.python_version()}
    return {"command": sys.argv, "hardware": hardware, **system, "versions": versions}


def open_info(folder: Path) -> RunInfo:
    """The `run.json` in a folder. Raises RunError if it is missing or damaged."""
    path = folder / INFO
    try:
        return read_json(path, RunInfo)
    except (FileNotFoundError, NotADirectoryError):
        problem = f"{folder} is not a run: it has no {INFO}." if folder.exists() else NO_RUN.format(folder)
        raise RunError(problem) from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise RunError(f"{path} is damaged, or another version of imdb-tx wrote it.") from None


def open_run(folder: Path) -> Run:
    """The run in a folder. If the folder does not exist, the run of the package with this name.

    Raises RunError if there is no run, or if it is damaged.
    """
    if folder.name in ("", ".."):  # such as `.`: its name is shown, and its neighbours are looked for
        folder = folder.resolve()
    if not (folder / INFO).exists() and any((SHIPPED / folder / name).exists() for name in (INFO, CONFIG)):
        folder = SHIPPED / folder
    info = open_info(folder)
    path = folder / CONFIG
    check_file(folder, info, CONFIG)
    try:
        return Run(folder, config_file.parse(config_file.read(path), origin=str(path)), info)
    except ConfigError as error:
        raise RunError(f"{folder} was made by another version of imdb-tx: {error}") from None


def of_package(name: str) -> Path:
    """The run of the package with this name, even if the working directory has a run that is called so."""
    return SHIPPED / name if (Path(name) / INFO).exists() else Path(name)


def check_file(folder: Path, info: RunInfo, name: str) -> None:
    """Raises RunError if a file of `info.file_hashes` is missing or changed. May raise PermissionError."""
    path = folder / name
    try:
        if sha256_of(path) != info.file_hashes.get(name):
            raise RunError(f"{path} has changed since it was written: its checksum is not the one in {INFO}.")
    except PermissionError:
        raise
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from None


def is_checkpoint(path: Path) -> bool:
    """Whether a path names a checkpoint. The folder of a run may have the same name."""
    has_its_name = path.parent.name == "checkpoints" and path.name in get_args(CheckpointName)
    return has_its_name and not (path / INFO).exists()


def locate(path: Path) -> tuple[Run, Path]:
    """The run and checkpoint that a path names: a run (its best checkpoint) or one of its checkpoints."""
    if not is_checkpoint(path):
        run = open_run(path)
        return run, run.checkpoint("best")
    run = open_run(path.parent.parent)
    if run.info.pruned and path.name != "best":
        raise RunError(f"{path} was deleted to free space. {run.folder} has its best checkpoint only.")
    return run, run.checkpoints / path.name


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
