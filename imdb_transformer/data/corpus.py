"""The stored corpus: a source's reviews, imported once, checked, and stored in a Parquet file per split.

Rows are stored in the order of their text's hash: the same reviews give the same corpus from any source.
Reviews are held out once, at import (`holdout.py`).
"""

import hashlib
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import parquet
from pydantic import BaseModel

from imdb_transformer.config import DataConfig
from imdb_transformer.data import archive, layouts, sources
from imdb_transformer.data.holdout import content_hash, hold_out, is_imdb, share_of
from imdb_transformer.data.reviews import Rows, SplitStatistics, measure, normalized, warn_of_shared
from imdb_transformer.errors import DataError, RunError, warn
from imdb_transformer.store import files
from imdb_transformer.store.files import read_json, sha256_of, write_json
from imdb_transformer.store.locks import one_at_a_time

MANIFEST = layouts.MANIFEST
MAX_NAME_LENGTH = 60  # characters of the source's name in a folder's name
AGAIN = "delete {} and run `imdb-tx download` again."


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
    is_new: bool = False  # whether it has just been imported

    @property
    def content_hash(self) -> str:
        """One hash of classes and splits, the same from every source and row order."""
        lines = [f"{name} {split.content_hash}\n" for name, split in sorted(self.manifest.splits.items())]
        lines.append(f"{self.manifest.classes}\n")
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def ensure(config: DataConfig, *, needs: Iterable[str] = (), expected_hash: str = "") -> Corpus:
    """The stored corpus of a source, imported if necessary. Raises DataError.

    A stored corpus is verified by hash. It is imported again if a local source has changed, or if the file of
    a split is gone, except test if it is not in `needs`. A run passes the content hash of its reviews as
    `expected_hash`. That corpus is used even if its source has changed or is gone: an import keeps the one
    that it replaces, under another name. One of several processes imports.
    """
    folder, needs = corpus_folder(config), ("train", "validation", "unsupervised", *needs)
    for candidate in (folder, *(other_folders(config) if expected_hash else ())):
        with suppress(DataError):  # it is damaged, or another process is replacing it
            stored = _usable(config, candidate, needs, expected_hash)
            if stored and expected_hash in ("", stored.content_hash):
                return stored
    with one_at_a_time(folder):
        files.recover_folder(folder)
        if stored := _usable(config, folder, needs, expected_hash):
            return stored
        return _import(config, folder)


def is_stored(config: DataConfig) -> bool:
    """Whether the reviews of a source have been imported and have not changed since. Raises DataError."""
    return _usable(config, corpus_folder(config), (), expected_hash="") is not None


def _usable(config: DataConfig, folder: Path, needs: Iterable[str], expected_hash: str) -> Corpus | None:
    """The corpus in a folder, verified; None if it must be imported. Raises DataError."""
    if not (folder / MANIFEST).exists():
        return None
    corpus = open_stored(folder)
    is_expected = corpus.content_hash == expected_hash
    unchanged = is_expected or fingerprint_of(config) in (corpus.manifest.fingerprint, "")
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
        raise DataError(f"{path} is damaged or missing; {AGAIN.format(folder)}") from None


def verify(corpus: Corpus) -> None:
    """Checks the hash of every split's file that exists. Raises DataError if one differs."""
    for name, split in corpus.manifest.splits.items():
        path = split_path(corpus, name)
        if path.exists() and sha256_of(path) != split.file_hash:
            raise DataError(f"{path} is damaged (its checksum is wrong); {AGAIN.format(corpus.folder)}")


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


def of_run(config: DataConfig, expected_hash: str, folder: Path) -> Corpus:
    """The corpus that the run in `folder` learnt. Raises RunError if its content hash is another one."""
    stored = ensure(config, expected_hash=expected_hash)
    if stored.content_hash != expected_hash:
        raise RunError(
            f"{folder} was started on reviews that differ from those of {config.source} now. "
            "Restore the reviews, or start a new run."
        )
    return stored


