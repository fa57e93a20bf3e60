"""The whole classifier as the papers write it. Read this first.

It computes one review at a time, with full attention under a mask and a loop over heads. There is no batch
and no padding, and nothing is made fast. It uses the weights of a `Classifier`, and the tests compare the two
models' logits. Dropout, which happens only in training, is left out.

Shapes: L length, D model width, K head width, F feed-forward width, C classes.
"""

import itertools
import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from imdb_transformer.config import ModelConfig

BASE = 10_000.0
FIRST, SECOND, PRIME = 1_640_531_527, 1_013_904_223, 2**31 - 1
Weights = Mapping[str, Tensor]  # a `Classifier`'s state_dict


def logits(ids: Tensor, weights: Weights, config: ModelConfig) -> Tensor:
    """(L,) ids of one review -> (C,) logits."""
    features = encoder(ids, weights, config)
    pooled = features.max(dim=0).values if config.pooling == "max" else features.mean(dim=0)
    return linear(pooled, weights, "head")


def encoder(ids: Tensor, weights: Weights, config: ModelConfig) -> Tensor:
    """(L,) ids -> (L, D) features (Vaswani et al. 2017, section 3)."""
    x = weights["encoder.embedding.tokens.weight"][ids]
    if config.bigram_buckets:
        x = x + weights["encoder.embedding.bigrams.weight"][bigrams(ids, config.bigram_buckets)]
    if config.embedding_scale:
        x = x * math.sqrt(config.width)
    if config.positions == "sinusoidal":
        x = x + sinusoids(len(ids), config.width)
    if config.embedding_norm:
        x = norm(x, weights, "encoder.embedding.norm")
    for i in range(config.num_layers):
        x = block(x, weights, f"encoder.blocks.{i}", config)
    return norm(x, weights, "encoder.final_norm") if config.norm == "pre" else x


def bigrams(ids: Tensor, num_buckets: int) -> list[int]:
    """The bucket of each id and the one before it (Carter and Wegman 1979); 0 stands before the first id."""
    pairs = itertools.pairwise([0, *ids.tolist()])
    return [1 + (FIRST * first + SECOND * second) % PRIME % num_buckets for first, second in pairs]


def block(x: Tensor, weights: Weights, name: str, config: ModelConfig) -> Tensor:
    """(L, D) -> (L, D): post-norm as in the paper (section 3.1), or pre-norm (Xiong et al. 2020)."""
    if config.norm == "pre":
        x = x + attention(norm(x, weights, f"{name}.attention_norm"), weights, f"{name}.attention", config)
        inner = norm(x, weights, f"{name}.feed_forward_norm")
        return x + feed_forward(inner, weights, f"{name}.feed_forward", config)
    x = norm(x + attention(x, weights, f"{name}.attention", config), weights, f"{name}.attention_norm")
    x = x + feed_forward(x, weights, f"{name}.feed_forward", config)
    return norm(x, weights, f"{name}.feed_forward_norm")


def attention(x: Tensor, weights: Weights, name: str, config: ModelConfig) -> Tensor:
    """(L, D) -> (L, D): softmax(Q Kᵀ / √K) V in each head (section 3.2.1), then one linear map of all."""
    parts = linear(x, weights, f"{name}.project_in").split(config.num_heads * config.head_width, dim=1)
    heads = []
    for q, k, v in zip(*(part.split(config.head_width, dim=1) for part in parts), strict=True):  # (L, K) each
        if config.positions == "rotary":
            q, k = rotated(q), rotated(k)
        scores = (q @ k.T / math.sqrt(config.head_width)).masked_fill(~visible(len(x), config), -torch.inf)
        heads.append(scores.softmax(dim=1) @ v)
    return linear(torch.cat(heads, dim=1), weights, f"{name}.project_out")


def visible(length: int, config: ModelConfig) -> Tensor:
    """(L, L), true where position i sees position j: everywhere, or at most `radius` away."""
    position = torch.arange(length)
    distance = (position[:, None] - position).abs()
    return distance <= (config.radius if config.attention == "windowed" else length)


def feed_forward(x: Tensor, weights: Weights, name: str, config: ModelConfig) -> Tensor:
    """(L, D) -> (L, D): max(0, x W1 + b1) W2 + b2 (equation 2), or with GELU."""
    activation = F.relu if config.activation == "relu" else F.gelu
    hidden = activation(linear(x, weights, f"{name}.expand"))  # (L, F)
    return linear(hidden, weights, f"{name}.contract")


def sinusoids(length: int, width: int) -> Tensor:
    """(L, D): PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same (section 3.5)."""
    angle = [[position / BASE ** ((i - i % 2) / width) for i in range(width)] for position in range(length)]
    return torch.tensor([[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in angle])


def rotated(x: Tensor) -> Tensor:
    """(L, K): channels i and i + K/2 as a complex number, turned by pos · 10000^(-2i/K) (Su et al. 2021)."""
    half = x.shape[1] // 2
    angle = torch.arange(len(x))[:, None] * BASE ** (-torch.arange(half) / half)
    turned = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], dim=1)


def norm(x: Tensor, weights: Weights, name: str) -> Tensor:
    """Layer normalisation (Ba et al. 2016)."""
    return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    """x Wᵀ + b."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
