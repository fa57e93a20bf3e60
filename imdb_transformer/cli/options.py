"""The program, its --help, the options that several commands share, and what a shell completes.

`--help` is plain text: options and commands under headings, summaries never cut, examples at the end. Typer's
own panels need rich, which takes longer to import than everything else that `--help` does.
"""

import difflib
import json
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from imdb_transformer.errors import ConfigError

if TYPE_CHECKING:
    from imdb_transformer.config import Config

TABLE, SPECIAL = "A file of reviews", "Other"
RUNS = Path("runs")
of_others = partial(typer.Option, rich_help_panel="Other runs")


def _write_options(command: TyperCommand | TyperGroup, ctx: Any, formatter: Any) -> None:
    """Commands, arguments and options by heading, in the order of the first of each; `SPECIAL` is last."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for name, each in getattr(command, "commands", {}).items():
        sections.setdefault(each.rich_help_panel, []).append((name, each.get_short_help_str()))
    for param in command.get_params(ctx):
        if (record := param.get_help_record(ctx)) is not None:
            is_argument = param.param_type_name == "argument"
            usual = "Arguments" if is_argument else SPECIAL if param.name == "help" else "Options"
            heading = getattr(param, "rich_help_panel", None) or usual
            name = record[0].partition(" <")[0] if is_argument else record[0]
            sections.setdefault(heading, []).append((name, record[1]))
    for heading, section in sorted(sections.items(), key=lambda item: item[0] == SPECIAL):
        with formatter.section(heading):
            formatter.write_dl(section)


def _write_examples(command: TyperCommand | TyperGroup, ctx: Any, formatter: Any) -> None:
    del ctx
    with formatter.section("Examples"):
        formatter.write_text(f"\b\n{command.epilog}")  # \b: the lines stay as they are


class Command(TyperCommand):
    """A command whose help has headings (`rich_help_panel`) and examples (`epilog`)."""

    format_options, format_epilog = _write_options, _write_examples

    def get_short_help_str(self, limit: int = 0) -> str:
        """The first paragraph of the help, whole."""
        del limit
        return " ".join((self.help or "").split("\n\n")[0].split())

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses as typer does. If an unknown option is a key of the config, the error suggests --set."""
        original = list(args)  # typer empties args
        try:
            return super().parse_args(ctx, args)
        except TyperException as error:
            error.message = error.message.removeprefix("Value error, ")  # pydantic's, before a wrong choice
            option = getattr(error, "option_name", "")
            if option.startswith("--") and any(param.name == "overrides" for param in self.params):
                is_exact = bool(getattr(error, "possibilities", None))  # another option is similar
                if hint := _key_hint(option, original, is_exact=is_exact):
                    error.message, error.possibilities = f"{error.message}. {hint}", None  # type: ignore[attr-defined]
            raise


class Group(TyperGroup):
    """The program: commands by heading."""

    format_options, format_epilog = _write_options, _write_examples


def _key_hint(option: str, args: list[str], *, is_exact: bool) -> str:
    """Advice about an option that is named like a key of the config; empty for any other option."""
    name = option.removeprefix("--").replace("-", "_").rpartition(".")[-1]
    keys = {key.partition(".")[2].rstrip("="): key for key in config_keys()}
    near = difflib.get_close_matches(name, keys, n=1, cutoff=1.0 if is_exact else 0.8)
    if not (near or is_exact):
        near = [key for key in keys if key.endswith(f"_{name}")]  # --layers means num_layers
    if not near:
        return ""
    joined = [arg.partition("=")[2] for arg in args if arg.startswith(f"{option}=")]
    after = args[args.index(option) + 1 :][:1] if option in args else []
    value = next((value for value in (*joined, *after) if not value.startswith("--")), "VALUE")
    return f"Use --set {shlex.quote(keys[near[0]] + value)}"


app = typer.Typer(
    name="imdb-tx",
    cls=Group,
    no_args_is_help=True,
    epilog="""imdb-tx train
imdb-tx predict "a charming, funny film\"""",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "color": False},
)


def command(heading: str, examples: str, name: str | None = None) -> Callable[[Any], Any]:
    """Adds a command to the program, below a heading of --help, with lines of examples."""
    return app.command(name, cls=Command, epilog=examples, rich_help_panel=heading)


for_reviews = partial(command, "Reviews")
for_training = partial(command, "Training")
for_trained_runs = partial(command, "Trained runs")


def complete_configs(start: str) -> list[str]:
    """The shipped configs whose names begin with `start`."""
    from imdb_transformer.config_file import shipped

    return [name for name in sorted(shipped()) if name.startswith(start)]


def config_keys() -> list[str]:
    """`section.key=` of each key."""
    from imdb_transformer.config import Config

    return [f"{section}.{key}=" for section, values in Config().model_dump().items() for key in values]


def complete_keys(start: str) -> list[str]:
    """The keys that begin with `start`. A single one comes twice: bash would add a space to it."""
    keys = [key for key in config_keys() if key.startswith(start)]
    return [*keys, f"{keys[0]}VALUE"] if len(keys) == 1 else keys


