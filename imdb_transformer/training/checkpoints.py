"""The state of a training on disk: its counters, its best score, and the checkpoints of a run.

If several processes train the run, only the first one writes.
"""

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from torch import Tensor

from imdb_transformer.config import Config
from imdb_transformer.distributed import World
from imdb_transformer.errors import ResourceError, RunError
from imdb_transformer.evaluation.scores import Score
from imdb_transformer.store import checkpoint, metrics, run, tensorboard
from imdb_transformer.store.checkpoint import Arrays
from imdb_transformer.store.files import recover_folder
from imdb_transformer.training.step import Learner, load_state, training_state


class Counters(BaseModel, extra="forbid", frozen=True):
    """How far a run has come; with the tensors of `last`, all that the next step depends on."""

    step: int = 0
    best_step: int = 0
    best: Score | None = None
    num_evals_since_best: int = 0
    num_tokens: int = 0
    step_seconds: float = 0.0
    train_seconds: float = 0.0

    def after_step(self, num_tokens: int, step_seconds: float, train_seconds: float) -> "Counters":
        """The counters after one more step."""
        return self.model_copy(update={
            "step": self.step + 1,
            "num_tokens": self.num_tokens + num_tokens,
            "step_seconds": self.step_seconds + step_seconds,
            "train_seconds": train_seconds,
        })  # fmt: skip


def judged(best_by: str, counters: Counters, validation: Score | None) -> Counters:
    """The counters after a validation. Only a strictly better score is best; a tie keeps the earlier one."""
    if (
        validation is None
        or counters.best is None
        or best_by == "last"
        or counters.step == counters.best_step
    ):
        better = True
    elif best_by == "f1" and validation.f1 is not None and counters.best.f1 is not None:
        better = validation.f1 > counters.best.f1
    elif best_by != "loss":
        better = validation.accuracy > counters.best.accuracy
    else:
        better = validation.loss < counters.best.loss
    if better:
        changes: dict[str, Any] = {"best": validation, "best_step": counters.step, "num_evals_since_best": 0}
    else:
        changes = {"num_evals_since_best": counters.num_evals_since_best + 1}
    return counters.model_copy(update=changes)


def out_of_patience(config: Config, counters: Counters) -> bool:
    """Whether `train.patience` validations have passed without improvement."""
    return 0 < config.train.patience <= counters.num_evals_since_best


def mark(current: run.Run, status: run.Status, world: World) -> None:
    """Writes the run's status."""
    if world.is_first:
        current.with_status(status)


def write_metrics(current: run.Run, lines: list[dict[str, Any]], world: World) -> None:
    """Appends the lines to the run's metrics, and empties the list."""
    if world.is_first and lines:
        metrics.append(current.folder, lines)
        if current.config.train.tensorboard:
            tensorboard.append(current.folder, lines)
    lines.clear()


def save(
    current: run.Run, learner: Learner, counters: Counters, lines: list[dict[str, Any]], world: World
) -> None:
    """Writes the state after a step: lines of metrics, then `best` if this step is the best, then `last`."""
    write_metrics(current, lines, world)
    if world.is_first:
        if counters.best_step == counters.step:
            save_best(current, learner, counters)
        save_last(current, learner, counters)


def save_best(current: run.Run, learner: Learner, counters: Counters) -> None:
    checkpoint.save(
        current.checkpoints / "best",
        step=counters.step,
        counters=counters.model_dump(),
        tokenizer_hash=current.info.tokenizer_hash,
        model=checkpoint.arrays_of(learner.averaged.state_dict()),
    )


def save_last(current: run.Run, learner: Learner, counters: Counters) -> None:
    """Writes `last`; the one before becomes `previous`."""
    checkpoint.save(
        current.checkpoints / run.LAST,
        step=counters.step,
        counters=counters.model_dump(),
        tokenizer_hash=current.info.tokenizer_hash,
        model=checkpoint.arrays_of(learner.averaged.state_dict()),
        training=checkpoint.arrays_of(training_state(learner)),
        former=current.checkpoints / run.PREVIOUS,
    )


