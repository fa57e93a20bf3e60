"""From a config to encoded splits: corpus, tokenizer and ids, each made only where it is not there yet."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import tokenizers

from imdb_transformer.config import Config, DataConfig
from imdb_transformer.data.corpus import Corpus, ensure, parts_of
from imdb_transformer.data.encoded import EncodedSplit, encode_split
from imdb_transformer.data.reviews import Rows, concatenated
from imdb_transformer.data.tokenizer import FILE_NAME, Tokenizer
from imdb_transformer.errors import DataError
from imdb_transformer.store.files import sha256_of, write_whole
from imdb_transformer.store.locks import one_at_a_time

PRETRAINING_SPLITS = ("train", "unsupervised")
SEAL = "sha256"  # file with the checksum of a tokenizer in the cache


class TokenizedCorpus(NamedTuple):
    """A corpus, its tokenizer, and the splits that were asked for as ids."""

    corpus: Corpus
    tokenizer: Tokenizer
    splits: dict[str, EncodedSplit]


def tokenize(config: Config, splits: Iterable[str], tokenizer: Tokenizer | None = None) -> TokenizedCorpus:
    """The named splits encoded with a given tokenizer, or that of the config, which may be trained first."""
    corpus, _ = ensure(config.data)
    tokenizer = tokenizer or _tokenizer(config, corpus)
    return TokenizedCorpus(corpus, tokenizer, encode(config.data, corpus, tokenizer, splits))


def encode(
    config: DataConfig, corpus: Corpus, tokenizer: Tokenizer, splits: Iterable[str]
) -> dict[str, EncodedSplit]:
    """The named splits of a corpus encoded with a given tokenizer; it may lack `unsupervised`."""
    encoded = {}
    for split in splits:
        if split == "unsupervised" and split not in corpus.manifest.splits:
            continue
        encoded[split] = encode_split(
            lambda split=split: _parts(corpus, _members(config, split)),  # type: ignore[misc]
            _content_hash(corpus, _members(config, split)),
            tokenizer,
            Path(config.data_dir) / "encoded",
        )
    return encoded


def rows_of(config: DataConfig, corpus: Corpus, split: str) -> Rows:
    """The reviews of a split; train includes validation where the config holds none out."""
    members = _members(config, split)
    _content_hash(corpus, members)  # says which splits there are, where one is missing
    return concatenated(_parts(corpus, members))


def training_splits(config: DataConfig) -> tuple[str, ...]:
    """What training reads: never test."""
    return ("train", "validation") if config.validation else ("train",)


def _tokenizer(config: Config, corpus: Corpus) -> Tokenizer:
    """The tokenizer of training and unlabelled text, from the cache where it was trained before.

    Of several processes that want it one trains it, and the others wait.
    """
    members = ["train"] if config.data.validation else ["train", "validation"]
    members += ["unsupervised"] if "unsupervised" in corpus.manifest.splits else []
    settings = config.tokenizer.model_dump(exclude={"max_length", "tail_length"})
    key = f"{_content_hash(corpus, members)} {sorted(settings.items())} {tokenizers.__version__}"
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    folder = Path(config.data.data_dir) / "tokenizers" / name
    if not _is_whole(folder):
        with one_at_a_time(folder):
            # One that is damaged is trained anew: the same texts give the same bytes.
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
    """Of one stored split its own hash, of several a hash of theirs."""
    stored = corpus.manifest.splits
    missing = [name for name in members if name not in stored]
    if missing:
        have = ", ".join(stored)
        raise DataError(f"The corpus of {corpus.manifest.source} has no {missing[0]} split; it has: {have}.")
    hashes = [stored[name].content_hash for name in members]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()
