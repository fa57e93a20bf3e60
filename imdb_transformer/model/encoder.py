"""The encoder: token embedding with positions, and a stack of attention and feed-forward blocks.

Shapes: B batch, L length, D model width, F feed-forward width, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from imdb_transformer.config import ModelConfig
from imdb_transformer.model.attention import SelfAttention, attention_bias
from imdb_transformer.model.layers import Dropout, LayerNorm, Linear
from imdb_transformer.model.positions import rotation, sinusoids

PADDING_INDEX = 0


class Embedding(nn.Module):
    """Token embedding, plus positions where they are added, with optional layer norm, and dropout."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(vocab_size, config.width, padding_idx=PADDING_INDEX)
        nn.init.normal_(self.tokens.weight, std=config.embedding_std)
        with torch.no_grad():
            self.tokens.weight[PADDING_INDEX].zero_()
        self.learned = (
            nn.Embedding(config.max_positions, config.width) if config.positions == "learned" else None
        )
        self.norm = LayerNorm(config.width, eps=config.embedding_norm_eps) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout, by_channel=config.dropout_mask == "channel")

    def forward(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """(B, L) ids -> (B, L, D) in `dtype`."""
        config, length = self.config, ids.shape[1]
        x = self.tokens(ids).to(dtype)
        if config.embedding_scale:
            x = x * config.width**0.5
        if self.learned is not None:
            rows = self.learned.weight[:length].to(dtype)
            x = x + functional.pad(rows, (0, 0, 0, length - len(rows)))  # past the table is padding only
        elif config.positions == "sinusoidal":
            x = x + sinusoids(length, config.width, ids.device).to(dtype)
        x = x if self.norm is None else self.norm(x)
        return self.dropout(x, self.dropout.channels(x, config.width))


class Mixed(NamedTuple):
    """A batch after the attention of a block: what follows treats each position alone."""

    x: Tensor  # (..., D), the residual stream
    heads: Tensor  # (..., HK), what the heads gathered
    channels: tuple[Tensor | None, Tensor | None, Tensor | None]  # its dropouts' masks, (B, 1, ·) or (R, ·)

    def at(self, rows: Tensor) -> "Mixed":
        """The same of R positions, (R, ·) each; `rows` (R,) counts them over the whole batch."""
        review = rows.div(self.x.shape[1], rounding_mode="floor")
        first, inner, second = (None if mask is None else mask[review, 0] for mask in self.channels)
        x, heads = (tensor.flatten(0, 1).index_select(0, rows) for tensor in (self.x, self.heads))
        return Mixed(x, heads, (first, inner, second))


class Block(nn.Module):
    """Self-attention and feed-forward, each with residual sum and layer norm (Vaswani et al. 2017, 3.1).

    post-norm: x + f(x), then norm, as in the paper. pre-norm: x + f(norm(x)) (Xiong et al. 2020).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention = SelfAttention(config)
        self.attention_norm = LayerNorm(config.width, eps=config.norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.width, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout, by_channel=config.dropout_mask == "channel")

    def forward(self, x: Tensor, bias: Tensor, rotation: Tensor | None) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        return self.each_position(self.mix(x, bias, rotation))

    def mix(self, x: Tensor, bias: Tensor, rotation: Tensor | None) -> Mixed:
        """The part in which positions see each other."""
        heads = self.attention.mix(self.attention_reads(x), bias, rotation)
        channels = (
            self.dropout.channels(x, x.shape[-1]),
            self.feed_forward.dropout.channels(x, self.feed_forward.expand.out_features),
            self.dropout.channels(x, x.shape[-1]),
        )
        return Mixed(x, heads, channels)

    def attention_reads(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D), what the attention sees of the residual stream."""
        return self.attention_norm(x) if self.pre_norm else x

    def each_position(self, mixed: Mixed) -> Tensor:
        """(..., D): the rest, which treats each position alone."""
        x, heads, (first, inner, second) = mixed
        attended = self.attention.project_out(heads)
        if self.pre_norm:
            x = self.dropout.add_to(x, attended, first)
            return self.dropout.add_to(x, self.feed_forward(self.feed_forward_norm(x), inner), second)
        x = self.attention_norm(self.dropout.add_to(x, attended, first))
        return self.feed_forward_norm(self.dropout.add_to(x, self.feed_forward(x, inner), second))


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, or with GELU in the place of ReLU (Vaswani et al. 2017, 3.3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.expand = Linear(config.width, config.feedforward_width)
        self.contract = Linear(config.feedforward_width, config.width)
        self.activation = functional.relu_ if config.activation == "relu" else functional.gelu
        self.dropout = Dropout(config.activation_dropout, by_channel=config.dropout_mask == "channel")

    def forward(self, x: Tensor, channels: Tensor | None) -> Tensor:
        """(..., D) -> (..., D); `channels`: a mask of the hidden layer's dropout."""
        # As (BL, D), so that ReLU in place is not in place on a view, which autograd pays for with copies.
        hidden = self.activation(self.expand(x.flatten(0, -2))).unflatten(0, x.shape[:-1])
        return self.contract(self.dropout(hidden, channels))


class Encoder(nn.Module):
    """Embedding and `num_layers` blocks; pre-norm ends with a layer norm of its own."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.radius = config.radius if config.attention == "windowed" else 0
        self.embedding = Embedding(config, vocab_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.final_norm = LayerNorm(config.width, eps=config.norm_eps) if config.norm == "pre" else None

    def forward(self, ids: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """(B, L) ids and mask (true on tokens) -> (B, L, D) features in `dtype`."""
        return self.each_position(self.mix(ids, mask, dtype))

    def mix(self, ids: Tensor, mask: Tensor, dtype: torch.dtype) -> Mixed:
        """(B, L) ids and mask -> the batch after the last attention: positions see each other no more."""
        return self.block(-1).mix(*self.before(-1, ids, mask, dtype))

    def before(
        self, index: int, ids: Tensor, mask: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What a block is called with: the residual stream (B, L, D), attention's bias, rotation."""
        x = self.embedding(ids, dtype)
        radius = min(self.radius, ids.shape[1])  # beyond the length there is nothing to see
        bias = attention_bias(mask, radius, dtype)
        turns = None
        if self.config.positions == "rotary":
            turns = rotation(ids.shape[1], self.config.head_width, ids.device, dtype)
        for block in self.blocks[:index]:
            x = block(x, bias, turns)
        return x, bias, turns

    def each_position(self, mixed: Mixed) -> Tensor:
        """Features (..., D) of all positions, or of those that `Mixed.at` has chosen."""
        x = self.block(-1).each_position(mixed)
        return x if self.final_norm is None else self.final_norm(x)

    def block(self, index: int) -> Block:
        """One of the blocks."""
        block = self.blocks[index]
        assert isinstance(block, Block)  # which tells mypy, too
        return block
