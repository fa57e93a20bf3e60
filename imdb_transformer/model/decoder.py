"""The decoder of "Attention Is All You Need": it rewrites a review that the encoder has read.

Shapes: B batch, L length, R selected positions, H heads, K head width, D model width.
"""

import math

from torch import Tensor, nn

from imdb_transformer.config import ModelConfig
from imdb_transformer.model.attention import SelfAttention, attention_bias, split_heads
from imdb_transformer.model.encoder import FeedForward
from imdb_transformer.model.layers import Dropout, LayerNorm, Linear, rotary_table, rotate, select


class Decoder(nn.Module):
    """As many blocks as the encoder's (Vaswani et al. 2017, 3.1). Pre-norm ends with one more layer norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.radius = config.radius if config.attention == "windowed" else 0
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.num_layers))
        self.final_norm = LayerNorm(config.width) if config.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor, rows: Tensor | None = None) -> Tensor:
        """(B, L, D) embedded tokens and features of the encoder -> (B, L, D), or (R, D) at `rows`.

        Each position sees the tokens at and before it, and the whole memory. `mask` (B, L) applies to both.
        """
        length = x.shape[1]
        bias = attention_bias(mask, min(self.radius, length), x.dtype, direction=1)
        memory_bias = attention_bias(mask, 0, x.dtype)
        rotation = None
        if self.config.positions == "rotary":
            rotation = rotary_table(length, self.config.head_width, x.device, x.dtype)
        for block in self.blocks:
            x = block(x, memory, bias, memory_bias, rotation, rows if block is self.blocks[-1] else None)
        return self.final_norm(x)


class DecoderBlock(nn.Module):
    """Self-attention, attention to the memory, and feed-forward, each with residual sum and layer norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention = SelfAttention(config)
        self.attention_norm = LayerNorm(config.width)
        self.cross_attention = CrossAttention(config)
        self.cross_norm = LayerNorm(config.width)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.width)
        self.dropout = Dropout(config.dropout, by_channel=config.dropout_mask == "channel")

    def forward(
        self, x: Tensor, memory: Tensor, bias: Tensor, memory_bias: Tensor, rotation: Tensor | None,
        rows: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """(B, L, D) -> (B, L, D), or (R, D) at the positions `rows`."""
        attend, look_up, drop = self.attention, self.cross_attention, self.dropout
        if self.pre_norm:
            x = x + drop(attend(self.attention_norm(x), bias, rotation))
            queries = self.cross_norm(x)
            x = select(x, rows) + drop(look_up(queries, memory, memory_bias, rotation, rows))
            return x + drop(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + drop(attend(x, bias, rotation)))
        x = self.cross_norm(select(x, rows) + drop(look_up(x, memory, memory_bias, rotation, rows)))
        return self.feed_forward_norm(x + drop(self.feed_forward(x)))


class CrossAttention(nn.Module):
    """Attention whose queries come from the decoder, and keys and values from the encoder's features.

    It is always full attention: its memory grows with the square of the length.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.head_width = config.num_heads, config.head_width
        inner = config.num_heads * config.head_width
        self.project_queries = Linear(config.width, inner)
        self.project_memory = Linear(config.width, 2 * inner)  # keys and values in one product
        self.project_out = Linear(inner, config.width)

    def forward(
        self, x: Tensor, memory: Tensor, bias: Tensor, rotation: Tensor | None, rows: Tensor | None = None
    ) -> Tensor:
        """(B, L, D) and memory (B, L, D) -> (B, L, D), or (R, D) at the positions `rows`."""
        q = split_heads(self.project_queries(x), self.num_heads, self.head_width)[0]  # (H, B, L, K)
        k, v = split_heads(self.project_memory(memory), self.num_heads, self.head_width)
        if rotation is not None:  # a token and its copy in the memory have the same position
            q, k = rotate(q, rotation), rotate(k, rotation)
        q = q * (1 / math.sqrt(self.head_width))
        weights = (q @ k.transpose(-1, -2)).add_(bias).softmax(-1)  # (H, B, L, L)
        heads = (weights @ v).permute(1, 2, 0, 3).flatten(2)  # (B, L, HK)
        return self.project_out(select(heads, rows))
