"""What a model holds before its first step: the encoder of another run, the weights of n-grams."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from torch import nn

from imdb_transformer import checkpoint, run
from imdb_transformer.config import Config
from imdb_transformer.data.batches import ANSWER_TOKENS, length_batches, pad
from imdb_transformer.data.encoded import EncodedSplit
from imdb_transformer.data.tokenizer import PAD_ID, Tokenizer
from imdb_transformer.errors import RunError
from imdb_transformer.evaluation.baseline import naive_bayes_weights
from imdb_transformer.inference.forward import length_multiple
from imdb_transformer.model.ngrams import NONE, hashed

# Of [model], what pretraining and fine-tuning may choose differently: the same weights mean the same.
FREE = {
    "pooling", "dropout", "attention_dropout", "activation_dropout", "pooled_dropout", "word_dropout",
    "dropout_mask", "embedding_std", "ngram_buckets", "ngram_min_reviews", "ngram_weight",
}  # fmt: skip


def load_encoder(model: nn.Module, path: Path, config: Config, tokenizer: Tokenizer) -> None:
    """Copies the encoder of a run, or of one of its checkpoints, into `model`; its head stays as it is.

    Raises RunError where the tokenizer, a size or anything else that the weights depend on differs.
    """
    source, folder = run.locate(path)
    if source.info.kind not in ("encoder", "pretrained"):
        raise RunError(f"{path} is a linear model: it has no encoder to start from.")
    # Loaded with this config's length limit, which may differ: only the pieces must be the same.
    if Tokenizer.load(source.folder, config.tokenizer).content_hash != tokenizer.content_hash:
        raise RunError(
            f"{path} has another tokenizer: its ids mean other words. Use the [data] and [tokenizer] "
            "sections that it was trained with."
        )
    own, theirs = config.model.model_dump(exclude=FREE), source.config.model.model_dump(exclude=FREE)
    for key, value in own.items():
        if value != theirs[key]:
            raise RunError(
                f"{path} has another encoder: its model.{key} is {theirs[key]!r}, here it is {value!r}."
            )
    meta = checkpoint.read_meta(folder, tokenizer_hash=source.info.tokenizer_hash)
    tensors = checkpoint.load_tensors(folder, checkpoint.MODEL, meta)
    prefix = "encoder."
    encoder = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    checkpoint.load_weights(model.get_submodule("encoder"), encoder, origin=folder)


def origin_hash(init_from: Path | None, teachers: Sequence[Path]) -> str:
    """Of the checkpoints that a run starts from and is taught by; empty where there are none."""
    lines = []
    for role, path in [("start", init_from), *(("teacher", teacher) for teacher in teachers)]:
        if path is not None:
            source, folder = run.locate(path)
            meta = checkpoint.read_meta(folder, tokenizer_hash=source.info.tokenizer_hash)
            lines.append(f"{role} {meta.file_hashes[checkpoint.MODEL]}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""


def fit_ngrams(model: nn.Module, split: EncodedSplit, config: Config) -> None:
    """Gives the bag of n-grams beside the encoder, if there is one, its weights: one convex fit on labels."""
    ngrams = getattr(model, "ngrams", None)
    if ngrams is None:
        return
    multiple = length_multiple(config.model)
    order = length_batches(split.lengths, batch_tokens=ANSWER_TOKENS, multiple=multiple)
    parts, counts = [], []
    for rows in order:
        ids = torch.from_numpy(pad([split.review(i) for i in rows], multiple=multiple))
        buckets = hashed(ids, ids != PAD_ID, len(ngrams.weights))
        parts.append(buckets[buckets != NONE].numpy().astype(np.int32))
        counts.append((buckets != NONE).sum(1).numpy())
    ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *counts]))
    columns = np.concatenate(parts)
    # Rare ones are noise that the fit would learn by heart; counted by bucket, which few others share.
    is_common = np.bincount(columns)[columns] >= config.model.ngram_min_reviews
    columns, ends = columns[is_common], np.concatenate([[0], np.cumsum(is_common)])[ends]
    presence = scipy.sparse.csr_matrix(
        (np.ones(len(columns), np.float32), columns, ends), shape=(len(ends) - 1, len(ngrams.weights))
    )
    labels = split.labels[np.concatenate(order)]
    binary = ngrams.weights.shape[1] == 1
    for label in [1] if binary else range(ngrams.weights.shape[1]):
        weights, intercept = naive_bayes_weights(presence, labels == label)
        column = 0 if binary else label
        ngrams.weights[:, column] = torch.from_numpy(weights)
        ngrams.intercept[column] = intercept
