"""`imdb-tx runs`: lists runs, and frees space that finished runs no longer need."""

import json
from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli import options, screen
from imdb_transformer.errors import ConfigError

RunsFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the runs.")]
PRUNE_HELP = "Delete the checkpoints last and previous of finished runs."
Prune = Annotated[bool, typer.Option("--prune", help=PRUNE_HELP)]


@options.for_trained_runs("""imdb-tx runs
imdb-tx runs --prune""")
def runs(folder: RunsFolder = options.RUNS, prune: Prune = False, as_json: options.Json = False) -> None:
    """List runs, and say how to continue those that were interrupted.

    Pruned runs can still predict and be evaluated. They can no longer repeat their last part.
    """
    from imdb_transformer.report import summaries
    from imdb_transformer.store import run, upkeep

    if folder != options.RUNS and not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}.")
    if (folder / run.INFO).exists():
        raise ConfigError(f"{folder} is a run. Name the folder that it is in: {folder.resolve().parent}.")
    if prune:
        for path, freed in upkeep.prune(folder):
            screen.note(f"{path}: {freed / 2**20:,.1f} MiB freed")
    listed = upkeep.runs_in(folder)
    names = {each["run"] for each in listed}
    if unread := [name for path in upkeep.run_files(folder) if (name := str(path.parent)) not in names]:
        screen.note(f"note: runs that cannot be read: {', '.join(unread)}. `imdb-tx verify RUN` says why.")
    screen.show(json.dumps(listed) if as_json else summaries.runs(listed, folder))
