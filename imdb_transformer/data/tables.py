"""Files of reviews, read a block of rows at a time: text, CSV, TSV, JSON, JSON lines, Parquet and Excel.

Errors name the number of a row. It is the number of its line; in Excel, Parquet and JSON arrays, of its row.
The first line is 1.
"""

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, compress
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from imdb_transformer.data import excel_rows, rows
from imdb_transformer.data.json_rows import column_of, read_json, schema_of, type_problem, with_leaves
from imdb_transformer.data.reviews import MAX_REVIEW_BYTES, BadRow, in_chunks, refuse
from imdb_transformer.errors import DataError, EmptyError, reason_of

DELIMITED = {".csv": ",;\t|", ".tsv": "\t,;|"}  # and the delimiters; the first wins if all fit
JSON = (".jsonl", ".json")
TABLE_SUFFIXES = (*DELIMITED, *JSON, ".parquet", ".xlsx")
ENDINGS = f"{', '.join((*DELIMITED, *JSON))} (also with .gz), .parquet or .xlsx"
BLOCK_ROWS, BLOCK_BYTES = 2000, 16 << 20
ROWS_AT_ONCE = 100  # of Parquet, whose rows may be of any size
NUM_REPORTED = 10  # bad rows that are left out
WITHOUT_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}  # pyarrow cannot filter views

NumberedRows = tuple[pa.RecordBatch, Sequence[int]]  # rows and their numbers