def resume(current: run.Run, name: run.CheckpointName, learner: Learner, world: World) -> Counters:
    """Loads a checkpoint into the learner and returns its counters. Repairs a write that was killed first."""
    if world.is_first:
        check_space(current.folder, learner)
        repair(current)
    world.wait()
    counters = load_checkpoint(current, name, learner)
    world.wait()  # all have read before the first one writes
    if world.is_first:
        if name == run.PREVIOUS:
            settle_on_previous(current)
        metrics.drop_after(current.folder, counters.step)
        if current.config.train.tensorboard:
            tensorboard.write_again(current.folder, metrics.read(current.folder))
    return counters


def repair(current: run.Run) -> None:
    """Finishes or undoes the renames that a kill came between."""
    recover_folder(current.checkpoints / "best")
    recover_folder(current.checkpoints / run.LAST, former=current.checkpoints / run.PREVIOUS)


def settle_on_previous(current: run.Run) -> None:
    """Renames `previous` to `last`: training continues from it, and the next save makes a new `previous`."""
    if (current.checkpoints / run.PREVIOUS).exists():
        shutil.rmtree(current.checkpoints / run.LAST)
        repair(current)


def load_checkpoint(current: run.Run, name: run.CheckpointName, learner: Learner) -> Counters:
    """Loads a checkpoint into the learner and returns its counters.

    If a user deleted a damaged `last`, `previous` has been renamed to `last`, and either name loads it.
    Raises RunError if the checkpoint cannot be loaded. The message then names `previous`, if that is whole.
    """
    moved = name == run.PREVIOUS and not (current.checkpoints / name).exists()
    try:
        counters, weights, state = _read(current, current.checkpoint(run.LAST if moved else name), learner)
    except RunError as error:
        raise RunError(f"{error}{_offer(current, learner) if name == run.LAST else ''}") from None
    load_state(learner, weights, state, step=counters.step)
    return _with_best(current, counters)


def _with_best(current: run.Run, counters: Counters) -> Counters:
    """The counters with the score of `best`, if a kill came after `best` was written and before `last`.

    The steps after it are taken again and may differ, for example with another number of processes.
    """
    try:
        meta = checkpoint.read_meta(current.checkpoint("best"), tokenizer_hash=current.info.tokenizer_hash)
    except RunError:
        return counters  # no step was the best yet
    if meta.step <= counters.step:
        return counters
    ahead = counters_of(meta)
    return counters.model_copy(update={"best": ahead.best, "best_step": ahead.best_step})


def check_space(folder: Path, learner: Learner) -> None:
    """Raises ResourceError if the disk has no room for a run's checkpoints while one replaces another."""
    model = _num_bytes(learner.averaged.state_dict())
    whole = model + _num_bytes(training_state(learner))
    needed = 2 * model + 3 * whole  # best and its successor; last, its successor and the one before
    used = sum(file.stat().st_size for file in folder.glob("checkpoints/*/*") if file.is_file())
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free + used < needed:
        raise ResourceError(
            f"Not enough disk space for {folder}: its checkpoints need up to {needed / 2**20:,.0f} MiB, and "
            f"{free / 2**20:,.0f} MiB are free."
        )


def _read(current: run.Run, folder: Path, learner: Learner) -> tuple[Counters, Arrays, Arrays]:
    """Counters, weights and training state of a checkpoint that fits the learner. Raises RunError."""
    meta = checkpoint.read_meta(folder, tokenizer_hash=current.info.tokenizer_hash)
    weights = checkpoint.load_arrays(folder, checkpoint.MODEL, meta)
    checkpoint.check_same(learner.averaged.state_dict(), weights, origin=folder)
    state = checkpoint.load_arrays(folder, checkpoint.TRAINING, meta)
    checkpoint.check_same(training_state(learner), state, origin=folder)
    return counters_of(meta), weights, state


def _offer(current: run.Run, learner: Learner) -> str:
    """How to continue from `previous`; empty if it is not whole."""
    path = current.checkpoints / run.PREVIOUS
    try:
        counters, _, _ = _read(current, path, learner)
    except RunError:
        return ""
    command = run.COMMANDS[current.info.kind]
    return (
        f" The checkpoint before it, of step {counters.step:,}, is whole; continue from it with: "
        f"imdb-tx {command} --resume {shlex.quote(str(path))}"
    )


def _num_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def counters_of(meta: checkpoint.Checkpoint) -> Counters:
    """The counters of a checkpoint. Raises RunError if another version of the program wrote them."""
    try:
        return Counters.model_validate(meta.counters)
    except ValidationError:
        raise RunError("The checkpoint's counters are not those of this version of imdb-tx.") from None
