"""Makes encoded splits from a config: corpus, tokenizer and ids. What is on disk already is used again.

An encoded split is three npy files: `ids` of all reviews end to end, `offsets` (review i is
`ids[offsets[i]:offsets[i + 1]]`) and `labels`. Its folder is named after the hashes of the tokenizer and the
split, so another text or tokenizer has another folder.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray
from pydantic import BaseModel

from imdb_transformer.config import Config, DataConfig
from imdb_transformer.data.corpus import Corpus, ensure, read_split, stored_split
from imdb_transformer.data.imdb import UNKNOWN, films_of
from imdb_transformer.data.reviews import Rows, in_chunks, joined
from imdb_transformer.data.tokenizer import FILE_NAME, LENGTH_KEYS, Tokenizer
from imdb_transformer.errors import DataError
from imdb_transformer.progress import tracked
from imdb_transformer.store.files import read_json, sha256_of, whole_folder, write_json, write_whole
from imdb_transformer.store.locks import one_at_a_time

SEAL = "sha256"  # file with the checksum of a tokenizer in the cache
ARRAYS = ("ids", "offsets", "labels")
META = "split.json"
CHUNK = 2000  # reviews encoded at a time


class SplitReport(BaseModel, extra="forbid", frozen=True):
    """How long reviews are and what the length limit cuts."""

    num_reviews: int
    num_tokens: int
    num_reviews_cut: int
    num_tokens_cut: int


class Meta(BaseModel, extra="forbid", frozen=True):
    """`split.json`."""

    file_hashes: dict[str, str]
    report: SplitReport


class EncodedSplit(NamedTuple):
    """A split as ids. `report` counts what was cut."""

    ids: NDArray[np.unsignedinteger]  # of all reviews, end to end
    offsets: NDArray[np.int64]  # (reviews + 1,)
    # (reviews,), -1 for none; or (reviews, classes) probabilities of a teacher.
    labels: NDArray[np.int64] | NDArray[np.float32]
    report: SplitReport
    stars: NDArray[np.int64] | None = None  # (reviews,), see data/imdb.py; None if they are not learnt
    films: NDArray[np.int64] | None = None  # (reviews,), see data/imdb.py; None if no batch depends on them

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(reviews,): the number of ids of each review."""
        return np.diff(self.offsets)

    def review(self, index: int) -> NDArray[np.unsignedinteger]:
        """Ids of one review."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


def concatenated(splits: Sequence[EncodedSplit]) -> EncodedSplit:
    """The reviews of several splits as one, in their order."""
    lengths = np.concatenate([split.lengths for split in splits])
    counts = {name: sum(getattr(each.report, name) for each in splits) for name in SplitReport.model_fields}
    return EncodedSplit(
        ids=np.concatenate([split.ids for split in splits]),
        offsets=np.concatenate([[0], lengths.cumsum()]),
        labels=np.concatenate([split.labels for split in splits]),
        report=SplitReport(**counts),
    )


class TokenizedCorpus(NamedTuple):
    """A corpus, its tokenizer, and its encoded splits."""

    corpus: Corpus
    tokenizer: Tokenizer
    splits: dict[str, EncodedSplit]


def tokenize(config: Config, splits: Iterable[str], tokenizer: Tokenizer | None = None) -> TokenizedCorpus:
    """The splits, encoded with `tokenizer`, by default the config's, which is trained if necessary."""
    corpus = ensure(config.data)
    return encode(config.data, corpus, tokenizer or _tokenizer(config, corpus), splits)


def encode(
    config: DataConfig, corpus: Corpus, tokenizer: Tokenizer, splits: Iterable[str]
) -> TokenizedCorpus:
    """The encoded splits of a corpus. `unsupervised` may be absent. Raises DataError."""
    encoded = {}
    for split in splits:
        if split != "unsupervised" or split in corpus.manifest.splits:
            content_hash = _content_hash(corpus, _members(config, split))
            read = partial(rows_of, config, corpus, split)
            encoded[split] = encode_split(read, content_hash, tokenizer, Path(config.data_dir) / "encoded")
    return TokenizedCorpus(corpus, tokenizer, encoded)


def pretraining_text(config: Config, data: TokenizedCorpus) -> EncodedSplit:
    """Training and unlabelled reviews as one split, with their films if halves of reviews are compared."""
    names = [name for name in ("train", "unsupervised") if name in data.splits]
    text = concatenated([data.splits[name] for name in names])
    if config.pretrain.objective != "contrastive":
        return text
    films = np.concatenate([films_of(rows_of(config.data, data.corpus, name).texts) for name in names])
    return text._replace(films=films) if (films != UNKNOWN).any() else text


