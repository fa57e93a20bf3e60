"""`imdb-tx verify`: checks the files of a run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli import options
from imdb_transformer.cli.completion import takes_run
from imdb_transformer.cli.options import command
from imdb_transformer.errors import RunError

Folder = Annotated[Path, typer.Argument(help="A run's folder.", **takes_run())]


@command(
    options.USING,
    """imdb-tx verify runs/base
imdb-tx verify base --json""",
)
def verify(path: Folder, as_json: options.Json = False) -> None:
    """Check the config, tokenizer and checkpoints of a run against their checksums."""
    from imdb_transformer.store.upkeep import verify as verify_run

    problems = verify_run(path)
    parts = {part: problem or "ok" for part, problem in problems.items()}
    text = "\n".join(f"{part}: {state}" for part, state in parts.items())
    print(json.dumps({"run": str(path), "parts": parts}) if as_json else text)
    damaged = [part for part, problem in problems.items() if problem]
    if damaged:
        raise RunError(f"{path} is damaged: {', '.join(damaged)}.")
