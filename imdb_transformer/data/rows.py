"""The rows of each format of table: CSV, JSON, Excel and plain lines.

A row comes with its number, and with its size in characters. A malformed row is left out, after `bad_row` was
called with its number and what is wrong with it.
"""

import csv
import json
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from itertools import chain, count
from typing import Any, BinaryIO

from imdb_transformer.data.lines import UNDECODED, has_more
from imdb_transformer.data.reviews import MAX_REVIEW_BYTES
from imdb_transformer.errors import ConfigError

Texts = tuple[int, int, Sequence[str]]  # number, size, cells
Record = tuple[int, int, dict[str, Any]]
BadRow = Callable[[int, str], None]

DELIMITERS = ",;\t|"
SEPARATOR = re.compile(r'"?sep=(.)"?\s*')
"""a first line that Excel writes and reads"""
MAX_NESTING = 100
JSON_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"')
WAIT_SECONDS = 0.1  # for more lines of a pipe


def undecodable(encoding: str) -> str:
    """What is wrong with a row that has `UNDECODED` characters."""
    hint = "; if Windows wrote it, try --encoding cp1252 (--set data.encoding=cp1252)"
    return f"is not {encoding.upper()}{hint if encoding.lower() in ('utf-8', 'utf8', 'ascii') else ''}"


def of_lines(
    parts: Iterable[list[str]], encoding: str, bad_row: BadRow, pipe: BinaryIO | None
) -> Iterator[Texts | None]:
    """Each line as a row of one cell. Gives None where those before it should not wait for more.

    That is when a `pipe` has had nothing more for a while, and before a bad line.
    """
    numbers, first_came = count(1), None
    for part in parts:
        for line, number in zip(part, numbers, strict=False):
            if UNDECODED.search(line):
                yield None  # the lines before it are answered
                bad_row(number, undecodable(encoding))
            else:
                yield number, len(line), [line.rstrip("\r\n")]
        if pipe is not None:
            first_came = first_came or time.monotonic()
            if not has_more(pipe, first_came + WAIT_SECONDS - time.monotonic()):
                first_came = None
                yield None


def of_delimited(
    lines: Iterator[str], wanted: Iterable[str], encoding: str, bad_row: BadRow
) -> tuple[list[str], Iterator[Texts]]:
    """The names of columns in the first line, and the rows. The delimiter is the one that fits that line."""
    num_before, first = next(((i, line) for i, line in enumerate(lines) if line.strip()), (0, ""))
    if declared := SEPARATOR.fullmatch(first):
        num_before, first, delimiter = num_before + 1, next(lines, ""), declared[1]
    else:
        names_by = {mark: next(csv.reader([first], delimiter=mark), []) for mark in DELIMITERS}
        delimiter = max(
            DELIMITERS, key=lambda mark: (len({*wanted} & {*names_by[mark]}), len(names_by[mark]))
        )
    if UNDECODED.search(first):
        raise ValueError(f"line {num_before + 1} {undecodable(encoding)}")
    csv.field_size_limit(MAX_REVIEW_BYTES)
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    names = next(reader, [])
    return names, _rows_of(reader, len(names), num_before, encoding, bad_row)


def _rows_of(reader: Any, width: int, num_before: int, encoding: str, bad_row: BadRow) -> Iterator[Texts]:
    while True:
        number = num_before + reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            row, problem = [], "opens a quote that is not closed" if "end of" in str(error) else f"({error})"
        else:
            if not row:  # a blank line
                continue
            counts = f"({len(row)}, not {width})"
            problem = "" if len(row) == width else f"has another number of fields than the header {counts}"
        if not problem and UNDECODED.search("".join(row)):
            problem = undecodable(encoding)
        num_more = num_before + reader.line_num - number
        if not problem:
            yield number, sum(map(len, row)), row
        else:
            bad_row(number, problem + (f"; its quotes take in {num_more} lines more" if num_more else ""))


def of_json(lines: Iterator[str], encoding: str, bad_row: BadRow) -> Iterator[Record]:
    """The objects of JSON lines, or of one array. Of an array, numbers count its objects."""
    first_number, first = next(((i, line) for i, line in enumerate(lines, 1) if line.strip()), (1, ""))
    values: Iterable[tuple[int, int, Any]]
    if first.lstrip().startswith("["):
        text = "".join(chain([first], lines))
        array = _parsed(text, encoding)
        values = ((number, len(text) // len(array), value) for number, value in enumerate(array, 1))
    else:
        values = _parsed_lines(enumerate(chain([first], lines), first_number), encoding, bad_row)
    for number, size, value in values:
        if isinstance(value, dict):
            yield number, size, value
        else:
            bad_row(number, 'is no JSON object, such as {"text": ...}')


def _parsed_lines(
    lines: Iterable[tuple[int, str]], encoding: str, bad_row: BadRow
) -> Iterator[tuple[int, int, Any]]:
    for number, line in lines:
        if line.strip():
            try:
                value = _parsed(line, encoding)
            except ValueError as error:
                bad_row(number, str(error))
            else:
                yield number, len(line), value


def _parsed(text: str, encoding: str) -> Any:
    """The value of a JSON text. Raises ValueError with what is wrong.

    Later steps follow brackets by recursion: a few thousand of them would kill the process.
    """
    if UNDECODED.search(text):
        raise ValueError(undecodable(encoding))
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", JSON_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_NESTING:
            raise ValueError(f"nests lists or objects more than {MAX_NESTING} deep")
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"is no JSON ({error})") from None


def of_excel(file: BinaryIO, bad_row: BadRow) -> tuple[list[str], Iterator[Texts]]:
    """The names of columns in the first row of the first sheet, and the rows. All cells become text."""
    try:
        from openpyxl import load_workbook
    except ModuleNotFoundError:
        raise ConfigError(
            "An .xlsx file needs openpyxl, which is not installed: pip install 'imdb-tx[excel]'."
        ) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles and of rules for cells, which it does not know
        try:
            sheet = load_workbook(file, read_only=True, data_only=True).worksheets[0]
            cells = [[_as_text(value) for value in row] for row in sheet.iter_rows(values_only=True)]
        except Exception as error:  # of zip, XML or openpyxl
            raise ValueError(f"it is no workbook ({error})") from None
    numbered = ((number, row) for number, row in enumerate(cells, 1) if any(row))
    names = next(numbered, (0, []))[1]
    while names and not names[-1]:
        names.pop()

    def rows() -> Iterator[Texts]:
        for number, row in numbered:
            if any(row[len(names) :]):
                bad_row(number, f"has more cells than the header, which has {len(names)}")
            else:
                padded = [*row, *[""] * len(names)][: len(names)]
                yield number, sum(map(len, padded)), padded

    return names, rows()


def _as_text(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.isoformat() if isinstance(value, date) else "" if value is None else str(value)
