"""`imdb-tx verify`: checks the files of a run against their checksums."""

import json
from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli import options
from imdb_transformer.errors import RunError

Verified = Annotated[Path, typer.Argument(help="A run's folder.", **options.takes_run())]


@options.for_trained_runs("""imdb-tx verify runs/base
imdb-tx verify base --json""")
def verify(path: Verified, as_json: options.Json = False) -> None:
    """Check the config, tokenizer and checkpoints of a run against their checksums."""
    from imdb_transformer.store import upkeep

    parts = {part: problem or "ok" for part, problem in upkeep.verify(path).items()}
    text = "\n".join(f"{part}: {state}" for part, state in parts.items())
    print(json.dumps({"run": str(path), "parts": parts}) if as_json else text)
    if damaged := [part for part, state in parts.items() if state != "ok"]:
        raise RunError(f"{path} is damaged: {', '.join(damaged)}.")
