"""Scores of predictions: each equals a plain loop, its definition, or scikit-learn."""

import math
import re

import numpy as np
import pytest
from sklearn.metrics import f1_score

from imdb_transformer.evaluation.scores import (
    confidence_bins,
    evaluation_of,
    expected_calibration_error,
    fit_temperature,
    score,
)
from imdb_transformer.report.evaluations import as_text, confusion_table, evaluation_tables, score_rows

LOGITS = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)


LABELS = np.random.default_rng(1).integers(0, 2, 50)


def test_score_equals_a_naive_loop() -> None:
    correct, loss = 0, 0.0
    for (a, b), label in zip(LOGITS.tolist(), LABELS.tolist(), strict=True):
        probabilities = [math.exp(a) / (math.exp(a) + math.exp(b)), math.exp(b) / (math.exp(a) + math.exp(b))]
        correct += (b > a) == label
        loss -= math.log(probabilities[label])
    result = score(LOGITS, LABELS)
    assert result.f1 == pytest.approx(f1_score(LABELS, LOGITS.argmax(1), average="macro"))
    assert (result.accuracy, result.loss) == (correct / 50, pytest.approx(loss / 50))


def test_scores_agree_with_each_other() -> None:
    evaluation = evaluation_of(LOGITS, LABELS, split="test", checkpoint="best", classes=("neg", "pos"))
    (tn, fp), (fn, tp) = evaluation.confusion
    assert evaluation.accuracy == (tn + tp) / 50
    assert evaluation.f1 == pytest.approx(2 * tp / (2 * tp + fp + fn))
    pairs = [(p, n) for p in LOGITS[LABELS == 1] for n in LOGITS[LABELS == 0]]
    wins = [(p[1] - p[0] > n[1] - n[0]) for p, n in pairs]
    assert evaluation.roc_auc == pytest.approx(np.mean(wins))


def test_the_calibration_error_does_not_depend_on_the_order_of_equal_confidences() -> None:
    probabilities, labels = np.tile([0.75, 0.25], (1000, 1)), np.repeat([0, 1], [750, 250])
    for order in (slice(None), slice(None, None, -1), np.random.default_rng(0).permutation(1000)):
        assert expected_calibration_error(probabilities, labels[order]) == pytest.approx(0)
    mixed = np.concatenate([probabilities, np.tile([0.6, 0.4], (500, 1))])
    error = expected_calibration_error(mixed, np.concatenate([labels, np.zeros(500, int)]))
    assert error == pytest.approx(500 / 1500 * 0.4)


def test_brier_score_is_the_mean_squared_distance_summed_over_classes() -> None:
    logits = np.log([[0.8, 0.2], [0.3, 0.7]])
    labels = np.array([0, 0])
    evaluation = evaluation_of(logits, labels, split="test", checkpoint="best", classes=("neg", "pos"))
    assert evaluation.calibrated.brier == pytest.approx((0.2**2 + 0.2**2 + 0.7**2 + 0.7**2) / 2)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_average_precision_follows_its_definition(num_classes: int) -> None:
    """The precision at each true review of a class, from the most probable on; of more classes the mean."""
    logits = np.random.default_rng(0).normal(size=(40, num_classes))
    labels = np.random.default_rng(1).integers(0, num_classes, 40)
    classes = tuple("abc"[:num_classes])
    evaluation = evaluation_of(logits, labels, split="test", checkpoint="best", classes=classes)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = []
    for i in [1] if num_classes == 2 else range(3):
        ranked = labels[np.argsort(-probabilities[:, i])] == i
        precisions = np.cumsum(ranked) / np.arange(1, 41)
        expected.append(precisions[ranked].mean())
    assert evaluation.average_precision == pytest.approx(np.mean(expected))


def test_the_interval_follows_wilsons_formula() -> None:
    labels = np.array([0] * 10)
    logits = np.tile([1.0, 0.0], (10, 1))
    logits[0] = [0.0, 1.0]  # 9 of 10
    evaluation = evaluation_of(logits, labels, split="test", checkpoint="best", classes=("neg", "pos"))
    z, n, p = 1.959964, 10, 0.9
    centre, half = (p + z * z / 2 / n), z * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n)
    low, high = ((centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n))
    assert (evaluation.accuracy_low, evaluation.accuracy_high) == (pytest.approx(low), pytest.approx(high))
    assert evaluation.roc_auc is None  # one class only


def test_f1_is_zero_without_true_or_predicted_positives() -> None:
    logits = np.tile([1.0, 0.0], (10, 1))
    measured = evaluation_of(
        logits, np.zeros(10, np.int64), split="test", checkpoint="best", classes=("neg", "pos")
    )
    assert measured.f1 == 0.0


def test_three_classes_are_scored() -> None:
    logits = np.random.default_rng(0).normal(size=(60, 3))
    labels = np.arange(60) % 3
    evaluation = evaluation_of(logits, labels, split="test", checkpoint="best", classes=("a", "b", "c"))
    assert sum(map(sum, evaluation.confusion)) == 60
    assert evaluation.roc_auc is not None
    assert 0 < evaluation.roc_auc < 1


@pytest.mark.parametrize("num_reviews", [3, 30, 3000])
def test_reviews_without_an_error_leave_room_for_one_among_them(num_reviews: int) -> None:
    """Otherwise they would ask for a temperature of zero, and the first error would cost all."""
    labels = np.arange(num_reviews) % 2
    logits = 8.0 * np.eye(2)[labels]
    best = 8 / np.log(num_reviews + 1)  # the right class has a probability of (N + 1) / (N + 2)
    without_prior = fit_temperature(logits, labels, usual=best)
    assert without_prior == pytest.approx(best, rel=1e-3)
    assert best < fit_temperature(logits, labels, usual=2 * best) < 2 * best


