"""Multi-head self-attention: full, or restricted to a neighbourhood at a cost linear in length.

Shapes: B batch, L length, H heads, K head width, D model width; N groups of S queries, each with the T keys
that it may see. Full attention: a review is a group, S = T = L. Windowed with radius r: the batch's reviews,
laid end to end, are cut into groups of S = 2r queries, and T = 4r.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from imdb_transformer.config import ModelConfig
from imdb_transformer.model.layers import Linear
from imdb_transformer.model.neighbourhood import laid_end_to_end, windows
from imdb_transformer.model.positions import rotate


class SelfAttention(nn.Module):
    """Attention(Q, K, V) = softmax(Q Kᵀ / √K) V in H heads of any width (Vaswani et al. 2017, 3.2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.head_width = config.num_heads, config.head_width
        self.windowed = config.attention == "windowed"
        self.dropout = config.attention_dropout
        inner = config.num_heads * config.head_width
        self.project_in = Linear(config.width, 3 * inner)  # queries, keys and values in one product
        self.project_out = Linear(inner, config.width)

    def forward(self, x: Tensor, bias: Tensor, rotation: Tensor | None) -> Tensor:
        """(B, L, D) -> (B, L, D). `bias` is what `attention_bias` gives for the batch's mask."""
        return self.project_out(self.mix(x, bias, rotation))

    def mix(self, x: Tensor, bias: Tensor, rotation: Tensor | None) -> Tensor:
        """(B, L, D) -> (B, L, HK): what the heads gather, before it is projected."""
        qkv = self.project_in(x).unflatten(-1, (3, self.num_heads, self.head_width))
        q, k, v = qkv.permute(2, 3, 0, 1, 4).contiguous().unbind()  # (H, B, L, K) each, copied once
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        q = q * (1 / math.sqrt(self.head_width))
        if self.windowed:
            num_groups, size, _ = bias.shape
            q, k, v = (laid_end_to_end(heads, num_groups * size) for heads in (q, k, v))
            q = q.unflatten(1, (num_groups, size))
            k, v = windows(k, size), windows(v, size)
        # Plain batched products: on a CPU faster than the fused kernel, which is slow with a mask and
        # slower in the backward pass (scripts/README.md).
        weights = (q @ k.transpose(-1, -2)).add_(bias).softmax(-1)  # (H, N, S, T)
        heads = F.dropout(weights, self.dropout, self.training) @ v  # (H, N, S, K)
        heads = heads.flatten(1, 2)[:, : x.shape[0] * x.shape[1]]  # (H, BL, K)
        return heads.transpose(0, 1).flatten(1).unflatten(0, x.shape[:2])

    @torch.no_grad()
    def weights(self, x: Tensor, rotation: Tensor | None, radius: int) -> Tensor:
        """(1, L, D) -> (H, L, L): softmax(Q Kᵀ / √K) of one whole review, to look at.

        `forward` computes the same in groups; here, zeros stand beyond `radius` (0 has no such limit).
        """
        qkv = self.project_in(x[0]).unflatten(-1, (3, self.num_heads, self.head_width))
        q, k, _ = qkv.permute(1, 2, 0, 3)  # (H, L, K) each
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_width)
        position = torch.arange(len(x[0]), device=x.device)
        far = (position[:, None] - position).abs() > (radius or len(position))
        return scores.masked_fill(far, -torch.inf).softmax(-1)


def attention_bias(mask: Tensor, radius: int, dtype: torch.dtype) -> Tensor:
    """(N, S, T): what to add to scores so that no weight falls on padding or beyond the neighbourhood.

    `mask` (B, L) is true on tokens. Full attention (radius 0): (B, 1, L). Made once a batch, for all layers.
    """
    # Finite, so that a query with nothing to see (padding far from any token) gives a mean, not NaN.
    never = torch.finfo(dtype).min / 2
    if not radius:
        allowed = mask[:, None]
    else:
        # Each position's review, numbered from 1; 0 for padding, which no token sees.
        review = torch.arange(1, len(mask) + 1, device=mask.device)[:, None]
        review = F.pad((review * mask).flatten(), (radius, radius + -mask.numel() % (2 * radius)))
        keys = review.unfold(0, 4 * radius, 2 * radius)  # (N, 4r)
        queries = keys[:, radius:-radius, None]  # (N, 2r, 1)
        position = torch.arange(4 * radius, device=mask.device)
        near = (position[radius:-radius, None] - position).abs() <= radius
        allowed = (queries == keys[:, None]) & near
    return torch.zeros(allowed.shape, dtype=dtype, device=mask.device).masked_fill(~allowed, never)
