"""The commands: each parses, calls a plain function, and prints.

Results go to stdout, progress to stderr. Heavy modules are imported inside the commands, which keeps
`imdb-tx --help` quick.
"""

import gc
import os
import sys
import warnings

# isort: off
# Each import adds commands; --help lists them in this order.
from imdb_transformer.cli import data, train, predict, evaluate, runs  # noqa: F401

# isort: on
from imdb_transformer import progress
from imdb_transformer.cli import screen
from imdb_transformer.cli.options import app
from imdb_transformer.report import terminal


def main() -> None:
    """The console script: runs a command, and turns errors into a sentence and an exit code."""
    terminal.guard()
    progress.watch = screen.tracked
    warnings.showwarning = screen.show_warning
    # Imports create a million permanent objects. With Python's default, searching them for garbage takes an
    # eighth of the time of `predict`.
    gc.set_threshold(20_000)
    # How long an OpenMP thread spins before it sleeps. With libgomp's default of 300,000 it keeps its core
    # busy for milliseconds after each operation, and training is very slow beside other work.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    # torch then aligns tensors of 2 MiB and more to pages. Aligned to 64 bytes, they leave small gaps in the
    # heap of glibc before 2.38, which it does not close. A training's memory then grows by some 100 MiB.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if "_IMDB_TX_COMPLETE" in os.environ:  # a shell would take each line of a description for a completion
        os.environ["COLUMNS"] = "1000"
    with screen.exit_on_error(), screen.until_reader_leaves():
        try:
            app()
        except SystemExit as ended:
            if ended.code == 1 and isinstance(ended.__context__, BrokenPipeError):  # typer's exit code
                sys.exit(screen.READER_LEFT)
            if ended.code:
                raise
