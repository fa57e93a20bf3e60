"""Rows of a table in blocks of Arrow's columns.

Each function gives the schema first and then the blocks, each with the numbers of its rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from imdb_transformer.data.rows import BadRow, Record, Texts

BLOCK_ROWS = 2000
BLOCK_BYTES = 16 << 20
ROWS_AT_ONCE = 100  # of Parquet, which has no blocks of bytes

Block = tuple[pa.RecordBatch, Sequence[int]]  # rows, and the number of each
R = TypeVar("R", Texts, Record)


def _in_blocks(rows: Iterable[R | None]) -> Iterator[list[R]]:
    """Lists of rows of at most `BLOCK_ROWS`, or fewer if they are long. None ends a list."""
    block: list[R] = []
    size = 0
    for row in rows:
        if row is not None:
            block.append(row)
            size += row[1]
        if block and (row is None or len(block) == BLOCK_ROWS or size >= BLOCK_BYTES):
            yield block
            block, size = [], 0
    if block:
        yield block


def of_texts(names: Sequence[str], rows: Iterable[Texts | None]) -> Iterator[Any]:
    """Every column is text: an id 007 stays 007."""
    schema = pa.schema([(name, pa.string()) for name in names])
    yield schema
    for block in _in_blocks(rows):
        columns = zip(*(row for _, _, row in block), strict=True)
        yield (
            pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], schema=schema),
            [number for number, _, _ in block],
        )


def of_records(rows: Iterable[Record], report: BadRow) -> Iterator[Any]:
    """Columns have the types of the first block: a label may be a number."""
    blocks = _in_blocks(rows)
    first = next(blocks, [])
    names = dict.fromkeys(name for _, _, record in first for name in record)
    schema = pa.schema([(name, _type_of([record.get(name) for _, _, record in first])) for name in names])
    yield schema
    for block in chain([first] if first else [], blocks):
        try:
            yield _as_batch(block, schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            yield _as_batch([row for row in block if _fits(row, schema, report)], schema)


def _type_of(values: list[Any]) -> pa.DataType:
    """Their type, or that of the first: a row that has another is told when it is converted."""
    try:
        return _without_nulls(pa.array(values).type)
    except (pa.ArrowException, UnicodeError):  # the latter by half of a character
        first = next(value for value in values if value is not None)
        return pa.string() if isinstance(first, str) else _without_nulls(pa.array([first]).type)


def _without_nulls(kind: pa.DataType) -> pa.DataType:
    """The type with text in place of nulls: later rows may have a text there."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_nulls(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_nulls(kind.value_type))
    return pa.string() if pa.types.is_null(kind) else kind


def _as_batch(block: list[Record], schema: pa.Schema) -> Block:
    names = set(schema.names)
    for _, _, record in block:
        if added := record.keys() - names:
            raise ValueError(f"it has a column {min(added)!r} more")
    batch = pa.RecordBatch.from_pylist([record for _, _, record in block], schema)
    return batch, [number for number, _, _ in block]


def _fits(row: Record, schema: pa.Schema, report: BadRow) -> bool:
    try:
        _as_batch([row], schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        report(row[0], f"does not fit the rows before it ({error})")
        return False
    return True


def of_parquet(path: Path) -> Iterator[Any]:
    from pyarrow import parquet

    file = parquet.ParquetFile(path, buffer_size=1 << 20)  # unbuffered, it reads a whole column chunk
    yield file.schema_arrow
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    row_bytes = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    num_rows = min(ROWS_AT_ONCE, max(1, BLOCK_BYTES // max(row_bytes, 1)))
    start = 1
    for batch in _merged(file.iter_batches(batch_size=num_rows)):
        batch.validate(full=True)  # text that is not UTF-8, for one
        yield batch, range(start, start + batch.num_rows)
        start += batch.num_rows


def _merged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of small batches in batches that end with `BLOCK_ROWS` rows or `BLOCK_BYTES` bytes."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        is_full = sum(part.num_rows for part in waiting) >= BLOCK_ROWS
        if is_full or sum(part.nbytes for part in waiting) >= BLOCK_BYTES:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting = []
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
