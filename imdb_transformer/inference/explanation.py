"""Explains a prediction by its words, and shows what each word attended to.

`explain` divides a review's logit difference among its words, by one of two methods:

- Pooling. Each pooled channel comes from one position, and the head is linear. So the difference of two
  logits is exactly a sum over positions, plus a bias. But the features of a position also depend on its
  neighbours.
- Integrated gradients (Sundararajan et al. 2017) follow the difference through the encoder to the embeddings.
  They measure the effect of each word on the path from a blank text, whose embeddings are zero, to this text.
  A bigram's vector counts for its second token.

Zero is the paper's baseline for text (section 3), and it means the same in every model. `[MASK]` is learnt in
pretraining only. The mean of all embeddings is not blank: models are as sure of it as of any review.

`all_heads` returns the attention weights of each layer and head, by words.

Shapes: L length, D model width, C classes, H heads, S steps, W words. `by_position` has the
letters of `model/attention.py`.
"""

import bisect
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imdb_transformer.data.reviews import BREAK_TAG, WITHOUT_BLANKS
from imdb_transformer.data.tokenizer import PAD_ID
from imdb_transformer.errors import ConfigError
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.inference.transformer import TransformerModel, only_transformer
from imdb_transformer.model.classifier import pool
from imdb_transformer.model.encoder import Encoder

Method = Literal["pooling", "gradients"]
BREAK_OR_WORD = re.compile(
    rf"{BREAK_TAG}|(?P<word>{WITHOUT_BLANKS}|(?:(?!{BREAK_TAG}|{WITHOUT_BLANKS})\S)+)", re.IGNORECASE
)
NUM_STEPS, POWER = 128, 6  # of the integral
TOKENS_AT_ONCE = 4096  # of steps that are computed together


class WordShare(NamedTuple):
    """A word of the text and its part of the logit difference."""

    word: str
    start: int  # index of its first character in the text
    share: float


class Explanation(NamedTuple):
    """Shares and bias sum to the logit difference, which is positive if `toward` is the likelier class."""

    toward: str
    against: str
    logit_difference: float
    bias: float
    words: list[WordShare]

    def record(self) -> dict[str, Any]:
        """Its fields by name, as JSON takes them."""
        return {**self._asdict(), "words": [word._asdict() for word in self.words]}

    @property
    def largest(self) -> float:
        """The largest absolute share, or 1 if all are zero. Shares are shown relative to it."""
        return max((abs(word.share) for word in self.words), default=0.0) or 1.0


def explain(predictor: Predictor, text: str, *, method: Method = "pooling") -> Explanation:
    """The share of each word in a prediction. Raises RunError unless the predictor is a single transformer.

    The logit difference is the second class's logit less the first's; with more than two classes, the largest
    less the second largest. It is divided by the temperature. With two classes, its logistic function is the
    second class's probability.
    """
    model, classes = only_transformer(predictor.models), predictor.classes
    ids, spans = model.tokenizer.encode_with_spans(text)
    batch = torch.from_numpy(ids.astype(np.int64))[None].to(model.hardware.device)
    head = model.classifier.head
    with torch.no_grad():
        features = model.classifier.encoder(batch, batch != PAD_ID, model.hardware.dtype)[0].float()  # (L, D)
        best = features.max(0)
        logits = head(best.values[None])[0]
    toward, against = (1, 0) if len(classes) == 2 else logits.topk(2).indices.tolist()
    difference = (logits[toward] - logits[against]).item()
    if method == "pooling":
        weights = (head.weight[toward] - head.weight[against]).detach()
        shares = features.new_zeros(len(features)).index_add_(0, best.indices, best.values * weights)
        bias = (head.bias[toward] - head.bias[against]).item()
    else:
        shares = _gradients(model, batch, toward, against)
        bias = difference - shares.sum().item()  # the blank text's difference, and the integral's error
    scale = 1 / model.temperature
    words, word_of = words_of(text, spans)
    sums = np.bincount(word_of, scale * shares.cpu().numpy(), len(words)).tolist()
    shared = [WordShare(word, start, share) for (word, start), share in zip(words, sums, strict=True)]
    return Explanation(classes[toward], classes[against], scale * difference, scale * bias, shared)


