"""Multi-head self-attention: full, or restricted to a neighbourhood at a cost linear in length.

Shapes: B batch, L length, H heads, K head width, D model width; N groups of S queries, each with the T keys
that it may see. With full attention each review is a group, and S = T = L. With windows of radius r, the
batch's reviews are laid end to end and cut into groups of S = 2r queries, and T = 4r.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from imdb_transformer.config import ModelConfig
from imdb_transformer.model.layers import Linear, rotate, select

# Of torch, on a GPU. The one of cuDNN would make a plan for each shape, and batches have many shapes.
KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class SelfAttention(nn.Module):
    """Attention(Q, K, V) = softmax(Q Kᵀ / √d) V in H heads of any width d (Vaswani et al. 2017, 3.2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.head_width = config.num_heads, config.head_width
        self.windowed = config.radius > 0
        inner = config.num_heads * config.head_width
        self.project_in = Linear(config.width, 3 * inner)  # queries, keys and values in one product
        # Hooks read its output (H, N, S, T), except in training on a GPU.
        self.attention_weights = nn.Identity()
        self.project_out = Linear(inner, config.width)

    def forward(self, x: Tensor, bias: Tensor, rotation: Tensor | None, rows: Tensor | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D), or (R, D) at the positions `rows` (R,), counted over the whole batch.

        `bias` comes from `attention_bias`, `rotation` from `rotation_of`. Without `rotation` the heads do
        not know the order of the tokens.
        """
        q, k, v = split_heads(self.project_in(x), self.num_heads, self.head_width)  # (H, B, L, K) each
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        q = q * (1 / math.sqrt(self.head_width))
        if self.windowed:
            num_groups, size, _ = bias.shape  # short reviews have smaller groups
            q, k, v = (packed(heads, num_groups * size) for heads in (q, k, v))
            q = q.unflatten(1, (num_groups, size))
            k, v = windows(k, size), windows(v, size)
        if q.is_cuda and self.training:  # nothing reads the weights then, so they need not be stored
            with sdpa_kernel(KERNELS):
                heads = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        else:
            # Plain batched products: on a CPU the fused kernel is slower with a mask and in the backward pass
            # (scripts/README.md).
            weights = self.attention_weights((q @ k.transpose(-1, -2)).add_(bias).softmax(-1))  # (H, N, S, T)
            heads = weights @ v
        heads = heads.flatten(1, 2)[:, : x.shape[0] * x.shape[1]]  # (H, BL, K)
        heads = heads.transpose(0, 1).flatten(1).unflatten(0, x.shape[:2])  # (B, L, HK)
        return self.project_out(select(heads, rows))


def split_heads(x: Tensor, num_heads: int, head_width: int) -> tuple[Tensor, ...]:
    """(B, L, nHK) -> n of (H, B, L, K), copied once."""
    return x.unflatten(-1, (-1, num_heads, head_width)).permute(2, 3, 0, 1, 4).contiguous().unbind()


def attention_bias(mask: Tensor, radius: int, dtype: torch.dtype, direction: int = 0) -> Tensor:
    """(N, S, T) to add to scores: zero where a query may see a key, very negative elsewhere.

    `mask` (B, L) is true on tokens. Full attention has radius 0 and a bias of (B, 1, L). All layers share the
    bias. With `direction` 1, as in a decoder, a position sees only itself and those to its left; with -1,
    itself and those to its right. The bias of full attention is then (B, L, L).
    """
    # Finite: a query without any key (padding far from all tokens) then gives a mean, not NaN.
    never = torch.finfo(dtype).min / 2
    if not radius:
        allowed = mask[:, None]
        if direction:
            position = torch.arange(mask.shape[1], device=mask.device)
            allowed = allowed & (direction * (position[:, None] - position) >= 0)
    else:
        # Each position's review, numbered from 1; 0 for padding, which no token sees.
        review = torch.arange(1, mask.shape[0] + 1, device=mask.device)[:, None]
        review = F.pad((review * mask).flatten(), (radius, radius + -mask.numel() % (2 * radius)))
        keys = review.unfold(0, 4 * radius, 2 * radius)  # (N, 4r)
        queries = keys[:, radius:-radius, None]  # (N, 2r, 1)
        position = torch.arange(4 * radius, device=mask.device)
        distance = position[radius:-radius, None] - position  # (2r, 4r)
        near = (distance.abs() <= radius) & (direction * distance >= 0)
        allowed = (queries == keys[:, None]) & near
    return torch.zeros(allowed.shape, dtype=dtype, device=mask.device).masked_fill(~allowed, never)


def packed(heads: Tensor, length: int) -> Tensor:
    """(H, B, L, K) -> (H, length, K), zeros after the last review."""
    flat = heads.flatten(1, 2)
    return F.pad(flat, (0, 0, 0, length - flat.shape[1])) if length > flat.shape[1] else flat


def windows(x: Tensor, size: int) -> Tensor:
    """(H, NS, K) -> (H, N, 2S, K): each group of S positions, with S/2 positions before and after it.

    Positions beyond the ends hold zeros or values of another head. The attention bias masks them. In plain
    torch:

        F.pad(x, (0, 0, size // 2, size // 2)).unfold(1, 2 * size, size).transpose(-1, -2)
    """
    return _Windows.apply(x, size)  # type: ignore[no-untyped-call]


class _Windows(torch.autograd.Function):
    """`unfold` with a faster backward pass: one sum."""

    @staticmethod
    def forward(_: Any, x: Tensor, size: int) -> Tensor:
        heads, length, width = x.shape
        padded = F.pad(x.reshape(-1, width), (0, 0, size // 2, size // 2))
        shape = (heads, length // size, 2 * size, width)
        strides = (length * width, size * width, width, 1)
        return padded.as_strided(shape, strides).contiguous()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        heads, groups, double, width = gradient.shape
        size, radius = double // 2, double // 4
        # Window i covers the pieces i and i + 1 of S positions, counted from the padding in front.
        first, second = gradient.reshape(-1, 2, size, width).unbind(1)
        pieces = gradient.new_empty(heads * groups + 1, size, width)
        pieces[0], pieces[-1] = first[0], second[-1]
        torch.add(first[1:], second[:-1], out=pieces[1:-1])
        inner = pieces.flatten(0, 1)[radius:-radius]
        return inner.view(heads, groups * size, width), None
