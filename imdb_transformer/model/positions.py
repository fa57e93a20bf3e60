"""How the model knows the position of a token: sinusoids or rotation.

Shapes: B batch, L length, H heads, K head width, D model width.
"""

import torch
from torch import Tensor

BASE = 10_000.0  # wavelengths range from 2π to 2π times this


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
