"""The blocks of an encoder as kernels of `torch.compile`, for long trainings on a GPU.

It compiles again for each new shape of a batch. So here all batches have one shape: the reviews are laid end
to end, as windowed attention does anyway, and padding follows.

Shapes: B batch, L length, R selected positions, T positions of every batch, D model width, K head width.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdb_transformer.model.layers import select


class CompiledBlocks:
    """Blocks with windowed attention, for batches of at most `num_tokens` tokens with padding."""

    def __init__(self, blocks: Iterable[nn.Module], radius: int, num_tokens: int) -> None:
        self.num_positions = -(-num_tokens // (2 * radius)) * 2 * radius  # whole groups of the attention
        self.blocks = [torch.compile(block, dynamic=False) for block in blocks]

    def __call__(self, x: Tensor, bias: Tensor, rotation: Tensor | None, rows: Tensor | None) -> Tensor:
        """(B, L, D) -> (B, L, D), or (R, D) at the positions `rows`; arguments as in `Block`."""
        batch, length, _ = x.shape
        rest = self.num_positions - batch * length
        flat = F.pad(x.flatten(0, 1), (0, 0, 0, rest))[None]  # (1, T, D)
        bias = F.pad(bias, (0, 0, 0, 0, 0, self.num_positions // bias.shape[1] - len(bias)))
        if rotation is not None:
            rotation = F.pad(rotation.repeat(1, batch, 1), (0, 0, 0, rest))  # (2, T, K)
        for block in self.blocks:
            flat = block(flat, bias, rotation)
        if rows is not None:
            return select(flat, rows)
        return flat[0, : batch * length].unflatten(0, (batch, length))
