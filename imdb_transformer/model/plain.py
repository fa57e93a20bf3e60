"""The whole classifier as the papers write it, in NumPy. Read this first.

It computes one review at a time, with full attention under a mask and a loop over heads. There is no batch
and no padding, and nothing is made fast. It uses the weights of a `Classifier`, and the tests compare the two
models' logits and gradients. Dropout, which happens only in training, is left out.

`PlainModel` predicts a few reviews with it, because importing torch would take longer.

Shapes: L length, D model width, K head width, F feed-forward width, C classes.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.config import ModelConfig

Array = NDArray[np.floating]
Ids = NDArray[np.int64]
Weights = Mapping[str, Array]  # a `Classifier`'s state_dict, as arrays

BASE = 10_000.0
EPSILON = 1e-5
FIRST, SECOND, PRIME = 1_640_531_527, 1_013_904_223, 2**31 - 1


def logits(ids: Ids, weights: Weights, config: ModelConfig) -> Array:
    """(L,) ids of one review -> (C,) logits."""
    return linear(encoder(ids, weights, config).max(axis=0), weights, "head")


def encoder(ids: Ids, weights: Weights, config: ModelConfig) -> Array:
    """(L,) ids -> (L, D) features (Vaswani et al. 2017, section 3)."""
    x = weights["encoder.embedding.tokens.weight"][ids]
    if config.bigram_buckets:
        x = x + weights["encoder.embedding.bigrams.weight"][buckets(ids, config.bigram_buckets)]
    if config.embedding_scale:
        x = x * math.sqrt(config.width)
    if config.positions == "sinusoidal":
        x = x + sinusoids(len(ids), config.width).astype(x.dtype)
    if config.embedding_norm:
        x = norm(x, weights, "encoder.embedding.norm")
    for i in range(config.num_layers):
        x = block(x, weights, f"encoder.blocks.{i}", config)
    return norm(x, weights, "encoder.final_norm") if config.norm == "pre" else x


def buckets(ids: Ids, num_buckets: int) -> Ids:
    """The bucket of each id and the one before it (Carter and Wegman 1979); 0 stands before the first id."""
    before = np.concatenate([[0], ids[:-1]])
    return 1 + (FIRST * before + SECOND * ids) % PRIME % num_buckets


def block(x: Array, weights: Weights, name: str, config: ModelConfig) -> Array:
    """(L, D) -> (L, D): post-norm as in the paper (section 3.1), or pre-norm (Xiong et al. 2020)."""
    if config.norm == "pre":
        x = x + attention(norm(x, weights, f"{name}.attention_norm"), weights, f"{name}.attention", config)
        inner = norm(x, weights, f"{name}.feed_forward_norm")
        return x + feed_forward(inner, weights, f"{name}.feed_forward", config)
    x = norm(x + attention(x, weights, f"{name}.attention", config), weights, f"{name}.attention_norm")
    x = x + feed_forward(x, weights, f"{name}.feed_forward", config)
    return norm(x, weights, f"{name}.feed_forward_norm")


def attention(x: Array, weights: Weights, name: str, config: ModelConfig) -> Array:
    """(L, D) -> (L, D): softmax(Q Kᵀ / √d) V in each head of width d, then one linear map of all (3.2.1)."""
    q, k, v = (
        np.split(part, config.num_heads, axis=1)
        for part in np.split(linear(x, weights, f"{name}.project_in"), 3, axis=1)
    )  # (L, K) for each head
    if config.positions == "rotary":
        q, k = [rotated(head) for head in q], [rotated(head) for head in k]
    sees = visible(len(x), config)
    heads = [
        softmax(np.where(sees, q[h] @ k[h].T / math.sqrt(config.head_width), -np.inf)) @ v[h]
        for h in range(config.num_heads)
    ]
    return linear(np.concatenate(heads, axis=1), weights, f"{name}.project_out")


def visible(length: int, config: ModelConfig) -> NDArray[np.bool_]:
    """(L, L), true where position i sees position j: everywhere, or at most `radius` away."""
    position = np.arange(length)
    distance = abs(position[:, None] - position)
    return distance <= (config.radius or length)


def softmax(scores: Array) -> Array:
    """(L, L) scores -> (L, L) weights; each row sums to 1."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def feed_forward(x: Array, weights: Weights, name: str, config: ModelConfig) -> Array:
    """(L, D) -> (L, D): max(0, x W1 + b1) W2 + b2 (equation 2), or with GELU."""
    hidden = linear(x, weights, f"{name}.expand")  # (L, F)
    hidden = np.maximum(hidden, 0) if config.activation == "relu" else gelu(hidden)
    return linear(hidden, weights, f"{name}.contract")


def gelu(x: Array) -> Array:
    """x times the probability that a standard normal number is below x (Hendrycks and Gimpel 2016)."""
    from scipy.special import ndtr  # takes a while to import, and the default is ReLU

    return x * ndtr(x)


def sinusoids(length: int, width: int) -> Array:
    """(L, D): PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same (section 3.5)."""
    angle = [[position / BASE ** ((i - i % 2) / width) for i in range(width)] for position in range(length)]
    return np.array([[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in angle])


def rotated(x: Array) -> Array:
    """(L, K): channels i and i + K/2 as a complex number, turned by pos · 10000^(-2i/K) (Su et al. 2021)."""
    half = x.shape[1] // 2
    angle = np.arange(len(x))[:, None] * BASE ** (-np.arange(half) / half)
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag], axis=1).astype(x.dtype)


def norm(x: Array, weights: Weights, name: str) -> Array:
    """Layer normalisation (Ba et al. 2016)."""
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPSILON)
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: Array, weights: Weights, name: str) -> Array:
    """x Wᵀ + b."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