def _gradients(model: TransformerModel, ids: Tensor, toward: int, against: int) -> Tensor:
    """(L,) integrated gradients from a blank text (alpha 0) to this one (alpha 1), by the midpoint rule.

    Most steps are near zero, because layer norms scale a text that is not quite blank to full size. They are
    computed in fp32: bf16 is too coarse for an integral over small steps.
    """
    classifier, embedding = model.classifier, model.classifier.encoder.embedding
    embedded = embedding.look_up(ids).detach()
    total = torch.zeros_like(embedded)
    middles = (torch.arange(NUM_STEPS, device=ids.device)[:, None, None] + 0.5) / NUM_STEPS
    alphas = middles**POWER  # (S, 1, 1)
    sizes = (torch.linspace(0, 1, NUM_STEPS + 1, device=ids.device) ** POWER).diff()[:, None, None]
    num_at_once = max(1, TOKENS_AT_ONCE // ids.shape[1])
    for alpha, size in zip(alphas.split(num_at_once), sizes.split(num_at_once), strict=True):
        scaled = (alpha * embedded).requires_grad_()  # (S, L, D)
        hook = embedding.vectors.register_forward_hook(lambda *_, scaled=scaled: scaled)
        try:
            repeated = ids.expand(len(scaled), -1)
            mask = repeated != PAD_ID
            features = classifier.encoder(repeated, mask, torch.float32)
        finally:
            hook.remove()
        logits = classifier.head(pool(features, mask))
        (gradient,) = torch.autograd.grad((logits[:, toward] - logits[:, against]).sum(), scaled)
        total += (gradient * size).sum(0)
    return (embedded * total).sum(-1)[0].detach()


def words_of(text: str, spans: Sequence[tuple[int, int]]) -> tuple[list[tuple[str, int]], list[int]]:
    """The words of a text, each with the index of its first character, and for each id that of its word.

    `spans` are the characters of each id, as (start, end). An id without characters belongs to an empty word
    before the others. Spaces and break tags separate words.

    >>> words_of("a dull film", [(0, 1), (2, 4), (4, 6), (7, 11)])[1]
    [0, 1, 1, 2]
    >>> words_of("a film", [(0, 0), (0, 1), (2, 6)])
    ([('', 0), ('a', 0), ('film', 2)], [0, 1, 2])
    >>> [word for word, _ in words_of("a film.<br /><br />The end", [])[0]]
    ['a', 'film.', 'The', 'end']
    """
    words = [(match["word"], match.start()) for match in BREAK_OR_WORD.finditer(text) if match["word"]]
    starts = [start for _, start in words]
    index = [bisect.bisect_right(starts, start) - 1 if end > start else -1 for start, end in spans]
    if -1 not in index:
        return words, index
    return [("", 0), *words], [i + 1 for i in index]


class Attention(NamedTuple):
    """(W, W) weights. Row i has the weight that word i gave to each word; it sums to 1."""

    layer: int
    head: int
    words: list[str]
    weights: NDArray[np.float64]

    def record(self) -> dict[str, Any]:
        """Its fields by name, as JSON takes them."""
        return {**self._asdict(), "weights": self.weights.round(6).tolist()}


def choose_head(heads: Sequence[Attention], layer: int | None = None, head: int = 1) -> Attention:
    """One of `all_heads`, by its layer (by default the last) and head, both counted from 1.

    Raises ConfigError if there is no such layer or head.
    """
    last = heads[-1]
    layer = last.layer if layer is None else layer
    for name, number, count in (("layer", layer, last.layer), ("head", head, last.head)):
        if not 1 <= number <= count:
            raise ConfigError(f"There is no {name} {number}: this model has {count}.")
    return heads[(layer - 1) * last.head + head - 1]


def all_heads(predictor: Predictor, text: str) -> list[Attention]:
    """The weights of every layer and head, in their order.

    If a word has several pieces, its row is the mean of their rows and its column the sum of their columns.
    Raises RunError unless the predictor is a single transformer.
    """
    model = only_transformer(predictor.models)
    encoder = model.classifier.encoder
    ids, spans = model.tokenizer.encode_with_spans(text)
    on_device = torch.from_numpy(ids.astype(np.int64)).to(model.hardware.device)
    words, index = words_of(text, spans)
    visible, word_of = np.unique(index, return_inverse=True)  # words cut out of a long text have no id
    member = np.eye(len(visible))[word_of]  # (L, W): 1 if the id is a piece of the word
    names, mean = [words[i][0] for i in visible], (member / member.sum(0)).T
    return [
        Attention(layer, head, names, mean @ by_id @ member)
        for layer, weights in enumerate(attention_weights_of(encoder, on_device), 1)
        for head, by_id in enumerate(weights.cpu().double().numpy(), 1)
    ]


@torch.no_grad()
def attention_weights_of(encoder: Encoder, ids: Tensor) -> list[Tensor]:
    """(L,) ids of a review -> (H, L, L) for each layer: its attention weights, in fp32."""
    seen: list[Tensor] = []
    layers = [block.get_submodule("attention.attention_weights") for block in encoder.blocks]
    hooks = [layer.register_forward_hook(lambda *call: seen.append(call[2])) for layer in layers]
    try:
        encoder(ids[None], ids[None] != PAD_ID, torch.float32)
    finally:
        for hook in hooks:
            hook.remove()
    return [by_position(weights, len(ids)) for weights in seen]


def by_position(weights: Tensor, length: int) -> Tensor:
    """(H, N, S, T) attention weights of one review -> (H, L, L): row i has the weights of query i."""
    heads, num_groups, size, num_keys = weights.shape
    radius = (num_keys - size) // 2  # 0 for full attention
    whole = weights.new_zeros(heads, num_groups * size, num_groups * size + 2 * radius)
    for i in range(num_groups):
        start = i * size
        whole[:, start : start + size, start : start + num_keys] = weights[:, i]
    return whole[:, :length, radius : radius + length]
