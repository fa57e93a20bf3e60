"""`imdb-tx runs`: lists runs, and frees space that finished runs no longer need."""

import json
from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli import options, screen
from imdb_transformer.cli.completion import RUNS
from imdb_transformer.cli.options import command

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the runs.")]
Prune = Annotated[
    bool, typer.Option("--prune", help="Delete the checkpoints last and previous of finished runs.")
]


@command(
    options.USING,
    """imdb-tx runs
imdb-tx runs --prune""",
)
def runs(folder: Folder = RUNS, prune: Prune = False, as_json: options.Json = False) -> None:
    """List runs, and say how to continue those that were interrupted.

    Pruned runs can still predict and be evaluated. They cannot be trained further.
    """
    from imdb_transformer.report import summaries
    from imdb_transformer.store import upkeep

    if prune:
        for path, freed in upkeep.prune(folder):
            screen.note(f"{path}: {freed / 2**20:,.1f} MiB freed")
    listed = upkeep.runs_in(folder)
    num_unread = len(list(folder.glob("*/run.json"))) - len(listed)
    if num_unread:
        screen.note(f"note: runs that cannot be read: {num_unread}. `imdb-tx verify RUN` says why.")
    records = [each.model_dump() for each in listed]
    screen.show(json.dumps(records) if as_json else summaries.runs(listed, folder))
