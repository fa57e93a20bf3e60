"""Tables as text and as HTML, and numbers for people."""

import html
import re
from collections.abc import Sequence

Row = Sequence[object]


def text_table(header: Sequence[str], rows: Sequence[Row]) -> str:
    """Aligned columns: text to the left, numbers to the right.

    >>> print(text_table(["split", "rows"], [["train", 25000], ["test", 9]]))
    split    rows
    train  25,000
    test        9
    """
    cells = [list(map(one_line, header)), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    is_number = [bool(rows) and not isinstance(rows[0][i], str) for i in range(len(header))]
    lines = []
    for row in cells:
        aligned = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, is_number, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def html_table(header: Sequence[str], rows: Sequence[Row]) -> str:
    """The same table for a page. The first cell of each row is its heading."""
    head = "".join(f"<th scope=col>{html.escape(name)}</th>" for name in header)
    body = []
    for heading, *values in rows:
        cells = "".join(f"<td>{html.escape(_cell(value))}</td>" for value in values)
        body.append(f"<tr><th scope=row>{html.escape(_cell(heading))}</th>{cells}</tr>")
    table = f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f'<div class="scroll"><table>{table}</table></div>'


def _cell(value: object) -> str:
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


def one_line(text: str) -> str:
    """
    >>> one_line("two\\nlines\\tand a tab")
    'two lines and a tab'
    """
    return re.sub(r"\s", " ", text)
