"""Labelled reviews in memory, from any source, and their statistics."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel

from imdb_transformer.errors import DataError, warn

SPLITS = ("train", "validation", "test", "unsupervised")
SPLIT_ALIASES = {
    "training": "train", "testing": "test", "eval": "test", "evaluation": "test",
    "valid": "validation", "val": "validation", "dev": "validation", "unsup": "unsupervised",
}  # fmt: skip
UNLABELLED = -1
MAX_REVIEW_BYTES = 64 << 20  # of a line or a row; the longest in IMDB has 14 kB
CHUNK_CHARACTERS = 16 << 20
NUM_SPELLINGS = 3  # classes, in a warning
MISSING = ("nan", "null", "<na>")  # what other programs write for a missing label, in lower case
BOOLEANS = ("false", "true")
MAX_SHARED = 0.01  # of a held-out split; of IMDB's test split 0.5% are in train
PERCENTILES = (50, 90, 99, 100)
# Thai, Lao, Burmese, Khmer, Japanese and Chinese are written without blanks. Each character counts as a word.
WITHOUT_BLANKS = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
# Controls, soft hyphens, joiners, marks of direction and of byte order.
INVISIBLE = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x9f\xad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]+")
BREAK_TAG = r"<br\s*/?>"  # a line break in IMDB's reviews, in upper or lower case; models read it as a space

T = TypeVar("T")

LabelledText = tuple[str, object, str]  # text, label, and its place in the source, for messages
RowsBySplit = dict[str, list[LabelledText]]
BadRow = Callable[[str], None]  # called with a sentence about each bad row


@cache
def word_pattern() -> str:
    """Matches a word, or a run of punctuation, nearly as the tokenizer does: "!!" carries meaning.

    To Python's `\\w`, the vowel signs of Hindi and other marks are no part of a word.
    """
    marks = "".join(c for c in map(chr, range(0x300, 0x1F000)) if unicodedata.category(c).startswith("M"))
    # The lookahead is only for speed: few words end before a character beyond Latin.
    return rf"\w+(?:(?=[^\0-\u02ff])[{marks}\u200c\u200d]+\w*)*|[^\w\s]+"


class Rows(NamedTuple):
    """The reviews of one split; `labels[i]` indexes the classes, or is -1 for no label."""

    texts: list[str]
    labels: list[int]


def normalized(text: str) -> str:
    """The text in lower case, without white space, line breaks and invisible characters.

    Copies of a text are equal then. Models see little more of these than where a word ends.
    """
    text = INVISIBLE.sub("", unicodedata.normalize("NFC", text.lower()))
    return "".join(text.split()).replace("<br/>", "").replace("<br>", "")


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of several splits, in their order."""
    texts = [text for part in parts for text in part.texts]
    return Rows(texts, [label for part in parts for label in part.labels])


class Reviews(NamedTuple):
    """Everything a source holds: rows by split name, and the names of the classes."""

    splits: dict[str, Rows]
    classes: tuple[str, ...]


def refuse(problem: str) -> None:
    """The default for a bad row: raises DataError, with the option that leaves it out or another remedy."""
    remedy = "" if "--" in problem else ". To leave such rows out: --bad-rows skip (data.bad_rows=skip)"
    raise DataError(f"{problem}{remedy}.")


def from_label_names(
    rows: RowsBySplit, origin: str, classes: Sequence[str] = (), *,
    labelled: bool = True, bad_row: BadRow = refuse,
) -> Reviews:  # fmt: skip
    """Reviews from texts with the names of their labels. `classes` are by default those of train.

    `bad_row` is called for a row without a label, or with a label that is not a class. If it returns, the row
    is left out. Without `labelled` no split has labels, and there are no classes. Otherwise raises DataError
    for fewer than two.
    """
    if "train" not in rows and not classes:
        raise DataError(f"{origin} has no train split; it has: {', '.join(rows) or 'nothing'}.")
    if labelled and not classes:
        names = {label_name(label) for _, label, _ in rows["train"]} - {None}
        classes = sorted(filter(None, names), key=_numbers_first)
        _warn_of_spellings(classes)
    index = {name: i for i, name in enumerate(classes)}
    # pandas writes True into CSV, where JSON, Parquet and this package have true.
    booleans = {name.lower(): i for name, i in index.items() if name.lower() in BOOLEANS}
    splits = {}
    for split in (name for name in SPLITS if name in rows):
        is_labelled = labelled and split != "unsupervised"
        splits[split] = Rows([], [])
        for text, label, place in rows[split]:
            name = label_name(label) or ""
            number = index.get(name, booleans.get(name.lower())) if is_labelled else UNLABELLED
            if number is not None:
                splits[split].texts.append(text)
                splits[split].labels.append(number)
            else:
                known = ", ".join(classes[:10])
                problem = f"label {name!r}; the classes are {known}" if name else "no label"
                bad_row(f"{place} has {problem}")
    if labelled:
        _check_labels(splits, rows, classes, origin)
    return Reviews(splits, tuple(classes))


