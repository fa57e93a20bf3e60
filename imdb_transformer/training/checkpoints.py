"""The state of a training on disk: its counters, its best score, and the checkpoints of a run.

If several processes train the run, only the first one writes.
"""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from imdb_transformer.distributed import World
from imdb_transformer.errors import ResourceError, RunError, command_line
from imdb_transformer.evaluation.scores import Score
from imdb_transformer.store import checkpoint, metrics, run
from imdb_transformer.store.checkpoint import Arrays
from imdb_transformer.store.files import recover_folder
from imdb_transformer.training.step import Learner, load_state, training_state


class Counters(BaseModel, extra="forbid", frozen=True):
    """Progress of a run. The next step depends on these numbers and the tensors of `last` only."""

    step: int = 0
    best_step: int = 0
    best: Score | None = None
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

    def after_validation(self, validation: Score | None, best_by: str) -> "Counters":
        """The counters after a validation. Only a better score is the new best; a tie keeps the earlier."""
        is_worse = (
            validation is not None and self.best is not None
            and best_by != "last"
            and self.step != self.best_step  # after a kill, the step of `best` may be taken once more
            and not _merit(validation, best_by) > _merit(self.best, best_by)
        )  # fmt: skip
        return self if is_worse else self.model_copy(update={"best": validation, "best_step": self.step})


def _merit(score: Score, best_by: str) -> float:
    """What is compared, larger if better. Guessed tokens have no F1."""
    if best_by == "loss":
        return -score.loss
    return score.f1 if best_by == "f1" and score.f1 is not None else score.accuracy


def write_metrics(opened: run.Run, lines: list[dict[str, Any]], world: World) -> None:
    """Appends the lines to the run's metrics, and empties the list."""
    if world.is_first and lines:
        metrics.append(opened.folder, lines)
    lines.clear()


def save(
    opened: run.Run, learner: Learner, counters: Counters, lines: list[dict[str, Any]], world: World
) -> None:
    """Writes the state after a step: lines of metrics, then `best` if this step is the best, then `last`."""
    write_metrics(opened, lines, world)
    if world.is_first:
        if counters.best_step == counters.step:
            save_checkpoint(opened, "best", learner, counters)
        save_checkpoint(opened, run.LAST, learner, counters)


def save_checkpoint(opened: run.Run, name: run.CheckpointName, learner: Learner, counters: Counters) -> None:
    """Writes `best`; or `last`, which has the training state too, and makes the one before it `previous`."""
    is_last = name == run.LAST
    checkpoint.save(
        opened.checkpoints / name,
        step=counters.step,
        counters=counters.model_dump(),
        tokenizer_hash=opened.info.tokenizer_hash,
        model=checkpoint.arrays_of(learner.averaged.state_dict()),
        training=checkpoint.arrays_of(training_state(learner)) if is_last else None,
        former=opened.checkpoints / run.PREVIOUS if is_last else None,
    )


def resume_from(opened: run.Run, name: run.CheckpointName, learner: Learner, world: World) -> Counters:
    """Loads a checkpoint into the learner and returns its counters. First repairs an interrupted write."""
    if world.is_first:
        check_space(opened.folder, learner)
        repair(opened)
    world.barrier()
    counters = load_checkpoint(opened, name, learner)
    world.barrier()  # all have read before the first one writes
    if world.is_first:
        if name == run.PREVIOUS and (opened.checkpoints / run.PREVIOUS).exists():
            shutil.rmtree(opened.checkpoints / run.LAST)
            repair(opened)  # `previous` becomes `last`
        metrics.drop_after(opened.folder, counters.step)
    return counters


def repair(opened: run.Run) -> None:
    """Finishes or undoes renames that a kill interrupted."""
    recover_folder(opened.checkpoints / "best")
    recover_folder(opened.checkpoints / run.LAST, former=opened.checkpoints / run.PREVIOUS)


def load_checkpoint(opened: run.Run, name: run.CheckpointName, learner: Learner) -> Counters:
    """Loads a checkpoint into the learner and returns its counters.

    If a user deleted a damaged `last`, `previous` has been renamed to `last`, and either name loads it.
    Raises RunError if the checkpoint cannot be loaded. The message then names `previous`, if that is whole.
    """
    moved = name == run.PREVIOUS and not (opened.checkpoints / name).exists()
    try:
        counters, weights, state = _read(opened, opened.checkpoint(run.LAST if moved else name), learner)
    except RunError as error:
        raise RunError(f"{error}{_hint_previous(opened, learner) if name == run.LAST else ''}") from None
    load_state(learner, weights, state)
    # A kill may come after `best` was written and before `last`. The score of `best` then counts: these steps
    # are taken again, and may differ, for example with another number of processes.
    with suppress(RunError):  # no step was the best yet
        best = checkpoint.read_meta(opened.checkpoint("best"), tokenizer_hash=opened.info.tokenizer_hash)
        if best.step > counters.step:
            ahead = counters_of(best.counters)
            return counters.model_copy(update={"best": ahead.best, "best_step": ahead.best_step})
    return counters


def check_space(folder: Path, learner: Learner) -> None:
    """Raises ResourceError if the disk has no room for a run's checkpoints while one replaces another."""
    model = sum(tensor.nbytes for tensor in learner.averaged.state_dict().values())
    whole = model + sum(tensor.nbytes for tensor in training_state(learner).values())
    needed = 2 * model + 3 * whole  # best and its successor; last, its successor and the one before
    used = sum(file.stat().st_size for file in folder.glob("checkpoints/*/*") if file.is_file())
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free + used < needed:
        raise ResourceError(
            f"Not enough disk space for {folder}: its checkpoints need up to {-(-needed // 2**20):,} MiB, "
            f"and {free // 2**20:,} MiB are free."
        )


def _read(opened: run.Run, folder: Path, learner: Learner) -> tuple[Counters, Arrays, Arrays]:
    """Counters, weights and training state of a checkpoint that fits the learner. Raises RunError."""
    meta = checkpoint.read_meta(folder, tokenizer_hash=opened.info.tokenizer_hash)
    weights = checkpoint.load_arrays(folder, checkpoint.MODEL, meta)
    checkpoint.check_shapes(learner.averaged.state_dict(), weights, origin=folder)
    state = checkpoint.load_arrays(folder, checkpoint.TRAINING, meta)
    checkpoint.check_shapes(training_state(learner), state, origin=folder)
    return counters_of(meta.counters), weights, state


def _hint_previous(opened: run.Run, learner: Learner) -> str:
    """A sentence that says how to continue from `previous`; empty if that is damaged."""
    path = opened.checkpoints / run.PREVIOUS
    try:
        counters, _, _ = _read(opened, path, learner)
    except RunError:
        return ""
    command = command_line(run.COMMANDS[opened.info.kind], "--resume", path)
    return f" The checkpoint before it, of step {counters.step:,}, is whole; continue from it with: {command}"


def counters_of(stored: dict[str, Any]) -> Counters:
    """The counters of a checkpoint. Raises RunError if another version of the program wrote them."""
    try:
        return Counters.model_validate(stored)
    except ValidationError:
        raise RunError("Another version of imdb-tx wrote this checkpoint.") from None
