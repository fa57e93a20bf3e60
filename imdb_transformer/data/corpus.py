"""The stored corpus: what a source held, imported once, checked, and kept as one Parquet file a split.

Rows are stored in the order of their text's hash, so that the same reviews give the same corpus from
every source. The validation split is cut here, once: IMDB's is canonical (films that no training
review is about, listed by hash in `imdb_validation.txt`), any other's is a share of each class.
"""

import hashlib
import os
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import parquet
from pydantic import BaseModel, ConfigDict, ValidationError

from imdb_transformer.config import DataConfig
from imdb_transformer.data import archive, sources
from imdb_transformer.data.reviews import SPLITS, Reviews, Rows
from imdb_transformer.data.statistics import SplitStatistics, measure
from imdb_transformer.errors import DataError
from imdb_transformer.files import recover_folder, sha256_of, whole_folder, write_whole

# `content_hash` of the official splits, whatever the row order.
IMDB_HASHES = {
    "train": "0160afc8272aab7a7058585fa7d7f04743ed4eba791c1215801e4ee4c4109de0",
    "test": "30ea9c8c7b342f2313fd992b7fb458dd950e1c416eb0e9caf42ccea89008d7ac",
    "unsupervised": "9efd3f63da6d1a40e6908ad787cb6b723991c3ee4d31d9b71cc686153da61d1c",
}
MANIFEST = "manifest.json"
FORMAT = 1  # raised when the same source would be stored otherwise: older corpora are then imported again


