"""A bag of n-grams beside the encoder. It is shallow and wide; the encoder is deep and narrow.

Each sequence of one, two or three ids in a review adds its weight to the logits, once, however often it
occurs. Weights are stored by hash (fastText: Joulin et al. 2017, section 2.2), which fixes their number. They
are fitted before training starts (`training/starting_weights.py`), and gradients do not change them.

Shapes: B batch, L length, G = 3L n-grams, C classes.
"""

import torch
from torch import Tensor, nn

ORDER = 3
MULTIPLIER = -7046029254386353131  # 2^64 / golden ratio, odd, as a signed number (Knuth 6.4)
NONE = -1


class Ngrams(nn.Module):
    """(B, L) ids -> (B, C) logits that n-grams vote for."""

    weights: Tensor  # (buckets, C), or (buckets, 1) for the second of two classes
    intercept: Tensor  # (C or 1,)

    def __init__(self, num_buckets: int, num_classes: int) -> None:
        super().__init__()
        columns = 1 if num_classes == 2 else num_classes
        self.register_buffer("weights", torch.zeros(num_buckets, columns))
        self.register_buffer("intercept", torch.zeros(columns))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(B, L) ids and mask (true on tokens) -> (B, C) logits in fp32."""
        buckets = hashed(ids, mask, len(self.weights))  # (B, G)
        votes = self.weights[buckets.clamp(min=0)] * (buckets != NONE)[..., None]  # (B, G, C)
        return self.logits(votes.sum(1) + self.intercept)

    def logits(self, scores: Tensor) -> Tensor:
        """(..., C), or (..., 1) for the second of two classes -> (..., C)."""
        return scores if scores.shape[-1] > 1 else torch.cat([-scores / 2, scores / 2], dim=-1)


def hashed(ids: Tensor, mask: Tensor, num_buckets: int) -> Tensor:
    """(B, G): the distinct buckets of each review's n-grams, largest first; then -1."""
    parts = [
        buckets.masked_fill(~mask[:, order:], NONE)
        for order, buckets in enumerate(buckets_by_order(ids, num_buckets))
    ]
    buckets = torch.cat(parts, dim=1).sort(dim=1, descending=True).values
    repeated = buckets[:, 1:] == buckets[:, :-1]
    buckets[:, 1:].masked_fill_(repeated, NONE)
    return buckets


def buckets_by_order(ids: Tensor, num_buckets: int) -> list[Tensor]:
    """[(B, L), (B, L - 1), (B, L - 2)]: the bucket of the n-gram that starts at each position, by length."""
    state = torch.zeros_like(ids)
    parts = []
    for order in range(min(ORDER, ids.shape[1])):
        # State i is a hash of the n-gram that starts at i. The next id makes the n-gram longer by one.
        following = ids[:, order:]
        state = (state[:, : following.shape[1]] + following + 1) * MULTIPLIER
        parts.append((state >> 31) % num_buckets)  # the high bits depend on all bits of the ids
    return parts
