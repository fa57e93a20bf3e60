"""Layout of results: tables as text and as HTML, readable numbers, and pages.

A page is one file that fetches nothing. It is readable on a phone and in dark mode.
"""

import html
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from imdb_transformer.errors import one_line
from imdb_transformer.report.terminal import visible

TableRow = Sequence[object]
NUMBER = r"[-+]?\d|-$"  # the beginning of a cell in a right-aligned column
LONG_HEADING = 16  # characters of a heading that may be broken
PAGE_ENDINGS = (".html", ".htm")


def text_table(header: Sequence[str], rows: Sequence[TableRow]) -> str:
    """Aligned columns: text to the left, numbers to the right.

    >>> print(text_table(["split", "rows"], [["train", 25000], ["test", 9]]))
    split    rows
    train  25,000
    test        9
    """
    cells = [list(map(one_line, header)), *([cell_text(value) for value in row] for row in rows)]
    widths = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
    is_text = [not rows or isinstance(rows[0][i], str) for i in range(len(header))]
    return "\n".join("  ".join(map(_padded, row, widths, is_text)).rstrip() for row in cells)


def _padded(text: str, width: int, is_text: bool) -> str:
    blanks = " " * (width - display_width(text))
    return text + blanks if is_text else blanks + text


def display_width(text: str) -> int:
    """Columns of a terminal: two for a Chinese character, none for an accent on its own."""
    if text.isascii():
        return len(text)
    text = visible(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.category(c) in ("Mn", "Me", "Cf") for c in text)


def html_table(header: Sequence[str], rows: Sequence[TableRow]) -> str:
    """A table for a page. The first cell of each row is its heading."""
    texts = [[cell_text(value) for value in row] for row in rows]
    columns = range(1, len(header))
    heading_kind = ' class="name"' if any(len(row[0]) > LONG_HEADING for row in texts) else ""
    is_number = [False, *(bool(rows) and all(re.match(NUMBER, row[i]) for row in texts) for i in columns)]
    kinds = [' class="number"' if number else "" for number in is_number]
    head = "".join(
        f"<th scope=col{kind}>{html.escape(name)}</th>" for name, kind in zip(header, kinds, strict=True)
    )
    body = []
    for heading, *values in texts:
        cells = "".join(
            f"<td{kind}>{html.escape(value)}</td>" for value, kind in zip(values, kinds[1:], strict=True)
        )
        body.append(f"<tr><th scope=row{heading_kind}>{html.escape(heading)}</th>{cells}</tr>")
    table = f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f'<div class="scroll"><table>{table}</table></div>'


def markdown_table(header: Sequence[str], rows: Sequence[TableRow]) -> str:
    """A table for Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(markdown_text(cell_text(cell)) for cell in line)} |" for line in lines)


def markdown_text(text: str) -> str:
    """Text that is neither Markdown nor HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|&~])", r"\\\1", " ".join(text.split()))


def cell_text(value: object) -> str:
    """A value in one line; digits of whole numbers are in groups of three."""
    return f"{value:,}" if isinstance(value, int) else one_line(str(value))


def percent(part: float, whole: float = 1, digits: int = 2) -> str:
    """
    >>> percent(0.91234), percent(1, 3, 1)
    ('91.23%', '33.3%')
    """
    return f"{100 * part / max(whole, 1):.{digits}f}%"


def duration(seconds: float) -> str:
    """
    >>> duration(42), duration(754), duration(7500)
    ('42 s', '12 min 34 s', '2 h 5 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def write_page(path: Path, title: str, sections: Sequence[str], *, refresh_seconds: int = 0) -> None:
    """Writes a page of HTML sections. A browser reloads it every `refresh_seconds`, if not 0."""
    from imdb_transformer.store.files import write_whole  # with pydantic, which --help does not need

    page = read_asset("page.html").format(
        title=html.escape(title),
        style=read_asset("page.css"),
        refresh=f'\n<meta http-equiv="refresh" content="{refresh_seconds}">' if refresh_seconds else "",
        body="\n".join(sections),
    )
    write_whole(path, page.encode(errors="replace"))  # an argument may contain bytes that are not text


def read_asset(name: str) -> str:
    """The text of a file in this folder, such as the style sheet."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def tiles(scores: Sequence[tuple[str, str]]) -> str:
    """The main numbers. Text in brackets is smaller."""
    items = []
    for name, score in scores:
        value, _, note = score.partition(" (")
        small = f"<small>{html.escape(note.removesuffix(')'))}</small>" if note else ""
        items.append(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}{small}</dd></div>")
    return f'<dl class="tiles">{"".join(items)}</dl>'


def folded(summary: str, content: str) -> str:
    """HTML that opens at a click."""
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"
