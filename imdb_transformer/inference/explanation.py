"""Which words decided: a review's logit difference, shared out over its words.

With max-pooling this is no guess. Every pooled channel came from one position, the head is linear, and the
n-grams' votes are a sum: so the difference of two logits is a sum over positions, plus a bias. What a
position's features are, though, they have become by reading its neighbours. The second method, integrated
gradients (Sundararajan et al. 2017), follows the difference through the encoder down to the embeddings: what
each word changes on the way from a blank text, of embeddings that are zero, to this one.

Zero is the baseline that the paper takes for text (its section 3). It means the same in every model, while
`[MASK]` has learnt something in pretraining only. The mean of all embeddings would be no blank: a model is as
sure of a text of it as of any review.

Shapes: L length, D model width, C classes, S steps.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from imdb_transformer.errors import RunError
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.inference.transformer import TransformerModel
from imdb_transformer.inference.words import words_of
from imdb_transformer.model.classifier import Classifier, pool
from imdb_transformer.model.ngrams import buckets_by_order

Method = Literal["pooling", "gradients"]
NUM_STEPS, STEPS_AT_ONCE, POWER = 128, 16, 6  # of the integral


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
    model, classes = predictor.models[0], predictor.classes
    if not isinstance(model, TransformerModel):
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
        bias = difference - by_position.sum().item()  # of a blank text, and what the steps leave over
    words = _by_word(text, (by_position / model.temperature).tolist(), spans)
    return Explanation(
        classes[second], classes[first], difference / model.temperature, bias / model.temperature, words
    )


def _everything(ids: Tensor) -> Tensor:
    """(1, L): the mask of a review alone, which has no padding."""
    return torch.ones_like(ids, dtype=torch.bool)


@torch.no_grad()
def _pooling(model: TransformerModel, ids: Tensor, second: int, first: int) -> tuple[Tensor, float]:
    """(L,) shares and the bias, by what each pooled channel came from."""
    classifier = model.classifier
    features = classifier.encoder(ids, _everything(ids), model.hardware.dtype)[0].float()  # (L, D)
    weights = classifier.head.weight[second] - classifier.head.weight[first]
    bias = classifier.head.bias[second] - classifier.head.bias[first]
    if classifier.pooling == "mean":
        shares = features @ weights / len(features)
    else:
        best = features.max(0)
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


def _gradients(model: TransformerModel, ids: Tensor, second: int, first: int) -> Tensor:
    """(L,) integrated gradients, from a blank text to this one; n-grams as above.

    In fp32: a difference of bf16 logits is too coarse for an integral over small steps.
    """
    classifier, tokens = model.classifier, model.classifier.encoder.embedding.tokens
    embedded = tokens(ids).detach()
    total = torch.zeros_like(embedded)
    shares, sizes = (part.to(ids.device)[:, None, None] for part in _steps())
    for share, size in zip(shares.split(STEPS_AT_ONCE), sizes.split(STEPS_AT_ONCE), strict=True):
        scaled = (share * embedded).requires_grad_()  # (S, L, D)
        handle = tokens.register_forward_hook(lambda *_, scaled=scaled: scaled)
        try:
            mask = _everything(ids).expand(len(scaled), -1)
            features = classifier.encoder(ids.expand(len(scaled), -1), mask, torch.float32)
        finally:
            handle.remove()
        logits = classifier.head(pool(features, mask, classifier.pooling))
        (gradient,) = torch.autograd.grad((logits[:, second] - logits[:, first]).sum(), scaled)
        total += (gradient * size).sum(0)
    voted, _ = _votes(classifier, ids, second, first)
    return (embedded * total).sum(-1)[0].detach() + voted


def _steps() -> tuple[Tensor, Tensor]:
    """(S,) shares of the way and (S,) sizes of the steps there, by the midpoint rule.

    Most are near zero: each layer norm makes much of a text as soon as it is no longer blank.
    """
    middles = (torch.arange(NUM_STEPS) + 0.5) / NUM_STEPS
    return middles**POWER, (torch.linspace(0, 1, NUM_STEPS + 1) ** POWER).diff()


def _by_word(text: str, shares: list[float], spans: list[tuple[int, int]]) -> list[WordShare]:
    """Shares of positions added up by the word of the text that they are a piece of."""
    words, index = words_of(text, spans)
    sums = [0.0] * len(words)
    for i, share in zip(index, shares, strict=True):
        sums[i] += share
    return [WordShare(word.text, word.start, share) for word, share in zip(words, sums, strict=True)]
