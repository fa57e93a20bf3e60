"""Reads reviews from a source: the hub, a folder in its layout, table files, the official archive, the demo.

It leaves nothing on disk, except what `datasets` downloads into its cache.
"""

import errno
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from imdb_transformer.config import DataConfig
from imdb_transformer.data import archive, demo, layouts, tables
from imdb_transformer.data.json_rows import type_problem
from imdb_transformer.data.reviews import (
    SPLIT_ALIASES,
    SPLITS,
    BadRow,
    LabelledText,
    Reviews,
    RowsBySplit,
    from_label_names,
    refuse,
)
from imdb_transformer.data.suggestions import suggested_options
from imdb_transformer.errors import DataError, EmptyError, reason_of, warn

HUB_NAME = "stanfordnlp/imdb"

# What `datasets` raises, besides its own errors, for what it cannot read.
LOADING_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, pa.ArrowException, yaml.YAMLError)
SAME_COLUMNS = (
    " The tables of a folder must have the same column names. If this one has no labels, name {} as the "
    "source instead of the folder."
)
WITHOUT_NETWORK = (
    "Without a network, use the source demo, or the path of the official archive, of its unpacked folder, "
    "of a folder in the hub's layout or of a table. A corpus that is already stored needs no network."
)


def read(config: DataConfig, classes: Sequence[str] = ()) -> Reviews:
    """All reviews of `config.source`. Raises DataError if it is missing, broken or not labelled.

    With `classes`, tables may lack the split `train` or some of these classes.
    """
    problems: list[str] = []
    try:
        return _read(config, classes, problems.append if config.bad_rows == "skip" else refuse)
    finally:  # an error may come from what was left out
        if problems:
            first = "\n".join(problems[: tables.NUM_REPORTED])
            warn(f"rows left out: {len(problems):,}. The first ones:\n{first}")


def has_no_train(config: DataConfig, classes: Sequence[str]) -> bool:
    """Whether a folder has splits, but none to train on. A hub card assigns files to splits."""
    if not (folder := Path(config.source)).is_dir():
        return False
    has_card = layouts.has_card(folder)
    splits = set(read(config, classes).splits) if has_card else layouts.splits_below(folder)
    return bool(splits) and not splits & {"train", ""}


def _read(config: DataConfig, classes: Sequence[str], bad_row: BadRow) -> Reviews:
    source, path = config.source, Path(config.source)
    if source == "demo":
        return demo.reviews()
    if source == "hub":
        return _load_dataset(HUB_NAME, DataConfig(), classes, bad_row, hint=WITHOUT_NETWORK)
    if archive.is_url(source):
        return archive.read_url(source, encoding=config.encoding, bad_row=bad_row)
    if not path.exists():
        raise DataError(f"{source!r} is not a source: there is no file or folder {path.absolute()}.")
    if path.is_dir():
        return _read_folder(path, config, classes, bad_row)
    is_text = tables.suffix_of(path) == ".txt"
    if tables.is_table(path) or (is_text and not config.label_column):
        return _read_tables({"train": [path]}, config, classes, bad_row)
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        with path.open("rb") as file:
            return archive.read_archive(file, str(path), encoding=config.encoding, bad_row=bad_row)
    advice = layouts.ADVICE.get(tables.suffix_of(path), "")
    endings = f"{tables.ENDINGS}, or in .tar.gz. {advice}".rstrip()
    raise DataError(f"{path} is not a source: its name must end in {endings}")


def _read_folder(folder: Path, config: DataConfig, classes: Sequence[str], bad_row: BadRow) -> Reviews:
    """Reviews of the official archive's folder, of tables by split, of one table, or of the hub's layout."""
    needed = ("train", "test") if classes else ("train",)  # one of them
    root = next(filter(None, (archive.root_of_tree(folder, split) for split in needed)), None)
    beside = [path for path in folder.iterdir() if layouts.split_of_name(path) and tables.is_table(path)]
    if root and not set(needed).intersection(map(layouts.split_of_name, beside)):
        layouts.warn_of_unread(folder, beside, "train/CLASS folders are read instead.")
        return archive.read_tree(root, classes, encoding=config.encoding, bad_row=bad_row)
    files = layouts.tables_by_split(folder, Path(config.data_dir))
    in_folder = [path for path in chain(*files.values()) if path.parent == folder]
    if layouts.has_card(folder) and "train" not in map(layouts.split_of_name, in_folder):
        return _read_card(folder, config, classes, bad_row)
    unnamed = files.pop("", [])
    if not files and not unnamed:
        problem = f"it has no train/CLASS/*.txt files and no tables ({tables.ENDINGS})"
        raise DataError(f"{folder} is not a source: {problem}.{layouts.advice_on_arrow(folder)}")
    are_parts = all(path.parent != folder or path.name.startswith("part-") for path in unnamed)  # by Spark
    if unnamed and files.keys() <= {"unsupervised"} and (len(unnamed) == 1 or are_parts):
        files["train"] = unnamed
    elif not files:
        names = ", ".join(path.name for path in unnamed[:10])
        advice = "Name one of them as the source, or rename them to train and test."
        raise DataError(f"{folder} has several tables and none is called train: {names}. {advice}")
    others = [path for path in folder.iterdir() if layouts.split_of_name(path) and path.is_file()]
    unread = {*unnamed, *others}.difference(*files.values())
    layouts.warn_of_unread(folder, unread, "The names of the others say which split they are.")
    return _read_tables(files, config, classes, bad_row)


