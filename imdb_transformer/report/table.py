"""Columns, shares and durations as text for people."""

import re
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned: text to the left, figures to the right.

    >>> print(table(["split", "rows"], [["train", 25000], ["test", 9]]))
    split    rows
    train  25,000
    test        9
    """
    cells = [list(map(one_line, header)), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    numeric = [bool(rows) and not isinstance(rows[0][i], str) for i in range(len(header))]
    lines = []
    for row in cells:
        aligned = [
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else one_line(str(value))


def percent(part: float, whole: float) -> str:
    return f"{100 * part / max(whole, 1):.1f}%"


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
