"""The training loop: everything between a prepared task and a finished run, readable in one scroll.

What a step does is a function of (config, step): the batch plan of (seed, epoch), the learning rate of
the step, dropout of (seed, step). So `last` holds tensors and a few counters, and a run that continues
from it is the run that was never interrupted, bit for bit.

The words: a `Task` is a model, the reviews that it learns and the objective; a `Plan` says which reviews
each step reads; a `Learner` is the model with its optimisers and moving average; `Counters` say how far a
run has come; the `Keeper` writes its metrics and checkpoints.
"""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel

from imdb_transformer.distributed import ALONE, World
from imdb_transformer.errors import DivergedError
from imdb_transformer.evaluation.calibration import calibrate
from imdb_transformer.evaluation.scores import Score
from imdb_transformer.hardware import Hardware
from imdb_transformer.store import checkpoint, metrics, run
from imdb_transformer.store.run import Kind
from imdb_transformer.training.checkpoints import (
    Counters,
    Keeper,
    check_space,
    counters_of,
    judged,
    load_checkpoint,
    out_of_patience,
    repair,
    save_last,
    settle_on_previous,
)
from imdb_transformer.training.plan import gather, make_plan
from imdb_transformer.training.prepare import Prepared
from imdb_transformer.training.schedule import learning_rate
from imdb_transformer.training.step import Learner, StepResult, all_finite, make_learner, train_step
from imdb_transformer.training.stop import StopRequest
from imdb_transformer.training.task import Task


class Update(NamedTuple):
    """What the loop tells after each step."""

    step: int
    num_steps: int
    epoch: int
    result: StepResult
    tokens_per_second: float
    validation: Score | None = None
    saved: bool = False


class TrainingResult(BaseModel):
    """How a run ended."""

    run: str
    kind: Kind
    best_step: int
    num_steps: int
    validation: Score | None
    train_seconds: float
    tokens_per_second: float


def start(folder: Path, prepared: Prepared, hardware: Hardware, *, origin_hash: str = "") -> run.Run:
    """A new run directory for `train` to work in; the model's initial weights are its first checkpoint.

    Raises ResourceError where the disk could not take its checkpoints.
    """
    config, data = prepared.config, prepared.data
    learner = make_learner(prepared.task.model, config.train)
    check_space(folder, learner)
    return run.create(
        folder,
        config,
        kind=prepared.kind,
        vocabulary=data.tokenizer,
        classes=data.corpus.manifest.classes,
        corpus_hash=data.corpus.content_hash,
        hardware=hardware.describe(),
        soft_labels=prepared.soft_labels,
        origin_hash=origin_hash,
        fill=lambda new: save_last(new, learner, Counters()),
    )


def train(
    current: run.Run, task: Task, hardware: Hardware, stop: StopRequest, world: World = ALONE,
    *, begin_from: Literal["last", "previous"] = "last",
) -> Iterator[Update]:  # fmt: skip
    """Trains from the run's last checkpoint, or the one before it, to the end; yields after each step.

    Raises Interrupted after saving when `stop` asks for it, and DivergedError when loss or gradient is
    not finite; `checkpoints/last` is then what it was. The run's status on disk says how it ended. Of several
    processes that train together the first writes, and all stop after the same step.
    """
    config, options = current.config, current.config.train
    learner = make_learner(task.model.train(), options)
    plan = make_plan(config, task.train)
    counters = _resumed(current, begin_from, learner, world)
    keeper = Keeper(current, learner, world.is_first)
    keeper.mark("running")
    clock_start = time.perf_counter() - counters.train_seconds

    while counters.step < plan.num_steps and not out_of_patience(config, counters):
        # --- one step
        step, began = counters.step, time.perf_counter()
        epoch = plan.of_step(step)[-1][0]
        batches = [gather(task.train, indices, hardware, world) for _, indices in plan.of_step(step)]
        lr = learning_rate(options, step, plan.num_steps)
        try:
            result = train_step(
                learner, batches, task.objective, options, hardware, step=step, lr=lr, world=world
            )
        except DivergedError as error:
            where = f"batch {step * options.accumulate + 1} of {len(plan.batches)}, epoch {epoch + 1}"
            raise keeper.diverged(step + 1, f"{error}, in {where}") from None
        now = time.perf_counter()
        counters = counters.model_copy(update={
            "step": step + 1,
            "num_tokens": counters.num_tokens + result.num_tokens,
            "step_seconds": counters.step_seconds + now - began,
            "train_seconds": now - clock_start,
        })  # fmt: skip
        keeper.log({"step": step + 1, "epoch": epoch, "lr": lr, "loss": result.loss, **result.figures,
                    "gradient_norm": result.gradient_norm, "num_tokens": result.num_tokens})  # fmt: skip
        update = Update(step + 1, plan.num_steps, epoch, result, result.num_tokens / (now - began))

        # --- validation, and the checkpoints
        if step + 1 in plan.eval_steps or step + 1 == plan.num_steps:
            validation = _validated(task, learner, keeper, step + 1, lr)
            counters = judged(options.best_by, counters, validation)
            counters = counters.model_copy(update={"train_seconds": time.perf_counter() - clock_start})
            keeper.keep(counters)
            update = update._replace(validation=validation, saved=True)
        yield update

        # --- asked to stop
        signal = next(filter(None, world.gathered(stop.signal)), None)
        if signal is not None and counters.step < plan.num_steps and all_finite(learner.averaged):
            stopped = keeper.interrupted(counters, plan.num_steps, signal)
            world.wait()  # none leaves before the first has written
            raise stopped
    if world.is_first:
        calibrate(current).with_status("finished")
    world.wait()


def _validated(task: Task, learner: Learner, keeper: Keeper, step: int, lr: float) -> Score | None:
    """The score on validation, if there is any. Raises DivergedError where it or a weight is not finite."""
    validation = task.validate(learner.averaged) if task.validate else None
    at = f"step {step}, at rate {lr:.3g}, gives"
    if validation and not math.isfinite(validation.loss):
        raise keeper.diverged(step, f"{at} validation loss {validation.loss:g}")
    if not all_finite(learner.averaged):
        raise keeper.diverged(step, f"{at} weights that are not finite")
    if validation:
        keeper.log({"step": step, "validation": validation.model_dump()})
    return validation


def _resumed(
    current: run.Run, begin_from: Literal["last", "previous"], learner: Learner, world: World
) -> Counters:
    """The learner and its counters where a checkpoint was saved, after undoing a write that was killed."""
    if world.is_first:
        check_space(current.folder, learner)
        repair(current)
    world.wait()
    counters = load_checkpoint(current, begin_from, learner)
    world.wait()  # all have read before the first one writes
    if world.is_first:
        if begin_from == run.PREVIOUS:
            settle_on_previous(current)
        metrics.drop_after(current.folder, counters.step)
    return counters


def result_of(current: run.Run) -> TrainingResult:
    """How a run ended, from its last checkpoint."""
    meta = checkpoint.read_meta(current.checkpoint("last"), tokenizer_hash=current.info.tokenizer_hash)
    counters = counters_of(meta)
    return TrainingResult(
        run=str(current.folder),
        kind=current.info.kind,
        best_step=counters.best_step,
        num_steps=counters.step,
        validation=counters.best,
        train_seconds=round(counters.train_seconds, 3),
        tokens_per_second=round(counters.num_tokens / max(counters.step_seconds, 1e-9), 1),
    )
