"""`--help` in plain text: options and commands under headings, summaries never cut, examples at the end.

Typer's own panels need rich, which takes longer to import than everything else that `--help` does.
"""

import difflib
from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

Rows = Iterable[tuple[str | None, tuple[str, str]]]  # heading, (name, help)


def _write_examples(command: TyperCommand | TyperGroup, ctx: Any, formatter: Any) -> None:
    del ctx
    with formatter.section("Examples"):
        formatter.write_text(f"\b\n{command.epilog}")  # \b: the lines stay as they are


class Command(TyperCommand):
    """A command whose help has headings (`rich_help_panel`) and examples (`epilog`)."""

    format_epilog = _write_examples

    def get_short_help_str(self, limit: int = 0) -> str:
        """The first paragraph of the help, whole."""
        del limit
        return " ".join((self.help or "").split("\n\n")[0].split())

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then options by heading."""
        _write_sections(_parameters(self, ctx), formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does it; an unknown option that is a key of the config is answered with --set."""
        asked = list(args)  # typer empties args
        try:
            return super().parse_args(ctx, args)
        except TyperException as error:
            option = getattr(error, "option_name", "")
            takes_keys = any(param.name == "overrides" for param in self.params)
            if option.startswith("--") and takes_keys:
                cutoff = 1.0 if getattr(error, "possibilities", None) else 0.7  # 1: only the key's very name
                if hint := _key_hint(option, asked, cutoff=cutoff):
                    error.message, error.possibilities = f"{error.message}. {hint}", None  # type: ignore[attr-defined]
            raise


class Group(TyperGroup):
    """The program: commands by heading."""

    format_epilog = _write_examples

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Commands by heading, then options."""
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        rows = [(each.rich_help_panel, (name, each.get_short_help_str())) for name, each in commands]  # type: ignore[attr-defined]
        _write_sections(rows, formatter)
        _write_sections(_parameters(self, ctx), formatter)


def _parameters(command: TyperCommand | TyperGroup, ctx: Any) -> Rows:
    for param in command.get_params(ctx):
        if (record := param.get_help_record(ctx)) is not None:
            is_argument, heading = (
                param.param_type_name == "argument",
                getattr(param, "rich_help_panel", None),
            )
            usual = "Arguments" if is_argument else "Other" if param.name == "help" else "Options"
            name, text = record
            yield heading or usual, (name.partition(" <")[0] if is_argument else name, text)


def _write_sections(rows: Rows, formatter: Any) -> None:
    """Rows below their headings; a heading stands where its first row is, and Other last."""
    sections: dict[str | None, list[tuple[str, str]]] = {}
    for heading, row in rows:
        sections.setdefault(heading, []).append(row)
    for heading, section in sorted(sections.items(), key=lambda item: item[0] == "Other"):
        with formatter.section(heading):
            formatter.write_dl(section)


def _key_hint(option: str, args: list[str], *, cutoff: float) -> str:
    """What to say in place of an option that is named like a key of the config; empty if there is none."""
    from imdb_transformer.config import Config

    name = option.removeprefix("--").replace("-", "_")
    sections = {section: type(getattr(Config(), section)).model_fields for section in Config.model_fields}
    keys = {key: f"{section}.{key}" for section, fields in sections.items() for key in fields}
    near = difflib.get_close_matches(name.rpartition(".")[-1], keys, n=1, cutoff=cutoff)
    if not near:
        return ""
    joined = [arg.partition("=")[2] for arg in args if arg.startswith(f"{option}=")]
    after = args[args.index(option) + 1 :][:1] if option in args else []
    value = next((value for value in (*joined, *after) if not value.startswith("--")), "VALUE")
    return f"Say --set {keys[near[0]]}={value}"
