"""What blocks are built of: linear map, layer norm, dropout, positions, and the windows of attention.

Activations are fp32 or bf16. The weights stay in fp32, in which small updates are not lost. Each layer casts
them to the type of its input. That is mixed precision (Micikevicius et al. 2018) without autocast, which
would cast activations back and forth between layers.

Windows cut reviews that are laid end to end into groups of queries, each with its neighbours as keys.

Shapes: B batch, L length, R selected positions, H heads, K head width, D model width; N groups of S
positions.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BASE = 10_000.0  # wavelengths range from 2π to 2π times this


class Linear(nn.Linear):
    """x Wᵀ + b in the type of x."""

    def reset_parameters(self) -> None:
        """Weights by Glorot and Bengio (2010), biases zero."""
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class LayerNorm(nn.LayerNorm):
    """Layer normalisation (Ba et al. 2016) in the type of x, with statistics in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class Dropout(nn.Module):
    """Dropout with one random number for each element, or one for each channel of a review.

    The second kind (Gal and Ghahramani 2016, also called "spatial" or "locked" dropout) needs L times fewer
    random numbers. On a CPU, drawing them for each element costs as much as a matrix product.
    """

    def __init__(self, p: float, *, by_channel: bool) -> None:
        super().__init__()
        self.p, self.by_channel = p, by_channel

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D). Selected positions (R, D) are always dropped by element."""
        if not (self.training and self.p):
            return x
        if not (self.by_channel and x.ndim == 3):
            return F.dropout(x, self.p)
        keep = torch.empty((x.shape[0], 1, x.shape[2]), dtype=x.dtype, device=x.device)
        return x * keep.bernoulli_(1 - self.p).div_(1 - self.p)


def select(x: Tensor, rows: Tensor | None) -> Tensor:
    """(B, L, D) -> (R, D) at the positions `rows` (R,), counted over the whole batch; all of x for None."""
    return x if rows is None else x.flatten(0, 1).index_select(0, rows)


def sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """(L, D) with sin and cos of each position at D/2 wavelengths (Vaswani et al. 2017, 3.5).

    An odd width drops the last cosine.
    """
    angle = _angles(length, (width + 1) // 2, 2 / width, device)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width]


def rotary_table(length: int, head_width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(2, L, K): cosines and signed sines for `rotate` (Su et al. 2021, equation 34)."""
    angle = _angles(length, head_width // 2, 2 / head_width, device)
    cosine, sine = angle.cos(), angle.sin()
    both = torch.stack([torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)])
    return both.to(dtype)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """(..., L, K) with channel pairs (i, i + K/2) turned by an angle that grows with the position.

    The product of two such vectors depends on their distance, not on their positions.
    """
    cosine, sine = rotation
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, dims=-1), sine)


def _angles(length: int, count: int, step: float, device: torch.device) -> Tensor:
    """(L, count): position / BASE^(i step)."""
    frequency = BASE ** (-step * torch.arange(count, device=device, dtype=torch.float32))
    return torch.arange(length, device=device, dtype=torch.float32)[:, None] * frequency


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
