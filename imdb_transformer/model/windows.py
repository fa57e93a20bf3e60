"""Queries and keys of windowed attention: reviews laid end to end, cut into groups with their neighbours.

Shapes: B batch, L length, H heads, K head width; N groups of S positions.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def laid_end_to_end(heads: Tensor, length: int) -> Tensor:
    """(H, B, L, K) -> (H, length, K), zeros after the last review."""
    flat = heads.flatten(1, 2)
    return F.pad(flat, (0, 0, 0, length - flat.shape[1])) if length > flat.shape[1] else flat


def windows(x: Tensor, size: int) -> Tensor:
    """(H, NS, K) -> (H, N, 2S, K): each group of S positions, with S/2 positions before and after it.

    Positions beyond the ends hold zeros or values of another head; the attention bias masks them. The plain
    form:

        F.pad(x, (0, 0, size // 2, size // 2)).unfold(1, 2 * size, size).transpose(-1, -2)
    """
    cut: Tensor = _Windows.apply(x, size)  # type: ignore[no-untyped-call]
    return cut


class _Windows(torch.autograd.Function):
    """The result of `unfold`, with a backward pass that is one sum."""

    @staticmethod
    def forward(_: Any, x: Tensor, size: int) -> Tensor:
        heads, length, width = x.shape
        radius = size // 2
        padded = F.pad(x.reshape(-1, width), (0, 0, radius, radius))
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


def by_position(weights: Tensor, length: int) -> Tensor:
    """(H, N, S, T) attention weights of one review -> (H, L, L): row i has the weights of query i."""
    heads, num_groups, size, num_keys = weights.shape
    radius = (num_keys - size) // 2  # 0 for full attention
    whole = weights.new_zeros(heads, num_groups * size, num_groups * size + 2 * radius)
    for i in range(num_groups):
        start = i * size
        whole[:, start : start + size, start : start + num_keys] = weights[:, i]
    return whole[:, :length, radius : radius + length]
