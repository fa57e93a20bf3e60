"""What training minimises: an objective is a function of a model and a batch.

`progress` is the share of steps that are done, 0 to 1. An objective returns metrics by name. Each is a sum
over the batch and the count that divides it. Training minimises `loss`. Sums and counts are added over all
processes before the division. Sums stay tensors, because reading one makes the CPU wait for the GPU. A step
of a classifier waits once.

Shapes: B batch, L length, D model width, C classes, M guessed positions.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from imdb_transformer.config import Config
from imdb_transformer.data.batches import batch_length
from imdb_transformer.data.imdb import UNKNOWN
from imdb_transformer.data.tokenizer import MASK_ID, PAD_ID
from imdb_transformer.model.classifier import Classifier, pool
from imdb_transformer.model.encoder import Encoder
from imdb_transformer.model.language import LanguageModel, rounded_up, teacher_features
from imdb_transformer.store.run import Kind
from imdb_transformer.training.plan import Batch

Metrics = dict[str, tuple[Tensor, int]]

CONTRAST_WEIGHT, TEMPERATURE = 2.0, 0.1  # of the contrastive loss, beside that of masked tokens
FEATURE_WEIGHT = 10.0  # of the squared error of a teacher's features, beside the loss of masked tokens
REWRITTEN = 0.3  # of the tokens that a decoder rewrites; guessing all would triple the head's cost


class Guesses(NamedTuple):
    """What a language model guesses in a batch."""

    features: Tensor  # (M, D)
    targets: Tensor  # (M,) ids to guess from the features
    num_guessed: int  # without padding


def classification(
    model: Classifier, batch: Batch, config: Config, dtype: torch.dtype, _progress: float
) -> Metrics:
    """Cross-entropy of logits against labels, or against a teacher's probabilities, as a mean over reviews.

    The config may ask for label smoothing (Szegedy et al. 2016, section 7). If the batch has stars, their
    cross-entropy is added. A review whose stars are unknown adds nothing.
    """
    features = model.features(batch.ids, batch.mask, dtype)
    logits = model.head(features)  # (B, C)
    smoothing = config.train.label_smoothing
    loss = F.cross_entropy(logits, batch.labels, label_smoothing=smoothing, reduction="sum")
    labels = batch.labels if batch.labels.ndim == 1 else batch.labels.argmax(1)
    num_correct = (logits.argmax(1) == labels).sum()
    metrics: Metrics = {"loss": (loss, len(labels)), "accuracy": (num_correct, len(labels))}
    if model.star_head is not None and batch.stars is not None:
        guesses = model.star_head(features)
        star_loss = F.cross_entropy(guesses, batch.stars, ignore_index=UNKNOWN, reduction="sum")
        metrics["loss"] = (loss + config.train.star_weight * star_loss, len(labels))
        metrics["star_loss"] = (star_loss, batch.num_stars)
    return metrics


def pretraining(
    model: LanguageModel, batch: Batch, config: Config, dtype: torch.dtype, progress: float
) -> Metrics:
    """Cross-entropy of the tokens that the model guesses, by `pretrain.objective` (`GUESSES`)."""
    objective, share = config.pretrain.objective, 1.0
    if objective in ("masked", "contrastive", "denoise"):  # the share changes linearly (Ankner et al. 2024)
        first, last = config.pretrain.mask_fractions
        share = first + progress * (last - first)
    if objective == "contrastive":
        return contrast(model, batch, dtype, share)
    if model.teacher is not None:
        return distillation(model, model.teacher, batch, dtype, share)
    features, targets, num_guessed = GUESSES[objective](model, batch, dtype, share)
    loss, num_correct = model.sampled_loss(features, targets, num_guessed)
    if objective != "masked":
        return {"loss": (loss, num_guessed), "token_accuracy": (num_correct, num_guessed)}
    return masked_metrics(loss, num_correct, num_guessed, batch.num_tokens, share)


def masked_metrics(
    loss: Tensor, num_correct: Tensor, num_guessed: int, num_tokens: int, share: float
) -> Metrics:
    """The metrics of guessing masked tokens, from the summed loss and the number of correct guesses.

    `loss` divides by the expected number of guesses, which does not depend on the draw, and `masked_loss` by
    their actual number.
    """
    return {
        "loss": (loss / share, num_tokens),
        "masked_loss": (loss, num_guessed),
        "masked_accuracy": (num_correct, num_guessed),
    }


def masked_tokens(
    model: LanguageModel, batch: Batch, dtype: torch.dtype, share: float,
    generator: torch.Generator | None = None,
) -> Guesses:  # fmt: skip
    """A random `share` of the tokens is hidden behind `[MASK]` and guessed (Devlin et al. 2019, 3.1)."""
    hidden = random_tokens(batch, share, generator)
    rows, num_guessed = guessed_rows(hidden)
    features = model.encoder(batch.ids.masked_fill(hidden, MASK_ID), batch.mask, dtype, rows)
    return Guesses(features, batch.ids.flatten()[rows], num_guessed)


def contrast(model: LanguageModel, batch: Batch, dtype: torch.dtype, share: float) -> Metrics:
    """Guesses masked tokens in both halves of each review, and finds the other half of each half.

    `contrastive_loss` is the cross-entropy of the other half among all halves of the batch, by the cosine of
    their projected features (Giorgi et al. 2021, "DeCLUTR"). Each process compares only its own reviews.
    IMDB's reviews of a film come together (`plan.epoch_batches`), so some of the others are about that film.
    """
    ids = in_halves(batch)
    halves = Batch(ids, ids != PAD_ID, batch.labels, batch.num_tokens)
    features, metrics = masked_guesses(model, halves, dtype, share)  # (2B, L', D)
    assert model.projection is not None
    vectors = F.normalize(model.projection(pool(features, halves.mask).float()), dim=1)
    similarity = (vectors @ vectors.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    others = torch.arange(len(ids), device=ids.device).roll(len(ids) // 2)
    contrastive_loss = F.cross_entropy(similarity, others)
    loss, count = metrics["loss"]
    metrics["loss"] = (loss + CONTRAST_WEIGHT * count * contrastive_loss, count)
    metrics["contrastive_loss"] = (contrastive_loss * len(ids), len(ids))
    return metrics


def distillation(
    model: LanguageModel, teacher: Encoder, batch: Batch, dtype: torch.dtype, share: float
) -> Metrics:
    """Guesses masked tokens, and at every token the features of a teacher, which reads the text unmasked.

    `feature_loss` is the mean squared error. It is 1 if all features are guessed as 0.
    """
    features, metrics = masked_guesses(model, batch, dtype, share)
    assert model.to_teacher is not None
    guesses = model.to_teacher(features).float()
    errors = (guesses - teacher_features(teacher, batch.ids, batch.mask, dtype)).square().mean(-1)  # (B, L)
    feature_loss = (errors * batch.mask).sum()
    loss, count = metrics["loss"]
    metrics["loss"] = (loss + FEATURE_WEIGHT * feature_loss, count)
    metrics["feature_loss"] = (feature_loss, count)
    return metrics


def masked_guesses(
    model: LanguageModel, batch: Batch, dtype: torch.dtype, share: float
) -> tuple[Tensor, Metrics]:
    """(B, L, D) features with a random `share` of the tokens masked, and the metrics of guessing these."""
    hidden = random_tokens(batch, share)
    rows, num_guessed = guessed_rows(hidden)
    features = model.encoder(batch.ids.masked_fill(hidden, MASK_ID), batch.mask, dtype)
    targets = batch.ids.flatten()[rows]
    loss, num_correct = model.sampled_loss(features.flatten(0, 1)[rows], targets, num_guessed)
    return features, masked_metrics(loss, num_correct, num_guessed, batch.num_tokens, share)


def in_halves(batch: Batch) -> Tensor:
    """(B, L) -> (2B, L'): the first half of each review, then the second halves. L' as in `get_batch`.

    A review of one token is both of its halves.
    """
    lengths = batch.mask.sum(1, keepdim=True)
    middle = (lengths + 1) // 2
    starts = torch.minimum(middle, lengths - 1)
    longest = batch_length(int(middle.max()))
    positions = torch.arange(longest, device=batch.ids.device)
    ids = F.pad(batch.ids, (0, longest), value=PAD_ID)
    first = ids[:, :longest].masked_fill(positions >= middle, PAD_ID)
    return torch.cat([first, ids.gather(1, starts + positions)])


def next_tokens(
    model: LanguageModel, batch: Batch, dtype: torch.dtype, share: float,
    generator: torch.Generator | None = None, *, direction: int = 1,
) -> Guesses:  # fmt: skip
    """A random `share` of the tokens is guessed, each from those before it (Radford et al. 2018, 3.1).

    With `direction` -1 it is guessed from those after it. The first one is guessed from `[MASK]`. There is no
    end token: the model does not learn where a review ends.
    """
    rows, num_guessed = guessed_rows(random_tokens(batch, share, generator))
    features = model.encoder(shifted(batch, direction), batch.mask, dtype, rows, direction)
    return Guesses(features, batch.ids.flatten()[rows], num_guessed)


def rewritten_tokens(
    model: LanguageModel, batch: Batch, dtype: torch.dtype, share: float,
    generator: torch.Generator | None = None,
) -> Guesses:  # fmt: skip
    """A decoder rewrites the review (Lewis et al. 2020, "BART"); the encoder reads it as in `masked_tokens`.

    It guesses a random share of the tokens (`REWRITTEN`), hidden or not, each from those before it and the
    encoder's features.
    """
    assert model.decoder is not None
    hidden = random_tokens(batch, share, generator)
    memory = model.encoder(batch.ids.masked_fill(hidden, MASK_ID), batch.mask, dtype)
    rows, num_guessed = guessed_rows(random_tokens(batch, REWRITTEN, generator))
    written = model.encoder.embedding(shifted(batch), dtype)
    features = model.decoder(written, memory, batch.mask, rows)
    return Guesses(features, batch.ids.flatten()[rows], num_guessed)


def shifted(batch: Batch, direction: int = 1) -> Tensor:
    """(B, L): the id before each position, or with -1 the id after it; `[MASK]` beyond the review."""
    if direction > 0:
        return F.pad(batch.ids[:, :-1], (1, 0), value=MASK_ID)
    is_last = ~F.pad(batch.mask[:, 1:], (0, 1))
    return F.pad(batch.ids[:, 1:], (0, 1)).masked_fill(is_last, MASK_ID)


def random_tokens(batch: Batch, share: float, generator: torch.Generator | None = None) -> Tensor:
    """(B, L): true on a random `share` of the tokens, at least one, never on a special one."""
    eligible = batch.mask & (batch.ids != MASK_ID)
    noise = torch.rand(batch.ids.shape, device=batch.ids.device, generator=generator)
    noise = noise.masked_fill(~eligible, torch.inf)
    return eligible & ((noise < share) | (noise == noise.min()))


def guessed_rows(guessed: Tensor) -> tuple[Tensor, int]:
    """(B, L) -> (M,) positions counted over the whole batch, padded at the end, and their number."""
    rows = guessed.flatten().nonzero().squeeze(1)
    return rounded_up(rows), len(rows)


GUESSES: dict[str, Callable[..., Guesses]] = {
    "masked": masked_tokens,
    "contrastive": masked_tokens,  # on validation; `contrast` is what is trained
    "causal": next_tokens,
    "causal_backward": partial(next_tokens, direction=-1),
    "denoise": rewritten_tokens,
}  # What each objective of pretraining guesses


OBJECTIVES: dict[Kind, Callable[..., Metrics]] = {"classifier": classification, "encoder": pretraining}
