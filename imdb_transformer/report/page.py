"""Writes an HTML page that stands alone: it fetches nothing, and reads well on a phone and in the dark."""

import html
from collections.abc import Sequence
from pathlib import Path

from imdb_transformer.errors import ConfigError
from imdb_transformer.store.files import write_whole

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">{refresh}
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


def check_page(path: Path) -> None:
    """Raises ConfigError if `write_page` cannot write such a file."""
    if path.is_dir() or not path.parent.is_dir():
        problem = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise ConfigError(f"--html {path}: {problem}; name a file such as page.html.")


def write_page(path: Path, title: str, sections: Sequence[str], *, refresh_seconds: int = 0) -> None:
    """Writes a page of HTML sections under a title. A browser loads it again every `refresh_seconds`."""
    page = PAGE.format(
        title=html.escape(title),
        style=text_beside("page.css"),
        refresh=f'\n<meta http-equiv="refresh" content="{refresh_seconds}">' if refresh_seconds else "",
        body="\n".join(sections),
    )
    write_whole(path, page.encode(errors="replace"))  # an argument may contain bytes that are not text


def text_beside(name: str) -> str:
    """A file of this folder, such as the style of all pages."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def tiles(scores: Sequence[tuple[str, str]]) -> str:
    """The main numbers. What stands in brackets is shown smaller."""
    each = []
    for name, score in scores:
        value, _, note = score.partition(" (")
        small = f"<small>{html.escape(note.removesuffix(')'))}</small>" if note else ""
        each.append(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}{small}</dd></div>")
    return f'<dl class="tiles">{"".join(each)}</dl>'


def folded(summary: str, content: str) -> str:
    """Text that opens at a click."""
    return f"<details><summary>{html.escape(summary)}</summary><pre>{html.escape(content)}</pre></details>"
