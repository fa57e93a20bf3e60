"""The stored corpus: a source's reviews, imported once, checked, and stored as one Parquet file a split.

Rows are stored in the order of their text's hash: the same reviews give the same corpus from any source.
Reviews are held out once, at import (`holdout.py`).
"""

import hashlib
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import parquet
from pydantic import BaseModel

from imdb_transformer.config import DataConfig
from imdb_transformer.data import sources
from imdb_transformer.data.corpus_folder import (
    MANIFEST,
    corpus_folder,
    fingerprint_of,
    former_folder,
    other_folders,
)
from imdb_transformer.data.holdout import hold_out, text_hash
from imdb_transformer.data.reviews import Reviews, Rows, SplitStatistics, measure
from imdb_transformer.errors import DataError, warn
from imdb_transformer.store import files
from imdb_transformer.store.files import read_json, sha256_of, write_json
from imdb_transformer.store.locks import one_at_a_time

# `content_hash` of the official splits, whatever the row order.
IMDB_HASHES = {
    "train": "0160afc8272aab7a7058585fa7d7f04743ed4eba791c1215801e4ee4c4109de0",
    "test": "30ea9c8c7b342f2313fd992b7fb458dd950e1c416eb0e9caf42ccea89008d7ac",
    "unsupervised": "9efd3f63da6d1a40e6908ad787cb6b723991c3ee4d31d9b71cc686153da61d1c",
}

MAX_SHARED = 0.01  # of a held-out split; of IMDB's test split 0.5% are in train


class StoredSplit(BaseModel, extra="forbid", frozen=True):
    """What the Parquet file of a split must contain."""

    num_rows: int
    content_hash: str
    file_hash: str


class Manifest(BaseModel, extra="forbid", frozen=True):
    """Describes a stored corpus. It is written last."""

    source: str
    fingerprint: str
    is_imdb: bool
    classes: tuple[str, ...]
    splits: dict[str, StoredSplit]
    statistics: list[SplitStatistics]


