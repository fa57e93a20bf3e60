"""What a model starts with: the encoder of another run, and fitted weights of n-grams."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import nn

from imdb_transformer.config import Config
from imdb_transformer.data.batches import length_batches, pad
from imdb_transformer.data.corpus import Corpus
from imdb_transformer.data.encoded import EncodedSplit
from imdb_transformer.data.tokenizer import PAD_ID, Tokenizer
from imdb_transformer.errors import RunError
from imdb_transformer.evaluation.baseline import naive_bayes_weights
from imdb_transformer.inference.transformer import tokenizer_of
from imdb_transformer.model.ngrams import NONE, hashed
from imdb_transformer.store import checkpoint, run

# Keys of [model] that may differ between pretraining and fine-tuning: the encoder's weights fit either value.
FREE = {
    "pooling", "dropout", "word_dropout", "dropout_mask", "embedding_std", "ngram_buckets", "ngram_weight",
}  # fmt: skip
NGRAM_MIN_REVIEWS = 10  # an n-gram in fewer training reviews has no vote (configs/EXPERIMENTS.md)


def tokenizer_of_origin(path: Path, config: Config) -> Tokenizer:
    """The tokenizer of a run to start from, with this config's length limit.

    Raises RunError if the config asks for another tokenizer, or for an encoder of another size or kind. It is
    called first, before anything is encoded or a teacher asked.
    """
    opened, _ = run.locate(path)
    if opened.info.kind == "linear":
        raise RunError(f"{path} is a linear model: it has no encoder to start from.")
    tokenizer_of(opened)  # raises RunError if it is damaged
    _check_same(path, "tokenizer", config.tokenizer, opened.config.tokenizer, {"max_length", "tail_length"})
    _check_same(path, "model", config.model, opened.config.model, FREE)
    return Tokenizer.load(opened.folder, config.tokenizer)


def check_finished(path: Path) -> None:
    """Raises RunError for an unfinished run, but not for one of its checkpoints."""
    opened, folder = run.locate(path)
    if path != folder and opened.info.status != "finished":
        raise RunError(
            f"{path} is not finished ({opened.info.status}): continue it with --resume, or name one of its "
            f"checkpoints, such as {opened.checkpoint('last')}."
        )


def check_saw_nothing_held_out(path: Path, config: Config, corpus: Corpus) -> None:
    """Raises RunError for a run that was trained on other reviews, or on those that this config holds out."""
    opened, _ = run.locate(path)
    if opened.info.corpus_hash != corpus.content_hash:
        raise RunError(
            f"{path} was trained on other reviews than those of {config.data.source}: it may have seen "
            "what is held out here."
        )
    if config.data.validation and not opened.config.data.validation:
        raise RunError(f"{path} was trained on the validation split, which this config holds out.")


def _check_same(path: Path, section: str, wanted: BaseModel, origin: BaseModel, free: set[str]) -> None:
    values = origin.model_dump()
    for key, value in wanted.model_dump(exclude=free).items():
        if value != values[key]:
            raise RunError(
                f"{path} does not fit: its {section}.{key} is {values[key]!r}, here it is {value!r}."
            )


def load_encoder(model: nn.Module, path: Path) -> None:
    """Copies the encoder of a run, or of one of its checkpoints, into `model`; its head stays as it is."""
    opened, folder = run.locate(path)
    meta = checkpoint.read_meta(folder, tokenizer_hash=opened.info.tokenizer_hash)
    tensors = checkpoint.load_tensors(folder, checkpoint.MODEL, meta)
    prefix = "encoder."
    encoder = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    checkpoint.load_weights(model.get_submodule("encoder"), encoder, origin=folder)


def origin_hash(init_from: Path | None, teachers: Sequence[Path]) -> str:
    """A hash of the checkpoints that a run starts from and learns from; empty if there are none."""
    lines = []
    for role, path in [("start", init_from), *(("teacher", teacher) for teacher in teachers)]:
        if path is not None:
            opened, folder = run.locate(path)
            meta = checkpoint.read_meta(folder, tokenizer_hash=opened.info.tokenizer_hash)
            lines.append(f"{role} {meta.file_hashes[checkpoint.MODEL]}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""


def fit_ngrams(model: nn.Module, split: EncodedSplit) -> None:
    """Fits the weights of the n-grams beside the encoder to the labels, if the model has n-grams."""
    ngrams = getattr(model, "ngrams", None)
    if ngrams is None:
        return
    presence, labels = _presence(split, num_buckets=len(ngrams.weights))
    binary = ngrams.weights.shape[1] == 1
    for label in [1] if binary else range(ngrams.weights.shape[1]):
        weights, intercept = naive_bayes_weights(presence, labels == label)
        column = 0 if binary else label
        ngrams.weights[:, column] = torch.from_numpy(weights)
        ngrams.intercept[column] = intercept


def _presence(split: EncodedSplit, *, num_buckets: int) -> tuple[scipy.sparse.csr_matrix, NDArray[Any]]:
    """Which n-grams occur in which reviews, (reviews, buckets), and these reviews' labels."""
    order = length_batches(split.lengths)
    parts, counts = [], []
    for rows in order:
        ids = torch.from_numpy(pad([split.review(i) for i in rows]))
        buckets = hashed(ids, ids != PAD_ID, num_buckets)
        parts.append(buckets[buckets != NONE].numpy().astype(np.int32))
        counts.append((buckets != NONE).sum(1).numpy())
    ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *counts]))
    columns = np.concatenate(parts)
    # The fit would memorise rare n-grams. They are counted by bucket, as few n-grams share one.
    is_common = np.bincount(columns)[columns] >= NGRAM_MIN_REVIEWS
    columns, ends = columns[is_common], np.concatenate([[0], np.cumsum(is_common)])[ends]
    presence = scipy.sparse.csr_matrix(
        (np.ones(len(columns), np.float32), columns, ends), shape=(len(ends) - 1, num_buckets)
    )
    return presence, split.labels[np.concatenate(order)]
