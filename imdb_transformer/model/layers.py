"""Linear map, layer norm and dropout, for activations that may be bf16 beside fp32 weights.

The weights stay in fp32, where small updates are not lost; each layer casts them to the type of the
activations that come in. That is mixed precision (Micikevicius et al. 2018) without autocast, which
would cast activations back and forth between layers.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
    """Layer normalisation (Ba et al. 2016) in the type of x; the statistics are fp32 in any case."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class Dropout(nn.Module):
    """Dropout with one random number an element, or one a review and channel.

    The latter (Gal and Ghahramani 2016; "spatial" or "locked" dropout elsewhere) needs L times fewer
    random numbers, which on a CPU otherwise cost as much as a matrix product.
    """

    def __init__(self, p: float, *, by_channel: bool) -> None:
        super().__init__()
        self.p, self.by_channel = p, by_channel

    def channels(self, x: Tensor, width: int) -> Tensor | None:
        """(B, 1, width) for reviews x (B, L, D): zero for a dropped channel, 1 / (1 - p) for a kept one.

        None where elements are dropped one by one, or nothing is.
        """
        if not (self.training and self.p and self.by_channel):
            return None
        keep = torch.empty((x.shape[0], 1, width), dtype=x.dtype, device=x.device)
        return keep.bernoulli_(1 - self.p).div_(1 - self.p)

    def forward(self, x: Tensor, channels: Tensor | None) -> Tensor:
        """(..., D) -> (..., D); `channels`: a mask that `channels` gave."""
        return self._by_element(x) if channels is None else x * channels

    def add_to(self, x: Tensor, branch: Tensor, channels: Tensor | None) -> Tensor:
        """x + dropout(branch), in one pass over them where the mask is by channel."""
        return x + self._by_element(branch) if channels is None else torch.addcmul(x, branch, channels)

    def _by_element(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p) if self.training and self.p and not self.by_channel else x
