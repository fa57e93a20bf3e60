"""Batches of encoded reviews: grouping by length, and padding.

Shapes: B batch, L length, N reviews.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.data.tokenizer import PAD_ID

EncodedReview = NDArray[np.unsignedinteger]
Lengths = TypeVar("Lengths", int, NDArray[np.int64])

PADDING_MULTIPLE = 16  # the kernels' caches need few distinct lengths; a larger multiple would add padding
# Up to a length of SHORT_BATCH. With multiples of 16, padding would be almost half of a batch of short texts.
SHORT_BATCH, SHORT_MULTIPLE = 64, 4
# Of a batch in prediction, with padding. On a CPU its activations fit into the cache. A GPU needs more.
BATCH_TOKENS = {"cpu": 4096, "cuda": 65_536}


def padded(lengths: Lengths, multiple: int = PADDING_MULTIPLE) -> Lengths:
    """A length, or an array of lengths, rounded up to `multiple`.

    >>> padded(17), padded(32)
    (32, 32)
    """
    return -(-lengths // multiple) * multiple


def batch_length(longest: int) -> int:
    """The length of a batch whose longest review has `longest` ids.

    >>> batch_length(10), batch_length(70)
    (12, 80)
    """
    return padded(longest, SHORT_MULTIPLE if longest <= SHORT_BATCH else PADDING_MULTIPLE)


def pad(reviews: Sequence[EncodedReview], *, multiple: int = 0) -> NDArray[np.int64]:
    """(B, L) ids. L is the longest review's length rounded up to `multiple`, or by default `batch_length`.

    >>> pad([np.array([7, 8, 9], np.uint16), np.array([5], np.uint16)], multiple=4)
    array([[7, 8, 9, 0],
           [5, 0, 0, 0]])
    """
    longest = max(map(len, reviews), default=0)
    length = padded(longest, multiple) if multiple else batch_length(longest)
    ids = np.full((len(reviews), length), PAD_ID, dtype=np.int64)
    for row, review in zip(ids, reviews, strict=True):
        row[: len(review)] = review
    return ids


def length_batches(
    lengths: NDArray[np.int64], *, batch_tokens: int = BATCH_TOKENS["cpu"], multiple: int = PADDING_MULTIPLE,
    sort_by: NDArray[Any] | None = None,
) -> list[NDArray[np.int64]]:  # fmt: skip
    """Indices of reviews in batches of like length, longest first.

    A batch has at most `batch_tokens`, padding included, or a single review. Lengths count as multiples of
    `multiple`, even where `pad` adds less: the batches of short texts should not grow. `sort_by` (N,)
    replaces the lengths in sorting.

    >>> [batch.tolist() for batch in length_batches(np.array([16, 3, 40, 5]), batch_tokens=48)]
    [[2], [0, 3, 1]]
    """
    order = np.argsort(-(lengths if sort_by is None else sort_by), kind="stable")
    starts, longest = [0], 0
    for i, length in enumerate(padded(lengths[order], multiple).tolist()):
        longest = max(longest, length)
        if i > starts[-1] and longest * (i + 1 - starts[-1]) > batch_tokens:
            starts.append(i)
            longest = length
    return np.split(order, starts[1:])


def in_order(rows: Sequence[NDArray[Any]], batches: Sequence[NDArray[np.int64]]) -> NDArray[Any]:
    """(N, ...): the rows of all batches, put back into the order of the reviews.

    >>> in_order([np.array([0.2]), np.array([0.0, 0.3, 0.1])], [np.array([2]), np.array([0, 3, 1])])
    array([0. , 0.1, 0.2, 0.3])
    """
    return np.concatenate(rows)[np.argsort(np.concatenate(batches))]
