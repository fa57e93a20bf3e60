"""Scores of a model on a split, computed from its log-probabilities.

Shapes: N reviews, C classes.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

LEAST_BINS, MOST_BINS = 5, 15  # of the calibration error
BIN_SIZE = 50  # reviews: the accuracy of fewer is mostly chance
PRIOR_DEVIATION = 0.5  # of the temperature's logarithm, before any review is seen
USUAL_TEMPERATURE = 2.0  # of a transformer (configs/EXPERIMENTS.md, "the usual temperature")


class Score(BaseModel, extra="forbid", frozen=True):
    """Accuracy, loss and macro F1. Training measures them on validation."""

    accuracy: float
    loss: float
    f1: float | None = None  # macro F1, also for two classes; None if tokens were guessed


class Calibration(BaseModel, extra="forbid", frozen=True):
    """The distance of probabilities from observed frequencies."""

    loss: float  # mean cross-entropy in nats (log loss)
    brier: float  # mean squared distance of the probabilities from the label, summed over classes; 0 to 2
    ece: float  # expected calibration error over 5 to 15 bins of equally many reviews


class Accuracy(BaseModel, extra="forbid", frozen=True):
    """The share of reviews that are classified correctly."""

    num_examples: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float  # 95% interval of the accuracy (Wilson 1927)


class ClassScore(BaseModel, extra="forbid", frozen=True):
    """One class against the rest."""

    precision: float
    recall: float
    f1: float
    support: int  # reviews of the class


class Evaluation(Accuracy, extra="forbid", frozen=True):
    """All scores of one split; `imdb-tx eval` writes them into the run."""

    split: str
    checkpoint: str
    num_learnt: int = 0  # reviews that were in training or validation, too
    loss: float
    """mean cross-entropy in nats, without label smoothing, of the probabilities that `predict` gives"""
    f1: float  # of the second of two classes; with more classes, the mean of those that occur (macro F1)
    per_class: dict[str, ClassScore]
    mean_absolute_error: float | None  # between the predicted and the true class, if the classes are numbers
    roc_auc: float | None
    """area under the ROC curve; with more than two classes, the mean of each against the rest. None if the
    split lacks a class"""
    average_precision: float | None  # area under the precision-recall curve, likewise
    raw: Calibration
    calibrated: Calibration  # the same after division by the temperature that was fitted on validation
    slices: dict[str, Accuracy]
    confusion: list[list[int]]  # reviews by true class (rows) and predicted class (columns)
    classes: tuple[str, ...]


def score(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> Score:
    """Accuracy, mean cross-entropy and macro F1 of (N, C) logits: sums over examples, divided once."""
    log_probabilities = log_softmax(logits.astype(np.float64), axis=1)
    predicted, num_classes = logits.argmax(1), logits.shape[1]
    correct = predicted == labels
    loss = -float(log_probabilities[np.arange(len(labels)), labels].sum())
    hits, supports, guesses = (
        np.bincount(each, minlength=num_classes) for each in (labels[correct], labels, predicted)
    )
    seen = supports + guesses > 0  # the F1 of a class without labels and predictions is not defined
    f1 = float((2 * hits[seen] / (supports + guesses)[seen]).mean())
    return Score(accuracy=int(correct.sum()) / len(labels), loss=loss / len(labels), f1=f1)


def fit_temperature(logits: NDArray[np.floating], labels: NDArray[np.int64], *, usual: float = 1.0) -> float:
    """The temperature that divides (N, C) logits for the least cross-entropy (Guo et al. 2017, section 4.2).

    A normal prior on its logarithm keeps it near `usual`, unless there are hundreds of reviews. Of N labels,
    each counts as right with a probability of (N + 1) / (N + 2) only (Platt 1999, section 2.2). Otherwise a
    few reviews without an error would ask for a temperature of zero, and the first error would cost all.
    Labels of a single class say nothing of the others: then it is `usual`.
    """
    if len(np.unique(labels)) < 2:
        return usual
    exact = logits.astype(np.float64)
    num_reviews, num_classes = exact.shape
    doubt = 1 / (num_reviews + 2)
    targets = np.full(exact.shape, doubt / (num_classes - 1))
    targets[np.arange(num_reviews), labels] = 1 - doubt

    def loss(log_temperature: float) -> float:
        cross_entropy = -float((targets * log_softmax(exact / np.exp(log_temperature), axis=1)).sum())
        return cross_entropy + ((log_temperature - np.log(usual)) / PRIOR_DEVIATION) ** 2 / 2

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x))


def is_uneven(supports: Sequence[int]) -> bool:
    """Whether accuracy alone says little: there are more than two classes, or one has under 25%."""
    return len(supports) > 2 or min(supports) < 0.25 * sum(supports)


def evaluation_of(
    logits: NDArray[np.floating], labels: NDArray[np.int64], *, split: str, checkpoint: str,
    classes: tuple[str, ...], raw_logits: NDArray[np.floating] | None = None,
    slices: Mapping[str, NDArray[np.bool_]] | None = None, num_learnt: int = 0,
) -> Evaluation:  # fmt: skip
    """All scores of (N, C) logits or log-probabilities, usually calibrated, against labels.

    `raw_logits` are those before calibration, if there was one. `slices` mark reviews, by name. `num_learnt`
    of the reviews were in training or validation, too.
    """
    # Not imported at the top: training only needs `score`, and scikit-learn takes a second to load.
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    predicted = logits.argmax(1)
    correct = predicted == labels
    parts = {name: _accuracy(correct[rows]) for name, rows in (slices or {}).items() if rows.any()}
    numbers = list(range(len(classes)))
    figures = precision_recall_fscore_support(labels, predicted, labels=numbers, zero_division=0)
    seen = np.isin(numbers, np.union1d(labels, predicted))
    per_class = {
        name: ClassScore(precision=float(p), recall=float(r), f1=float(f), support=int(n))
        for name, p, r, f, n in zip(classes, *figures, strict=True)
    }
    area, precision = _areas(softmax(logits, axis=1), labels)
    calibrated = _calibration(logits, labels)
    return Evaluation(
        **_accuracy(correct).model_dump(),
        split=split, checkpoint=checkpoint, classes=classes, num_learnt=num_learnt, loss=calibrated.loss,
        f1=float(figures[2][1] if len(classes) == 2 else figures[2][seen].mean()),
        per_class=per_class, mean_absolute_error=_mean_absolute_error(predicted, labels, classes),
        roc_auc=area, average_precision=precision, slices=parts,
        raw=calibrated if raw_logits is None else _calibration(raw_logits, labels), calibrated=calibrated,
        confusion=confusion_matrix(labels, predicted, labels=numbers).tolist(),
    )  # fmt: skip


def _accuracy(correct: NDArray[np.bool_]) -> Accuracy:
    from scipy.stats import binomtest  # 58 MiB, which a training would carry

    low, high = binomtest(int(correct.sum()), len(correct)).proportion_ci(0.95, method="wilson")
    return Accuracy(
        num_examples=len(correct), accuracy=float(correct.mean()),
        accuracy_low=float(low), accuracy_high=float(high),
    )  # fmt: skip


def _mean_absolute_error(
    predicted: NDArray[np.int64], labels: NDArray[np.int64], classes: tuple[str, ...]
) -> float | None:
    """None if the classes are two or are not all finite numbers."""
    try:
        values = np.array([float(name) for name in classes])
    except ValueError:
        return None
    if len(classes) == 2 or not np.isfinite(values).all():
        return None
    return float(np.abs(values[predicted] - values[labels]).mean())


def _areas(
    probabilities: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[float | None, float | None]:
    """Areas under the ROC and the precision-recall curve; None if the split lacks a class."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    numbers = np.arange(probabilities.shape[1])
    if len(np.unique(labels)) < len(numbers):
        return None, None
    measured = numbers[1:] if len(numbers) == 2 else numbers  # of two classes the second
    truth, scores = labels[:, None] == measured, probabilities[:, measured]
    return float(roc_auc_score(truth, scores)), float(average_precision_score(truth, scores))


