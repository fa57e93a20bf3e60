"""`imdb-tx train`: trains a classifier, and shows the progress."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from imdb_transformer.cli import options
from imdb_transformer.cli.options import command, new_run_dir
from imdb_transformer.errors import ConfigError
from imdb_transformer.report import summaries, terminal

if TYPE_CHECKING:  # heavy: imported in the functions
    from imdb_transformer.config import Config
    from imdb_transformer.distributed import World
    from imdb_transformer.store.run import Kind
    from imdb_transformer.training.loop import Update
    from imdb_transformer.training.train import TrainingResult

OTHERS, REPEATED = "Other runs", "Several seeds"  # headings of --help
InitFrom = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN", help="Start with the encoder of this run.", parser=options.run_path,
        autocompletion=options.complete_runs, rich_help_panel=OTHERS,
    ),
]  # fmt: skip
Teachers = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="RUN", help="Learn unlabelled reviews too, as this run sees them. Repeatable.",
        parser=options.run_path, autocompletion=options.complete_runs, rich_help_panel=OTHERS,
    ),
]  # fmt: skip
Seeds = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, max=1000, help="Train this many runs, and show their spread.",
        rich_help_panel=REPEATED,
    ),
]  # fmt: skip
Test = Annotated[
    bool,
    typer.Option("--test", help="Once the recipe is fixed: evaluate on test too.", rich_help_panel=REPEATED),
]


@command(
    options.TRAINING,
    """imdb-tx train --config base.toml
imdb-tx train --config base.toml --set data.source=reviews.csv""",
)
def train(
    context: typer.Context,
    config: options.Config = "demo.toml",
    overrides: options.Overrides = None,
    run_dir: options.RunDir = None,
    resume: options.Resume = None,
    init_from: InitFrom = None,
    teacher: Teachers = None,
    seeds: Seeds = 1,
    test: Test = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Train a classifier.

    The reviews are downloaded and tokenized first if need be.
    """
    refuse_beside_resume(context)
    if test and seeds == 1:
        raise ConfigError("--test needs --seeds, 2 or more; `imdb-tx eval` measures a single run.")
    if dry_run and seeds > 1:
        raise ConfigError("--dry-run shows what one run costs: leave out --seeds.")
    start = {"init_from": init_from, "teachers": tuple(teacher or ())}
    if seeds == 1:
        train_one(config, overrides, run_dir, resume, "classifier", dry_run=dry_run, as_json=as_json, **start)
    else:
        _train_seeds(config, overrides, run_dir, seeds, test=test, as_json=as_json, **start)


def refuse_beside_resume(context: typer.Context) -> None:
    """Raises ConfigError if --resume is combined with options of a new run."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    passed = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if "resume" in passed and passed - {"resume", "as_json"}:
        raise ConfigError("--resume continues a run with its own config; only --json can be given beside it.")


def train_one(
    name: str, overrides: list[str] | None, run_dir: Path | None, resume: Path | None, kind: "Kind", *,
    dry_run: bool, as_json: bool, **start: Any,
) -> None:  # fmt: skip
    """Trains one run, or shows its cost."""
    from imdb_transformer import config_file
    from imdb_transformer.distributed import joined
    from imdb_transformer.training.train import training_steps

    config = None if resume else config_file.load(name, overrides or ())
    folder = resume or run_dir or new_run_dir(Path(name).stem)
    with joined() as world:
        folder = world.from_first(folder)
        if config is not None and dry_run:
            if world.is_first:
                _show_cost(config, kind, folder, as_json=as_json, **start)
            return
        steps = training_steps(config, folder, kind, resume=resume is not None, **start)
        result = _finish(folder, steps, world)
        if world.is_first:
            print(result.model_dump_json() if as_json else summaries.result(result))


def _train_seeds(
    name: str, overrides: list[str] | None, run_dir: Path | None, num_seeds: int, *,
    test: bool, as_json: bool, **start: Any,
) -> None:  # fmt: skip
    from imdb_transformer import config_file
    from imdb_transformer.distributed import joined
    from imdb_transformer.training.seeds import seed_trainings, summarise

    config = config_file.load(name, overrides or ())
    base = run_dir or Path("runs") / Path(name).stem
    with joined() as world:
        runs = seed_trainings(config, base, num_seeds, **start)
        results = [_finish(folder, steps, world) for folder, steps in runs]
        if world.is_first:
            summary = summarise(results, test=test)
            print(summary.model_dump_json() if as_json else summaries.seeds(summary))


def _finish(folder: Path, steps: "Iterator[Update]", world: "World") -> "TrainingResult":
    """Takes all steps of a training, and shows them on stderr."""
    from tqdm import tqdm

    from imdb_transformer.training.train import describe, result_of

    screen = terminal.beneath(sys.stderr)
    if world.is_first:
        print(f"preparing {folder} ...", file=sys.stderr)
    update = None
    bar: Any  # tqdm is generic in its stub and not at run time
    with tqdm(unit="step", file=screen, disable=None if world.is_first else True, dynamic_ncols=True) as bar:
        for update in steps:
            if bar.total is None:
                if world.is_first:
                    bar.write(f"training in {describe(folder, world)}", file=screen)
                # A resumed run's earlier steps took none of this bar's time.
                bar.initial, bar.n, bar.total = update.step - 1, update.step - 1, update.num_steps
            bar.set_postfix_str(summaries.postfix(update), refresh=False)
            bar.update()
            if update.saved and world.is_first:
                bar.write(summaries.progress(update), file=screen)
    if update is None and world.is_first:
        print(f"{folder} is finished already", file=sys.stderr)
    return result_of(folder)


def _show_cost(config: "Config", kind: "Kind", folder: Path, *, as_json: bool, **start: Any) -> None:
    from imdb_transformer import config_file
    from imdb_transformer.store.run import check_free
    from imdb_transformer.training.estimate import estimate
    from imdb_transformer.training.prepare import prepare
    from imdb_transformer.training.train import choose_hardware

    check_free(folder)
    cost = estimate(prepare(config, kind, choose_hardware(config, 0), **start))
    if as_json:
        print(json.dumps({"config": config.model_dump(), "estimate": cost.model_dump()}))
    else:
        print(f"{config_file.dump(config)}\n{summaries.estimate(cost)}")
