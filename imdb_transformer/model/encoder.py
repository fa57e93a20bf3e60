"""The encoder: token embedding with bigrams and positions, and a stack of attention and feed-forward blocks.

`model/plain.py` computes the same without any tricks.

Shapes: B batch, L length, R selected positions, D model width, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdb_transformer.config import ModelConfig
from imdb_transformer.model.attention import SelfAttention, attention_bias
from imdb_transformer.model.layers import (
    PADDING_INDEX,
    Dropout,
    FeedForward,
    LayerNorm,
    rotation_of,
    select,
    sinusoids,
)

# Of the hash of a bigram. Sums of products with ids fit in int64.
FIRST, SECOND, PRIME = 1_640_531_527, 1_013_904_223, 2**31 - 1


class Encoder(nn.Module):
    """Embedding and `num_layers` blocks. Pre-norm ends with one more layer norm."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config, vocab_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.final_norm = LayerNorm(config.width) if config.norm == "pre" else nn.Identity()

    def forward(
        self, ids: Tensor, mask: Tensor, dtype: torch.dtype, rows: Tensor | None = None, direction: int = 0
    ) -> Tensor:
        """(B, L) ids and mask (true on tokens) -> (B, L, D) features in `dtype`.

        With `rows` (R,), positions counted over the whole batch, it returns the features (R, D) of these
        alone. The others are not computed beyond the last attention. `direction` is that of `attention_bias`.
        """
        length = ids.shape[1]
        x = self.embedding(ids, dtype)
        radius = min(self.config.radius, length)  # a larger one would only add padding
        bias = attention_bias(mask, radius, dtype, direction)
        rotation = rotation_of(self.config, length, ids.device, dtype)
        for block in self.blocks:
            x = block(x, bias, rotation, rows if block is self.blocks[-1] else None)
        return self.final_norm(x)


class Embedding(nn.Module):
    """Token embedding plus bigrams and sinusoidal positions, layer norm (all optional), and dropout."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.scale = config.width**0.5 if config.embedding_scale else 1.0
        self.sinusoidal = config.positions == "sinusoidal"
        self.tokens = nn.Embedding(vocab_size, config.width, padding_idx=PADDING_INDEX)
        nn.init.normal_(self.tokens.weight, std=config.embedding_std)
        with torch.no_grad():
            self.tokens.weight[PADDING_INDEX].zero_()
        self.bigrams = None
        if config.bigram_buckets:
            self.bigrams = nn.Embedding(1 + config.bigram_buckets, config.width, padding_idx=PADDING_INDEX)
            nn.init.zeros_(self.bigrams.weight)
        self.vectors = nn.Identity()  # explanations replace its output (B, L, D) with a hook
        self.norm = LayerNorm(config.width) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout, by_channel=config.dropout_mask == "channel")

    def forward(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """(B, L) ids -> (B, L, D) in `dtype`."""
        x = self.vectors(self.look_up(ids)).to(dtype)
        if self.scale != 1:
            x = x * self.scale
        if self.sinusoidal:
            x = x + sinusoids(x.shape[1], x.shape[2], ids.device).to(dtype)
        return self.dropout(self.norm(x))

    def look_up(self, ids: Tensor) -> Tensor:
        """(B, L) ids -> (B, L, D): each token's vector, plus that of the bigram that ends with it."""
        x = self.tokens(ids)
        return x if self.bigrams is None else x + self.bigrams(buckets(ids, self.bigrams.num_embeddings - 1))


def buckets(ids: Tensor, num_buckets: int) -> Tensor:
    """(B, L) ids -> (B, L): the bucket, from 1 on, of each token and the one before it; 0 for padding.

    A product and two remainders hash the pair (Carter and Wegman 1979). The first token follows padding.
    """
    previous = F.pad(ids, (1, -1), value=PADDING_INDEX)
    return (1 + (FIRST * previous + SECOND * ids) % PRIME % num_buckets) * (ids != PADDING_INDEX)


class Block(nn.Module):
    """Self-attention and feed-forward, each with residual sum and layer norm (Vaswani et al. 2017, 3.1).

    post-norm: norm(x + f(x)), as in the paper. pre-norm: x + f(norm(x)) (Xiong et al. 2020).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention = SelfAttention(config)
        self.attention_norm = LayerNorm(config.width)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.width)
        self.dropout = Dropout(config.dropout, by_channel=config.dropout_mask == "channel")

    def forward(self, x: Tensor, bias: Tensor, rotation: Tensor | None, rows: Tensor | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D), or (R, D) at the positions `rows`; arguments as in `SelfAttention`."""
        attend, drop, residual = self.attention, self.dropout, select(x, rows)
        if self.pre_norm:
            x = residual + drop(attend(self.attention_norm(x), bias, rotation, rows))
            return x + drop(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(residual + drop(attend(x, bias, rotation, rows)))
        return self.feed_forward_norm(x + drop(self.feed_forward(x)))
