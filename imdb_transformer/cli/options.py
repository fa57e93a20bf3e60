"""The program, and the options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from imdb_transformer.cli.help import Command, Group

DATA, TRAINING, USING = "Reviews", "Training", "Trained runs"  # headings of --help
RUN_OPTIONS, SPECIAL = "The run", "Other"
RUNS = Path("runs")
ARCHIVES = (".tar.gz", ".tgz", ".tar")

app = typer.Typer(
    name="imdb-tx",
    cls=Group,
    no_args_is_help=True,
    epilog="""imdb-tx train
imdb-tx predict "a charming, funny film\"""",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def command(heading: str, examples: str, name: str | None = None) -> Callable[[Any], Any]:
    """Adds a command to the program, below a heading of --help, with lines of examples."""
    return app.command(name, cls=Command, epilog=examples, rich_help_panel=heading)


def config_names() -> list[str]:
    """The shipped configs, for the shell's completion."""
    from imdb_transformer.config_file import shipped

    return sorted(shipped())


def config_keys() -> list[str]:
    """`section.key=` of each key, for the shell's completion."""
    from imdb_transformer.config import Config

    sections = {section: type(getattr(Config(), section)) for section in Config.model_fields}
    return [f"{section}.{key}=" for section, fields in sections.items() for key in fields.model_fields]


def run_names() -> list[str]:
    """The folders below runs/ and the runs of the package, for the shell's completion."""
    from imdb_transformer.store.run import SHIPPED

    shipped = [path.parent.name for path in sorted(SHIPPED.glob("*/run.json"))]
    return [*(str(path.parent) for path in sorted(RUNS.glob("*/run.json"))), *shipped]


def run_path(text: str) -> Path:
    """The run, checkpoint or exported file of this path. `base` means runs/base if there is no run `base`."""
    for path in (Path(text), RUNS / text):
        if path.is_file() or (path / "run.json").exists() or (path / "checkpoint.json").exists():
            return path
    return Path(text)


def run_name(usual: str, config: str, source: str, *, ending: str = "") -> str:
    """`usual`; with a shipped config and a table of one's own, the table's name with an ending."""
    table = Path(source)
    if Path(config).is_file() or not table.is_file() or table.name.endswith(ARCHIVES):
        return usual
    return table.name.split(".")[0] + ending


def new_run_dir(name: str) -> Path:
    """A folder in runs/ that does not exist yet: NAME, NAME-2, NAME-3 and so on."""
    candidate, number = RUNS / name, 1
    while candidate.exists():
        number += 1
        candidate = RUNS / f"{name}-{number}"
    return candidate


def _starting_with(names: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


complete_configs = _starting_with(config_names)
# Of an argument or an option that takes a run.
TAKES_RUN: Any = {"metavar": "RUN", "parser": run_path, "autocompletion": _starting_with(run_names)}

Config = Annotated[
    str,
    typer.Option(
        "--config", "-c", metavar="FILE", help="A config file, or the name of a shipped one.",
        autocompletion=complete_configs,
    ),
]  # fmt: skip
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key, such as train.lr=3e-4. Repeatable.",
        autocompletion=_starting_with(config_keys),
    ),
]  # fmt: skip
RunDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="The run's folder.  [default: a new one in runs/]", rich_help_panel=RUN_OPTIONS
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(help="Continue this run; takes no config.", rich_help_panel=RUN_OPTIONS, **TAKES_RUN),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show what the training costs; train nothing.", rich_help_panel=SPECIAL),
]
TABLE = "A file of reviews"  # heading of --help
BadRows = Literal["fail", "skip"]
OnBadRows = Annotated[
    BadRows,
    typer.Option(
        metavar="fail|skip", help="At a row that is malformed or has no text: stop, or skip and warn.",
        rich_help_panel=TABLE,
    ),
]  # fmt: skip
Encoding = Annotated[
    str,
    typer.Option(metavar="NAME", help="Of text, CSV and JSON: utf-8, cp1252, ...", rich_help_panel=TABLE),
]
Split = Annotated[str, typer.Option(metavar="SPLIT", help="test, validation or train.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON on stdout instead of text.", rich_help_panel=SPECIAL)
]


def _show_version(wanted: bool) -> None:
    if wanted:
        import platform
        from importlib import metadata

        from imdb_transformer import __version__

        print(f"imdb-tx {__version__}, torch {metadata.version('torch')}, Python {platform.python_version()}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Train an encoder-only transformer with a max-pool head, from scratch, on IMDB or your own reviews."""