def _check_labels(splits: Mapping[str, Rows], rows: RowsBySplit, classes: Sequence[str], origin: str) -> None:
    """Raises DataError for fewer than two classes, and if no text of a split beside train has a label."""
    if len(classes) < 2:
        only = f"only {classes[0]!r}" if classes else "no labelled review"
        raise DataError(f"{origin}: a classifier needs two classes or more; train has {only}.")
    for split in ("validation", "test") if "train" in splits else ():
        if split in splits and rows[split] and not splits[split].texts:
            raise DataError(
                f"{origin}: no review of {split} has a label of train. To train without {split}, name the "
                "file of train as the source."
            )


def _warn_of_spellings(classes: Iterable[str]) -> None:
    """Names the first classes that are equal numbers, look the same, or differ only in case or blanks.

    Also names one that pandas writes for a missing label.
    """
    if missing := [name for name in classes if name.casefold() in MISSING]:
        warn(f"{missing[0]!r} is learnt as a class. If it means that a label is missing, empty these cells.")
    alike: dict[object, list[str]] = {}
    for name in classes:
        visible = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
        is_word, number, _ = _numbers_first(visible)
        alike.setdefault("".join(visible.split()).casefold() if is_word else number, []).append(name)
    if several := [names for names in alike.values() if len(names) > 1]:
        shown = "; ".join(", ".join(map(repr, names)) for names in several[:NUM_SPELLINGS])
        warn(f"classes that differ only in how they are written: {shown}. If they are one, write them alike.")


def label_name(value: object) -> str | None:
    """The class of a label: 1, " 1.0 " and 1,0 are the class 1. None if there is no label, or NaN."""
    if value is None or value != value:  # NaN
        return None
    if isinstance(value, bool):
        return BOOLEANS[value]
    name = re.sub(r"^([+-]?\d+),(\d\d?)$", r"\1.\2", str(value).strip())
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", name) or None


def _numbers_first(name: str) -> tuple[int, Decimal, str]:
    """Sorts '2' before '10', and numbers before words. 'nan' counts as a word."""
    with suppress(InvalidOperation):
        number = Decimal(name)  # exact, because ids may have 20 digits
        if number.is_finite():
            return 0, number, name
    return 1, Decimal(0), name


class SplitStatistics(BaseModel, extra="forbid", frozen=True):
    """Statistics of one split of the source, before anything is held out."""

    split: str
    num_rows: int
    num_by_label: dict[str, int]
    num_empty: int
    num_duplicates: int  # rows whose `normalized` text occurs earlier in the same split
    num_shared: dict[str, int]  # rows whose `normalized` text also occurs in another split, by its name
    num_with_breaks: int  # rows with `<br />`
    word_percentiles: dict[int, int]  # words per review, at the 50th, 90th, 99th and 100th percentile


def measure(reviews: Reviews) -> list[SplitStatistics]:
    """Statistics of each split."""
    comparable = {name: list(map(normalized, rows.texts)) for name, rows in reviews.splits.items()}
    distinct = {name: set(texts) for name, texts in comparable.items()}
    statistics = []
    for name, (texts, labels) in reviews.splits.items():
        num_words = np.array([len(text.split()) for text in texts] or [0])
        names = Counter("unlabelled" if label == UNLABELLED else reviews.classes[label] for label in labels)
        shared = {
            other: sum(text in distinct[other] for text in comparable[name])
            for other in distinct
            if other != name
        }
        figures = SplitStatistics(
            split=name, num_rows=len(texts),
            num_by_label={each: names[each] for each in (*reviews.classes, "unlabelled") if each in names},
            num_empty=sum(not text.strip() for text in texts),
            num_duplicates=len(texts) - len(distinct[name]), num_shared=shared,
            num_with_breaks=sum("<br />" in text for text in texts),
            word_percentiles={p: int(np.percentile(num_words, p)) for p in PERCENTILES},
        )  # fmt: skip
        statistics.append(figures)
    return statistics


def warn_of_shared(statistics: Iterable[SplitStatistics], source: str) -> None:
    """Warns if much of a held-out split is in train, too: scores on it would be too high."""
    for each in statistics:
        num_shared = each.num_shared.get("train", 0) if each.split in ("validation", "test") else 0
        if num_shared > MAX_SHARED * each.num_rows:
            warn(
                f"{source}: {num_shared:,} of {each.num_rows:,} reviews of {each.split} are in train, too. "
                "Scores on them say little."
            )


def in_chunks(
    items: Iterable[T | None], count: int, size: int = CHUNK_CHARACTERS, size_of: Callable[[Any], int] = len
) -> Iterator[list[T]]:
    """Lists of `count` items, or of fewer that reach `size`; one is in memory at a time. None ends a list."""
    chunk: list[T] = []
    taken = 0
    for item in chain(items, [None]):
        if item is not None:
            chunk.append(item)
            taken += size_of(item)
        if chunk and (item is None or len(chunk) == count or taken >= size):
            yield chunk
            chunk, taken = [], 0
