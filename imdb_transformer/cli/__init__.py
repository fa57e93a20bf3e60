"""The commands: each parses, calls plain functions, and prints.

Results go to stdout, progress to stderr. Everything heavy is imported inside the commands, so that
`imdb-tx --help` answers at once.
"""

import gc
import os
import sys

from imdb_transformer.cli import (  # noqa: F401  (importing adds the commands)
    baseline,
    compare,
    download,
    eval,  # noqa: A004
    export,
    predict,
    tokenize,
    training,
    verify,
)
from imdb_transformer.cli.exits import READER_LEFT, exiting, until_reader_leaves
from imdb_transformer.cli.options import app
from imdb_transformer.report import terminal


def main() -> None:
    """The console script: runs a command, and turns what can go wrong into a sentence and an exit code."""
    terminal.guard()
    # Imports make a million objects that stay: to look through them for garbage as often as Python's default
    # has it took an eighth of a cold `predict`.
    gc.set_threshold(20_000)
    # How often a thread of torch's looks whether the others are done before it sleeps. With libgomp's 300,000
    # it keeps its core for milliseconds at each operation, and a training beside other work crawls.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    with exiting(), until_reader_leaves():
        try:
            app()
        except SystemExit as ended:
            if ended.code == 1 and isinstance(ended.__context__, BrokenPipeError):  # typer's 1 is no defect
                sys.exit(READER_LEFT)
            if ended.code:
                raise
