"""The formats in which predicted tables are written, and what each can hold."""

import json
import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet

from imdb_transformer.errors import ConfigError, DataError, is_utf8
from imdb_transformer.store.files import check_writable, whole_file

WRITTEN = (".csv", ".tsv", ".jsonl", ".parquet")
OUT_OF_RANGE = b"<value out of range"  # what pyarrow writes to CSV for a date far away


def check_output(path: Path, schema: pa.Schema, source: Path | None = None, *, force: bool = False) -> None:
    """Raises ConfigError, or OSError, if `write_tables` cannot write rows of this schema to such a file.

    Without `force`, it also refuses to replace the file `source` of the rows.
    """
    check_writable("--output", path, WRITTEN)
    suffix, problem = path.suffix.lower(), ""
    twice = [name for name in schema.names if schema.names.count(name) > 1]
    unfit = [field for field in schema if not _can_hold(suffix, field.type)]
    if not force and source is not None and path.exists() and source.exists() and path.samefile(source):
        problem = "it is the input; --force replaces it"
    elif not is_utf8(str(path)):
        problem = "its name is not UTF-8"
    elif twice:
        problem = f"the input has several columns {twice[0]!r}; name them differently"
    elif unfit:
        fit = [each for each in (".jsonl", ".parquet") if all(_can_hold(each, f.type) for f in schema)]
        advice = f"write {' or '.join(fit)}" if fit else "leave the column out"
        problem = f"it cannot hold column {unfit[0].name!r} ({unfit[0].type!s:.60}); {advice}"
    if problem:
        raise ConfigError(f"--output {path}: {problem}.")


def _can_hold(suffix: str, kind: pa.DataType) -> bool:
    """Whether a format has values of this type. Only Parquet has bytes."""
    if suffix != ".parquet" and _has_bytes(kind):
        return False
    with suppress(DataError):
        check_values(pa.schema([("", kind)]).empty_table(), suffix)
        return True
    return False


def _has_bytes(kind: pa.DataType) -> bool:
    kinds = pa.types
    if kinds.is_dictionary(kind):
        return _has_bytes(kind.value_type)
    is_bytes = kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind)
    return is_bytes or any(_has_bytes(kind.field(i).type) for i in range(kind.num_fields))


def write_tables(parts: Iterable[pa.Table], out: pa.Schema, path: Path) -> None:
    """Writes tables to a file, whole or not at all, in its suffix's format."""
    suffix = path.suffix.lower()
    with whole_file(path) as temporary:
        if suffix == ".jsonl":
            with temporary.open("w", encoding="utf-8") as file:
                for part in parts:
                    for row in part.to_pylist():
                        file.write(json.dumps(_finite(row), ensure_ascii=False, default=str) + "\n")
            return
        if suffix == ".parquet":
            writer = parquet.ParquetWriter(temporary, out)
        else:
            options = csv.WriteOptions(delimiter="\t" if suffix == ".tsv" else ",")
            writer = csv.CSVWriter(temporary, out, write_options=options)
        with writer:
            for part in parts:
                writer.write_table(part)


def check_values(part: pa.Table, suffix: str) -> None:
    """Raises DataError if a format cannot hold a column's value. Only Parquet has any date."""
    for name, column in zip(part.column_names, part.columns, strict=True):
        stream = pa.BufferOutputStream()
        if suffix in (".csv", ".tsv") and pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp(column.type.unit))  # with a zone, a far year overflows
        try:
            if suffix == ".jsonl":
                column.to_pylist()
            else:
                write = parquet.write_table if suffix == ".parquet" else csv.write_csv
                write(pa.table({name: column}), stream)
            is_date = pa.types.is_temporal(column.type)
            is_written = not (is_date and OUT_OF_RANGE in stream.getvalue().to_pybytes())
        except (pa.ArrowException, OverflowError, ValueError):
            is_written = False
        if not is_written:
            raise DataError(f"{suffix} cannot hold a value of column {name!r}; write .parquet.")


def _finite(value: Any) -> Any:
    """The value with null in place of NaN and infinite numbers, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