def rows_of(config: DataConfig, corpus: Corpus, split: str) -> Rows:
    """The reviews of a split; train includes validation if the config holds none out. Raises DataError."""
    return joined([read_split(corpus, name) for name in _members(config, split)])


def training_splits(config: DataConfig) -> tuple[str, ...]:
    """The labelled splits that training reads: never test."""
    return ("train", "validation") if config.held_out_fraction else ("train",)


def _tokenizer(config: Config, corpus: Corpus) -> Tokenizer:
    """The tokenizer of training and unlabelled text, from the cache or trained now."""
    unlabelled = {"unsupervised"} & set(corpus.manifest.splits)
    members = (*_members(config.data, "train"), *unlabelled)
    settings = config.tokenizer.model_dump(exclude=LENGTH_KEYS)
    key = f"{_content_hash(corpus, members)} {sorted(settings.items())} {tokenizers.__version__}"
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    folder = Path(config.data.data_dir) / "tokenizers" / name
    if not _is_whole(folder):
        with one_at_a_time(folder):
            # A damaged tokenizer is trained again: the same texts give the same bytes.
            if not _is_whole(folder):
                folder.mkdir(parents=True, exist_ok=True)
                texts = (text for name in members for text in read_split(corpus, name).texts)
                num_texts = sum(stored_split(corpus, name).num_rows for name in members)
                counted = tracked(texts, "learning the tokenizer from review", num_texts)
                Tokenizer.train(counted, config.tokenizer).save(folder)
                write_whole(folder / SEAL, sha256_of(folder / FILE_NAME).encode())
    return Tokenizer.load(folder, config.tokenizer)


def _is_whole(folder: Path) -> bool:
    """Whether a folder holds a tokenizer and its checksum."""
    path, seal = folder / FILE_NAME, folder / SEAL
    return path.exists() and seal.exists() and seal.read_bytes() == sha256_of(path).encode()


def _members(config: DataConfig, split: str) -> tuple[str, ...]:
    return ("train", "validation") if split == "train" and not config.held_out_fraction else (split,)


def _content_hash(corpus: Corpus, members: Iterable[str]) -> str:
    """The hash of a stored split, or for several splits a hash of their hashes. Raises DataError."""
    hashes = [stored_split(corpus, name).content_hash for name in members]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()


def encode_split(
    read: Callable[[], Rows], content_hash: str, tokenizer: Tokenizer, cache: Path
) -> EncodedSplit:
    """The split as ids, from the cache or else from what `read` returns."""
    folder = cache / tokenizer.content_hash[:16] / content_hash[:16]
    if not (folder / META).exists():
        with one_at_a_time(folder):
            if not (folder / META).exists():
                _write(read(), tokenizer, folder)
    return load_split(folder)


def load_split(folder: Path) -> EncodedSplit:
    """Reads an encoded split and verifies every file. Raises DataError."""
    paths = {name: folder / f"{name}.npy" for name in ARRAYS}
    try:
        meta = read_json(folder / META, Meta)
        if {name: sha256_of(path) for name, path in paths.items()} != meta.file_hashes:
            raise ValueError("wrong checksum")
        arrays = {name: np.load(path, mmap_mode="r", allow_pickle=False) for name, path in paths.items()}
    except (OSError, ValueError):  # numpy raises ValueError for arrays of objects
        raise DataError(f"{folder} is damaged or incomplete; delete it to encode the split again.") from None
    return EncodedSplit(**arrays, report=meta.report)


def _write(rows: Rows, tokenizer: Tokenizer, folder: Path) -> None:
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    reviews, num_tokens = [], []
    num_chunks = -(-len(rows.texts) // CHUNK)  # more, if texts are long
    for texts in tracked(in_chunks(rows.texts, CHUNK), "encoding, block", num_chunks):
        for ids in tokenizer.encode(texts, whole=True):
            num_tokens.append(len(ids))
            reviews.append(tokenizer.cut(ids).astype(dtype))
    lengths = np.array([len(ids) for ids in reviews], np.int64)
    num_cut = np.array(num_tokens, np.int64) - lengths
    arrays = {
        "ids": np.concatenate([np.empty(0, dtype), *reviews]),
        "offsets": np.concatenate([[0], lengths.cumsum()]),
        "labels": np.array(rows.labels, np.int64),
    }
    report = SplitReport(
        num_reviews=len(reviews), num_tokens=sum(num_tokens),
        num_reviews_cut=np.count_nonzero(num_cut), num_tokens_cut=int(num_cut.sum()),
    )  # fmt: skip
    with whole_folder(folder) as temporary:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        hashes = {name: sha256_of(temporary / f"{name}.npy") for name in ARRAYS}
        write_json(temporary / META, Meta(file_hashes=hashes, report=report))