def _kind(path: Path) -> object:
    """The kind in a run.json; None if it cannot be read. The command then says what is wrong."""
    try:
        return json.loads(path.read_bytes())["kind"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def run_path(text: str) -> Path:
    """The run, checkpoint or exported file of this path. `base` means runs/base if there is no run `base`."""
    for path in (Path(text), RUNS / text):
        is_of_run = path.parent.name == "checkpoints" and (path.parents[1] / "run.json").exists()
        if path.is_file() or (path / "run.json").exists() or is_of_run:
            return path
    return Path(text)


def takes_run(*refused: str, shipped: bool = True) -> Any:
    """Keywords for typer of an argument or option that takes a run.

    Completion leaves out runs of the `refused` kinds and, without `shipped`, the runs of the package.
    """

    def complete(start: str) -> list[str]:
        from imdb_transformer.store.run import SHIPPED
        from imdb_transformer.store.upkeep import run_files

        runs = [(str(path.parent), path) for path in run_files(RUNS)]
        if shipped:
            runs += [(path.parent.name, path) for path in run_files(SHIPPED)]
        return [name for name, path in runs if name.startswith(start) and _kind(path) not in refused]

    return {"metavar": "RUN", "parser": run_path, "autocompletion": complete}


_config = partial(typer.Option, "--config", "-c", metavar="FILE", autocompletion=complete_configs)
CONFIG_HELP = "A config file, or the name of one in the package."
ConfigName = Annotated[str, _config(help=CONFIG_HELP)]
DEFAULTS = "[default: base.toml with SOURCE, else demo.toml]"
OptionalConfigName = Annotated[str | None, _config(help=f"{CONFIG_HELP}  {DEFAULTS}")]
SET_HELP = "Override a key, such as train.lr=3e-4. Repeatable."
_set = typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP, autocompletion=complete_keys)
Overrides = Annotated[list[str] | None, _set]
DATA_DIR_HELP = "Where corpora are stored.  [default: the run's]"
SOURCE_HELP = "Your reviews: a file or folder. Sets data.source."
Source = Annotated[str | None, typer.Argument(metavar="SOURCE", help=SOURCE_HELP, show_default=False)]
of_table = partial(typer.Option, rich_help_panel=TABLE)
TextColumn = Annotated[str | None, of_table(metavar="COLUMN", help="The column with the review.")]
LabelColumn = Annotated[str | None, of_table(metavar="COLUMN", help="The column with the class.")]
_of_run = partial(typer.Option, rich_help_panel="The run")
RUN_DIR_HELP = "The run's folder.  [default: a new one in runs/]"
RunDir = Annotated[Path | None, _of_run(metavar="FOLDER", help=RUN_DIR_HELP)]
RESUME_HELP = "Continue this run with its own config."
Resume = Annotated[Path | None, _of_run(help=RESUME_HELP, **takes_run("linear", shipped=False))]
_special = partial(typer.Option, rich_help_panel=SPECIAL)
DryRun = Annotated[bool, _special("--dry-run", help="Show what the training costs; train nothing.")]
Json = Annotated[bool, _special("--json", help="Print JSON on stdout instead of text.")]
BadRows = Literal["fail", "skip"]
BAD_ROWS_HELP = "A malformed or incomplete row: stop (fail), or leave it out (skip)."
of_bad_rows = of_table(metavar="fail|skip", help=BAD_ROWS_HELP)
OnBadRows = Annotated[BadRows | None, of_bad_rows]  # None: as the config says, or stop
of_encoding = of_table(metavar="NAME", help="Encoding, such as utf-8 or cp1252.")
Encoding = Annotated[str | None, of_encoding]


def passed(context: typer.Context) -> set[str]:
    """The parameters that the command line names."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def config_for(config: str | None, source: str | None, overrides: list[str] | None) -> str:
    """The config that was named, or else the default, which depends on SOURCE (see `DEFAULTS`)."""
    for override in overrides or []:
        key, _, value = override.partition("=")
        source = value.strip("\"' ") if key.strip() == "data.source" else source
    return config or ("base.toml" if source not in (None, "demo") else "demo.toml")


def load(
    name: str, overrides: list[str] | None, source: str | None, text_column: str | None,
    label_column: str | None, encoding: str | None, bad_rows: str | None, init_from: str | None = None,
    data_dir: str | None = None,
) -> "Config":  # fmt: skip
    """A config with the keys of a command's own options and of --set.

    Raises ConfigError if both name a key.
    """
    from imdb_transformer import config_file  # with pydantic, which --help does not need
    from imdb_transformer.data.layouts import check_unambiguous

    keys = {
        "data.source": source, "data.text_column": text_column, "data.label_column": label_column,
        "data.encoding": encoding, "data.bad_rows": bad_rows, "data.data_dir": data_dir,
        "train.init_from": init_from,
    }  # fmt: skip
    check_unambiguous(source)
    of_options = {
        key: json.dumps(value, ensure_ascii=False) for key, value in keys.items() if value is not None
    }
    for override in overrides or []:
        if override.partition("=")[0].strip() in of_options:
            raise ConfigError(f"--set {override} and another argument are for the same key; leave one out.")
    return config_file.load(name, [f"{key}={value}" for key, value in of_options.items()] + (overrides or []))
