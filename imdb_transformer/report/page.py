"""Writes an HTML page that stands alone: it fetches nothing, and reads well on a phone and in the dark."""

import html
from collections.abc import Sequence
from pathlib import Path

from imdb_transformer.errors import ConfigError
from imdb_transformer.store.files import write_whole

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 62rem; margin: 1rem auto; padding: 0 1rem; }}
h1, thead th {{ overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ text-align: left; padding: .2rem 1rem .2rem 0; border-bottom: 1px solid #8884; }}
.figures {{ display: grid; gap: 1rem; }}
.figures {{ grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); }}
figure {{ margin: 0; }}
figure svg {{ width: 100%; height: auto; }}
figure svg text {{ fill: currentColor; }}
figcaption {{ font-size: .9rem; }}
mark {{ color: inherit; border-radius: .2em; background: none; }}
pre, .scroll {{ overflow-x: auto; }}
details {{ margin: .5rem 0; overflow-wrap: anywhere; }}
summary {{ cursor: pointer; }}
.map {{ font-size: .75rem; line-height: 1.1; }}
.map th, .map td {{ padding: .1rem .3rem; border: none; }}
.map th {{ font-weight: normal; text-align: right; white-space: nowrap; }}
.map thead th {{ writing-mode: vertical-rl; }}
.map td {{ min-width: 1.1rem; height: 1.1rem; }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


def check_page(path: Path) -> None:
    """Raises ConfigError if `write_page` cannot write such a file."""
    if path.is_dir() or not path.parent.is_dir():
        problem = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise ConfigError(f"--html {path}: {problem}; name a file such as page.html.")


def write_page(path: Path, title: str, sections: Sequence[str]) -> None:
    """Writes a page of HTML sections under a title."""
    page = PAGE.format(title=html.escape(title), body="\n".join(sections))
    write_whole(path, page.encode(errors="replace"))  # an argument may contain bytes that are not text