def suffix_of(path: Path) -> str:
    """The format by a file's name: `.csv` of r.CSV and of r.csv.gz."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def is_table(path: Path) -> bool:
    """Whether `open_table` reads files of this name as tables."""
    return suffix_of(path) in TABLE_SUFFIXES


def place(origin: Path | str) -> str:
    """What comes before the number of a row in a message, such as `r.csv: line`."""
    has_lines = isinstance(origin, Path) and suffix_of(origin) not in (".parquet", ".xlsx", ".json")
    return f"{origin}: {'line' if has_lines else 'row'}"


def open_table(
    path: Path, wanted: Mapping[str, str], *, encoding: str = "utf-8", bad_row: BadRow = refuse,
    file: BinaryIO | None = None, keeps_all: bool = True,
) -> tuple[pa.Schema, Iterator[NumberedRows]]:  # fmt: skip
    """Columns and rows of a file, a block at a time. Raises ConfigError and DataError.

    `wanted` has the required columns, each with the option that names another. If a file is not named like a
    table, each line is a cell of the first required column. `bad_row` is called for each malformed row. If
    it returns, the row is left out. If `file` is passed, it is read instead of the one at `path`. Without
    `keeps_all`, the other columns of JSON are empty, and may hold anything in the file.
    """
    contents = _read(path, wanted, encoding, bad_row, file, keeps_all=keeps_all)
    return next(contents), contents


def _read(
    path: Path, wanted: Mapping[str, str], encoding: str, bad_row: BadRow, file: Any, *, keeps_all: bool
) -> Iterator[Any]:
    """The schema, then the blocks. The file is open until the last one is taken."""

    def report(number: int, problem: str) -> None:
        bad_row(f"{place(path)} {number} {problem}")

    suffix, is_whole = suffix_of(path), file is None and path.is_file()  # not a pipe
    with ExitStack() as stack, _errors_with_path(path):
        pipe = file = file or stack.enter_context(path.open("rb"))  # its errors name the file
        if path.suffix.lower() == ".gz":
            file = stack.enter_context(gzip.open(file))
        is_json = suffix in JSON  # a line may hold all rows
        parts = rows.iter_lines(file, encoding, path, may_be_long=is_json)
        lines = chain.from_iterable(parts)
        if suffix == ".parquet":
            contents = _parquet_blocks(path)
        elif is_json:
            filled, records = None if keeps_all else wanted, read_json(lines, encoding, report)
            whole = _json_schema(path, encoding, filled) if is_whole else None
            contents = _json_blocks(records, filled, report, whole)
        elif suffix in DELIMITED:
            contents = _text_blocks(*rows.read_delimited(lines, wanted, encoding, report, DELIMITED[suffix]))
        elif suffix == ".xlsx":
            contents = _text_blocks(*excel_rows.read_excel(file, path, report))
        else:
            column = next(iter(wanted))
            contents = _text_blocks([column], rows.read_lines(parts, column, encoding, report, pipe))
        schema = next(contents)
        if not schema.names:
            raise EmptyError(f"{path} is empty, or has only bad rows.{_about_sheets(path)}")
        check_columns(schema.names, wanted, path)
        yield schema
        yield from contents


@contextmanager
def _errors_with_path(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, csv.Error, zlib.error, OSError, EOFError, ValueError, OverflowError) as error:
        if getattr(error, "filename", None) is not None:
            raise
        suffix = suffix_of(path)
        kind = f" as {suffix[1:].upper()}" if suffix else ""  # standard input has no suffix
        raise DataError(f"{path} cannot be read{kind}: {reason_of(error)}.") from None


def _text_blocks(names: Sequence[str], texts: Iterable[rows.Row | None]) -> Iterator[Any]:
    """The schema, then blocks whose columns are all text: an id 007 stays 007."""
    schema = pa.schema([(name, pa.string()) for name in names])
    yield schema
    yield from (_as_block(part, schema) for part in _parts(texts))


def _json_blocks(
    records: Iterable[rows.Row], wanted: Iterable[str] | None, report: rows.Report, schema: pa.Schema | None
) -> Iterator[Any]:
    """The schema, then the blocks. Without a `schema`, columns have the types of the first block.

    Columns that are not `wanted` are empty: they may hold anything in the file.
    """
    parts = _parts(records)
    first = next(parts, [])
    schema = schema or schema_of([first], wanted)
    yield schema
    for part in chain([first] if first else [], parts):
        if wanted is not None:
            part = [(number, {name: cells.get(name) for name in wanted}) for number, cells in part]
        try:
            yield _as_block(part, schema)
        except ValueError:
            yield _as_block([row for row in part if _fits(row, schema, report)], schema)


def _json_schema(path: Path, encoding: str, wanted: Iterable[str] | None) -> pa.Schema:
    """The columns of a whole file: a number may get decimals, and a column may begin, in its last row."""
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        lines = chain.from_iterable(rows.iter_lines(file, encoding, path, may_be_long=True))
        records = read_json(lines, encoding, lambda *_: None)  # bad rows are reported when they are read
        return schema_of(_parts(records), wanted)


def _parts(numbered: Iterable[rows.Row | None]) -> Iterator[list[rows.Row]]:
    """The rows of each block."""
    return in_chunks(numbered, BLOCK_ROWS, BLOCK_BYTES, lambda row: sum(map(len, map(str, row[1].values()))))


def _as_block(part: list[rows.Row], schema: pa.Schema) -> NumberedRows:
    """The rows in the columns of a schema. Raises ValueError if a column cannot keep its values."""
    names = set(schema.names)
    for _, cells in part:
        if added := cells.keys() - names:
            raise ValueError(f"it has an additional column {min(added)!r}")
    columns = [column_of([cells.get(field.name) for _, cells in part], field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema), [number for number, _ in part]


def _fits(row: rows.Row, schema: pa.Schema, report: rows.Report) -> bool:
    try:
        _as_block([row], schema)
    except ValueError as error:
        report(row[0], f"does not fit the table's columns ({error})")
        return False
    return True


def _parquet_blocks(path: Path) -> Iterator[Any]:
    """The schema, then blocks that end at `BLOCK_ROWS` rows or `BLOCK_BYTES` bytes."""
    from pyarrow import parquet

    if path.is_fifo():  # pyarrow would open it a second time, and wait for another writer
        raise ValueError("it is a pipe, and this format needs a file")
    file = parquet.ParquetFile(path, buffer_size=1 << 20)  # unbuffered, it reads a whole column chunk
    stored = file.schema_arrow
    schema = pa.schema([f.with_type(with_leaves(f.type, WITHOUT_VIEWS)) for f in stored], stored.metadata)
    yield schema
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    row_bytes = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    few = min(ROWS_AT_ONCE, max(1, BLOCK_BYTES // max(row_bytes, 1)))
    start, batches = 1, file.iter_batches(batch_size=few)
    for part in in_chunks(batches, max(1, BLOCK_ROWS // few), BLOCK_BYTES, size_of=attrgetter("nbytes")):
        for batch in part:
            batch.validate(full=True)  # finds text that is not UTF-8
        for merged in pa.Table.from_batches(part).cast(schema).combine_chunks().to_batches():
            yield merged, range(start, start + merged.num_rows)
            start += merged.num_rows


def check_columns(names: Sequence[str], wanted: Mapping[str, str], origin: object) -> None:
    """Raises DataError unless each required column exists exactly once."""
    missing = [column for column in wanted if column not in names]
    listed = ", ".join([f"'{name:.80}'" for name in names[:12]] + ["…"] * (len(names) > 12)) or "none"
    if missing:
        what = "no columns" if len(missing) > 1 else "no column"
        options = " and ".join(wanted[column] for column in missing)
        raise DataError(
            f"{origin} has {what} {' and '.join(map(repr, missing))}; it has: {listed}. "
            f"Choose {'them' if len(missing) > 1 else 'the column'} with {options}.{_about_sheets(origin)}"
        )
    if several := [column for column in wanted if names.count(column) > 1]:
        raise DataError(
            f"{origin} has several columns {several[0]!r}; it has: {listed}. Rename the others in the file, "
            f"or choose another column with {wanted[several[0]]}."
        )


def _about_sheets(origin: object) -> str:
    return " Only the first visible sheet is read." if str(origin).lower().endswith(".xlsx") else ""


def class_names(schema: pa.Schema, column: str) -> list[str] | None:
    """The classes of a ClassLabel column, which `datasets` writes into the metadata of a table."""
    try:
        metadata = json.loads((schema.metadata or {})[b"huggingface"])
        return [str(name) for name in metadata["info"]["features"][column]["names"]]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None


def with_text(
    blocks: Iterable[NumberedRows], column: str, origin: Path | str, *,
    bad_row: BadRow, may_be_blank: bool,
) -> Iterator[NumberedRows]:  # fmt: skip
    """The rows with a text of at most `MAX_REVIEW_BYTES`. `bad_row` is called for the others."""
    from pyarrow import compute

    for batch, numbers in blocks:
        texts = batch.column(column)
        if pa.types.is_dictionary(texts.type):  # pandas writes a categorical column so
            texts = texts.dictionary_decode()
        if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
            raise DataError(f"{origin}: column {column!r} {type_problem(texts.type, 'text')}")
        has_text = (
            texts.is_valid() if may_be_blank else compute.not_equal(compute.utf8_trim_whitespace(texts), "")
        )
        fits = compute.less_equal(compute.binary_length(texts), MAX_REVIEW_BYTES)
        is_good = compute.fill_null(compute.and_(has_text, fits), False).to_numpy(zero_copy_only=False)
        for i in (~is_good).nonzero()[0]:
            problem = f"more than {MAX_REVIEW_BYTES:,} bytes in" if has_text[i].as_py() else "no"
            bad_row(f"{place(origin)} {numbers[i]} has {problem} {column!r}")
        yield batch.filter(pa.array(is_good)), list(compress(numbers, is_good))
