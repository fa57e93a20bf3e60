"""Reads reviews from a source: the hub, a folder in its layout, table files, the official archive, the demo.

`read` calls one function for each kind of source. Nothing stays on disk, except what `datasets` downloads
into its own cache.
"""

import errno
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from imdb_transformer.config import DataConfig
from imdb_transformer.data import archive, demo, tables
from imdb_transformer.data.reviews import SPLIT_ALIASES, SPLITS, Reviews, from_named_labels
from imdb_transformer.errors import DataError

HUB_NAME = "stanfordnlp/imdb"

# What `datasets` raises for a folder or a repository that it cannot read, its own errors included.
LOADING_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, pa.ArrowException, yaml.YAMLError)

WITHOUT_NETWORK = (
    "Without a network these work: `imdb-tx download --source demo`, the same with a path to the official "
    "archive, its extracted folder, a folder in the hub's layout or a table file, and every other command "
    "on a corpus that is stored already."
)


def read(config: DataConfig) -> Reviews:
    """All reviews of `config.source`. Raises DataError if it is missing, broken or not labelled."""
    source = config.source
    if source == "demo":
        return demo.reviews()
    if source == "hub":
        return _load_dataset(HUB_NAME, DataConfig(), hint=WITHOUT_NETWORK)
    if archive.is_url(source):
        return archive.read_url(source)
    path = Path(source)
    if not path.exists():
        raise DataError(f"There is no source {source!r}: no such file or folder, and not `hub` or `demo`.")
    if path.is_dir():
        if root := archive.root_of_tree(path):
            return archive.read_tree(root)
        files = _tables_by_split(path)
        return _read_tables(files, config) if "train" in files else _read_folder(path, config)
    if tables.is_table(path):
        return _read_tables({"train": path}, config)
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        return archive.read_archive(path)
    endings = ", ".join((*tables.TABLE_SUFFIXES, ".tar.gz"))
    raise DataError(f"{path} is no source: its name should end in one of {endings}.")


def _tables_by_split(folder: Path) -> dict[str, Path]:
    """The table files of a folder that are named after splits."""
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        split = SPLIT_ALIASES.get(path.stem.lower(), path.stem.lower())
        if path.is_file() and tables.is_table(path) and split in SPLITS:
            if split in files:
                raise DataError(f"{folder} has two files for {split}: {files[split].name} and {path.name}.")
            files[split] = path
    return files


def _read_tables(files: dict[str, Path], config: DataConfig) -> Reviews:
    """Reviews of one table file a split."""
    columns = {}
    for split, path in files.items():
        table = tables.read_table(path, _columns_needed(split, config))
        columns[split] = _texts_and_labels(table, split, config, str(path))
    return from_named_labels(columns, origin=config.source)


def _columns_needed(split: str, config: DataConfig) -> list[str]:
    return [config.text_column, *([] if split == "unsupervised" else [config.label_column])]


def _texts_and_labels(
    table: pa.Table, split: str, config: DataConfig, origin: str
) -> tuple[list[str], list[str | None]]:
    """The texts of a table and the names of their classes; None in `unsupervised`, which needs no labels."""
    texts = table.column(config.text_column)
    tables.check_texts(texts, config.text_column, origin)
    if texts.null_count:
        row = texts.to_pylist().index(None) + 1
        raise DataError(f"{origin}: row {row} has no {config.text_column!r}.")
    if split == "unsupervised":
        return texts.to_pylist(), [None] * len(texts)
    return texts.to_pylist(), _label_names(table, config.label_column, origin)


def _label_names(table: pa.Table, column: str, origin: str) -> list[str | None]:
    """The class of each row; None if it is missing or, as an index, outside the classes."""
    labels = table.column(column)
    names = _class_names(table.schema, column)
    if pa.types.is_nested(labels.type) or (names and not pa.types.is_integer(labels.type)):
        raise DataError(f"{origin}: column {column!r} holds {labels.type}, not labels.")
    if names is None:
        return [None if label is None else str(label).strip() or None for label in labels.to_pylist()]
    by_index = dict(enumerate(names))
    return [by_index.get(label) for label in labels.to_pylist()]


def _class_names(schema: pa.Schema, column: str) -> list[str] | None:
    """The classes of a ClassLabel column, which `datasets` writes into the metadata of a table."""
    try:
        metadata = json.loads((schema.metadata or {})[b"huggingface"])
        return [str(name) for name in metadata["info"]["features"][column]["names"]]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None


def _read_folder(folder: Path, config: DataConfig) -> Reviews:
    """Reviews of a folder in the hub's layout."""
    if not any(tables.is_table(path) for path in folder.rglob("*")):
        endings = ", ".join(tables.TABLE_SUFFIXES)
        raise DataError(f"{folder} is no source: it has no train/CLASS folders and no tables ({endings}).")
    import datasets

    had_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()  # a folder is read in seconds
    try:
        with tempfile.TemporaryDirectory(prefix="imdb-tx-") as cache:
            return _load_dataset(str(folder), config, cache_dir=cache)
    finally:
        if had_bars:
            datasets.enable_progress_bars()


def _load_dataset(name: str, config: DataConfig, *, hint: str = "", **options: Any) -> Reviews:
    """Reviews that `datasets` loads from the hub, from what it has cached of it, or from a folder."""
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    columns = {}
    try:
        for loaded_name, rows in datasets.load_dataset(name, **options).items():
            split = SPLIT_ALIASES.get(loaded_name, loaded_name)
            tables.check_columns(rows.column_names, _columns_needed(split, config), name)
            table = rows.with_format("arrow")[:]
            columns[split] = _texts_and_labels(table, split, config, f"{name}, split {split}")
    except (*LOADING_ERRORS, HfHubHTTPError) as error:  # ConnectionError, an OSError, when offline
        raise DataError(f"`datasets` cannot load {name}: {_reason(error)}. {hint}".rstrip()) from None
    return from_named_labels(columns, origin=name)


def _reason(error: Exception) -> str:
    """The first cause, shortened. Raises it instead if the disk is full: that is no fault of the source."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        raise cause
    return " ".join(str(cause).split())[:200].rstrip(".")