def learnt_texts(config: DataConfig, expected_hash: str) -> set[str]:
    """The normalized texts of training and validation, if a corpus with this hash is still stored."""
    with suppress(DataError):
        if stored := find_stored(config, expected_hash):
            names = {"train", "validation"} & stored.manifest.splits.keys()
            return {normalized(text) for name in names for text in read_split(stored, name).texts}
    return set()


def find_stored(config: DataConfig, expected_hash: str) -> Corpus | None:
    """The corpus of a source with this content hash, if it is still stored."""
    for folder in (corpus_folder(config), *other_folders(config)):
        with suppress(DataError):
            if (stored := open_stored(folder)).content_hash == expected_hash:
                return stored
    return None


def other_folders(config: DataConfig) -> list[Path]:
    """The folders of all other stored corpora: the source may have had another path."""
    usual = corpus_folder(config)
    return [path.parent for path in usual.parent.glob(f"[!.]*/{MANIFEST}") if path.parent != usual]


def former_folder(folder: Path, content_hash: str) -> Path:
    """Where a stored corpus is kept when another one replaces it."""
    return folder.with_name(f"{folder.name}-{content_hash[:8]}")


def corpus_folder(config: DataConfig) -> Path:
    """The folder of a source's stored corpus. Its name depends on every setting that changes the content."""
    place = str(Path(config.source).resolve()) if is_local(config) else config.source
    settings: tuple[object, ...] = (config.text_column, config.label_column, share_of(config))
    if (config.encoding, config.bad_rows) != ("utf-8", "fail"):
        settings += (config.encoding, config.bad_rows)
    key = hashlib.sha256(repr((place, *settings)).encode()).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(place).name.split(".")[0])[:MAX_NAME_LENGTH] or "corpus"
    return Path(config.data_dir) / f"{name}-{key}"


def is_local(config: DataConfig) -> bool:
    """Whether the source is a file or folder."""
    return config.source not in ("hub", "demo") and not archive.is_url(config.source)


def fingerprint_of(config: DataConfig) -> str:
    """A hash that changes when a local source's files change. Empty if there are no local files."""
    path = Path(config.source).resolve()
    if not (is_local(config) and path.exists()):
        return ""
    return hashlib.sha256(repr(layouts.files_read(path, Path(config.data_dir))).encode()).hexdigest()


def _import(config: DataConfig, folder: Path) -> Corpus:
    fingerprint = fingerprint_of(config)
    reviews = sources.read(config)
    if fingerprint_of(config) != fingerprint:
        raise DataError(f"{config.source} changed while it was read; try again when it is complete.")
    is_whole_imdb = is_imdb(reviews, config.source)
    statistics = measure(reviews)
    if num_empty := sum(each.num_empty for each in statistics):
        warn(f"reviews without any words: {num_empty:,}")
    splits = hold_out(reviews, config)
    warn_of_shared(statistics, config.source)
    former = None
    with suppress(DataError):  # runs may have been trained on the corpus that is replaced
        former = former_folder(folder, open_stored(folder).content_hash)
    with files.whole_folder(folder, former=former) as temporary:
        stored = {name: _store(rows, temporary / f"{name}.parquet") for name, rows in splits.items()}
        manifest = Manifest(
            source=config.source, fingerprint=fingerprint, is_imdb=is_whole_imdb,
            classes=reviews.classes, splits=stored, statistics=statistics,
        )  # fmt: skip
        write_json(temporary / MANIFEST, manifest)
    new = Corpus(folder, manifest, is_new=True)
    if former == former_folder(folder, new.content_hash):
        shutil.rmtree(former)
    return new


def _store(rows: Rows, path: Path) -> StoredSplit:
    table = pa.table({"text": pa.array(rows.texts, pa.string()), "label": pa.array(rows.labels, pa.int64())})
    parquet.write_table(table, path, compression="zstd", row_group_size=20_000)
    return StoredSplit(num_rows=len(rows.texts), content_hash=content_hash(rows), file_hash=sha256_of(path))
