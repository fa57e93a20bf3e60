"""Suggests options for a table whose columns have other names."""

import codecs
import gzip
import shlex
import zlib
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from imdb_transformer.data.rows import BYTE_ORDER_MARKS
from imdb_transformer.data.tables import DELIMITED, JSON, open_table, suffix_of
from imdb_transformer.errors import DataError

READ_BYTES = 1 << 20
WINDOWS = "cp1252"
MIN_TEXT_LENGTH = 20  # characters on average; names and dates are shorter
MAX_CLASSES = 20
MAX_SHOWN = 12  # columns in the question which of them is the label
MAX_NAME_WORDS = 6  # of a column
MIN_ROWS_PER_CLASS = 5  # on average; ids and dates repeat less


def suggested_options(path: Path, encoding: str, text_column: str, label_column: str | None = None) -> str:
    """` Perhaps: --text-column body --label-column stars`; empty if no column is missing or none fits.

    It depends on the first rows. If several columns may be the label, it asks which one is. With
    `label_column` None, only a text column is needed.
    """
    if not path.is_file():  # a pipe can be read once
        return ""
    try:
        fitting = WINDOWS if _is_windows_text(path, encoding) else encoding
        with path.open("rb") as file:  # not the path: then all of a JSON file would be read
            _, blocks = open_table(path, {}, encoding=fitting, bad_row=lambda _: None, file=file)
            rows = next(blocks)[0]
    except (DataError, StopIteration, OSError, EOFError, zlib.error):
        return ""
    wanted = {"--text-column": text_column} | ({"--label-column": label_column} if label_column else {})
    missing = [option for option, column in wanted.items() if column not in rows.schema.names]
    if not missing:
        return ""
    if suffix_of(path) in (*DELIMITED, ".xlsx") and _is_row(rows):
        return " The first line seems to be a review: it must name the columns."
    text = text_column if text_column in rows.schema.names else _text_like(rows)
    labels = _label_like(rows, text)
    similar = {"--text-column": text, "--label-column": labels[0] if len(labels) == 1 else None}
    words = [word for option in missing if (column := similar[option]) for word in (option, column)]
    words += ["--encoding", fitting] if fitting != encoding else []
    advice = f" Perhaps: {shlex.join(words)}" if words else ""
    if "--label-column" in missing and len(labels) > 1:
        return f" Which of these is the label: {', '.join(map(repr, labels[:MAX_SHOWN]))}?{advice}"
    has_text = any(pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in rows.schema.types)
    if "--label-column" in missing and not labels and has_text:
        advice += "." if advice else ""
        return (
            f"{advice} Without labels, `imdb-tx predict --input FILE` can classify the texts, and "
            '`imdb-tx pretrain --label-column ""` can learn them.'
        )
    return advice


def _is_windows_text(path: Path, encoding: str) -> bool:
    """Whether the first part of a text file is not in this encoding, but may be in that of Windows."""
    if suffix_of(path) not in (*DELIMITED, *JSON):
        return False
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        data = file.read(READ_BYTES)
    has_mark = data.startswith(tuple(BYTE_ORDER_MARKS))
    return not has_mark and _can_decode(data, WINDOWS) and not _can_decode(data, encoding)


def _can_decode(data: bytes, encoding: str) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(data)  # the last character may be cut
    except UnicodeError:
        return False
    return True


def _is_row(rows: pa.RecordBatch) -> bool:
    """Whether the names of columns are rather a row: one is repeated below it, or is alone and long.

    In a survey, all answered cells of a column may repeat its name. Such a name is no review.
    """
    names, values = rows.schema.names, map(_values, rows.columns)
    is_text = len(names) == 1 and len(names[0].split()) > MAX_NAME_WORDS
    return is_text or any(name in each and len(each) > 1 for name, each in zip(names, values, strict=True))


def _text_like(rows: pa.RecordBatch) -> str | None:
    """The column whose text is much the longest."""
    lengths: list[tuple[float, str | None]] = [(0, None), (0, None)]
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            lengths.append((sum(len(text or "") for text in column.to_pylist()) / max(len(column), 1), name))
    (second, _), (longest, name) = sorted(lengths, key=itemgetter(0))[-2:]
    return name if longest >= max(MIN_TEXT_LENGTH, 2 * second) else None


def _label_like(rows: pa.RecordBatch, text: str | None) -> list[str]:
    """The columns with few different values."""
    most = min(MAX_CLASSES, rows.num_rows // MIN_ROWS_PER_CLASS)
    columns = zip(rows.schema.names, rows.columns, strict=True)
    return [name for name, column in columns if name not in ("", text) and 2 <= len(_values(column)) <= most]


def _values(column: "pa.Array[Any]") -> set[Any]:
    """The different values but empty ones; none if one is a list or object, or a date after the year 9999."""
    try:
        return set(column.to_pylist()) - {None, ""}
    except (TypeError, ValueError, OverflowError, pa.ArrowException):
        return set()
