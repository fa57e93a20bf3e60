"""The training loop: every step from the first to the last, to read from top to bottom.

A step is a function of (config, reviews, step): the batch plan of (seed, epoch), the learning rate of the
step, dropout of (seed, step, rank). So the checkpoint `last` holds tensors and a few counters, and a run that
continues from it equals the run that was never interrupted, on a CPU bit for bit.
"""

import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from imdb_transformer.distributed import World, signals_handled_by
from imdb_transformer.errors import DivergedError, Interrupted, command_line, interrupted
from imdb_transformer.evaluation.scores import Score
from imdb_transformer.store.run import COMMANDS, Run
from imdb_transformer.training import checkpoints
from imdb_transformer.training.finish import finish
from imdb_transformer.training.plan import get_batch, make_plan
from imdb_transformer.training.prepare import Prepared
from imdb_transformer.training.step import Learner, StepResult, all_finite, sample, train_step, validate

LINES_BETWEEN_WRITES = 20  # of metrics


class Update(NamedTuple):
    """A step that was taken, and the validation after it."""

    step: int  # from 1
    num_steps: int
    epoch: int  # from 0
    result: StepResult
    validation: Score | None
    saved: bool
    sample: str  # text that a causal model writes at each validation; otherwise empty


def training_loop(
    opened: Run, prepared: Prepared, learner: Learner, counters: checkpoints.Counters, world: World,
    stops: list[signal.Signals],
) -> Iterator[Update]:  # fmt: skip
    """Trains from where the learner and the counters are to the end; yields after each step.

    Raises Interrupted, after saving, when `stops` has a signal. Raises DivergedError when loss, gradient or a
    weight is not finite; the checkpoint `last` is then unchanged. The run's status on disk says how it ended.
    """
    config = opened.config
    plan = make_plan(config, prepared.train)
    if world.is_first:
        opened = opened.write_status("running")
    clock_start = time.perf_counter() - counters.train_seconds
    lines: list[dict[str, Any]] = []  # of metrics, not on disk yet; writing them empties the list
    try:
        while counters.step < plan.num_steps:
            # --- one step
            num_done, step, began = counters.step, counters.step + 1, time.perf_counter()
            epoch, indices = plan.batches[num_done]
            batch = get_batch(prepared.train, indices, prepared.hardware, world)
            result = train_step(
                learner, batch, num_done, plan.num_steps,
                update_size=plan.update_sizes[num_done], world=world, stop=bool(stops),
            )  # fmt: skip
            now = time.perf_counter()
            counters = counters.after_step(result.num_tokens, now - began, now - clock_start)
            lines.append(result.line(step, epoch))

            # --- validation and checkpoints
            validation, saves = None, step in plan.eval_steps
            if saves:
                validation = world.broadcast(validate(learner, prepared, step, result.lr))
                if validation is not None:
                    lines.append({"step": step, "validation": validation.model_dump()})
                counters = counters.after_validation(validation, config.train.best_by)
                counters = counters.model_copy(update={"train_seconds": time.perf_counter() - clock_start})
                checkpoints.save(opened, learner, counters, lines, world)
            elif len(lines) >= LINES_BETWEEN_WRITES:
                checkpoints.write_metrics(opened, lines, world)
            text = sample(learner, prepared) if saves else ""
            yield Update(step, plan.num_steps, epoch, result, validation, saves, text)

            # --- stop on request; several processes all stop after the same step
            is_asked = result.stop if world.size > 1 else stops
            if is_asked and step < plan.num_steps and all_finite(learner.model):
                if not saves:
                    checkpoints.save(opened, learner, counters, lines, world)
                raise _interrupted(opened, step, plan.num_steps, world, stops)
    except DivergedError as error:
        lines.append({"step": step, "diverged": str(error)})
        checkpoints.write_metrics(opened, lines, world)
        raise _diverged(opened, error, world) from None
    if world.is_first:
        finish(opened)
    world.barrier()
    late = world.broadcast(stops[-1] if stops else None)  # a request that came after the last step began
    if late is not None:
        raise interrupted(late, f". {opened.folder} is finished.")  # no other run may follow


def _diverged(opened: Run, error: DivergedError, world: World) -> DivergedError:
    """Marks the run as diverged, and returns the error to raise."""
    if world.is_first:
        opened.write_status("diverged")
    return DivergedError(
        f"Training diverged: {error}. The last good checkpoint is {opened.checkpoint('last')}. "
        "Try a lower train.lr, a longer warm-up, or a lower train.clip_norm (0 does not clip at all)."
    )


def _interrupted(
    opened: Run, step: int, num_steps: int, world: World, stops: list[signal.Signals]
) -> Interrupted:
    """Marks the run as interrupted, and returns the error to raise."""
    if world.is_first:
        opened.write_status("interrupted")
    world.barrier()  # until the first process has written
    number = stops[-1] if stops else signal.SIGTERM  # another process received it
    command = command_line(COMMANDS[opened.info.kind], "--resume", opened.folder)
    return interrupted(number, f" at step {step:,} of {num_steps:,}; saved. Continue with:\n  {command}")


def _leave_terminal() -> None:
    """Redirects output to /dev/null if it goes to a terminal: writing to a closed one raises OSError."""
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


@contextmanager
def stop_requests() -> Iterator[list[signal.Signals]]:
    """Collects signals as requests to stop. A Ctrl-C after the first one stops the program at once.

    A second SIGTERM does not: stopping a group of processes may send it twice, directly and through torchrun.
    """
    stops: list[signal.Signals] = []
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        stops.append(signal.Signals(number))
        if number == signal.SIGHUP:
            _leave_terminal()
        signal.signal(signal.SIGINT, before)

    with signals_handled_by(ask):
        yield stops
