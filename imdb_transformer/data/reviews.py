"""Labelled reviews in memory, from any source, and their statistics."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

import numpy as np
from pydantic import BaseModel

from imdb_transformer.errors import DataError

SPLITS = ("train", "validation", "test", "unsupervised")
SPLIT_ALIASES = {"valid": "validation", "val": "validation", "dev": "validation", "unsup": "unsupervised"}
UNLABELLED = -1
MAX_REVIEW_BYTES = 64 << 20  # of a line or a row; IMDB's longest has 14 kB
CHUNK_CHARACTERS = 16 << 20
PERCENTILES = (50, 90, 99, 100)
BREAK_TAG = r"<br\s*/?>"
"""a line break in IMDB's reviews, in upper or lower case; models read it as a space"""

# By split: texts, and the class name of each text.
NamedColumns = dict[str, tuple[list[str], list[str | None]]]


class Rows(NamedTuple):
    """The reviews of one split; `labels[i]` indexes the classes, or is -1 for no label."""

    texts: list[str]
    labels: list[int]


class Reviews(NamedTuple):
    """Everything a source holds: rows by split name, and the names of the classes."""

    splits: dict[str, Rows]
    classes: tuple[str, ...]


def from_named_labels(columns: NamedColumns, *, origin: str) -> Reviews:
    """Reviews from (texts, label names) by split; the classes are those of train.

    Raises DataError on a missing label, fewer than two classes, or a label that train does not have.
    """
    if "train" not in columns:
        raise DataError(f"{origin} has no train split; it has: {', '.join(columns) or 'nothing'}.")
    classes = sorted({name for name in columns["train"][1] if name is not None}, key=_numbers_first)
    index = {name: i for i, name in enumerate(classes)}
    splits = {}
    for split in (name for name in SPLITS if name in columns):
        texts, names = columns[split]
        if split == "unsupervised":
            splits[split] = Rows(texts, [UNLABELLED] * len(texts))
            continue
        labels: list[int] = []
        for name in names:
            if name not in index:
                problem = f"label {name!r}; train has {', '.join(classes[:10])}" if name else "no label"
                raise DataError(f"{origin}: row {len(labels) + 1} of {split} has {problem}.")
            labels.append(index[name])
        splits[split] = Rows(texts, labels)
    if len(classes) < 2:
        only = f"only {classes[0]!r}" if classes else "no labelled review"
        raise DataError(f"{origin}: a classifier needs two classes or more; train has {only}.")
    return Reviews(splits, tuple(classes))


def _numbers_first(name: str) -> tuple[int, float, str]:
    """Sorts '2' before '10', and numbers before words. 'nan' counts as a word."""
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    return (0, number, name) if math.isfinite(number) else (1, 0.0, name)


class SplitStatistics(BaseModel, extra="forbid", frozen=True):
    """Statistics of one split of the source, before anything is held out."""

    split: str
    num_rows: int
    num_by_label: dict[str, int]
    num_empty: int
    num_duplicates: int
    """rows whose text occurs earlier in the same split"""
    num_shared: dict[str, int]
    """distinct texts that also occur in another split, by its name"""
    num_with_breaks: int
    """rows with `<br />`"""
    word_percentiles: dict[int, int]
    """words a review, at the 50th, 90th, 99th and 100th percentile"""


def measure(reviews: Reviews) -> list[SplitStatistics]:
    """Statistics of each split."""
    distinct = {name: set(rows.texts) for name, rows in reviews.splits.items()}
    statistics = []
    for name, (texts, labels) in reviews.splits.items():
        num_words = np.array([len(text.split()) for text in texts] or [0])
        names = Counter("unlabelled" if label == UNLABELLED else reviews.classes[label] for label in labels)
        shared = {other: len(distinct[name] & distinct[other]) for other in distinct if other != name}
        figures = SplitStatistics(
            split=name, num_rows=len(texts), num_by_label=dict(sorted(names.items())),
            num_empty=sum(not text.strip() for text in texts),
            num_duplicates=len(texts) - len(distinct[name]), num_shared=shared,
            num_with_breaks=sum("<br />" in text for text in texts),
            word_percentiles={p: int(np.percentile(num_words, p)) for p in PERCENTILES},
        )  # fmt: skip
        statistics.append(figures)
    return statistics


def in_chunks(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """The texts in lists of `size`, or of fewer if they are long. One list is in memory at a time."""
    chunk: list[str] = []
    num_characters = 0
    for text in texts:
        chunk.append(text)
        num_characters += len(text)
        if len(chunk) == size or num_characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, num_characters = [], 0
    if chunk:
        yield chunk


def lines_of(stream: BinaryIO, origin: str) -> Iterator[str]:
    """The lines of UTF-8 text, without line ends and byte order mark.

    Raises DataError with the number of a line that is not UTF-8 or is too long for a review.
    """
    for number, line in enumerate(iter(lambda: stream.readline(MAX_REVIEW_BYTES + 1), b""), 1):
        if len(line) > MAX_REVIEW_BYTES:
            raise DataError(f"{origin}: line {number} has more than {MAX_REVIEW_BYTES:,} bytes.")
        try:
            encoding = "utf-8-sig" if number == 1 else "utf-8"
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode(encoding)
        except UnicodeDecodeError:
            raise DataError(f"{origin}: line {number} is not UTF-8.") from None
