"""The parts of models: linear map, feed-forward, layer norm, dropout of channels and words, and positions.

Activations are fp32 or bf16. The weights stay in fp32, in which small updates are not lost. Each layer casts
them to the type of its input. That is mixed precision (Micikevicius et al. 2018) without autocast, which
would cast activations back and forth between layers.

Shapes: B batch, L length, R selected positions, K head width, D model width, F feed-forward width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdb_transformer.config import ModelConfig

PADDING_INDEX = 0
NUM_SPECIAL = 2  # the first ids, padding and [MASK], spell no text
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
        if self.training and x.dtype == torch.bfloat16 and not x.is_cuda:
            # On a CPU, torch's layer norm would sum the gradients of weight and bias in bf16, and over many
            # tokens lose much of them (configs/EXPERIMENTS.md). Other operations sum in fp32.
            return torch.addcmul(bias, F.layer_norm(x, self.normalized_shape, eps=self.eps), weight)
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


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, or with GELU instead of ReLU (Vaswani et al. 2017, 3.3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.expand = Linear(config.width, config.feedforward_width)
        self.contract = Linear(config.feedforward_width, config.width)
        self.activation = F.relu_ if config.activation == "relu" else F.gelu

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        # As (BL, D): ReLU in place on a view would cost autograd copies.
        hidden = self.activation(self.expand(x.flatten(0, -2)))
        return self.contract(hidden).unflatten(0, x.shape[:-1])


def drop_words(ids: Tensor, mask: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """(B, L) ids and mask -> (B, L'): each review without a random `share` of its tokens.

    "Word dropout" (Iyyer et al. 2015, 3.1). The remaining tokens close up, so a dropped token costs no time.
    """
    length, num_tokens = ids.shape[1], mask.sum(1, keepdim=True)
    noise = torch.rand(ids.shape, device=ids.device).masked_fill(~mask, 2.0)  # padding comes last
    positions = noise.argsort(1)[:, : max(1, length - int(length * share))]
    new_lengths = (num_tokens - (num_tokens * share).long()).clamp(min=1)
    stays = torch.arange(positions.shape[1], device=ids.device) < new_lengths
    positions = positions.masked_fill(~stays, length - 1).sort(1).values  # in the review's order
    return ids.gather(1, positions).masked_fill(~stays, PADDING_INDEX), stays


def select(x: Tensor, rows: Tensor | None) -> Tensor:
    """(B, L, D) -> (R, D) at the positions `rows` (R,), counted over the whole batch; all of x for None."""
    return x if rows is None else x.flatten(0, 1).index_select(0, rows)


def sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """(L, D) with sin and cos of each position at D/2 wavelengths (Vaswani et al. 2017, 3.5).

    An odd width drops the last cosine.
    """
    angle = _angles(length, (width + 1) // 2, 2 / width, device)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width]


def rotation_of(config: ModelConfig, length: int, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    """(2, L, K): cosines and signed sines for `rotate` (Su et al. 2021, equation 34).

    None if the model's positions are not rotary.
    """
    if config.positions != "rotary":
        return None
    angle = _angles(length, config.head_width // 2, 2 / config.head_width, device)
    cosine, sine = angle.cos(), angle.sin()
    return torch.stack([torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)]).to(dtype)


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
