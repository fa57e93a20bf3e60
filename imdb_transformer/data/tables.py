"""Tables of reviews: CSV, TSV, JSONL and Parquet files, read a block at a time."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from imdb_transformer.data.reviews import MAX_REVIEW_BYTES
from imdb_transformer.errors import DataError

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")

# Larger than any review: a row that straddles two blocks of the reader would be an error.
BLOCK_BYTES = 64 << 20
BLOCK_ROWS = 10_000
ROWS_AT_ONCE = 100  # of Parquet, which has no blocks of bytes
MAX_NESTING = 100
JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"')


def is_table(path: Path) -> bool:
    """Whether `read_table` reads files of this name."""
    return path.suffix.lower() in TABLE_SUFFIXES


def read_table(path: Path, text_columns: list[str]) -> pa.Table:
    """All rows of a CSV, TSV, JSONL or Parquet file, which must have `text_columns`. Raises DataError."""
    schema, batches = open_table(path, text_columns)
    return pa.Table.from_batches(batches, schema)


def open_table(
    path: Path, text_columns: list[str], *, skip_row: Callable[[str], None] | None = None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Columns and rows of a CSV, TSV, JSONL or Parquet file, a block at a time. Raises DataError.

    A row of a CSV or TSV file that has too few or too many fields is an error. With `skip_row`, such a row is
    left out, and `skip_row` is called with a sentence about it.
    """
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty.")
    with _named_errors(path), path.open("rb"):  # unlike pyarrow's, open's error names the file
        if path.suffix.lower() == ".parquet":
            schema, batches = _open_parquet(path)
        elif path.suffix.lower() == ".jsonl":
            schema, batches = _open_jsonl(path)
        else:
            schema, batches = _open_delimited(path, skip_row)
        names = schema.names  # which may not be UTF-8
    check_columns(names, text_columns, path)
    return schema, _checked(path, batches)


def check_columns(names: list[str], wanted: list[str], origin: Path | str) -> None:
    """Raises DataError if a wanted column is not there exactly once."""
    for column in wanted:
        if names.count(column) != 1:
            count = "several columns" if column in names else "no column"
            raise DataError(f"{origin} has {count} {column!r}; it has: {', '.join(names[:12])}.")


def _checked(path: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches, checked. Errors name the file."""
    num_rows = 0
    with _named_errors(path):
        for batch in batches:
            batch.validate(full=True)  # text that is not UTF-8, for one
            num_rows += batch.num_rows
            yield batch
    if not num_rows:
        raise DataError(f"{path} has a header and no rows.")


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last comes from column names
        if getattr(error, "filename", None) is not None:
            raise
        detail = " ".join(str(error).split())
        hint = "it is not UTF-8" if "utf" in detail.lower() else "it does not parse"
        kind = path.suffix[1:].upper()
        raise DataError(f"{path} cannot be read as {kind}: {hint} ({detail:.200}).") from None


def _open_parquet(path: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    from pyarrow import parquet

    file = parquet.ParquetFile(path, buffer_size=1 << 20)  # unbuffered, it reads a whole column chunk
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    row_bytes = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    num_rows = min(ROWS_AT_ONCE, max(1, BLOCK_BYTES // max(row_bytes, 1)))
    return file.schema_arrow, _blocks(file.iter_batches(batch_size=num_rows))


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of small batches in blocks that end with `BLOCK_ROWS` rows or `BLOCK_BYTES` bytes."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        is_full = sum(part.num_rows for part in waiting) >= BLOCK_ROWS
        if is_full or sum(part.nbytes for part in waiting) >= BLOCK_BYTES:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting = []
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def _open_jsonl(path: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Values have the types of JSON: a label may be a number, and a date is text."""
    from pyarrow import json as pa_json

    _check_nesting(path)
    read = pa_json.ReadOptions(block_size=BLOCK_BYTES)
    with pa_json.open_json(path, read_options=read) as reader:
        schema = pa.schema([field.with_type(_as_written(field.type)) for field in reader.schema])
    parse = pa_json.ParseOptions(explicit_schema=schema)
    reader = pa_json.open_json(path, read_options=read, parse_options=parse)
    return reader.schema, iter(reader)


def _check_nesting(path: Path) -> None:
    """Raises DataError if brackets nest deeper than `MAX_NESTING`, or a line is longer than a block.

    pyarrow parses JSON by recursion, and a few thousand nested brackets kill the process.
    """
    depth = 0
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(BLOCK_BYTES + 1), b""), 1):
            if len(line) > BLOCK_BYTES:
                raise DataError(f"{path}: line {number} has more than {BLOCK_BYTES:,} bytes.")
            for bracket in re.findall(rb"[\[\]{}]", JSON_STRING.sub(b"", line)):
                depth += 1 if bracket in b"[{" else -1
                if depth > MAX_NESTING:
                    problem = f"nests lists or objects more than {MAX_NESTING} deep"
                    raise DataError(f"{path}: line {number} {problem}.")


def _as_written(kind: pa.DataType) -> pa.DataType:
    """The type with text in place of dates, which pyarrow guesses from strings, and of nulls."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_written(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_as_written(kind.value_type))
    return pa.string() if pa.types.is_timestamp(kind) or pa.types.is_null(kind) else kind


def _open_delimited(
    path: Path, skip_row: Callable[[str], None] | None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    from pyarrow import csv

    def skip(row: Any) -> str:
        assert skip_row is not None
        more = row.text.count("\n")
        open_quote = f" and runs over {more} lines more: a quote that is not closed?" if more else ""
        skip_row(f"line {row.number} has too few or too many fields{open_quote}")
        return "skip"

    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    parsing = partial(csv.ParseOptions, delimiter=delimiter, newlines_in_values=True)
    # pyarrow numbers skipped rows only if it reads on one thread.
    reading = csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=skip_row is None)
    header = parsing(invalid_row_handler=(lambda _: "skip") if skip_row else None)
    with csv.open_csv(path, read_options=reading, parse_options=header) as reader:
        names = reader.schema.names
    # Every column is read as text: an id 007 stays 007.
    types = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    rows = parsing(invalid_row_handler=skip if skip_row else None)
    reader = csv.open_csv(path, read_options=reading, parse_options=rows, convert_options=types)
    return reader.schema, iter(reader)


def check_texts(texts: Any, column: str, origin: Path | str, *, num_before: int = 0) -> None:
    """Raises DataError if a column holds no texts, or a text has more than `MAX_REVIEW_BYTES`.

    `num_before` rows came before.
    """
    from pyarrow import compute

    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        raise DataError(f"{origin}: column {column!r} holds {texts.type}, not text.")
    lengths = compute.binary_length(texts)
    if (compute.max(lengths).as_py() or 0) > MAX_REVIEW_BYTES:
        rows = enumerate(lengths.to_pylist(), num_before + 1)
        row = next(row for row, length in rows if (length or 0) > MAX_REVIEW_BYTES)
        raise DataError(f"{origin}: {column!r} of row {row} has more than {MAX_REVIEW_BYTES:,} bytes.")
