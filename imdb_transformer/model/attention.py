"""Multi-head self-attention: full, or restricted to a neighbourhood at a cost linear in length.

Shapes: B batch, L length, H heads, K head width, D model width; N blocks of r positions, L = N r.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from imdb_transformer.config import ModelConfig
from imdb_transformer.model.layers import Linear
from imdb_transformer.model.positions import rotate


class SelfAttention(nn.Module):
    """Attention(Q, K, V) = softmax(Q Kᵀ / √K) V in H heads of any width (Vaswani et al. 2017, 3.2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.head_width = config.num_heads, config.head_width
        self.radius = config.radius if config.attention == "windowed" else 0
        self.dropout = config.attention_dropout
        inner = config.num_heads * config.head_width
        self.project_in = Linear(config.width, 3 * inner)  # queries, keys and values in one product
        self.project_out = Linear(inner, config.width)

    def forward(self, x: Tensor, bias: Tensor, rotation: Tensor | None) -> Tensor:
        """(B, L, D) -> (B, L, D). `bias` is what `attention_bias` gives for the batch's mask."""
        q, k, v = (
            self.project_in(x).unflatten(-1, (3, self.num_heads, self.head_width)).unbind(2)
        )  # (B, L, H, K)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        q = q * (1 / math.sqrt(self.head_width))
        if self.radius:
            heads = self._windowed(q, k, v, bias)
        else:
            heads = self._attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), bias).transpose(
                1, 2
            )
        return self.project_out(heads.flatten(-2))

    def _windowed(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        """Each block of r queries against its own block and both neighbours: 3 r keys (Child et al. 2019)."""
        length = q.shape[1]
        q = _blocks(q, self.radius)  # (B, N, r, H, K)
        k, v = (_with_neighbours(_blocks(t, self.radius)) for t in (k, v))  # (B, N, 3r, H, K)
        heads = self._attend(q.transpose(2, 3), k.transpose(2, 3), v.transpose(2, 3), bias)  # (B, N, H, r, K)
        return heads.transpose(2, 3).flatten(1, 2)[:, :length]  # (B, L, H, K)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        # Plain batched products: on a CPU faster than the fused kernel, which is slow with a mask and
        # slower in the backward pass (README, "Speed").
        weights = torch.softmax(q @ k.transpose(-1, -2) + bias, dim=-1)
        return F.dropout(weights, self.dropout, self.training) @ v


def attention_bias(mask: Tensor, radius: int, dtype: torch.dtype) -> Tensor:
    """What to add to attention scores so that no weight falls on padding or beyond the neighbourhood.

    `mask` (B, L) is true on tokens. Full attention (radius 0): (B, 1, 1, L). Windowed: (B, N, 1, r, 3r).
    Made once a batch, for all layers.
    """
    # Finite, so that a query with nothing to see (padding far from any token) gives a mean, not NaN.
    never = torch.finfo(dtype).min / 2
    if not radius:
        allowed = mask[:, None, None, :]
    else:
        keys = _with_neighbours(_blocks(mask[..., None, None], radius)).flatten(2)  # (B, N, 3r)
        query = torch.arange(radius, device=mask.device)[:, None] + radius
        key = torch.arange(3 * radius, device=mask.device)
        allowed = (keys[:, :, None, :] & ((query - key).abs() <= radius))[:, :, None]
    return torch.zeros(allowed.shape, dtype=dtype, device=mask.device).masked_fill(~allowed, never)


def _blocks(x: Tensor, radius: int) -> Tensor:
    """(B, L, ...) -> (B, N, r, ...), zeros after the end."""
    missing = -x.shape[1] % radius
    if missing:
        x = F.pad(x, (0, 0, 0, 0, 0, missing))
    return x.unflatten(1, (-1, radius))


def _with_neighbours(blocks: Tensor) -> Tensor:
    """(B, N, r, ...) -> (B, N, 3r, ...): each block between the one before and the one after it."""
    padded = F.pad(blocks, (0, 0, 0, 0, 0, 0, 1, 1))
    return torch.cat([padded[:, :-2], blocks, padded[:, 2:]], dim=2)
