"""The command that comes after a training, and the name and folder of a new run."""

import os
from contextlib import suppress
from itertools import chain, count
from pathlib import Path

from imdb_transformer.errors import RunError, command_line

MAX_NAME_BYTES = 60  # of the reviews' name in a run's name; a file system allows 255 in all


def run_name(usual: str, config: str, source: str, *, ending: str = "") -> str:
    """A new run's name: `usual`, or that of the reviews and `ending` if a shipped config trains on a table.

    A folder with `train.csv` or the like counts as a table.
    """
    path = Path(source)
    is_table = path.is_file() and not path.name.endswith((".tar.gz", ".tgz", ".tar"))
    if Path(config).is_file() or not (is_table or any(path.glob("train.*"))):
        return usual
    name = path.name.split(".")[0] if is_table else path.resolve().name
    name = "-".join(name.split())  # it needs no quotes
    while len(os.fsencode(name)) > MAX_NAME_BYTES:
        name = name[:-1]
    return (name or usual) + ending


def unused(folder: Path) -> Path:
    """The folder, or else the first of FOLDER-2, FOLDER-3 and so on that does not exist yet.

    A run of the package has its name for itself.
    """
    from imdb_transformer.store.run import SHIPPED

    others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(
        path for path in chain([folder], others) if not (path.exists() or (SHIPPED / path.name).exists())
    )


def evaluation(folder: str) -> str:
    """The command that evaluates a run, on validation or other reviews if its own have no test split."""
    from imdb_transformer.data import corpus
    from imdb_transformer.store import run

    with suppress(RunError):
        opened = run.open_run(Path(folder))
        config = opened.config.data
        stored = corpus.find_stored(config, opened.info.corpus_hash)
        if stored and "test" not in stored.manifest.splits:
            other = ("--split", "validation") if config.held_out_fraction else ("--source", "labelled.csv")
            return command_line("eval", folder, *other)
    return command_line("eval", folder)
