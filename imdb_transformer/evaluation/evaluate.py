"""How good a model is on a split: figures from logits, through scikit-learn."""

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from scipy.special import log_softmax
from scipy.stats import binomtest


class Score(BaseModel):
    """What training watches on validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    accuracy: float
    loss: float


class Evaluation(BaseModel):
    """Figures of one split; `imdb-tx eval` writes them into the run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    split: str
    checkpoint: str
    num_examples: int
    loss: float
    """mean cross-entropy in nats, without label smoothing"""
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    """95% interval of the accuracy (Wilson 1927)"""
    f1: float
    """of the second class where there are two, else the mean over classes"""
    roc_auc: float | None
    """area under the ROC curve, over more than two classes the mean of one against the rest; none where the
    split lacks a class"""
    confusion: list[list[int]]
    """reviews by true class (rows) and predicted class (columns)"""
    classes: tuple[str, ...]


def score(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> Score:
    """Accuracy and mean cross-entropy of (N, C) logits: sums over examples, divided once."""
    log_probabilities = log_softmax(logits.astype(np.float64), axis=1)
    num_correct = int((logits.argmax(1) == labels).sum())
    loss = -float(log_probabilities[np.arange(len(labels)), labels].sum())
    return Score(accuracy=num_correct / len(labels), loss=loss / len(labels))


def evaluate(
    logits: NDArray[np.floating], labels: NDArray[np.int64], *, split: str, checkpoint: str,
    classes: tuple[str, ...],
) -> Evaluation:  # fmt: skip
    """All figures of (N, C) logits against labels."""
    # Imported here: training needs `score` only, and scikit-learn takes a second to load.
    from sklearn.metrics import confusion_matrix, f1_score, roc_auc_score

    overall = score(logits, labels)
    predicted = logits.argmax(1)
    probabilities = np.exp(log_softmax(logits.astype(np.float64), axis=1))
    binary = len(classes) == 2
    interval = binomtest(int((predicted == labels).sum()), len(labels)).proportion_ci(0.95, method="wilson")
    every = list(range(len(classes)))
    # The area is undefined where the split lacks a class.
    complete = len(set(labels.tolist())) == len(classes)
    area = None
    if complete:
        scores = probabilities[:, 1] if binary else probabilities
        area = float(roc_auc_score(labels, scores, multi_class="ovr", labels=every))
    return Evaluation(
        split=split,
        checkpoint=checkpoint,
        num_examples=len(labels),
        loss=overall.loss,
        accuracy=overall.accuracy,
        accuracy_low=float(interval.low),
        accuracy_high=float(interval.high),
        f1=float(
            f1_score(
                labels, predicted, labels=every, average="binary" if binary else "macro", zero_division=0
            )
        ),
        roc_auc=area,
        confusion=confusion_matrix(labels, predicted, labels=every).tolist(),
        classes=classes,
    )
