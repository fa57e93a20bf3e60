"""Encoded reviews through a model: batches, and logits for any number of reviews.

Shapes: B batch, L length, C classes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from imdb_transformer.config import ModelConfig
from imdb_transformer.data.batches import EncodedReview, by_length, pad
from imdb_transformer.data.tokenizer import PAD_ID
from imdb_transformer.distributed import ALONE, World
from imdb_transformer.hardware import Hardware

# Few distinct lengths keep the kernels' caches warm; more would only add padding.
FULL_ATTENTION_MULTIPLE = 8
LARGEST_MULTIPLE = 64  # a wider window pads for itself


class Batch(NamedTuple):
    """Reviews of like length, ready for the model."""

    ids: Tensor  # (B, L)
    mask: Tensor  # (B, L), true on tokens
    labels: Tensor  # (B,), -1 where there is none; or (B, C) probabilities
    num_tokens: int  # padding not counted


def length_multiple(config: ModelConfig) -> int:
    """What batch lengths are rounded up to: whole blocks where attention works in blocks."""
    if config.attention == "windowed" and config.radius <= LARGEST_MULTIPLE:
        return config.radius
    return FULL_ATTENTION_MULTIPLE


def make_batch(
    reviews: list[EncodedReview], labels: NDArray[Any], *, multiple: int, device: torch.device
) -> Batch:
    """A padded batch on a device."""
    ids = _sent(pad(reviews, multiple=multiple), device)
    return Batch(ids, ids != PAD_ID, _sent(labels, device), sum(map(len, reviews)))


def _sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array on a device; a GPU copies from pinned memory only without making the CPU wait."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


@torch.inference_mode()
def logits_of(
    model: nn.Module,
    reviews: Sequence[EncodedReview],
    *,
    hardware: Hardware,
    batch_tokens: int,
    multiple: int,
    world: World = ALONE,
) -> NDArray[np.float32]:
    """(reviews, C) logits in the order given, computed in batches of like length.

    Several processes share the batches, which are the same for any number of them, and so are the logits.
    """

    def logits(part: list[EncodedReview]) -> NDArray[np.float32]:
        labels = np.zeros(len(part), np.int64)
        batch = make_batch(part, labels, multiple=multiple, device=hardware.device)
        found: NDArray[np.float32] = model(batch.ids, batch.mask, hardware.dtype).cpu().numpy()
        return found

    was_training = model.training
    model.eval()
    found = by_length(logits, reviews, batch_tokens=batch_tokens, multiple=multiple, over=world.map)
    model.train(was_training)
    return found
