"""`imdb-tx train`: trains a classifier."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli import options
from imdb_transformer.cli.training import train_one, train_seeds
from imdb_transformer.errors import ConfigError

_repeated = partial(typer.Option, rich_help_panel="Several seeds")
INIT_HELP = "Start with the encoder of this run; '' for random weights."


def start_path(text: str) -> str:
    """The path of a run to start from; empty for random weights."""
    return str(options.run_path(text)) if text else ""


_encoder = options.takes_run("linear") | {"parser": start_path}
InitFrom = Annotated[str | None, options.of_others(help=INIT_HELP, **_encoder)]
TEACHER_HELP = "Also learn this run's predictions of unlabelled reviews. Repeatable."
_teacher = options.of_others(help=TEACHER_HELP, **options.takes_run("encoder"))
SEEDS_HELP = "Train N runs that differ in the seed, and show mean and spread."
Test = Annotated[bool, _repeated("--test", help="Evaluate each on test, too. Only for a fixed recipe.")]


@options.for_training("""imdb-tx train --config base.toml
imdb-tx train reviews.csv --text-column body --label-column stars""")
def train(
    context: typer.Context,
    source: options.Source = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = None,
    bad_rows: options.OnBadRows = None,
    config: options.OptionalConfigName = None,
    overrides: options.Overrides = None,
    run_dir: options.RunDir = None,
    resume: options.Resume = None,
    init_from: InitFrom = None,
    teacher: Annotated[list[Path] | None, _teacher] = None,
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
    name = options.config_for(config, source, overrides)
    loaded = options.load(name, overrides, source, text_column, label_column, encoding, bad_rows, init_from)
    usual = run_name(Path(name).stem, name, loaded.data.source)
    if seeds > 1:
        train_seeds(loaded, run_dir or options.RUNS / usual, seeds, teachers, test=test, as_json=as_json)
    else:
        folder = run_dir or unused(options.RUNS / usual)
        train_one(loaded, folder, "classifier", teachers, dry_run=dry_run, as_json=as_json)


def refuse_beside_resume(context: typer.Context) -> None:
    """Raises ConfigError if --resume is combined with options of a new run."""
    passed = options.passed(context)
    if "resume" in passed and passed - {"resume", "as_json"}:
        raise ConfigError("--resume continues a run with its own config. Only --json may be added.")
