"""The encoder: token embedding with positions, and a stack of attention and feed-forward blocks.

Shapes: B batch, L length, D model width, F feed-forward width, V vocabulary.
"""

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
        if self.training and config.word_dropout:
            dropped = torch.rand(ids.shape, device=ids.device) < config.word_dropout
            ids = ids.masked_fill(dropped, PADDING_INDEX)  # whose embedding is zero
        x = self.tokens(ids).to(dtype)
        if config.embedding_scale:
            x = x * config.width**0.5
        if self.learned is not None:
            rows = self.learned.weight[:length].to(dtype)
            x = x + functional.pad(rows, (0, 0, 0, length - len(rows)))  # past the table is padding only
        elif config.positions == "sinusoidal":
            x = x + sinusoids(length, config.width, ids.device).to(dtype)
        return self.dropout(x if self.norm is None else self.norm(x))


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
        if self.pre_norm:
            x = self.dropout.add_to(x, self.attention(self.attention_norm(x), bias, rotation))
            return self.dropout.add_to(x, self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(self.dropout.add_to(x, self.attention(x, bias, rotation)))
        return self.feed_forward_norm(self.dropout.add_to(x, self.feed_forward(x)))


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, or with GELU in the place of ReLU (Vaswani et al. 2017, 3.3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.expand = Linear(config.width, config.feedforward_width)
        self.contract = Linear(config.feedforward_width, config.width)
        self.activation = functional.relu_ if config.activation == "relu" else functional.gelu
        self.dropout = Dropout(config.activation_dropout, by_channel=config.dropout_mask == "channel")

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        # As (BL, D), so that ReLU in place is not in place on a view, which autograd pays for with copies.
        hidden = self.activation(self.expand(x.flatten(0, 1))).unflatten(0, x.shape[:2])
        return self.contract(self.dropout(hidden))


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
        x = self.embedding(ids, dtype)
        radius = min(self.radius, ids.shape[1])  # beyond the length there is nothing to see
        bias = attention_bias(mask, radius, dtype)
        turns = None
        if self.config.positions == "rotary":
            turns = rotation(ids.shape[1], self.config.head_width, ids.device, dtype)
        for block in self.blocks:
            x = block(x, bias, turns)
        return x if self.final_norm is None else self.final_norm(x)
