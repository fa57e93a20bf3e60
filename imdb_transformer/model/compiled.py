"""An encoder's blocks as kernels of `torch.compile`, for long trainings on a GPU.

It compiles again for each new shape of a batch. So here all batches have one shape: the reviews are laid end
to end, as windowed attention does anyway, and padding follows.

Shapes: B batch, L length, R selected positions, T positions of every batch, D model width, K head width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from imdb_transformer.config import ModelConfig
from imdb_transformer.model.attention import attention_bias
from imdb_transformer.model.encoder import Encoder
from imdb_transformer.model.layers import rotation_of, select


def can_be_compiled(config: ModelConfig) -> bool:
    """False with full attention, and with dropout by channel, which needs to know each token's review."""
    return bool(config.radius and not (config.dropout and config.dropout_mask == "channel"))


class CompiledForward:
    """`Encoder.forward` with compiled blocks, for training with batches that fit.

        encoder.forward = CompiledForward(encoder, num_tokens)

    The largest batch has `num_tokens` tokens with padding.
    """

    def __init__(self, encoder: Encoder, num_tokens: int) -> None:
        self.encoder, self.plain, radius = encoder, encoder.forward, encoder.config.radius
        self.num_positions = -(-num_tokens // (2 * radius)) * 2 * radius  # whole groups of the attention
        self.blocks = [torch.compile(block, dynamic=False) for block in encoder.blocks]

    def takes(self, ids: Tensor) -> bool:
        """Whether the encoder is in training and the batch (B, L) fits."""
        return self.encoder.training and ids.numel() <= self.num_positions

    def __call__(
        self, ids: Tensor, mask: Tensor, dtype: torch.dtype, rows: Tensor | None = None, direction: int = 0
    ) -> Tensor:
        """Arguments and result of `Encoder.forward`."""
        if not self.takes(ids):
            return self.plain(ids, mask, dtype, rows, direction)
        encoder, (batch, length) = self.encoder, ids.shape
        rest = self.num_positions - batch * length
        x = F.pad(encoder.embedding(ids, dtype).flatten(0, 1), (0, 0, 0, rest))[None]  # (1, T, D)
        bias = attention_bias(mask, encoder.config.radius, dtype, direction)
        bias = F.pad(bias, (0, 0, 0, 0, 0, self.num_positions // bias.shape[1] - len(bias)))
        rotation = rotation_of(encoder.config, length, ids.device, dtype)
        if rotation is not None:
            rotation = F.pad(rotation.repeat(1, batch, 1), (0, 0, 0, rest))  # (2, T, K)
        for block in self.blocks:
            x = block(x, bias, rotation)
        x = x[0, : batch * length].unflatten(0, (batch, length)) if rows is None else select(x, rows)
        features: Tensor = encoder.final_norm(x)
        return features
