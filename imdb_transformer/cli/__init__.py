"""The commands: each parses, calls a plain function, and prints.

Results go to stdout, progress to stderr. Heavy modules are imported inside the commands, which keeps
`imdb-tx --help` quick.
"""

import gc
import os
import sys
import warnings
from typing import Annotated

import typer

# isort: off
# Each import adds a command; --help lists them in this order.
from imdb_transformer.cli import download, tokenize  # noqa: F401
from imdb_transformer.cli import train, pretrain, baseline  # noqa: F401
from imdb_transformer.cli import predict, generate, eval, compare, export, verify, runs  # noqa: A004, F401

# isort: on
from imdb_transformer import progress
from imdb_transformer.cli import screen
from imdb_transformer.cli.options import app
from imdb_transformer.errors import with_home
from imdb_transformer.report import terminal


def _show_version(wanted: bool) -> None:
    if wanted:
        import platform
        from importlib import metadata

        from imdb_transformer import __version__

        print(f"imdb-tx {__version__}, torch {metadata.version('torch')}, Python {platform.python_version()}")
        raise typer.Exit


_version = typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)


@app.callback()
def program(version: Annotated[bool, _version] = False) -> None:
    """Train a small transformer that classifies IMDB's reviews or your own texts."""


def _with_home(word: str) -> str:
    """An argument with the home folder for `~/` in `--run-dir=~/runs`, which most shells leave as it is."""
    option, equals, value = word.partition("=")
    return f"{option}{equals}{with_home(value)}" if option.startswith("--") else word


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
            app(list(map(_with_home, sys.argv[1:])))
        except SystemExit as ended:
            if ended.code == 1 and isinstance(ended.__context__, BrokenPipeError):  # typer's exit code
                sys.exit(screen.READER_LEFT)
            if ended.code:
                raise