def test_the_doubt_about_a_label_is_shared_by_the_other_classes() -> None:
    labels = np.arange(30) % 3
    best = 8 / np.log(2 * 31)
    assert fit_temperature(8.0 * np.eye(3)[labels], labels, usual=best) == pytest.approx(best, rel=1e-3)


def test_reviews_of_a_single_class_leave_the_usual_temperature() -> None:
    logits = np.tile([[8.0, 0.0]], (3000, 1))
    assert fit_temperature(logits, np.zeros(3000, np.int64), usual=2.0) == 2.0


@pytest.mark.parametrize("usual", [1.0, 10.0])
def test_few_reviews_leave_the_temperature_near_the_usual_and_many_decide_it(usual: float) -> None:
    logits, labels = np.array([[8.0, 0.0]] * 10), np.array([0] * 9 + [1])
    best = 8 / np.log(9)  # 9 of 10 are right
    few = fit_temperature(logits, labels, usual=usual)
    many = fit_temperature(np.tile(logits, (100, 1)), np.tile(labels, 100), usual=usual)
    assert min(usual, best) < few < max(usual, best)
    assert abs(np.log(few / usual)) > 0.2
    assert many == pytest.approx(best, rel=0.02)


def test_scores_are_named_and_rounded_for_people() -> None:
    evaluation = evaluation_of(LOGITS, LABELS, split="test", checkpoint="best", classes=("neg", "pos"))
    told = dict(score_rows(evaluation))
    first = ["reviews", "accuracy", "F1 of pos", "ROC AUC", "average precision of pos"]
    assert list(told) == [*first, "loss", "Brier score", "calibration error"]
    assert told["reviews"] == str(len(LABELS))
    assert told["accuracy"].startswith(f"{100 * evaluation.accuracy:.2f}% (95% interval ")
    assert told["ROC AUC"] == f"{evaluation.roc_auc:.4f}"
    alone = evaluation_of(
        LOGITS, np.zeros_like(LABELS), split="test", checkpoint="best", classes=("neg", "pos")
    )
    assert dict(score_rows(alone))["ROC AUC"] == "undefined: a class is absent"


def test_a_small_split_has_five_calibration_bins_or_bins_of_fifty_reviews() -> None:
    for num_rows, num_bins in ((1, 1), (4, 4), (100, 5), (349, 6), (749, 14), (750, 15), (5000, 15)):
        probabilities = np.tile([0.9, 0.1], (num_rows, 1))
        bins = confidence_bins(probabilities, np.zeros(num_rows, dtype=np.int64))
        assert len(bins) == num_bins
        assert sum(size for _, _, size in bins) == num_rows


def test_each_class_has_precision_recall_f1_and_support() -> None:
    logits = np.log(np.eye(3)[[0, 0, 1, 2, 2]] * 0.8 + 0.1)
    labels = np.array([0, 1, 1, 1, 2])
    evaluation = evaluation_of(logits, labels, split="test", checkpoint="best", classes=("1", "3", "10"))
    per_class = evaluation.per_class.items()
    figures = {name: (each.precision, each.recall, each.support) for name, each in per_class}
    assert figures == {"1": (0.5, 1.0, 1), "3": (1.0, pytest.approx(1 / 3), 3), "10": (0.5, 1.0, 1)}
    assert evaluation.f1 == pytest.approx(np.mean([each.f1 for each in evaluation.per_class.values()]))
    assert evaluation.mean_absolute_error == pytest.approx((2 + 7) / 5)  # 3 taken for 1, and for 10
    shown = as_text(evaluation_tables(evaluation, {}))
    assert "macro F1" in shown
    assert re.search(r"mean absolute error +1\.8000", shown)
    assert "class  precision  recall  F1      support" in shown


@pytest.mark.parametrize("classes", [("a", "b", "c"), ("1", "2", "nan")])
def test_only_classes_that_are_numbers_have_a_mean_error(classes: tuple[str, ...]) -> None:
    evaluation = evaluation_of(np.eye(3), np.arange(3), split="test", checkpoint="best", classes=classes)
    assert evaluation.mean_absolute_error is None
    assert "absolute" not in as_text(evaluation_tables(evaluation, {}))


def test_macro_f1_leaves_out_a_class_that_neither_occurs_nor_is_predicted() -> None:
    labels, predicted = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    logits = np.eye(3)[predicted]
    expected = pytest.approx(f1_score(labels, predicted, average="macro"))
    assert score(logits, labels).f1 == expected
    classes = ("a", "b", "never")
    assert evaluation_of(logits, labels, split="test", checkpoint="r", classes=classes).f1 == expected


def test_f1_of_two_classes_names_its_class() -> None:
    evaluation = evaluation_of(LOGITS, LABELS, split="test", checkpoint="best", classes=("neg", "pos"))
    assert "F1 of pos" in as_text(evaluation_tables(evaluation, {}))
    assert evaluation.f1 == pytest.approx(evaluation.per_class["pos"].f1)


def test_of_many_classes_the_most_frequent_errors_are_shown() -> None:
    labels = np.repeat(np.arange(25), 4)
    predicted = np.where(labels == 3, 7, labels)
    logits = np.eye(25)[predicted]
    names = tuple(f"c{i}" for i in range(25))
    evaluation = evaluation_of(logits, labels, split="test", checkpoint="best", classes=names)
    table = as_text([confusion_table(evaluation)])
    assert [line.split() for line in table.splitlines()[1:]] == [["c3", "c7", "4"]]