def _read_tables(
    files: dict[str, list[Path]], config: DataConfig, classes: Sequence[str], bad_row: BadRow
) -> Reviews:
    rows: RowsBySplit = {}
    first, class_names = None, None
    for split in (name for name in SPLITS if name in files):  # train first
        rows[split] = []
        needed = _columns_needed(split, config)
        for path in files[split]:
            try:
                schema, blocks = tables.open_table(
                    path, needed, encoding=config.encoding, bad_row=bad_row, keeps_all=False
                )
            except EmptyError:  # as Spark leaves parts
                if len(files[split]) > 1:
                    continue
                raise
            except DataError as error:
                advice = suggested_options(path, config.encoding, *needed)  # the text column comes first
                if advice and first:
                    advice = SAME_COLUMNS.format(first)
                raise DataError(f"{error}{advice}") from None
            first = first or path  # it has the needed columns
            class_names = tables.class_names(schema, config.label_column) or class_names
            rows[split] += _labelled_texts(blocks, schema, split, config, path, bad_row, class_names)
        if not rows[split]:
            raise DataError(f"{files[split][0]} has no rows that can be read.")
    return from_label_names(rows, config.source, classes, labelled=bool(config.label_column), bad_row=bad_row)


def _columns_needed(split: str, config: DataConfig) -> dict[str, str]:
    """The columns of a split's table, each with the option that names another."""
    columns = {config.text_column: "--text-column (data.text_column)"}
    if config.label_column and split != "unsupervised":
        columns[config.label_column] = "--label-column (data.label_column)"
    return columns


def _labelled_texts(
    blocks: Iterable[tables.NumberedRows], schema: pa.Schema, split: str, config: DataConfig,
    origin: Path | str, bad_row: BadRow, former_names: list[str] | None = None,
) -> list[LabelledText]:  # fmt: skip
    """The texts of a table with their labels and places. If there are no labels, they are None.

    `former_names` are the classes that another table gave numbers. They hold if this one gives none.
    """
    rows: list[LabelledText] = []
    place = tables.place(origin)
    is_labelled = config.label_column in _columns_needed(split, config)
    names = tables.class_names(schema, config.label_column) if is_labelled else None
    kind = schema.field(config.label_column).type if is_labelled else pa.string()
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or (names and not pa.types.is_integer(kind)):
        raise DataError(f"{origin}: column {config.label_column!r} {type_problem(kind, 'labels')}")
    if is_labelled and names is None and pa.types.is_integer(kind):
        names = former_names
    for batch, numbers in tables.with_text(
        blocks, config.text_column, origin, bad_row=bad_row, may_be_blank=True
    ):
        texts = batch.column(config.text_column).to_pylist()
        labels: Iterable[Any] = [None] * len(texts)
        if is_labelled:
            column = batch.column(config.label_column)
            try:
                labels = column.to_pylist()
            except (ValueError, OverflowError, pa.ArrowException) as error:  # a date after the year 9999
                problem = f"column {config.label_column!r} has a value that cannot be read"
                raise DataError(f"{origin}: {problem} ({reason_of(error)}).") from None
            if pa.types.is_floating(kind):  # a short 4.1 became 4.099999904632568
                labels = [float(str(number)) for number in column.to_numpy(zero_copy_only=False)]
        if names is not None:
            labels = map(dict(enumerate(names)).get, labels)  # None if it is outside the classes
        places = (f"{place} {number}" for number in numbers)
        rows += zip(texts, labels, places, strict=True)
    return rows


def _read_card(folder: Path, config: DataConfig, classes: Sequence[str], bad_row: BadRow) -> Reviews:
    """Reviews of a folder in the hub's layout, whose card says which files are which split."""
    import datasets

    with ExitStack() as stack:
        if not datasets.are_progress_bars_disabled():
            datasets.disable_progress_bars()  # a folder is read in seconds
            stack.callback(datasets.enable_progress_bars)
        stack.callback(datasets.logging.set_verbosity, datasets.logging.get_verbosity())
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what it logs is in the error
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="imdb-tx-"))
        return _load_dataset(str(folder.resolve()), config, classes, bad_row, cache_dir=cache)


def _load_dataset(
    name: str, config: DataConfig, classes: Sequence[str], bad_row: BadRow, *,
    hint: str = "Perhaps name one of its tables as the source.", **options: Any,
) -> Reviews:  # fmt: skip
    """Reviews that `datasets` loads from the hub, from its cache, or from a folder."""
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    rows: RowsBySplit = {}
    try:
        for loaded_name, loaded in datasets.load_dataset(name, **options).items():
            split = SPLIT_ALIASES.get(loaded_name, loaded_name)
            if split in rows:
                raise DataError(f"{name} has two splits for {split}; one of them is {loaded_name!r}.")
            if split not in SPLITS:
                warn(
                    f"{name}: not read: the split {loaded_name!r}. The others are called {', '.join(SPLITS)}"
                )
                continue
            tables.check_columns(loaded.column_names, _columns_needed(split, config), name)
            table = loaded.with_format("arrow")[:].combine_chunks()
            blocks = [(batch, range(1, len(batch) + 1)) for batch in table.to_batches()]
            origin = f"{name}, split {split}"
            rows[split] = _labelled_texts(blocks, table.schema, split, config, origin, bad_row)
    except (*LOADING_ERRORS, HfHubHTTPError, datasets.exceptions.DatasetsError) as error:
        # offline it is a ConnectionError, an OSError
        raise DataError(f"`datasets` cannot load {name}: {_reason(error)}. {hint}") from None
    return from_label_names(rows, name, classes, labelled=bool(config.label_column), bad_row=bad_row)


def _reason(error: Exception) -> str:
    """The first cause, shortened. Raises it if the disk is full, which is not a fault of the source."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        raise cause
    return reason_of(cause)