class StoredSplit(BaseModel):
    """One Parquet file of the corpus and what must be found in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_rows: int
    content_hash: str
    file_hash: str


class Manifest(BaseModel):
    """What a stored corpus is, written last."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
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

    @property
    def content_hash(self) -> str:
        """One hash of all splits, the same from every source and row order."""
        lines = [f"{name} {split.content_hash}\n" for name, split in sorted(self.manifest.splits.items())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def text_hash(text: str) -> str:
    """SHA-256 of a review's UTF-8, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def content_hash(rows: Rows) -> str:
    """SHA-256 of a split's sorted (text hash, label) lines: the same for every row order."""
    lines = sorted(f"{text_hash(text)} {label}\n" for text, label in zip(*rows, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def ensure(config: DataConfig) -> tuple[Corpus, bool]:
    """The stored corpus of a source, imported first where it is not there; and whether it was there.

    A stored corpus is verified by hash. It is imported again where a local source has changed since.
    """
    folder = corpus_folder(config)
    recover_folder(folder)
    if (folder / MANIFEST).exists():
        corpus = open_stored(folder)
        unchanged = _fingerprint(config) in (corpus.manifest.fingerprint, "")
        if unchanged and corpus.manifest.format == FORMAT:
            verify(corpus)
            return corpus, True
    return _import(config, folder), False


def open_stored(folder: Path) -> Corpus:
    """A corpus by its folder, its manifest read and checked. Raises DataError."""
    path = folder / MANIFEST
    try:
        return Corpus(folder, Manifest.model_validate_json(path.read_bytes()))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except ValidationError:
        raise DataError(f"{path} is damaged; delete {folder} and run `imdb-tx download` again.") from None


def verify(corpus: Corpus) -> None:
    """Checks the hash of every split's file that is there. Raises DataError for one that differs."""
    for name, split in corpus.manifest.splits.items():
        path = split_path(corpus, name)
        if path.exists() and sha256_of(path) != split.file_hash:
            raise DataError(
                f"{path} is damaged (its checksum is wrong); delete {corpus.folder} and run "
                "`imdb-tx download` again."
            )


def split_path(corpus: Corpus, split: str) -> Path:
    """Where a split's rows are."""
    return corpus.folder / f"{split}.parquet"


def read_split(corpus: Corpus, split: str) -> Rows:
    """The rows of a split. Raises DataError where the corpus has no such split or its file is gone."""
    if split not in corpus.manifest.splits:
        have = ", ".join(corpus.manifest.splits)
        raise DataError(f"The corpus of {corpus.manifest.source} has no {split} split; it has: {have}.")
    path = split_path(corpus, split)
    try:
        table = parquet.read_table(path, columns=["text", "label"])
    except (OSError, pa.ArrowException):
        raise DataError(f"{path} is missing or damaged; run `imdb-tx download` again.") from None
    return Rows(table.column("text").to_pylist(), table.column("label").to_pylist())


def corpus_folder(config: DataConfig) -> Path:
    """Where the corpus of a source is kept: by its name, and for paths by all that decides its content."""
    named = config.source in ("hub", "demo") or archive.is_url(config.source)
    place = config.source if named else str(Path(config.source).resolve())
    settings = (
        config.text_column, config.label_column, config.validation_fraction, config.test_fraction,
    )  # fmt: skip
    key = hashlib.sha256(repr((place, *settings)).encode()).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(place).name.split(".")[0]) or "corpus"
    return Path(config.data_dir) / f"{name}-{key}"


def _fingerprint(config: DataConfig) -> str:
    """Changes when a local source's files do; empty where there are none to look at."""
    path = Path(config.source).resolve()
    if config.source in ("hub", "demo") or archive.is_url(config.source) or not path.exists():
        return ""
    stored = Path(config.data_dir).resolve()
    stats = [path.name, path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else []
    for folder, names, files in os.walk(path):
        names[:] = sorted(name for name in names if Path(folder, name) != stored)
        for name in sorted(files):
            status = os.stat(f"{folder}/{name}", follow_symlinks=False)  # noqa: PTH116 - 100,000 files: no Path each
            stats += [folder[len(str(path)) :], name, status.st_size, status.st_mtime_ns]
    return hashlib.sha256(repr(stats).encode()).hexdigest()


def _import(config: DataConfig, folder: Path) -> Corpus:
    reviews = sources.read(config)
    is_imdb = _check_imdb(reviews, config.source)
    statistics = measure(reviews)
    splits = _cut(reviews, config, is_imdb=is_imdb)
    with whole_folder(folder) as temporary:
        stored = {name: _store(rows, temporary / f"{name}.parquet") for name, rows in splits.items()}
        manifest = Manifest(
            format=FORMAT,
            source=config.source,
            fingerprint=_fingerprint(config),
            is_imdb=is_imdb,
            classes=reviews.classes,
            splits=stored,
            statistics=statistics,
        )
        write_whole(temporary / MANIFEST, manifest.model_dump_json(indent=1).encode())
    return Corpus(folder, manifest)


def _check_imdb(reviews: Reviews, source: str) -> bool:
    """Whether these are IMDB's official splits. Raises DataError where they ought to be and are not."""
    matches = {
        split: content_hash(rows) == IMDB_HASHES[split]
        for split, rows in reviews.splits.items()
        if split in IMDB_HASHES
    }
    official = source == "hub" or Path(source).name.startswith("aclImdb_v1.")
    wrong = [split for split in IMDB_HASHES if not matches.get(split, not official)]
    if wrong and (official or any(matches.values())):
        counts = ", ".join(f"{split} {len(rows.texts):,}" for split, rows in reviews.splits.items())
        raise DataError(
            f"{source} should be IMDB (25,000 train, 25,000 test, 50,000 unsupervised) and is not: wrong "
            f"checksum of {', '.join(wrong)} (it holds {counts}). Fetch it again, or rename your own."
        )
    return matches.get("train", False)


def _cut(reviews: Reviews, config: DataConfig, *, is_imdb: bool) -> dict[str, Rows]:
    """The splits to store, each in the order of its text hashes, with held-out texts left out elsewhere."""
    splits = {name: _sorted(rows) for name, rows in reviews.splits.items()}
    if len(splits) == 1:
        splits["train"], splits["test"] = _take_share(splits["train"], config.test_fraction)
    if is_imdb:
        listed = imdb_validation_hashes()
        chosen = [text_hash(text)[:16] in listed for text in splits["train"].texts]
        splits["train"], splits["validation"] = _partition(splits["train"], chosen)
    elif "validation" not in splits:
        splits["train"], splits["validation"] = _take_share(splits["train"], config.validation_fraction)
    if "unsupervised" in splits:
        # Pretraining and tokenizer training read this split: what is held out must not stand in it.
        held_out = {text for name in ("validation", "test") if name in splits for text in splits[name].texts}
        rows = splits["unsupervised"]
        splits["unsupervised"], _ = _partition(rows, [text in held_out for text in rows.texts])
    for label, name in enumerate(reviews.classes):
        if label not in splits["train"].labels:
            raise DataError(
                f"{config.source}: class {name!r} has too few reviews to train on and hold some out."
            )
    for name in ("validation", "test"):
        if name in splits and not splits[name].texts:
            raise DataError(f"{config.source}: the {name} split is empty; it needs more rows.")
    return {name: splits[name] for name in SPLITS if name in splits}


@cache
def imdb_validation_hashes() -> frozenset[str]:
    """First 16 hex digits of the text hash of each review in IMDB's validation split."""
    text = resources.files("imdb_transformer.data").joinpath("imdb_validation.txt").read_text("ascii")
    return frozenset(line for line in text.split("\n") if line and not line.startswith("#"))


def _sorted(rows: Rows) -> Rows:
    order = sorted(range(len(rows.texts)), key=lambda i: (text_hash(rows.texts[i]), rows.labels[i]))
    return Rows([rows.texts[i] for i in order], [rows.labels[i] for i in order])


def _take_share(rows: Rows, fraction: float) -> tuple[Rows, Rows]:
    """(rest, share): a share of each class's texts, every copy of a text on the same side."""
    chosen: set[str] = set()
    for label in set(rows.labels):
        texts = list(dict.fromkeys(text for text, own in zip(*rows, strict=True) if own == label))
        chosen.update(
            texts[: max(1, round(fraction * len(texts)))]
        )  # texts come in the order of their hashes
    return _partition(rows, [text in chosen for text in rows.texts])


def _partition(rows: Rows, chosen: list[bool]) -> tuple[Rows, Rows]:
    def pick(value: bool) -> Rows:
        kept = [i for i, flag in enumerate(chosen) if flag is value]
        return Rows([rows.texts[i] for i in kept], [rows.labels[i] for i in kept])

    return pick(False), pick(True)


def _store(rows: Rows, path: Path) -> StoredSplit:
    table = pa.table({"text": pa.array(rows.texts, pa.string()), "label": pa.array(rows.labels, pa.int64())})
    parquet.write_table(table, path, compression="zstd")
    return StoredSplit(num_rows=len(rows.texts), content_hash=content_hash(rows), file_hash=sha256_of(path))
