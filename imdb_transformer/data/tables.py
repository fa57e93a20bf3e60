"""Files of reviews, read a block of rows at a time: text, CSV, TSV, JSON, JSON lines, Parquet and Excel.

Every row has a number, which errors name: that of its line, or in Excel, Parquet and JSON arrays that of its
row. 1 is the first line of the file.
"""

import csv
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from imdb_transformer.data import blocks, lines, rows
from imdb_transformer.data.reviews import MAX_REVIEW_BYTES, refuse
from imdb_transformer.errors import DataError

DELIMITED, JSON = (".csv", ".tsv"), (".jsonl", ".json")
TABLE_SUFFIXES = (*DELIMITED, *JSON, ".parquet", ".xlsx")
ENDINGS = f"{', '.join(TABLE_SUFFIXES)}, all but the last two also with .gz"

NUM_TOLD = 10

Report = Callable[[str], None]  # is called with a sentence about each bad row


def suffix_of(path: Path) -> str:
    """The format by a file's name: `.csv` of r.CSV and of r.csv.gz."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def is_table(path: Path) -> bool:
    """Whether `open_table` reads files of this name as tables."""
    return suffix_of(path) in TABLE_SUFFIXES


def place(origin: Path | str, number: int) -> str:
    """Where a row is, such as `r.csv: line 3`."""
    has_lines = isinstance(origin, Path) and suffix_of(origin) not in (".parquet", ".xlsx", ".json")
    return f"{origin}: {'line' if has_lines else 'row'} {number}"


class Skip:
    """Leaves bad rows out: counts them, and tells what is wrong with the first ten."""

    def __init__(self, tell: Report) -> None:
        self.tell, self.num_rows = tell, 0

    def __call__(self, problem: str) -> None:
        """Is called about each bad row."""
        self.num_rows += 1
        if self.num_rows <= NUM_TOLD:
            self.tell(problem)


def open_table(
    path: Path, wanted: Mapping[str, str], *, encoding: str = "utf-8", bad_row: Report = refuse,
    file: BinaryIO | None = None,
) -> tuple[pa.Schema, Iterator[blocks.Block]]:  # fmt: skip
    """Columns and rows of a file, a block at a time. Raises ConfigError and DataError.

    `wanted` has the columns that must be there, each with the option that names another. A file whose name is
    not that of a table has lines, which fill the first of them. `bad_row` is called about each malformed row.
    If it returns, the row is left out. `file` is read in the place of the one at `path`.
    """
    contents = _read(path, wanted, encoding, bad_row, file)
    return next(contents), contents


def _read(
    path: Path, wanted: Mapping[str, str], encoding: str, bad_row: Report, stream: BinaryIO | None
) -> Iterator[Any]:
    """The schema, and then the blocks. The file is open until the last one is taken."""

    def report(number: int, problem: str) -> None:
        bad_row(f"{place(path, number)} {problem}")

    suffix = suffix_of(path)
    with ExitStack() as opened, _named_errors(path):
        file: Any = stream or opened.enter_context(path.open("rb"))  # its errors name the file
        pipe = file if lines.comes_slowly(file) else None
        if path.suffix.lower() == ".gz":
            file = opened.enter_context(gzip.open(file))
        if suffix == ".parquet":
            contents = blocks.of_parquet(path)
        elif suffix == ".xlsx":
            contents = blocks.of_texts(*rows.of_excel(file, report))
        else:
            parts = lines.lines_as_they_come(file, encoding, path)
            one_by_one = chain.from_iterable(parts)
            if suffix in JSON:
                contents = blocks.of_records(rows.of_json(one_by_one, encoding, report), report)
            elif suffix in DELIMITED:
                contents = blocks.of_texts(*rows.of_delimited(one_by_one, wanted, encoding, report))
            else:
                contents = blocks.of_texts([*wanted][:1], rows.of_lines(parts, encoding, report, pipe))
        schema = next(contents)
        if not schema.names:
            raise DataError(f"{path} is empty.")
        check_columns(schema.names, wanted, path)
        yield schema
        yield from contents


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, csv.Error, zlib.error, OSError, EOFError, ValueError, OverflowError) as error:
        if getattr(error, "filename", None) is not None:
            raise
        kind = suffix_of(path)[1:].upper()
        raise DataError(f"{path} cannot be read as {kind}: {' '.join(str(error).split()):.250}.") from None


def check_columns(names: Sequence[str], wanted: Mapping[str, str], origin: object) -> None:
    """Raises DataError if a wanted column is not there exactly once."""
    missing = [column for column in wanted if names.count(column) != 1]
    if missing:
        several = [column for column in missing if column in names]
        what = "several columns" if several else "no columns" if len(missing) > 1 else "no column"
        listed = ", ".join(f"'{name}'" for name in names[:12]) or "none"
        raise DataError(
            f"{origin} has {what} {' and '.join(map(repr, several or missing))}; it has: {listed}. "
            f"Name yours with {' and '.join(wanted[column] for column in missing)}."
        )


def with_text(
    batches: Iterable[blocks.Block], column: str, origin: Path | str, *,
    bad_row: Report = refuse, may_be_blank: bool,
) -> Iterator[blocks.Block]:  # fmt: skip
    """The rows that have a text, of at most `MAX_REVIEW_BYTES`. `bad_row` is called about the others."""
    from pyarrow import compute

    for batch, numbers in batches:
        texts = batch.column(column)
        if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
            raise DataError(f"{origin}: column {column!r} holds {texts.type}, not text.")
        has_text = (
            texts.is_valid() if may_be_blank else compute.not_equal(compute.utf8_trim_whitespace(texts), "")
        )
        fits = compute.less_equal(compute.binary_length(texts), MAX_REVIEW_BYTES)
        is_good = compute.fill_null(compute.and_(has_text, fits), False).to_numpy(zero_copy_only=False)
        for i in (~is_good).nonzero()[0]:
            problem = f"more than {MAX_REVIEW_BYTES:,} bytes in" if has_text[i].as_py() else "no"
            bad_row(f"{place(origin, numbers[i])} has {problem} {column!r}")
        yield (
            batch.filter(pa.array(is_good)),
            [number for number, good in zip(numbers, is_good, strict=True) if good],
        )
