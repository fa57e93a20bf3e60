"""`imdb-tx pretrain`: trains an encoder on text alone."""

import typer

from imdb_transformer.cli import options
from imdb_transformer.cli.options import command
from imdb_transformer.cli.train import refuse_beside_resume, train_one


@command(
    options.TRAINING,
    """imdb-tx pretrain --run-dir runs/pretrain
imdb-tx pretrain reviews.csv --text-column body --label-column ''""",
)
def pretrain(
    context: typer.Context,
    source: options.Source = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = "",
    bad_rows: options.OnBadRows = None,
    config: options.Config = "pretrain.toml",
    overrides: options.Overrides = None,
    run_dir: options.RunDir = None,
    resume: options.Resume = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Train an encoder on text alone. A classifier can start from it.

    The encoder learns the text of training and unlabelled reviews. `imdb-tx train --init-from RUN` starts
    from it.
    """
    refuse_beside_resume(context)
    table = options.table_keys(source, text_column, label_column, encoding, bad_rows)
    changes = [*table, *(overrides or ())]
    train_one(config, changes, run_dir, resume, "encoder", dry_run=dry_run, as_json=as_json)