class Corpus(NamedTuple):
    """A stored corpus that has been opened."""

    folder: Path
    manifest: Manifest
    is_new: bool = False
    """whether it has just been imported"""

    @property
    def content_hash(self) -> str:
        """One hash of all splits, the same from every source and row order."""
        lines = [f"{name} {split.content_hash}\n" for name, split in sorted(self.manifest.splits.items())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def content_hash(rows: Rows) -> str:
    """SHA-256 of a split's sorted (text hash, label) lines: the same for every row order."""
    lines = sorted(f"{text_hash(text)} {label}\n" for text, label in zip(*rows, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def ensure(config: DataConfig, *, needs: Iterable[str] = (), known: str = "") -> Corpus:
    """The stored corpus of a source, imported if necessary. Raises DataError.

    A stored corpus is verified by hash. It is imported again if a local source has changed, or if the file of
    a split in `needs` is gone (training needs no test split). The corpus with the content hash `known`, which
    a run passes, is used even if its source has changed or is not found: an import keeps the corpus that it
    replaces, under a name of its own. One of several processes imports.
    """
    folder, needs = corpus_folder(config), tuple(needs)
    for candidate in (folder, *(other_folders(config) if known else ())):
        with suppress(DataError):  # it is damaged, or another process is replacing it
            stored = _usable(config, candidate, needs, known)
            if stored and known in ("", stored.content_hash):
                return stored
    with one_at_a_time(folder):
        files.recover_folder(folder)
        if stored := _usable(config, folder, needs, known):
            return stored
        return _import(config, folder)


def is_stored(config: DataConfig) -> bool:
    """Whether the reviews of a source have been imported and have not changed since. Raises DataError."""
    return _usable(config, corpus_folder(config), (), known="") is not None


def _usable(config: DataConfig, folder: Path, needs: Iterable[str], known: str) -> Corpus | None:
    """The corpus in a folder, verified; None if it must be imported. Raises DataError."""
    if not (folder / MANIFEST).exists():
        return None
    corpus = open_stored(folder)
    unchanged = corpus.content_hash == known or fingerprint_of(config) in (corpus.manifest.fingerprint, "")
    wanted = [split_path(corpus, name) for name in needs if name in corpus.manifest.splits]
    if not (unchanged and all(path.exists() for path in wanted)):
        return None
    verify(corpus)
    return corpus


def open_stored(folder: Path) -> Corpus:
    """Opens the corpus in a folder and checks its manifest. Raises DataError."""
    path = folder / MANIFEST
    try:
        return Corpus(folder, read_json(path, Manifest))
    except (OSError, ValueError):
        raise DataError(f"{path} is damaged or missing; {_again(folder)}") from None


def _again(folder: Path) -> str:
    return f"delete {folder} and run `imdb-tx download` again."


def verify(corpus: Corpus) -> None:
    """Checks the hash of every split's file that exists. Raises DataError if one differs."""
    for name, split in corpus.manifest.splits.items():
        path = split_path(corpus, name)
        if path.exists() and sha256_of(path) != split.file_hash:
            raise DataError(f"{path} is damaged (its checksum is wrong); {_again(corpus.folder)}")


def split_path(corpus: Corpus, split: str) -> Path:
    """The Parquet file of a split."""
    return corpus.folder / f"{split}.parquet"


def stored_split(corpus: Corpus, split: str) -> StoredSplit:
    """The manifest's entry for a split. Raises DataError if the corpus has no such split."""
    if split not in corpus.manifest.splits:
        names = ", ".join(corpus.manifest.splits)
        raise DataError(f"The corpus of {corpus.manifest.source} has no {split} split; it has: {names}.")
    return corpus.manifest.splits[split]


def read_split(corpus: Corpus, split: str) -> Rows:
    """The rows of a split. Raises DataError if the corpus has no such split or its file is gone."""
    stored_split(corpus, split)
    path = split_path(corpus, split)
    try:
        table = parquet.ParquetFile(path).read(columns=["text", "label"])
    except (OSError, pa.ArrowException):
        raise DataError(f"{path} is missing or damaged; run `imdb-tx download` again.") from None
    rows = Rows(table.column("text").to_pylist(), table.column("label").to_pylist())
    del table
    pa.default_memory_pool().release_unused()  # 88 MiB of IMDB, which a training would keep to its end
    return rows


def learnt_texts(config: DataConfig, known: str) -> set[str]:
    """The texts of training and validation, if the corpus with the content hash `known` is still stored."""
    for folder in (corpus_folder(config), *other_folders(config)):
        with suppress(DataError):
            if (stored := open_stored(folder)).content_hash == known:
                names = {"train", "validation"} & stored.manifest.splits.keys()
                return set().union(*(read_split(stored, name).texts for name in names))
    return set()


def _import(config: DataConfig, folder: Path) -> Corpus:
    fingerprint = fingerprint_of(config)
    reviews = sources.read(config)
    if fingerprint_of(config) != fingerprint:
        raise DataError(f"{config.source} changed while it was read; try again when it is complete.")
    official = _official_splits(reviews, config.source)
    statistics = measure(reviews)
    if num_empty := sum(each.num_empty for each in statistics):
        warn(f"reviews without any words: {num_empty:,}")
    splits = hold_out(reviews, config, is_imdb="train" in official)
    _warn_of_shared(statistics, config.source)
    former = _stored_before(folder)
    with files.whole_folder(folder, former=former and former.folder) as temporary:
        stored = {name: _store(rows, temporary / f"{name}.parquet") for name, rows in splits.items()}
        manifest = Manifest(
            source=config.source, fingerprint=fingerprint, is_imdb=official == set(reviews.splits),
            classes=reviews.classes, splits=stored, statistics=statistics,
        )  # fmt: skip
        write_json(temporary / MANIFEST, manifest)
    new = Corpus(folder, manifest, is_new=True)
    if former and former.content_hash == new.content_hash:
        shutil.rmtree(former.folder)
    return new


def _stored_before(folder: Path) -> Corpus | None:
    """The corpus that an import replaces, with the folder to keep it in. Runs may have been trained on it."""
    with suppress(DataError):
        before = open_stored(folder)
        return before._replace(folder=former_folder(folder, before.content_hash))
    return None


def _warn_of_shared(statistics: list[SplitStatistics], source: str) -> None:
    """Warns if much of a held-out split is in train, too: scores on it would be too high."""
    for each in statistics:
        num_shared = each.num_shared.get("train", 0) if each.split in ("validation", "test") else 0
        if num_shared > MAX_SHARED * each.num_rows:
            warn(
                f"{source}: {num_shared:,} of {each.num_rows:,} texts of {each.split} are in train, too. "
                "Scores on them say little."
            )


def _official_splits(reviews: Reviews, source: str) -> set[str]:
    """The splits that equal IMDB's. Raises DataError if a source with IMDB's name lacks one of them.

    Any other source may hold a part of IMDB, or IMDB's train split and another test split.
    """
    official = {name for name, rows in reviews.splits.items() if content_hash(rows) == IMDB_HASHES.get(name)}
    wrong = [name for name in IMDB_HASHES if name not in official]
    if wrong and (source == "hub" or Path(source).name.startswith("aclImdb_v1.")):
        counts = ", ".join(f"{name} {len(rows.texts):,}" for name, rows in reviews.splits.items())
        raise DataError(
            f"{source} is not IMDB: wrong checksum of {', '.join(wrong)}. It has {counts}. IMDB has 25,000 "
            "train, 25,000 test, 50,000 unsupervised. Fetch it again. If it is your own file, rename it."
        )
    return official


def _store(rows: Rows, path: Path) -> StoredSplit:
    table = pa.table({"text": pa.array(rows.texts, pa.string()), "label": pa.array(rows.labels, pa.int64())})
    parquet.write_table(table, path, compression="zstd", row_group_size=20_000)
    return StoredSplit(num_rows=len(rows.texts), content_hash=content_hash(rows), file_hash=sha256_of(path))
