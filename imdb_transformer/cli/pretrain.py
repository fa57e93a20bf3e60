"""`imdb-tx pretrain`: trains an encoder on text alone."""

from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli import options
from imdb_transformer.cli.train import refuse_beside_resume
from imdb_transformer.cli.training import train_one

TEACHER_HELP = "Also learn the features of this run's encoder, such as a larger one."


@options.for_training("""imdb-tx pretrain --run-dir runs/pretrain
imdb-tx pretrain reviews.csv --text-column body --label-column ''""")
def pretrain(
    context: typer.Context,
    source: options.Source = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = None,
    bad_rows: options.OnBadRows = None,
    config: options.ConfigName = "pretrain.toml",
    overrides: options.Overrides = None,
    run_dir: options.RunDir = None,
    resume: options.Resume = None,
    teacher: Annotated[
        list[Path] | None, options.of_others(help=TEACHER_HELP, **options.takes_run("classifier", "linear"))
    ] = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Train an encoder on text alone.

    The encoder learns the text of training and unlabelled reviews. `imdb-tx train --init-from RUN` starts
    a classifier from it.
    """
    from imdb_transformer.store.upkeep import run_name, unused

    refuse_beside_resume(context)
    if resume is not None:
        train_one(None, resume, "encoder", as_json=as_json)
        return
    loaded = options.load(config, overrides, source, text_column, label_column, encoding, bad_rows)
    usual = run_name(Path(config).stem, config, loaded.data.source, ending="-pretrain")
    folder = run_dir or unused(options.RUNS / usual)
    train_one(loaded, folder, "encoder", tuple(teacher or ()), dry_run=dry_run, as_json=as_json)
