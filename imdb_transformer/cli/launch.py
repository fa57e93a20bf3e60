"""What `train` and `pretrain` share: a task is prepared, then trained with a progress bar."""

import json
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from imdb_transformer.errors import RunError
from imdb_transformer.report import summaries, terminal

if TYPE_CHECKING:  # heavy: imported in the functions
    from imdb_transformer.config import Config
    from imdb_transformer.distributed import World
    from imdb_transformer.hardware import Hardware
    from imdb_transformer.store.run import Kind, Run
    from imdb_transformer.training.loop import TrainingResult
    from imdb_transformer.training.prepare import Prepared, SoftLabels
    from imdb_transformer.training.task import Task


# Often enough that pretraining stays below 1.5 GiB, seldom enough to cost nothing (configs/EXPERIMENTS.md).
STEPS_BETWEEN_RELEASES = 50


class Origin(NamedTuple):
    """Other runs that a run starts from: the encoder's weights, and who labels the unlabelled reviews."""

    init_from: Path | None = None
    teachers: tuple[Path, ...] = ()


def begin(
    config: "Config", folder: Path, kind: "Kind", origin: Origin, world: "World", *,
    soft_labels: "SoftLabels" = None, dry_run: bool = False, as_json: bool = False,
) -> "TrainingResult | None":  # fmt: skip
    """A new run, trained to its end; a dry run only says what that would cost.

    `soft_labels`: of the origin's teachers, where another run has asked them already. Of several processes
    the first makes the run, and the others join it as one that goes on.
    """
    from imdb_transformer.store import run
    from imdb_transformer.training import loop, starting_weights
    from imdb_transformer.training.prepare import prepare, prepare_again

    folder = world.gathered(folder)[0]
    chosen = _hardware(config, world)
    if not world.is_first:
        world.wait()
        if dry_run:
            return None
        opened = run.open_run(folder)
        return _train(opened, prepare_again(opened, chosen), chosen, world)
    run.check_free(folder)
    _say(f"preparing {config.data.source} ...", world)
    prepared = prepare(config, kind, chosen, **origin._asdict(), soft_labels=soft_labels)
    if dry_run:
        world.wait()
        _show_cost(prepared, chosen, as_json=as_json)
        return None
    starting_weights.fit_ngrams(prepared.task.model, prepared.data.splits["train"])
    opened = loop.start(folder, prepared, chosen, origin_hash=starting_weights.origin_hash(*origin))
    world.wait()
    return _train(opened, prepared.task, chosen, world)


def go_on(path: Path, kind: "Kind", world: "World") -> "TrainingResult":
    """A run that was interrupted, trained to its end.

    `path` is the run; or, where `last` is damaged, its checkpoint `previous`.
    """
    from imdb_transformer.store import run
    from imdb_transformer.training import loop
    from imdb_transformer.training.prepare import prepare_again

    from_previous = path.parent.name == "checkpoints" and path.name == run.PREVIOUS
    folder = path.parent.parent if from_previous else path
    opened = run.open_run(folder)
    if opened.info.kind != kind:
        command = run.COMMANDS.get(opened.info.kind)
        hint = f"continue it with: imdb-tx {command} --resume {folder}" if command else "it is finished"
        raise RunError(f"{folder} was made by another command; {hint}.")
    if opened.info.status == "finished" and not from_previous:
        _say(f"{folder} is finished already", world)
        return loop.result_of(opened)
    chosen = _hardware(opened.config, world)
    _say(f"preparing {opened.config.data.source} ...", world)
    task = world.in_turn(lambda: prepare_again(opened, chosen))
    return _train(opened, task, chosen, world, begin_from=run.PREVIOUS if from_previous else run.LAST)


