"""Batches of encoded reviews: which go together, and their padding.

Shapes: B batch, L length, N reviews.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.data.tokenizer import PAD_ID

EncodedReview = NDArray[np.unsignedinteger]

ANSWER_TOKENS = 16_384  # of a batch, padding included, where nothing is kept for a backward pass


def pad(reviews: Sequence[EncodedReview], *, multiple: int) -> NDArray[np.int64]:
    """(B, L) ids, L the longest review's length rounded up to `multiple`.

    >>> pad([np.array([7, 8, 9], np.uint16), np.array([5], np.uint16)], multiple=4)
    array([[7, 8, 9, 0],
           [5, 0, 0, 0]])
    """
    longest = max(map(len, reviews), default=0)
    ids = np.full((len(reviews), -(-longest // multiple) * multiple), PAD_ID, dtype=np.int64)
    for row, review in zip(ids, reviews, strict=True):
        row[: len(review)] = review
    return ids


def length_batches(
    lengths: NDArray[np.int64], *, batch_tokens: int, multiple: int
) -> list[NDArray[np.int64]]:
    """Indices of reviews in batches of like length, longest first; see `_fill` for the bound."""
    return _fill(np.argsort(-lengths, kind="stable"), lengths, batch_tokens, multiple)


def by_length(
    function: Callable[[list[EncodedReview]], NDArray[Any]], reviews: Sequence[EncodedReview], *,
    batch_tokens: int, multiple: int, over: Callable[..., Iterable[NDArray[Any]]] = map,
) -> NDArray[Any]:  # fmt: skip
    """(N, ...): rows that `function` gives for batches of like length, in the order of `reviews`.

    `over` applies a function to each of a list, as `map` does; several processes share that out.
    """
    lengths = np.array([len(review) for review in reviews])
    batches = length_batches(lengths, batch_tokens=batch_tokens, multiple=multiple)
    rows = np.concatenate(list(over(lambda indices: function([reviews[i] for i in indices]), batches)))
    ordered = np.empty_like(rows)
    ordered[np.concatenate(batches)] = rows
    return ordered


def batch_plan(
    lengths: NDArray[np.int64], *, batch_tokens: int, multiple: int, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """The batches of one epoch, in order: every review once, like lengths together.

    A pure function of its arguments, so that a resumed run needs no generator. Lengths are blurred by up
    to a sixteenth before sorting: batches differ from epoch to epoch and waste little on padding.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    blurred = lengths * generator.uniform(15 / 16, 1.0, len(lengths))
    batches = _fill(np.argsort(-blurred, kind="stable"), lengths, batch_tokens, multiple)
    return [batches[i] for i in generator.permutation(len(batches))]


def _fill(
    order: NDArray[np.int64], lengths: NDArray[np.int64], batch_tokens: int, multiple: int
) -> list[NDArray[np.int64]]:
    """Reviews in `order`, cut into batches of `batch_tokens` at most, padding included, or of one review."""
    padded = (-(-lengths[order] // multiple) * multiple).tolist()
    starts = [0]
    longest = 0
    for i, length in enumerate(padded):
        longest = max(longest, length)
        if i > starts[-1] and longest * (i + 1 - starts[-1]) > batch_tokens:
            starts.append(i)
            longest = length
    return np.split(order, starts[1:])
