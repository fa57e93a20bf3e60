"""Tables of reviews: CSV, TSV, JSONL and Parquet files with a text and a label column."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from imdb_transformer.config import DataConfig
from imdb_transformer.data.reviews import SPLIT_ALIASES, SPLITS, NamedColumns, Reviews, from_named_labels
from imdb_transformer.errors import DataError

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")

# Larger than any review: a row that straddles two blocks of the reader would be an error.
BLOCK_BYTES = 64 << 20


def is_table(path: Path) -> bool:
    """Whether the name is one of a table file that `read_table` reads."""
    return path.suffix.lower() in TABLE_SUFFIXES


def read_table(path: Path, text_columns: list[str]) -> pa.Table:
    """The rows of a CSV, TSV, JSONL or Parquet file, `text_columns` read as strings."""
    readers: dict[str, Callable[[Path, list[str]], pa.Table]] = {
        ".csv": _read_delimited,
        ".tsv": _read_delimited,
        ".jsonl": _read_jsonl,
        ".parquet": _read_parquet,
    }
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty.")
    try:
        with path.open("rb"):  # whose error names the file, unlike pyarrow's
            table = readers[path.suffix.lower()](path, text_columns)
        table.validate(full=True)  # text that is not UTF-8, for one
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "filename", None) is not None:
            raise
        detail = " ".join(str(error).split())
        hint = "it is not UTF-8" if "utf8" in detail.lower() else "it does not parse"
        raise DataError(
            f"{path} cannot be read as {path.suffix[1:].upper()}: {hint} ({detail:.200})."
        ) from None
    for column in text_columns:
        if table.column_names.count(column) != 1:
            count = "several columns" if column in table.column_names else "no column"
            raise DataError(f"{path} has {count} {column!r}; it has: {', '.join(table.column_names[:12])}.")
    if table.num_rows == 0:
        raise DataError(f"{path} has a header and no rows.")
    return table


def _read_delimited(path: Path, text_columns: list[str]) -> pa.Table:
    from pyarrow import csv

    del text_columns  # every column is read as text: an id 007 stays 007
    options = {
        "read_options": csv.ReadOptions(block_size=BLOCK_BYTES),
        "parse_options": csv.ParseOptions(
            delimiter="\t" if path.suffix.lower() == ".tsv" else ",", newlines_in_values=True
        ),
    }
    with csv.open_csv(path, **options) as reader:
        names = reader.schema.names
    types = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    return csv.read_csv(path, **options, convert_options=types)


def _read_jsonl(path: Path, text_columns: list[str]) -> pa.Table:
    from pyarrow import json as pa_json

    del text_columns  # values keep the type they have in the file; labels may be numbers
    return pa_json.read_json(path, read_options=pa_json.ReadOptions(block_size=BLOCK_BYTES))


def _read_parquet(path: Path, text_columns: list[str]) -> pa.Table:
    from pyarrow import parquet

    del text_columns
    return parquet.read_table(path)


def tables_by_split(folder: Path) -> dict[str, Path]:
    """The table files of a folder that are named after splits."""
    tables: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        split = SPLIT_ALIASES.get(path.stem.lower(), path.stem.lower())
        if path.is_file() and is_table(path) and split in SPLITS:
            if split in tables:
                raise DataError(f"{folder} has two files for {split}: {tables[split].name} and {path.name}.")
            tables[split] = path
    return tables


def read_tables(tables: dict[str, Path], config: DataConfig, *, origin: str) -> Reviews:
    """Reviews of one table file a split."""
    columns: NamedColumns = {}
    for split, path in tables.items():
        wanted = (
            [config.text_column] if split == "unsupervised" else [config.text_column, config.label_column]
        )
        table = read_table(path, wanted)
        texts = text_values(table, config.text_column, path)
        if split == "unsupervised":
            columns[split] = (texts, [None] * len(texts))
        else:
            columns[split] = (texts, _label_names(table, config.label_column, path))
    return from_named_labels(columns, origin=origin)


def text_values(table: pa.Table, column: str, path: Path) -> list[str]:
    """The strings of a column. Raises DataError where one is missing or the column holds no text."""
    values = table.column(column)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise DataError(f"{path}: column {column!r} holds {values.type}, not text.")
    if values.null_count:
        row = values.to_pylist().index(None) + 1
        raise DataError(f"{path}: row {row} has no {column!r}.")
    return values.to_pylist()


def _label_names(table: pa.Table, column: str, path: Path) -> list[str | None]:
    values = table.column(column)
    names = _class_names(table.schema, column)
    if pa.types.is_nested(values.type) or (names and not pa.types.is_integer(values.type)):
        raise DataError(f"{path}: column {column!r} holds {values.type}, not labels.")
    return [label_name(label, names) for label in values.to_pylist()]


def _class_names(schema: pa.Schema, column: str) -> list[str] | None:
    """Names that `datasets` wrote into a Parquet file's metadata for a ClassLabel column, if it did."""
    try:
        metadata = json.loads((schema.metadata or {})[b"huggingface"])
        return [str(name) for name in metadata["info"]["features"][column]["names"]]
    except (KeyError, ValueError, TypeError):
        return None


def label_name(label: Any, names: list[str] | None) -> str | None:
    """The class name of a stored label; none where it is missing or, as an index, outside the classes."""
    if label is None:
        return None
    if names is None:
        return str(label).strip() or None
    return names[label] if 0 <= label < len(names) else None
