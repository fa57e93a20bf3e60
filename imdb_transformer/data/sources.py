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
from imdb_transformer.data.reviews import SPLIT_ALIASES, SPLITS, NamedColumns, Reviews, from_named_labels
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
    files = _tables_by_split(path)
    if "train" in files:
        return _read_tables(files, config, origin=str(path))
    return _read_folder(path, config)


def _read_file(path: Path, config: DataConfig) -> Reviews:
    if tables.is_table(path):
        return _read_tables({"train": path}, config, origin=str(path))
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


def _read_tables(files: dict[str, Path], config: DataConfig, *, origin: str) -> Reviews:
    """Reviews of one table file a split; `unsupervised` needs no labels."""
    columns: NamedColumns = {}
    for split, path in files.items():
        is_labelled = split != "unsupervised"
        wanted = [config.text_column, config.label_column] if is_labelled else [config.text_column]
        table = tables.read_table(path, wanted)
        texts = _texts(table, config.text_column, path)
        labels: list[str | None] = [None] * len(texts)
        columns[split] = (texts, _label_names(table, config.label_column, path) if is_labelled else labels)
    return from_named_labels(columns, origin=origin)


def _texts(table: pa.Table, column: str, path: Path) -> list[str]:
    values = table.column(column)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise DataError(f"{path}: column {column!r} holds {values.type}, not text.")
    if values.null_count:
        row = values.to_pylist().index(None) + 1
        raise DataError(f"{path}: row {row} has no {column!r}.")
    tables.check_lengths(values, column, path)
    return values.to_pylist()


def _label_names(table: pa.Table, column: str, path: Path) -> list[str | None]:
    values = table.column(column)
    names = _class_names(table.schema, column)
    if pa.types.is_nested(values.type) or (names and not pa.types.is_integer(values.type)):
        raise DataError(f"{path}: column {column!r} holds {values.type}, not labels.")
    return [_label_name(label, names) for label in values.to_pylist()]


def _class_names(schema: pa.Schema, column: str) -> list[str] | None:
    """Names of a ClassLabel column, if `datasets` wrote them into the Parquet file's metadata."""
    try:
        metadata = json.loads((schema.metadata or {})[b"huggingface"])
        return [str(name) for name in metadata["info"]["features"][column]["names"]]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None


def _label_name(label: Any, names: list[str] | None) -> str | None:
    """The class name of a stored label; None if the label is missing, or an index outside the classes."""
    if label is None:
        return None
    if names is None:
        return str(label).strip() or None
    return names[label] if 0 <= label < len(names) else None


def _read_hub() -> Reviews:
    """IMDB from the hub, or from what `datasets` has cached of it."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return _load_dataset(HUB_NAME, DataConfig())
    except (*LOADING_ERRORS, HfHubHTTPError) as error:  # ConnectionError, an OSError, when offline
        raise DataError(f"Cannot load {HUB_NAME} from the hub: {_reason(error)}. {WITHOUT_NETWORK}") from None


def _read_folder(folder: Path, config: DataConfig) -> Reviews:
    """Reviews of a folder in the hub's layout."""
    import datasets

    if not any(tables.is_table(path) for path in folder.rglob("*")):
        raise DataError(
            f"{folder} is no source: it holds neither train/pos and train/neg folders nor table files "
            f"({', '.join(tables.TABLE_SUFFIXES)})."
        )
    had_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with tempfile.TemporaryDirectory(prefix="imdb-tx-") as cache:
            return _load_dataset(str(folder), config, cache_dir=cache)
    except LOADING_ERRORS as error:
        raise DataError(f"{folder} is no folder in the hub's layout: {_reason(error)}.") from None
    finally:
        if had_bars:
            datasets.enable_progress_bars()


def _load_dataset(name: str, config: DataConfig, **options: Any) -> Reviews:
    """A dataset with texts and labels, as `datasets` loads it from the hub or from a folder."""
    import datasets

    columns: NamedColumns = {}
    for split, rows in datasets.load_dataset(name, **options).items():
        for column in (config.text_column, config.label_column):
            if column not in rows.features:
                raise DataError(f"{name} has no column {column!r}; it has: {', '.join(rows.features)}.")
        feature = rows.features[config.label_column]
        names = feature.names if isinstance(feature, datasets.ClassLabel) else None
        texts = rows[config.text_column][:]
        if not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"{name}: column {config.text_column!r} of {split} holds something that is not text."
            )
        labels = [_label_name(label, names) for label in rows[config.label_column][:]]
        columns[SPLIT_ALIASES.get(split, split)] = (texts, labels)
    return from_named_labels(columns, origin=name)


def _reason(error: Exception) -> str:
    """The first cause, shortened. Raises it instead if the disk is full: that is no fault of the source."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        raise cause
    return " ".join(str(cause).split())[:200].rstrip(".")
