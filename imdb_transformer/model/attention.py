"""Multi-head self-attention: full, or restricted to a neighbourhood at a cost linear in length.

Shapes: B batch, L length, H heads, K head width, D model width; N blocks of r positions, L = N r (full
attention: one block of r = L).
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
        self.windowed = config.attention == "windowed"
        self.dropout = config.attention_dropout
        inner = config.num_heads * config.head_width
        self.project_in = Linear(config.width, 3 * inner)  # queries, keys and values in one product
        self.project_out = Linear(inner, config.width)

    def forward(self, x: Tensor, bias: Tensor, rotation: Tensor | None) -> Tensor:
        """(B, L, D) -> (B, L, D). `bias` is what `attention_bias` gives for the batch's mask."""
        length = x.shape[1]
        # Full attention is one block without neighbours.
        block = bias.shape[-2] if self.windowed else length
        qkv = _blocks(self.project_in(x), block)  # (B, N, r, 3HK)
        qkv = qkv.unflatten(-1, (3, self.num_heads, self.head_width))
        qkv = qkv.permute(3, 0, 1, 4, 2, 5).contiguous()  # one copy for all three
        qk, v = qkv.split((2, 1))  # (2, B, N, H, r, K), (1, B, N, H, r, K)
        if rotation is not None:
            qk = rotate(qk, rotation)
        q, k, v = qk[0] * (1 / math.sqrt(self.head_width)), qk[1], v[0]
        if self.windowed:
            k, v = _with_neighbours(k), _with_neighbours(v)  # (B, N, H, 3r, K)
        # Plain batched products: on a CPU faster than the fused kernel, which is slow with a mask and
        # slower in the backward pass (README, "Speed").
        weights = torch.softmax(q @ k.transpose(-1, -2) + bias, dim=-1)
        heads = F.dropout(weights, self.dropout, self.training) @ v  # (B, N, H, r, K)
        heads = heads.transpose(2, 3).flatten(3).flatten(1, 2)[:, :length]  # (B, L, HK)
        return self.project_out(heads)


def attention_bias(mask: Tensor, radius: int, dtype: torch.dtype) -> Tensor:
    """What to add to attention scores so that no weight falls on padding or beyond the neighbourhood.

    `mask` (B, L) is true on tokens. Windowed: (B, N, 1, r, 3r); each block of r queries sees its own block
    and both neighbours, less what is further than r away. Full (radius 0): (B, 1, 1, 1, L). Made once a
    batch, for all layers.
    """
    # Finite, so that a query with nothing to see (padding far from any token) gives a mean, not NaN.
    never = torch.finfo(dtype).min / 2
    if not radius:
        allowed = mask[:, None, None, None, :]
    else:
        keys = _with_neighbours(_blocks(mask[..., None], radius)).squeeze(-1)  # (B, N, 3r)
        query = torch.arange(radius, device=mask.device)[:, None] + radius
        key = torch.arange(3 * radius, device=mask.device)
        allowed = (keys[:, :, None, :] & ((query - key).abs() <= radius))[:, :, None]
    return torch.zeros(allowed.shape, dtype=dtype, device=mask.device).masked_fill(~allowed, never)


def _blocks(x: Tensor, size: int) -> Tensor:
    """(B, L, C) -> (B, N, size, C), zeros after the end."""
    missing = -x.shape[1] % size
    if missing:
        x = F.pad(x, (0, 0, 0, missing))
    return x.unflatten(1, (-1, size))


def _with_neighbours(blocks: Tensor) -> Tensor:
    """(B, N, ..., r, C) -> (B, N, ..., 3r, C): each block between the one before and the one after it."""
    nothing = torch.zeros_like(blocks[:, :1])
    before = torch.cat([nothing, blocks[:, :-1]], dim=1)
    after = torch.cat([blocks[:, 1:], nothing], dim=1)
    return torch.cat([before, blocks, after], dim=-2)
