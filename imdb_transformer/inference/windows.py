"""All of a long review: windows as long as a review in training may be, and pooled over all of them.

Shapes: N reviews, W windows, D model width, C classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imdb_transformer.data.batches import EncodedReview, by_length
from imdb_transformer.distributed import ALONE, World
from imdb_transformer.hardware import Hardware
from imdb_transformer.inference.logits import make_batch
from imdb_transformer.model.classifier import Classifier

OVERLAP = 4  # windows share a quarter with the next: what stands at an edge of one is inside another


def spans(length: int, size: int) -> list[tuple[int, int]]:
    """Start and end of each window over a review of `length` ids; one, if that is all of it.

    >>> spans(8, 8), spans(20, 8)
    ([(0, 8)], [(0, 8), (6, 14), (12, 20)])
    """
    if length <= size:
        return [(0, length)]
    starts = [*range(0, length - size, size - size // OVERLAP), length - size]
    return [(start, start + size) for start in starts]


def windows_of(ids: EncodedReview, size: int, *, first_token: bool) -> list[EncodedReview]:
    """A review's ids in windows of `size` at most; `first_token`: each begins with the review's first id.

    >>> [window.tolist() for window in windows_of(np.arange(7, dtype=np.uint32), 4, first_token=True)]
    [[0, 1, 2, 3], [0, 4, 5, 6]]
    """
    head, body = np.split(ids, [first_token])
    return [
        np.concatenate([head, body[start:end]]) for start, end in spans(len(body), size - first_token or 1)
    ]


@torch.inference_mode()
def logits_by_windows(
    model: Classifier, reviews: Sequence[EncodedReview], *, size: int, first_token: bool,
    hardware: Hardware, batch_tokens: int, multiple: int, world: World = ALONE,
) -> NDArray[np.float32]:  # fmt: skip
    """(N, C) logits of uncut reviews: each feature's maximum is over all windows, n-grams are of all ids.

    A mean weighs each window by its ids, so that those in two windows count twice.
    """
    by_review = [windows_of(review, size, first_token=first_token) for review in reviews]
    windows = [window for part in by_review for window in part]
    options: dict[str, Any] = {"batch_tokens": batch_tokens, "multiple": multiple, "over": world.map}

    def pooled(part: list[EncodedReview]) -> NDArray[np.float32]:
        batch = make_batch(part, np.zeros(len(part)), multiple=multiple, device=hardware.device)
        found: NDArray[np.float32] = model.pooled(batch.ids, batch.mask, hardware.dtype).cpu().numpy()
        return found

    def ngram_logits(part: list[EncodedReview]) -> NDArray[np.float32]:
        batch = make_batch(part, np.zeros(len(part)), multiple=multiple, device=hardware.device)
        found: NDArray[np.float32] = model.ngram_logits(batch.ids, batch.mask).cpu().numpy()
        return found

    ends = np.cumsum([len(part) for part in by_review])
    lengths = np.array([len(window) for window in windows], np.float32)
    rows = [
        _joined(rows, weights, model.pooling)
        for rows, weights in zip(
            np.split(by_length(pooled, windows, **options), ends[:-1]),
            np.split(lengths, ends[:-1]),
            strict=True,
        )
    ]
    logits = model.head(torch.from_numpy(np.stack(rows)).to(hardware.device)).cpu().numpy()
    total: NDArray[np.float32] = logits + by_length(ngram_logits, reviews, **options)
    return total


def _joined(pooled: NDArray[np.float32], lengths: NDArray[np.float32], pooling: str) -> NDArray[np.float32]:
    """(W, D) of one review's windows -> (D,)."""
    joined: NDArray[np.float32] = pooled.max(0) if pooling == "max" else lengths @ pooled / lengths.sum()
    return joined
