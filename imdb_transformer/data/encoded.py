"""Encoded splits: flat ids on disk, keyed by content.

A split is three npy files: `ids` of all reviews end to end, `offsets` (review i is
`ids[offsets[i]:offsets[i + 1]]`) and `labels`. Its folder is named after the tokenizer's hash and the
split's, so that ids of other text or another tokenizer cannot be taken for it.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from imdb_transformer.data.reviews import Rows
from imdb_transformer.data.tokenizer import Tokenizer
from imdb_transformer.errors import DataError
from imdb_transformer.store.files import (
    is_settled,
    read_json,
    recover_folder,
    sha256_of,
    whole_folder,
    write_json,
)
from imdb_transformer.store.locks import one_at_a_time

ARRAYS = ("ids", "offsets", "labels")
META = "split.json"


class SplitReport(BaseModel):
    """How long reviews are and what the length limit cuts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_reviews: int
    num_tokens: int
    num_reviews_cut: int
    num_tokens_cut: int


class Meta(BaseModel):
    """`split.json`."""

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


def encode_split(
    parts: Callable[[], Iterable[Rows]], content_hash: str, tokenizer: Tokenizer, cache: Path
) -> EncodedSplit:
    """The split encoded, from the cache where it lies there whole; `parts` is called only if not.

    It gives the reviews some at a time: no more than those are held in memory, and two numbers a review. Of
    several processes that want the split one encodes it, and the others wait.
    """
    folder = cache / tokenizer.content_hash[:16] / content_hash[:16]
    if not (is_settled(folder) and (folder / META).exists()):
        with one_at_a_time(folder):
            recover_folder(folder)
            if not (folder / META).exists():
                _write(parts(), tokenizer, folder)
    return load_split(folder)


def load_split(folder: Path) -> EncodedSplit:
    """An encoded split from its folder, every file verified. Raises DataError."""
    try:
        meta = read_json(folder / META, Meta)
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


def _write(parts: Iterable[Rows], tokenizer: Tokenizer, folder: Path) -> None:
    small = tokenizer.vocab_size <= np.iinfo(np.uint16).max + 1
    dtype: np.dtype[np.unsignedinteger] = np.dtype("uint16" if small else "uint32")
    lengths: list[int] = []
    labels: list[int] = []
    num_tokens = num_reviews_cut = 0
    with whole_folder(folder) as temporary:
        with (temporary / "ids.npy").open("wb") as file:
            _write_header(file, dtype, 0)
            for part in parts:
                for whole in tokenizer.encode_whole(part.texts):
                    ids = tokenizer.cut(whole)
                    file.write(ids.astype(dtype).tobytes())
                    lengths.append(len(ids))
                    num_tokens += len(whole)
                    num_reviews_cut += len(whole) > len(ids)
                labels += part.labels
            _write_header(file, dtype, sum(lengths))
        offsets = np.cumsum([0, *lengths], dtype=np.int64)
        np.save(temporary / "offsets.npy", offsets, allow_pickle=False)
        np.save(temporary / "labels.npy", np.array(labels, dtype=np.int64), allow_pickle=False)
        report = SplitReport(
            num_reviews=len(lengths),
            num_tokens=num_tokens,
            num_reviews_cut=num_reviews_cut,
            num_tokens_cut=num_tokens - sum(lengths),
        )
        hashes = {name: sha256_of(temporary / f"{name}.npy") for name in ARRAYS}
        write_json(temporary / META, Meta(file_hashes=hashes, report=report))


def _write_header(file: BinaryIO, dtype: np.dtype[np.unsignedinteger], length: int) -> None:
    """Of an npy file with one axis: numpy's has room for any length, so that it can be written again."""
    file.seek(0)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)
