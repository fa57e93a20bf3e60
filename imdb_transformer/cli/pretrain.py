"""`imdb-tx pretrain`: trains an encoder on text alone."""

import typer

from imdb_transformer.cli.options import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    ResumeOption,
    RunDirOption,
    SetOption,
    app,
)
from imdb_transformer.cli.train import refuse_beside_resume, train_one


@app.command()
def pretrain(
    context: typer.Context,
    config: ConfigOption = "pretrain.toml",
    overrides: SetOption = None,
    run_dir: RunDirOption = None,
    resume: ResumeOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train an encoder on the text of training and unlabelled reviews alone, for train --init-from."""
    refuse_beside_resume(context)
    train_one(config, overrides, run_dir, resume, "encoder", dry_run=dry_run, as_json=as_json)
