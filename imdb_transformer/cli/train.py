"""`imdb-tx train`: trains a classifier, and shows the progress."""

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imdb_transformer.cli import options, screen
from imdb_transformer.cli.options import RUNS, config_with, takes_run
from imdb_transformer.errors import ConfigError, DivergedError, Interrupted, command_line
from imdb_transformer.report import summaries

if TYPE_CHECKING:  # heavy: imported in the functions
    from imdb_transformer.config import Config
    from imdb_transformer.distributed import World
    from imdb_transformer.store.run import Kind
    from imdb_transformer.training.loop import Update
    from imdb_transformer.training.train import TrainingResult

_repeated = partial(typer.Option, rich_help_panel="Several seeds")
INIT_HELP = "Start with the encoder of this run."
TEACHER_HELP = "Also learn this run's predictions of unlabelled reviews. Repeatable."
SEEDS_HELP = "Train N runs that differ in the seed, and show mean and spread."
READS_FIRST = "imdb-encoder reads these reviews first, in {}"
Test = Annotated[bool, _repeated("--test", help="Evaluate each on test, too. Only for a fixed recipe.")]


@options.command(
    options.TRAINING,
    """imdb-tx train --config base.toml
imdb-tx train reviews.csv --text-column body --label-column stars""",
)
def train(
    context: typer.Context,
    source: options.Source = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = None,
    bad_rows: options.OnBadRows = None,
    config: options.NamedConfig = None,
    overrides: options.Overrides = None,
    run_dir: options.RunDir = None,
    resume: options.Resume = None,
    init_from: Annotated[Path | None, options.of_others(help=INIT_HELP, **takes_run("linear"))] = None,
    teacher: Annotated[
        list[Path] | None, options.of_others(help=TEACHER_HELP, **takes_run("encoder"))
    ] = None,
    seeds: Annotated[int, _repeated(metavar="N", min=1, max=1000, help=SEEDS_HELP)] = 1,
    test: Test = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Train a classifier.

    Downloads and tokenizes the reviews first if necessary.
    """
    from imdb_transformer.store.upkeep import run_name, unused

    refuse_beside_resume(context)
    if test and seeds == 1:
        raise ConfigError("--test needs --seeds 2 or more. To evaluate a single run: imdb-tx eval RUN")
    if dry_run and seeds > 1:
        raise ConfigError("--dry-run shows what one run costs: leave out --seeds.")
    teachers = tuple(teacher or ())
    if resume is not None:
        train_one(None, resume, "classifier", as_json=as_json)
        return
    name = options.config_for(config, source)
    loaded = config_with(name, overrides, source, text_column, label_column, encoding, bad_rows, init_from)
    usual = run_name(Path(name).stem, name, loaded.data.source)
    if seeds > 1:
        _train_seeds(loaded, run_dir or RUNS / usual, seeds, teachers, test=test, as_json=as_json)
    else:
        folder = run_dir or unused(RUNS / usual)
        train_one(loaded, folder, "classifier", teachers, dry_run=dry_run, as_json=as_json)


def refuse_beside_resume(context: typer.Context) -> None:
    """Raises ConfigError if --resume is combined with options of a new run."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    passed = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if "resume" in passed and passed - {"resume", "as_json"}:
        raise ConfigError("--resume continues a run with its own config. Only --json may be added.")


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
        if kind == "encoder" or config is None:
            runs: Iterable[tuple[Path, Iterator[Update]]] = [
                (folder, training_steps(config, folder, kind, teachers=teachers, resume=config is None))
            ]
        else:
            runs = trainings(config, folder, teachers=teachers)
        for each, steps in runs:
            with nullcontext() if each == folder else _of_encoder():
                if each != folder:
                    screen.note(READS_FIRST.format(each))
                result = _finish(each, steps, world)
        if world.is_first:
            if run.open_run(Path(result.run)).config.data.source == "demo":
                screen.note(summaries.DEMO_NOTE)
            screen.show(result.model_dump_json() if as_json else summaries.result(result))


def _train_seeds(
    config: "Config", base: Path, num_seeds: int, teachers: tuple[Path, ...], *, test: bool, as_json: bool
) -> None:
    screen.note(f"preparing {num_seeds} runs {base}-seed-N ...")
    from imdb_transformer.distributed import process_group
    from imdb_transformer.training.seeds import seed_trainings, summarise

    results = []
    with process_group() as world:
        try:
            for folder, steps in seed_trainings(config, base, num_seeds, teachers=teachers, test=test):
                if folder.name.endswith("-encoder"):
                    screen.note(READS_FIRST.format(folder))
                results.append(_finish(folder, steps, world))
        except Interrupted as stopped:
            message = f"{stopped}\nTo continue with all {num_seeds} seeds, repeat the command."
            raise Interrupted(message, exit_code=stopped.exit_code) from None
        if world.is_first:
            summary = summarise([each for each in results if each.kind == "classifier"], test=test)
            print(json.dumps(summary) if as_json else summaries.seeds(summary))


@contextmanager
def _of_encoder() -> Iterator[None]:
    """Says how to go on if the run of an encoder ends early: the user's command is for a classifier."""
    try:
        yield
    except Interrupted as stopped:
        happened = str(stopped).partition(" Continue with:")[0]
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
        screen.note(f"{folder} is finished already")
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
            reading = adapt.pretraining_config(prepared)
            cost = cost.after(estimate(prepare(reading, "encoder", hardware)), reading.train.epochs)
    # Training would choose the same epochs and batches, but not the temporary folder.
    config = prepared.config.model_copy(update={"data": config.data})
    if as_json:
        print(json.dumps({"config": config.model_dump(), "estimate": cost.model_dump()}))
    else:
        print(f"{config_file.dump(config)}\n{summaries.estimate(cost, config.train)}")
