"""`imdb-tx train`, `imdb-tx pretrain` and `imdb-tx baseline`: train a run."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from imdb_transformer.cli import options, screen
from imdb_transformer.cli.training import train_one, train_seeds
from imdb_transformer.errors import ConfigError
from imdb_transformer.report import next_commands, summaries

_repeated = partial(typer.Option, rich_help_panel="Several seeds")
INIT_HELP = "Start with the encoder of this run."
InitFrom = Annotated[Path | None, options.of_others(help=INIT_HELP, **options.takes_run("linear"))]
TEACHER_HELP = "Also learn this run's predictions of unlabelled reviews. Repeatable."
_teacher = options.of_others(help=TEACHER_HELP, **options.takes_run("encoder"))
ENCODER_HELP = "Also learn the features of this run's encoder, such as a larger one."
_encoder = options.of_others(help=ENCODER_HELP, **options.takes_run("classifier", "linear"))
SEEDS_HELP = "Train N runs that differ in the seed, and show mean and spread."
Test = Annotated[bool, _repeated("--test", help="Evaluate each on test, too. Only for a fixed recipe.")]
Weighting = Literal["nb", "tfidf"]
KIND_HELP = "NB-weighted trigrams, or TF-IDF of words and bigrams."


@options.for_training("""imdb-tx train --config base.toml
imdb-tx train reviews.csv --text-column body --label-column stars""")
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
    loaded = options.load(name, overrides, source, text_column, label_column, encoding, bad_rows, init_from)
    usual = next_commands.run_name(Path(name).stem, name, loaded.data.source)
    if seeds > 1:
        train_seeds(loaded, run_dir or options.RUNS / usual, seeds, teachers, test=test, as_json=as_json)
    else:
        folder = run_dir or next_commands.unused(options.RUNS / usual)
        train_one(loaded, folder, "classifier", teachers, dry_run=dry_run, as_json=as_json)


def refuse_beside_resume(context: typer.Context) -> None:
    """Raises ConfigError if --resume is combined with options of a new run."""
    passed = options.passed(context)
    if "resume" in passed and passed - {"resume", "as_json"}:
        raise ConfigError("--resume continues a run with its own config. Only --json may be added.")


@options.for_training("""imdb-tx pretrain --run-dir runs/pretrain
imdb-tx pretrain reviews.csv --text-column body --label-column ''""")
def pretrain(
    context: typer.Context,
    source: options.Source = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = None,
    bad_rows: options.OnBadRows = None,
    config: options.Config = "pretrain.toml",
    overrides: options.Overrides = None,
    run_dir: options.RunDir = None,
    resume: options.Resume = None,
    teacher: Annotated[list[Path] | None, _encoder] = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Train an encoder on text alone.

    The encoder learns the text of training and unlabelled reviews. `imdb-tx train --init-from RUN` starts
    a classifier from it.
    """
    refuse_beside_resume(context)
    if resume is not None:
        train_one(None, resume, "encoder", as_json=as_json)
        return
    loaded = options.load(config, overrides, source, text_column, label_column, encoding, bad_rows)
    usual = next_commands.run_name(Path(config).stem, config, loaded.data.source, ending="-pretrain")
    folder = run_dir or next_commands.unused(options.RUNS / usual)
    train_one(loaded, folder, "encoder", tuple(teacher or ()), dry_run=dry_run, as_json=as_json)


@options.for_training("""imdb-tx baseline --run-dir runs/nb
imdb-tx baseline reviews.csv --text-column body --label-column stars""")
def baseline(
    source: options.Source = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = None,
    bad_rows: options.OnBadRows = None,
    config: options.Config = "base.toml",
    overrides: options.Overrides = None,
    kind: Annotated[Weighting, typer.Option(metavar="nb|tfidf", help=KIND_HELP)] = "nb",
    run_dir: options.RunDir = None,
    as_json: options.Json = False,
) -> None:
    """Fit a linear model on the same reviews, as a baseline."""
    from imdb_transformer.evaluation.baseline import make_baseline

    resolved = options.load(config, overrides, source, text_column, label_column, encoding, bad_rows)
    name = next_commands.run_name(f"baseline-{kind}", config, resolved.data.source, ending=f"-{kind}")
    folder = run_dir or next_commands.unused(options.RUNS / name)
    screen.note(f"fitting {kind} on {resolved.data.source} ...")
    fitted = make_baseline(folder, resolved, kind)
    screen.show(fitted.model_dump_json() if as_json else summaries.baseline(fitted))