def expected_calibration_error(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Mean distance of confidence and accuracy over 5 to 15 bins of equally many reviews.

    (N, C) probabilities; a review's confidence is its largest (Guo et al. 2017, section 2, with the bins of
    Nguyen and O'Connor 2015, section 2.2).
    """
    bins = confidence_bins(probabilities, labels)
    return sum(size * abs(confidence - accuracy) for confidence, accuracy, size in bins) / len(labels)


def confidence_bins(
    probabilities: NDArray[np.float64], labels: NDArray[np.int64]
) -> list[tuple[float, float, int]]:
    """(mean confidence, accuracy, number of reviews) of 5 to 15 bins, least confident first.

    Reviews of equal confidence may fall into several bins. Each counts with the accuracy of all of them, so
    their order does not matter.
    """
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == labels
    _, group, sizes = np.unique(confidence, return_inverse=True, return_counts=True)
    correct = (np.bincount(group, correct) / sizes)[group]
    num_bins = min(MOST_BINS, max(LEAST_BINS, len(labels) // BIN_SIZE), len(labels))
    bins = np.array_split(np.argsort(confidence, kind="stable"), num_bins)
    return [(float(confidence[rows].mean()), float(correct[rows].mean()), len(rows)) for rows in bins]


def _calibration(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> Calibration:
    probabilities = softmax(logits.astype(np.float64), axis=1)
    truth = labels[:, None] == np.arange(logits.shape[1])
    return Calibration(
        loss=score(logits, labels).loss,
        brier=float(((probabilities - truth) ** 2).sum(1).mean()),
        ece=expected_calibration_error(probabilities, labels),
    )
