"""What a training works on: a model, what it reads, and what it is told to make small."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from imdb_transformer.data.encoded import EncodedSplit
from imdb_transformer.evaluation.scores import Score
from imdb_transformer.training.plan import Batch


class BatchLoss(NamedTuple):
    """A batch's loss summed over its units, and figures to show, each as a sum and what to divide it by.

    Sums are tensors: to read one makes the CPU wait for a GPU, which a step does once, at its end.
    """

    total: Tensor
    figures: dict[str, tuple[Tensor, int]]


class Objective(NamedTuple):
    """A loss, and the units that its mean is over: a step's batches weigh as much as they have units."""

    loss: Callable[[nn.Module, Batch, torch.dtype], BatchLoss]
    num_units: Callable[[Batch], int]


class Task(NamedTuple):
    """Everything that tells one training from another; the loop is the same for all."""

    model: nn.Module
    objective: Objective
    train: EncodedSplit
    validate: Callable[[nn.Module], Score] | None


def classification(label_smoothing: float = 0.0) -> Objective:
    """Cross-entropy of logits against labels, a mean over reviews."""

    def loss(model: nn.Module, batch: Batch, dtype: torch.dtype) -> BatchLoss:
        logits = model(batch.ids, batch.mask, dtype)
        total = F.cross_entropy(logits, batch.labels, label_smoothing=label_smoothing, reduction="sum")
        truth = batch.labels if batch.labels.ndim == 1 else batch.labels.argmax(1)
        num_correct = (logits.argmax(1) == truth).sum()
        return BatchLoss(total, {"accuracy": (num_correct, len(truth))})

    return Objective(loss, lambda batch: len(batch.labels))


def self_supervision(mask_fraction: float) -> Objective:
    """Masked language modelling: the masked tokens' loss over their expected number, a mean over tokens."""

    def loss(model: nn.Module, batch: Batch, dtype: torch.dtype) -> BatchLoss:
        total, num_correct, num_masked = model(batch.ids, batch.mask, dtype)
        figures = {
            "masked_loss": (total.detach(), num_masked),
            "masked_accuracy": (num_correct, num_masked),
        }
        return BatchLoss(total / mask_fraction, figures)

    return Objective(loss, lambda batch: batch.num_tokens)
