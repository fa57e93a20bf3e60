"""The hub's `stanfordnlp/imdb`, and any folder in the hub's layout, through `datasets`."""

import errno
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from imdb_transformer.config import DataConfig
from imdb_transformer.data.reviews import SPLIT_ALIASES, NamedColumns, Reviews, from_named_labels
from imdb_transformer.data.tables import TABLE_SUFFIXES, is_table, label_name
from imdb_transformer.errors import DataError

HUB_NAME = "stanfordnlp/imdb"

# What `datasets` raises over a folder or a repository that it cannot read; its own errors are among them.
LOADING_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, pa.ArrowException, yaml.YAMLError)

WITHOUT_NETWORK = (
    "Without a network these work: `imdb-tx download --source demo`, the same with a path to the official "
    "archive, its extracted folder, a folder in the hub's layout or a table file, and every other command "
    "on a corpus that is stored already."
)


def read_hub() -> Reviews:
    """IMDB from the hub, or from what `datasets` keeps of it. Raises DataError."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return _load_dataset(HUB_NAME, DataConfig())
    except (*LOADING_ERRORS, HfHubHTTPError) as error:  # ConnectionError, an OSError, when offline
        raise DataError(f"Cannot load {HUB_NAME} from the hub: {_reason(error)}. {WITHOUT_NETWORK}") from None


def read_folder(folder: Path, config: DataConfig) -> Reviews:
    """Reviews of a folder in the hub's layout. Raises DataError."""
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
            [label_name(label, names) for label in rows[config.label_column][:]],
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
