"""`imdb-tx pretrain`: trains an encoder on text alone."""

import typer

from imdb_transformer.cli import options
from imdb_transformer.cli.options import app
from imdb_transformer.cli.train import refuse_beside_resume, train_one


@app.command()
def pretrain(
    context: typer.Context,
    config: options.Config = "pretrain.toml",
    overrides: options.Overrides = None,
    run_dir: options.RunDir = None,
    resume: options.Resume = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Train an encoder on the text of training and unlabelled reviews, for train --init-from."""
    refuse_beside_resume(context)
    train_one(config, overrides, run_dir, resume, "encoder", dry_run=dry_run, as_json=as_json)