def train_seeds(
    config: "Config", base: Path, origin: Origin, num_seeds: int, world: "World"
) -> "list[TrainingResult]":
    """A run a seed, in BASE-seed-N; those that an interrupted earlier call began go on."""
    from imdb_transformer.store import run
    from imdb_transformer.training import loop

    if not base.name:
        raise RunError(f"--run-dir {base}: with --seeds the runs' names begin with it; name one.")
    results = []
    taught: Path | None = None  # a run that keeps what the teachers said: they are asked once
    for seed in range(config.train.seed, config.train.seed + num_seeds):
        own = config.model_copy(update={"train": config.train.model_copy(update={"seed": seed})})
        folder = base.with_name(f"{base.name}-seed-{seed}")
        is_there = world.gathered((folder / run.INFO).exists())[0]
        if not is_there:
            soft = run.soft_labels_of(run.open_run(taught)) if taught else None
            result = begin(own, folder, "classifier", origin, world, soft_labels=soft)
            assert result is not None
        else:
            opened = run.open_run(folder)
            world.in_turn(partial(_check_same, opened, own, origin))
            done = opened.info.status == "finished"
            result = loop.result_of(opened) if done else go_on(folder, "classifier", world)
        results.append(result)
        taught = folder
    return results


def _check_same(opened: "Run", config: "Config", origin: Origin) -> None:
    """Raises RunError where a run is not one of this recipe on these reviews."""
    from imdb_transformer.data import corpus
    from imdb_transformer.training import starting_weights

    known = opened.info.corpus_hash
    differs = {
        "with another config": opened.config != config,
        "of another --init-from or --teacher": opened.info.origin_hash
        != starting_weights.origin_hash(*origin),
        "on other reviews": corpus.ensure(config.data)[0].content_hash != known,
    }
    for how, it_does in differs.items():
        if it_does:
            raise RunError(f"{opened.folder} is a run {how}; name another --run-dir.")


def _hardware(config: "Config", world: "World") -> "Hardware":
    from imdb_transformer import hardware

    chosen = hardware.choose(config.train, gpu=world.gpu)
    if chosen.device.type == "cpu":
        hardware.keep_freed_memory()
    return chosen


def _show_cost(prepared: "Prepared", hardware: "Hardware", *, as_json: bool) -> None:
    from imdb_transformer import config_file
    from imdb_transformer.training.estimate import estimate

    config = prepared.config
    validation = prepared.data.splits.get("validation")
    num_tokens = int(validation.lengths.sum()) if validation else 0
    cost = estimate(config, prepared.task, hardware, num_validation_tokens=num_tokens)
    if as_json:
        print(json.dumps({"config": config.model_dump(), "estimate": cost.model_dump()}))
    else:
        print(f"{config_file.dump(config)}\n{summaries.estimate(cost)}")


def _train(
    opened: "Run", task: "Task", hardware: "Hardware", world: "World",
    *, begin_from: Literal["last", "previous"] = "last",
) -> "TrainingResult":  # fmt: skip
    from tqdm import tqdm

    from imdb_transformer.hardware import release_freed_memory
    from imdb_transformer.store.locks import locked
    from imdb_transformer.training import loop
    from imdb_transformer.training.stop import stop_request

    screen = terminal.beneath(sys.stderr)
    bar: Any  # tqdm is generic in its stub and not at run time
    alone = locked(opened.folder) if world.is_first else nullcontext()
    quiet = None if world.is_first else True
    with (
        alone,
        stop_request() as stop,
        tqdm(unit="step", file=screen, disable=quiet, dynamic_ncols=True) as bar,
    ):
        _say(f"training in {opened.folder} on {_describe(hardware, world)}", world)
        for update in loop.train(opened, task, hardware, stop, world, begin_from=begin_from):
            if not bar.n:  # a resumed run's earlier steps took none of this bar's time
                bar.initial = bar.n = update.step - 1
            bar.total = update.num_steps
            bar.set_postfix_str(summaries.postfix(update), refresh=False)
            bar.update()
            if update.saved and world.is_first:
                bar.write(summaries.progress(update), file=screen)
            if update.step % STEPS_BETWEEN_RELEASES == 0 and hardware.device.type == "cpu":
                release_freed_memory()
    return loop.result_of(opened)


def _describe(hardware: "Hardware", world: "World") -> str:
    return hardware.describe() + (f", {world.size} processes" if world.size > 1 else "")


def _say(what: str, world: "World") -> None:
    if world.is_first:
        print(what, file=sys.stderr)
