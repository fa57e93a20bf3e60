"""Where reviews come from: the hub, a folder in its layout, table files, the official archive, the demo.

`read` looks at what the source is and hands over to one function a kind. Nothing here writes to disk,
except that `datasets` keeps what it downloads in its own cache.
"""

import errno
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from imdb_transformer.config import DataConfig
from imdb_transformer.data import archive, demo
from imdb_transformer.data.reviews import SPLITS, NamedColumns, Reviews, from_named_labels
from imdb_transformer.errors import DataError

HUB_NAME = "stanfordnlp/imdb"
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
SPLIT_ALIASES = {"valid": "validation", "val": "validation", "dev": "validation", "unsup": "unsupervised"}

# What `datasets` raises over a folder or a repository that it cannot read; its own errors are among them.
LOADING_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, pa.ArrowException, yaml.YAMLError)

# Larger than any review: a row that straddles two blocks of the reader would be an error.
BLOCK_BYTES = 64 << 20

WITHOUT_NETWORK = (
    "Without a network these work: `imdb-tx download --source demo`, the same with a path to the official "
    "archive, its extracted folder, a folder in the hub's layout or a table file, and every other command "
    "on a corpus that is stored already."
)


def read(config: DataConfig) -> Reviews:
    """All reviews of `config.source`. Raises DataError where it is missing, broken or not labelled."""
    source = config.source
    if source == "demo":
        return demo.reviews()
    if source == "hub":
        return _read_hub()
    if archive.is_url(source):
        return archive.read_url(source)
    path = Path(source)
    if not path.exists():
        raise DataError(f"There is no source {source!r}: no such file or folder, and not `hub` or `demo`.")
    if path.is_file():
        return _read_file(path, config)
    if archive.root_of_tree(path):
        return archive.read_tree(path)
    tables = _tables_by_split(path)
    if "train" in tables:
        return _read_tables(tables, config, origin=str(path))
    return _read_hub_layout(path, config)


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


def _read_file(path: Path, config: DataConfig) -> Reviews:
    if is_table(path):
        return _read_tables({"train": path}, config, origin=str(path))
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        return archive.read_archive(path)
    endings = ", ".join((*TABLE_SUFFIXES, ".tar.gz"))
    raise DataError(f"{path} is no source: its name should end in one of {endings}.")


def _tables_by_split(folder: Path) -> dict[str, Path]:
    tables: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        split = SPLIT_ALIASES.get(path.stem.lower(), path.stem.lower())
        if path.is_file() and is_table(path) and split in SPLITS:
            if split in tables:
                raise DataError(f"{folder} has two files for {split}: {tables[split].name} and {path.name}.")
            tables[split] = path
    return tables


def _read_tables(tables: dict[str, Path], config: DataConfig, *, origin: str) -> Reviews:
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
    return [_label_name(label, names) for label in values.to_pylist()]


def _class_names(schema: pa.Schema, column: str) -> list[str] | None:
    """Names that `datasets` wrote into a Parquet file's metadata for a ClassLabel column, if it did."""
    try:
        metadata = json.loads((schema.metadata or {})[b"huggingface"])
        return [str(name) for name in metadata["info"]["features"][column]["names"]]
    except (KeyError, ValueError, TypeError):
        return None


def _read_hub() -> Reviews:
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return _load_dataset(HUB_NAME, DataConfig())
    except (*LOADING_ERRORS, HfHubHTTPError) as error:  # ConnectionError, an OSError, when offline
        raise DataError(f"The hub's {HUB_NAME} cannot be had: {_reason(error)}. {WITHOUT_NETWORK}") from None


def _read_hub_layout(folder: Path, config: DataConfig) -> Reviews:
    import datasets

    if not any(is_table(path) for path in folder.rglob("*")):
        raise DataError(
            f"{folder} is no source: it holds neither train/pos and train/neg folders nor table files "
            f"({', '.join(TABLE_SUFFIXES)})."
        )
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with tempfile.TemporaryDirectory(prefix="imdb-tx-") as cache:
            return _load_dataset(str(folder), config, cache_dir=cache)
    except LOADING_ERRORS as error:
        raise DataError(f"{folder} is no folder in the hub's layout: {_reason(error)}.") from None
    finally:
        if shown:
            datasets.enable_progress_bars()


def _load_dataset(name: str, config: DataConfig, **options: Any) -> Reviews:
    """A dataset with texts and labels, as `datasets` loads it from the hub or from a folder."""
    import datasets

    columns: NamedColumns = {}
    for given, rows in datasets.load_dataset(name, **options).items():
        for column in (config.text_column, config.label_column):
            if column not in rows.features:
                raise DataError(f"{name} has no column {column!r}; it has: {', '.join(rows.features)}.")
        feature = rows.features[config.label_column]
        names = feature.names if isinstance(feature, datasets.ClassLabel) else None
        split = SPLIT_ALIASES.get(given, given)
        texts = rows[config.text_column][:]
        if not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"{name}: column {config.text_column!r} of {given} holds something that is no text."
            )
        columns[split] = (
            texts,
            [_label_name(label, names) for label in rows[config.label_column][:]],
        )
    return from_named_labels(columns, origin=name)


def _reason(error: Exception) -> str:
    """The first cause, shortened. A full disk is not a fault of the source: it is raised again."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        raise cause
    return " ".join(str(cause).split())[:200].rstrip(".")


def _label_name(label: Any, names: list[str] | None) -> str | None:
    """The class name of a stored label; none where it is missing or, as an index, outside the classes."""
    if label is None:
        return None
    if names is None:
        return str(label).strip() or None
    return names[label] if 0 <= label < len(names) else None
