"""Which words decided: a review's logit difference, shared out over its words.

With max-pooling this is no guess. Every pooled channel came from one position, the head is linear, and the
n-grams' votes are a sum: so the difference of two logits is a sum over positions, plus a bias. What a
position's features are, though, they have become by reading its neighbours. The second method, integrated
gradients (Sundararajan et al. 2017), follows the difference through the encoder down to the embeddings: what
each word changes on the way from a text of `[MASK]` to this one.

Shapes: L length, D model width, C classes.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from imdb_transformer.data.tokenizer import MASK_ID
from imdb_transformer.errors import RunError
from imdb_transformer.inference.encoder import EncoderModel
from imdb_transformer.inference.predict import Predictor
from imdb_transformer.inference.words import words_of
from imdb_transformer.model.classifier import Classifier, pool
from imdb_transformer.model.ngrams import buckets_by_order

Method = Literal["pooling", "gradients"]
NUM_STEPS = 64  # of the integral


class WordShare(NamedTuple):
    """A word of the text and what it adds to the logit difference."""

    word: str
    start: int
    """index of its first character in the text"""
    share: float


class Explanation(NamedTuple):
    """Shares and bias add up to the logit difference; above zero it speaks for `toward`."""

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
        """The largest share without its sign, above zero: what the others are shown in proportion to."""
        return max((abs(word.share) for word in self.words), default=0.0) or 1.0


def explain(predictor: Predictor, text: str, *, method: Method = "pooling") -> Explanation:
    """Which words decided about a text. Raises RunError for a linear model, or for several models.

    Of two classes, the difference is that of the second and the first; of more, that of the likeliest and
    the next. It is divided by the temperature, so that its logistic function is the probability that
    `predict` gives where there are two classes.
    """
    if len(predictor.models) > 1:
        raise RunError("One run's answer can be explained at a time.")
    (model,), (temperature,), classes = predictor.models, predictor.temperatures, predictor.classes
    if not isinstance(model, EncoderModel):
        raise RunError(
            "Only a run's own transformer can be explained: this is a linear model or an exported file."
        )
    ids, spans = model.tokenizer.encode_with_spans(text)
    batch = torch.from_numpy(ids.astype("int64"))[None].to(model.hardware.device)
    with torch.no_grad():
        logits = model.classifier(batch, _everything(batch), model.hardware.dtype)[0]
    second, first = (1, 0) if len(classes) == 2 else logits.topk(2).indices.tolist()
    difference = (logits[second] - logits[first]).item()
    if method == "pooling":
        by_position, bias = _pooling(model, batch, second, first)
    else:
        by_position = _gradients(model, batch, second, first)
        bias = (
            difference - by_position.sum().item()
        )  # what a text of `[MASK]` gives, and the steps leave over
    words = _by_word(text, (by_position / temperature).tolist(), spans)
    return Explanation(classes[second], classes[first], difference / temperature, bias / temperature, words)


def _everything(ids: Tensor) -> Tensor:
    """(1, L): the mask of a review alone, which has no padding."""
    return torch.ones_like(ids, dtype=torch.bool)


@torch.no_grad()
def _pooling(model: EncoderModel, ids: Tensor, second: int, first: int) -> tuple[Tensor, float]:
    """(L,) shares and the bias, by what each pooled channel came from."""
    classifier = model.classifier
    features = classifier.encoder(ids, _everything(ids), model.hardware.dtype)[0].float()  # (L, D)
    weights = classifier.head.weight[second] - classifier.head.weight[first]
    bias = classifier.head.bias[second] - classifier.head.bias[first]
    if classifier.pooling == "mean":
        shares = features @ weights / len(features)
    else:
        best = features.max(0) if classifier.pooling == "max" else features[:1].max(0)
        shares = features.new_zeros(len(features)).index_add_(0, best.indices, best.values * weights)
    voted, intercept = _votes(classifier, ids, second, first)
    return shares + voted, (bias + intercept).item()


def _votes(classifier: Classifier, ids: Tensor, second: int, first: int) -> tuple[Tensor, Tensor]:
    """(L,) shares and the bias of the n-grams: each is shared evenly by the ids of its first occurrence."""
    shares = torch.zeros(ids.shape[1], device=ids.device)
    ngrams = classifier.ngrams
    if ngrams is None:
        return shares, shares.new_zeros(())
    seen: set[int] = set()
    for order, buckets in enumerate(buckets_by_order(ids, len(ngrams.weights)), 1):
        votes = ngrams.logits(ngrams.weights[buckets[0]])  # (L, C)
        for start, bucket in enumerate(buckets[0].tolist()):
            if bucket not in seen:
                seen.add(bucket)
                shares[start : start + order] += (votes[start, second] - votes[start, first]) / order
    bias = ngrams.logits(ngrams.intercept)
    weight = classifier.ngram_weight
    return weight * shares, weight * (bias[second] - bias[first])


def _gradients(model: EncoderModel, ids: Tensor, second: int, first: int) -> Tensor:
    """(L,) integrated gradients, from `[MASK]` at every position to the text; n-grams as above.

    Not from zero, where a layer norm is not continuous. In fp32, since a difference of bf16 logits is too
    coarse for an integral over small steps.
    """
    classifier, tokens = model.classifier, model.classifier.encoder.embedding.tokens
    mask = _everything(ids)
    embedded = tokens(ids).detach()
    nothing = tokens(torch.full_like(ids, MASK_ID)).detach()
    total = torch.zeros_like(embedded)
    scaled: list[Tensor] = []

    def replace(*_: object) -> Tensor:
        return scaled[-1]

    handle = tokens.register_forward_hook(replace)
    try:
        for step in range(NUM_STEPS):
            share = (step + 0.5) / NUM_STEPS  # midpoint rule
            scaled.append(torch.lerp(nothing, embedded, share).requires_grad_())
            features = classifier.encoder(ids, mask, torch.float32)
            logits = classifier.head(pool(features, mask, classifier.pooling))[0]
            (gradient,) = torch.autograd.grad(logits[second] - logits[first], scaled.pop())
            total += gradient
    finally:
        handle.remove()
    voted, _ = _votes(classifier, ids, second, first)
    return ((embedded - nothing) * total / NUM_STEPS).sum(-1)[0].detach() + voted


def _by_word(text: str, shares: list[float], spans: list[tuple[int, int]]) -> list[WordShare]:
    """Shares of positions added up by the word of the text that they are a piece of."""
    words, index = words_of(text, spans)
    sums = [0.0] * len(words)
    for i, share in zip(index, shares, strict=True):
        sums[i] += share
    return [WordShare(word.text, word.start, share) for word, share in zip(words, sums, strict=True)]
