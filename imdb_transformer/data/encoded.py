"""From a config to encoded splits: corpus, tokenizer and ids, each made only if it is not on disk yet.

An encoded split is three npy files: `ids` of all reviews end to end, `offsets` (review i is
`ids[offsets[i]:offsets[i + 1]]`) and `labels`. Its folder is named after the tokenizer's hash and the
split's: ids of other text or another tokenizer lie in another folder.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from imdb_transformer.config import Config, DataConfig
from imdb_transformer.data.corpus import Corpus, ensure, parts_of, stored_split
from imdb_transformer.data.reviews import Rows, concatenated
from imdb_transformer.data.tokenizer import FILE_NAME, Tokenizer
from imdb_transformer.errors import DataError
from imdb_transformer.store.files import (
    is_settled,
    read_json,
    recover_folder,
    sha256_of,
    whole_folder,
    write_json,
    write_whole,
)
from imdb_transformer.store.locks import one_at_a_time

PRETRAINING_SPLITS = ("train", "unsupervised")
SEAL = "sha256"  # file with the checksum of a tokenizer in the cache
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


class TokenizedCorpus(NamedTuple):
    """A corpus, its tokenizer, and the splits that were asked for as ids."""

    corpus: Corpus
    tokenizer: Tokenizer
    splits: dict[str, EncodedSplit]


def tokenize(config: Config, splits: Iterable[str], tokenizer: Tokenizer | None = None) -> TokenizedCorpus:
    """The splits, encoded with `tokenizer`; without one, with the config's, trained first if need be."""
    corpus, _ = ensure(config.data)
    tokenizer = tokenizer or _tokenizer(config, corpus)
    return TokenizedCorpus(corpus, tokenizer, encode(config.data, corpus, tokenizer, splits))


def encode(
    config: DataConfig, corpus: Corpus, tokenizer: Tokenizer, splits: Iterable[str]
) -> dict[str, EncodedSplit]:
    """The splits of a corpus, encoded. `unsupervised` is left out if it has none. Raises DataError."""
    encoded = {}
    for split in splits:
        if split == "unsupervised" and split not in corpus.manifest.splits:
            continue
        encoded[split] = encode_split(
            _parts(corpus, _members(config, split)),
            _content_hash(corpus, _members(config, split)),
            tokenizer,
            Path(config.data_dir) / "encoded",
        )
    return encoded


def rows_of(config: DataConfig, corpus: Corpus, split: str) -> Rows:
    """The reviews of a split; train includes validation if the config holds none out. Raises DataError."""
    return concatenated(_parts(corpus, _members(config, split)))


def training_splits(config: DataConfig) -> tuple[str, ...]:
    """What training reads: never test."""
    return ("train", "validation") if config.validation else ("train",)


def _tokenizer(config: Config, corpus: Corpus) -> Tokenizer:
    """The tokenizer of training and unlabelled text, from the cache or trained now.

    If several processes need it, one trains it and the others wait.
    """
    members = list(_members(config.data, "train"))
    members += ["unsupervised"] if "unsupervised" in corpus.manifest.splits else []
    settings = config.tokenizer.model_dump(exclude={"max_length", "tail_length"})
    key = f"{_content_hash(corpus, members)} {sorted(settings.items())} {tokenizers.__version__}"
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    folder = Path(config.data.data_dir) / "tokenizers" / name
    if not _is_whole(folder):
        with one_at_a_time(folder):
            # A damaged one is trained again: the same texts give the same bytes.
            if not _is_whole(folder):
                folder.mkdir(parents=True, exist_ok=True)
                texts = (text for part in _parts(corpus, members) for text in part.texts)
                Tokenizer.train(texts, config.tokenizer).save(folder)
                write_whole(folder / SEAL, sha256_of(folder / FILE_NAME).encode())
    return Tokenizer.load(folder, config.tokenizer)


def _is_whole(folder: Path) -> bool:
    """Whether a folder holds a tokenizer and its checksum."""
    path, seal = folder / FILE_NAME, folder / SEAL
    return path.exists() and seal.exists() and seal.read_bytes() == sha256_of(path).encode()


def _members(config: DataConfig, split: str) -> tuple[str, ...]:
    return ("train", "validation") if split == "train" and not config.validation else (split,)


def _parts(corpus: Corpus, members: Iterable[str]) -> Iterator[Rows]:
    for name in members:
        yield from parts_of(corpus, name)


def _content_hash(corpus: Corpus, members: Iterable[str]) -> str:
    """The hash of a stored split, or for several splits a hash of their hashes. Raises DataError."""
    hashes = [stored_split(corpus, name).content_hash for name in members]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()


def encode_split(parts: Iterable[Rows], content_hash: str, tokenizer: Tokenizer, cache: Path) -> EncodedSplit:
    """The split as ids, from the cache if it is there. `parts` is read only if not.

    Each part is encoded and written before the next one is read, so a split may be larger than memory. If
    several processes need the split, one encodes it and the others wait.
    """
    folder = cache / tokenizer.content_hash[:16] / content_hash[:16]
    if not (is_settled(folder) and (folder / META).exists()):
        with one_at_a_time(folder):
            recover_folder(folder)
            if not (folder / META).exists():
                _write(parts, tokenizer, folder)
    return load_split(folder)


def load_split(folder: Path) -> EncodedSplit:
    """Reads an encoded split and verifies every file. Raises DataError."""
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
    except (OSError, ValueError, KeyError):  # numpy raises ValueError for arrays of objects
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
    """Writes the header of a 1-d npy file. It has the same size for every length, so it can be replaced."""
    file.seek(0)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)
