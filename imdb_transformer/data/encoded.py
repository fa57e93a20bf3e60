"""Encoded splits: flat ids on disk, keyed by content.

A split is three npy files: `ids` of all reviews end to end, `offsets` (review i is
`ids[offsets[i]:offsets[i + 1]]`) and `labels`. Its folder is named after the tokenizer's hash and the
split's, so that ids of other text or another tokenizer cannot be taken for it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from imdb_transformer.data.reviews import Rows
from imdb_transformer.data.tokenizer import Ids, Tokenizer
from imdb_transformer.errors import DataError
from imdb_transformer.files import recover_folder, sha256_of, whole_folder
from imdb_transformer.sealed import read_sealed, write_sealed

ARRAYS = ("ids", "offsets", "labels")
META = "split.json"
CHUNK = 2000  # reviews encoded at a time: bounds memory, keeps every core busy


class SplitReport(BaseModel):
    """How long reviews are and what the length limit cuts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_reviews: int
    num_tokens: int
    num_reviews_cut: int
    num_tokens_cut: int


class _Meta(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    file_hashes: dict[str, str]
    report: SplitReport


class EncodedSplit(NamedTuple):
    """A split as ids; `report` says what was cut."""

    ids: NDArray[np.unsignedinteger]  # of all reviews, end to end
    offsets: NDArray[np.int64]  # (reviews + 1,)
    # (reviews,), -1 where there is none; or (reviews, classes) probabilities of a teacher.
    labels: NDArray[np.int64] | NDArray[np.float32]
    report: SplitReport

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Ids a review."""
        return np.diff(self.offsets)

    def review(self, index: int) -> NDArray[np.unsignedinteger]:
        """Ids of one review."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


def joined(splits: Sequence[EncodedSplit]) -> EncodedSplit:
    """The reviews of several splits as one, in their order."""
    starts = np.cumsum([0, *(len(split.ids) for split in splits)])
    offsets = [split.offsets[1:] + start for split, start in zip(splits, starts[:-1], strict=True)]
    counts = np.array([list(split.report.model_dump().values()) for split in splits]).sum(0)
    return EncodedSplit(
        ids=np.concatenate([split.ids for split in splits]),
        offsets=np.concatenate([np.zeros(1, np.int64), *offsets]),
        labels=np.concatenate([split.labels for split in splits]),
        report=SplitReport(**dict(zip(SplitReport.model_fields, counts.tolist(), strict=True))),
    )


def selected(split: EncodedSplit, indices: NDArray[np.int64]) -> EncodedSplit:
    """The reviews with these indices, in their order; the report stays that of all."""
    reviews = [split.review(i) for i in indices]
    return EncodedSplit(
        ids=np.concatenate([*reviews, split.ids[:0]]),
        offsets=np.cumsum([0, *map(len, reviews)], dtype=np.int64),
        labels=split.labels[indices],
        report=split.report,
    )


def encode_split(
    rows: Callable[[], Rows], content_hash: str, tokenizer: Tokenizer, cache: Path
) -> EncodedSplit:
    """The split encoded, from the cache where it lies there whole; `rows` is called only if not."""
    folder = cache / tokenizer.content_hash[:16] / content_hash[:16]
    recover_folder(folder)
    if not (folder / META).exists():
        _write(rows(), tokenizer, folder)
    return load_split(folder)


def load_split(folder: Path) -> EncodedSplit:
    """An encoded split from its folder, every file verified. Raises DataError."""
    try:
        meta = read_sealed(folder / META, _Meta)
        for name in ARRAYS:
            path = folder / f"{name}.npy"
            if sha256_of(path) != meta.file_hashes[name]:
                raise DataError(
                    f"{path} is damaged (its checksum is wrong); delete {folder} to encode it anew."
                )
        ids, offsets, labels = (
            np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS
        )
        return EncodedSplit(ids, offsets, labels, meta.report)
    except (OSError, ValueError, KeyError):  # numpy's for arrays of objects is a ValueError, too
        raise DataError(f"{folder} is damaged or incomplete; delete it to encode the split anew.") from None


def _write(rows: Rows, tokenizer: Tokenizer, folder: Path) -> None:
    encoded: list[Ids] = []
    num_tokens = num_reviews_cut = num_tokens_cut = 0
    for start in range(0, len(rows.texts), CHUNK):
        for whole in tokenizer.encode_whole(rows.texts[start : start + CHUNK]):
            ids = tokenizer.cut(whole)
            encoded.append(ids)
            num_tokens += len(whole)
            num_reviews_cut += len(whole) > len(ids)
            num_tokens_cut += len(whole) - len(ids)
    report = SplitReport(
        num_reviews=len(encoded),
        num_tokens=num_tokens,
        num_reviews_cut=num_reviews_cut,
        num_tokens_cut=num_tokens_cut,
    )
    small = tokenizer.vocab_size <= np.iinfo(np.uint16).max + 1
    arrays = {
        "ids": np.concatenate([*encoded, np.empty(0, np.uint32)]).astype(np.uint16 if small else np.uint32),
        "offsets": np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        "labels": np.array(rows.labels, dtype=np.int64),
    }
    with whole_folder(folder) as temporary:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        hashes = {name: sha256_of(temporary / f"{name}.npy") for name in ARRAYS}
        meta = _Meta(file_hashes=hashes, report=report)
        write_sealed(temporary / META, meta)
