"""The program, and the options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="imdb-tx",
    help="Train an encoder-only transformer with a max-pool head, from scratch, on IMDB or your own reviews.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Config = Annotated[
    str, typer.Option("--config", "-c", help="A config file, or the name of a shipped one (base.toml).")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key: section.key=value. Repeatable.")
]
RunDir = Annotated[Path | None, typer.Option(help="Folder of the run; by default a new one in runs/.")]
Resume = Annotated[Path | None, typer.Option(help="Continue this run; takes no config.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the training's cost; train nothing.")]
Split = Annotated[str, typer.Option(help="test, validation or train.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of text.")]


def new_run_dir(name: str, runs: Path = Path("runs")) -> Path:
    """A folder in `runs` that does not exist yet: NAME, NAME-2, NAME-3 and so on."""
    candidate, number = runs / name, 1
    while candidate.exists():
        number += 1
        candidate = runs / f"{name}-{number}"
    return candidate
