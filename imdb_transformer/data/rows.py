"""Reads rows of plain lines and CSV; `json_rows.py` reads those of JSON, and `excel_rows.py` those of Excel.

A row has a number, and its cells by column. `report` is called with the number of a malformed row and a
description of the problem; the row is left out.
"""

import codecs
import csv
import io
import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, islice
from select import select
from typing import Any, BinaryIO

from imdb_transformer.data.reviews import MAX_REVIEW_BYTES
from imdb_transformer.errors import ConfigError, DataError

Row = tuple[int, dict[str, Any]]  # number, cells
Report = Callable[[int, str], None]

READ_BYTES = 1 << 20
UNDECODED = re.compile("[\udc80-\udcff]")
"""a byte that the encoding does not have, by Python's `surrogateescape`"""
SEPARATOR = re.compile(r'"?sep=(.)"?\s*')  # a first line that Excel writes and reads
OTHER_FORMATS = {
    b"PAR1\x15": "it is a Parquet file; rename it to .parquet",
    b"PK\x03\x04": "it is a ZIP archive; if it is a workbook of Excel, rename it to .xlsx",
    b"\x1f\x8b\x08": "it is compressed by gzip; add .gz to its name, as in reviews.csv.gz",
}  # how their files begin
NOT_CSV = 'is not CSV ({}); in a quoted cell, write a quote as ""'
WAIT_SECONDS = 0.1  # for more lines of a pipe
BYTE_ORDER_MARKS = {  # UTF-32 first: UTF-16's mark is the beginning of its mark
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8",
}


def iter_lines(file: Any, encoding: str, origin: object, *, may_be_long: bool = False) -> Iterator[list[str]]:
    """Lines with their ends. Each list has the lines that could be read without waiting.

    A byte order mark overrides `encoding`. A byte that the encoding does not have becomes `UNDECODED`. Raises
    ConfigError for an unknown encoding, ValueError for a file of `OTHER_FORMATS`, and DataError for a line
    that is too long for a review, unless lines `may_be_long`.
    """
    decoder, num_lines = None, 0
    pending: list[str] = []  # of a line whose end has not come
    for data in chain(iter(lambda: file.read1(READ_BYTES), b""), [b""]):
        if decoder is None:
            if advice := next((OTHER_FORMATS[mark] for mark in OTHER_FORMATS if data.startswith(mark)), ""):
                raise ValueError(advice)
            encoding = encoding_of(data, encoding)
            usual = codecs.getincrementaldecoder(encoding)("surrogateescape")
            decoder = io.IncrementalNewlineDecoder(usual, translate=False)
        try:
            pending.append(decoder.decode(data, final=not data))
        except UnicodeDecodeError as error:  # UTF-16 has no single bytes to mark
            raise DataError(f"{origin} is not {encoding} after line {num_lines} ({error.reason}).") from None
        lines: list[str] = []
        if not data or "\n" in pending[-1] or "\r" in pending[-1]:
            lines = list(io.StringIO("".join(pending), newline=""))
            pending = [lines.pop()] if data and lines[-1][-1] not in "\r\n" else []
        for number, length in enumerate((*map(len, lines), sum(map(len, pending))), num_lines + 1):
            if length > MAX_REVIEW_BYTES and not may_be_long:
                raise DataError(f"{origin}: line {number} has more than {MAX_REVIEW_BYTES:,} bytes.")
        num_lines += len(lines)
        yield lines


def encoding_of(content: bytes, encoding: str) -> str:
    """The encoding of a file that begins with `content`: a byte order mark overrides `encoding`.

    Raises ConfigError if there is no such encoding of text.
    """
    try:
        "".encode(encoding)  # also refuses codecs that are not text encodings
    except LookupError:
        usual = "utf-8, cp1252 (Windows) and utf-16 are usual"
        raise ConfigError(f"{encoding!r} is not an encoding; {usual}.") from None
    marked = (name for mark, name in BYTE_ORDER_MARKS.items() if content.startswith(mark))
    name = next(marked, codecs.lookup(encoding).name)
    return "utf-8-sig" if name == "utf-8" else name


