"""Trains runs for the commands, and shows the progress."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from imdb_transformer.cli import screen
from imdb_transformer.errors import ConfigError, DivergedError, Interrupted, command_line
from imdb_transformer.report import summaries

if TYPE_CHECKING:  # heavy: imported in the functions
    from imdb_transformer.config import Config
    from imdb_transformer.distributed import World
    from imdb_transformer.store.run import Kind
    from imdb_transformer.training.loop import Update
    from imdb_transformer.training.train import TrainingResult


def train_one(
    config: "Config | None", folder: Path, kind: "Kind", teachers: tuple[Path, ...] = (), *,
    dry_run: bool = False, as_json: bool,
) -> None:  # fmt: skip
    """Trains one run, or shows its cost. Without a config, it continues the run."""
    screen.note(f"preparing {folder} ...")  # torch takes seconds to load
    from imdb_transformer.distributed import process_group
    from imdb_transformer.store import run
    from imdb_transformer.training.start import training_steps
    from imdb_transformer.training.train import trainings

    with process_group() as world:
        folder = world.broadcast(folder)
        if config is not None and dry_run:
            if world.is_first:
                _show_cost(config, kind, folder, teachers, as_json=as_json)
            return
        resume = config is None
        if kind == "encoder":
            runs = iter([(folder, training_steps(config, folder, kind, teachers=teachers, resume=resume))])
        else:
            runs = trainings(config, folder, teachers=teachers, resume=resume)
        for each, steps in runs:
            with _adaptation(each) if each != folder else nullcontext():
                result = _finish(each, steps, world)
        if world.is_first:
            if run.open_run(Path(result.run)).config.data.source == "demo":
                screen.note(summaries.DEMO_NOTE)
            screen.show(result.model_dump_json() if as_json else summaries.result(result))


def train_seeds(
    config: "Config", base: Path, num_seeds: int, teachers: tuple[Path, ...], *, test: bool, as_json: bool
) -> None:
    """Trains a run for each seed, and shows mean and spread of their scores."""
    screen.note(f"preparing {num_seeds} runs {base}-seed-N ...")
    from imdb_transformer.distributed import process_group
    from imdb_transformer.training.seeds import seed_trainings, summarise

    results = []
    with process_group() as world:
        try:
            for folder, steps in seed_trainings(config, base, num_seeds, teachers=teachers, test=test):
                is_encoder = folder.name.endswith("-encoder")
                with _adaptation(folder) if is_encoder else nullcontext():
                    results.append(_finish(folder, steps, world))
        except Interrupted as stopped:
            message = f"{stopped}\nTo continue with all {num_seeds} seeds, repeat the command."
            raise Interrupted(message, exit_code=stopped.exit_code) from None
        if world.is_first:
            summary = summarise([each for each in results if each.kind == "classifier"], test=test)
            print(json.dumps(summary) if as_json else summaries.seeds(summary))


@contextmanager
def _adaptation(folder: Path) -> Iterator[None]:
    """Announces the run in which an encoder is adapted, and says how to go on if it ends early.

    The user's command is for a classifier.
    """
    screen.note(f"adapting imdb-encoder to these reviews first, in {folder}")
    try:
        yield
    except Interrupted as stopped:
        happened = str(stopped).partition(" Continue with:")[0]  # of the message in training/loop.py
        message = f"{happened} To continue, repeat the command."
        raise Interrupted(message, exit_code=stopped.exit_code) from None
    except DivergedError as error:
        raise DivergedError(f"{error} To train without this encoder: --init-from imdb-encoder") from None


def _finish(folder: Path, steps: "Iterator[Update]", world: "World") -> "TrainingResult":
    """Takes all steps of a training, shows them on stderr, and returns the result."""
    from imdb_transformer import hardware
    from imdb_transformer.report.pages import with_page
    from imdb_transformer.store import run
    from imdb_transformer.training.train import result_of

    if world.is_first:
        steps = with_page(steps, folder)
    if (first := next(steps, None)) is None:
        screen.note(f"{folder} is finished: no step was left")
        return result_of(folder)
    done, total = first.step - 1, first.num_steps
    opened, _ = run.locate(folder)
    processes = f", {world.size} processes" if world.size > 1 else ""
    chosen = hardware.choose(opened.config.train, gpu=world.gpu)
    screen.note(f"training in {opened.folder} on {chosen.describe()}{processes}")
    if done:
        screen.note(f"{done:,} of {total:,} steps were done before; continuing from there")
    with screen.bar("step", total, done=done) as bar:
        for update in chain([first], steps):
            bar.set_postfix_str(f"loss {update.result.loss:.3f}", refresh=False)
            bar.update()
            if update.saved:
                screen.note(summaries.progress(update))
    return result_of(folder)


def _show_cost(
    config: "Config", kind: "Kind", folder: Path, teachers: tuple[Path, ...], *, as_json: bool
) -> None:
    from imdb_transformer import config_file
    from imdb_transformer.data import corpus
    from imdb_transformer.data.archive import is_url
    from imdb_transformer.store.run import check_free
    from imdb_transformer.training import adapt
    from imdb_transformer.training.estimate import estimate
    from imdb_transformer.training.prepare import prepare
    from imdb_transformer.training.start import choose_hardware

    check_free(folder)
    with tempfile.TemporaryDirectory(prefix="imdb-tx-") as temporary:
        tried = config
        if not corpus.is_stored(config.data):  # a temporary folder takes them
            if config.data.source == "hub" or is_url(config.data.source):
                raise ConfigError(
                    "--dry-run fetches nothing, and these reviews are not stored. Fetch them first: "
                    + command_line("download", config.data.source)
                )
            tried = config.replaced("data", data_dir=temporary)
        hardware = choose_hardware(tried, 0)
        prepared = prepare(tried, kind, hardware, teachers=teachers, ready=False)
        cost = estimate(prepared)
        if kind == "classifier" and adapt.is_due(tried, prepared.config):
            before = adapt.pretraining_config(prepared)
            cost = cost.after(estimate(prepare(before, "encoder", hardware)), before.train.epochs)
    # Training would choose the same epochs and batches, but not the temporary folder.
    config = prepared.config.model_copy(update={"data": config.data})
    if as_json:
        print(json.dumps({"config": config.model_dump(), "estimate": cost.model_dump()}))
    else:
        print(f"{config_file.dump(config)}\n{summaries.estimate(cost, config.train)}")