def undecodable(encoding: str) -> str:
    """The problem of a row with `UNDECODED` characters."""
    hint = "; if Windows wrote it, try --encoding cp1252 (data.encoding=cp1252)"
    name = encoding.lower().removesuffix("-sig")
    return f"is not {name.upper()}{hint if name in ('utf-8', 'utf8', 'ascii') else ''}"


def read_lines(
    parts: Iterable[list[str]], column: str, encoding: str, report: Report, file: BinaryIO
) -> Iterator[Row | None]:
    """Each line as a row of one cell. None means that the rows before it should not wait for more.

    It comes before a bad line. If `file` is a pipe, it also comes when no line is waiting, and `WAIT_SECONDS`
    have passed since the first of the rows before it.
    """
    numbers, first_came = count(1), None
    for part in parts:
        for line, number in zip(part, numbers, strict=False):
            if UNDECODED.search(line):
                yield None  # the lines before it are predicted
                report(number, undecodable(encoding))
            else:
                yield number, {column: line.rstrip("\r\n")}
        first_came = first_came or time.monotonic()
        if not _has_more(file, first_came + WAIT_SECONDS - time.monotonic()):
            first_came = None
            yield None


def _has_more(file: BinaryIO, seconds: float) -> bool:
    """Whether data or the end of a pipe comes within some seconds. A file always has more."""
    try:
        return bool(select([file], [], [], max(seconds, 0))[0])
    except (OSError, ValueError):  # not a file of the operating system
        return True


def read_delimited(
    lines: Iterator[str], wanted: Iterable[str], encoding: str, report: Report, delimiters: str
) -> tuple[list[str], Iterator[Row]]:
    """The column names in the first line, and the rows. The delimiter is the one that fits that line."""
    csv.field_size_limit(MAX_REVIEW_BYTES)
    num_before, first = next(((i, line) for i, line in enumerate(lines) if line.strip()), (0, ""))
    if declared := SEPARATOR.fullmatch(first):
        num_before, first, delimiter = num_before + 1, next(lines, ""), declared[1]
    else:
        names_by = {mark: next(csv.reader([first], delimiter=mark), []) for mark in delimiters}
        delimiter = max(
            delimiters, key=lambda mark: (len({*wanted} & {*names_by[mark]}), len(names_by[mark]))
        )
    if "\0" in first:
        name = "utf-16-be" if first.startswith("\0") else "utf-16-le"
        raise ValueError(f"it has null bytes; try --encoding {name} (data.encoding={name})")
    if UNDECODED.search(first):
        raise ValueError(f"line {num_before + 1} {undecodable(encoding)}")
    # If the header has a blank after each delimiter, and the next line a quote after one, blanks are no text.
    second = list(islice(lines, 1))
    has_blanks = delimiter != "\t" and first.count(delimiter) == first.count(f"{delimiter} ")
    reader = csv.reader(
        chain(["\n"] * num_before, [first], second, lines), delimiter=delimiter, strict=True,
        skipinitialspace=has_blanks and f'{delimiter} "' in "".join(second),
    )  # fmt: skip
    names = next(filter(None, reader), [])
    return names, _rows_of(reader, names, encoding, report)


def _rows_of(reader: Any, names: list[str], encoding: str, report: Report) -> Iterator[Row]:
    blank: list[int] = []  # numbers of blank lines, which are empty cells if there is one column
    while True:
        number, problem = reader.line_num + 1, ""
        try:
            if (row := next(reader, None)) is None:
                return
        except csv.Error as error:
            is_open = "end of" in str(error)
            row, problem = [], "opens a quote that is not closed" if is_open else NOT_CSV.format(error)
        else:
            if not row:
                blank.append(number)
                continue
            if len(row) != len(names):
                problem = f"has another number of fields than the header ({len(row)}, not {len(names)})"
            elif reader.dialect.delimiter == "\t" and any(
                line.count("\t") == len(names) - 1
                for cell in row
                for line in cell.split("\n")[1:]
                if "\t" in line
            ):
                problem = "has a quoted cell with another row in it"
            elif UNDECODED.search("".join(row)):
                problem = undecodable(encoding)
        yield from ((each, {names[0]: ""}) for each in blank if len(names) == 1)  # not those at the end
        blank = []
        if not problem:
            yield number, dict(zip(names, row, strict=True))
        else:
            last = reader.line_num
            report(number, problem + (f"; its quotes go on to line {last}" if last > number else ""))
