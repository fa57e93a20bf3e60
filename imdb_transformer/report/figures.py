"""Figures as SVG text, each with a sentence that says what it shows.

Shapes: N reviews, C classes.
"""

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from imdb_transformer.evaluation.scores import Evaluation, confidence_bins

LEGEND_WIDTH = 40  # characters
SIZE = (5.0, 3.4)  # inches; the page scales them
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a class may be called $$
    "svg.hashsalt": "imdb-tx",  # the same figure gives the same bytes
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
}
GREY = "#888888"
BLUE, ORANGE = "#3b7dd8", "#d9822b"  # distinct in light and dark, and for the colour-blind
COLOURS = (BLUE, ORANGE, *(f"C{i}" for i in range(2, 10)))

Metrics = Sequence[dict[str, Any]]
Probabilities = NDArray[np.float64]  # (N, C)
Labels = NDArray[np.int64]  # (N,)
Curve = tuple[NDArray[np.float64], NDArray[np.float64]]  # x, y


class Drawing(NamedTuple):
    """A figure of a page."""

    title: str
    description: str
    svg: str


def losses(by_run: Mapping[str, Metrics]) -> Drawing | None:
    """Training loss of each run against the step; None if nothing was logged."""
    curves = {name: curve for name, metrics in by_run.items() if (curve := _loss_curve(metrics))}
    texts = ", ".join(
        f"{name} from {values[0]:.3f} to {values[-1]:.3f} in {int(steps[-1]):,} steps"
        for name, (steps, values) in curves.items()
    )
    return _curves(curves, "Training loss", "training loss", f"Loss against step: {texts}.")


def validations(by_run: Mapping[str, Metrics]) -> Drawing | None:
    """Validation accuracy of each run against the step; None if no run was validated."""
    curves = {name: curve for name, metrics in by_run.items() if (curve := _accuracy_curve(metrics))}
    texts = ", ".join(f"{name} {values.max():.2f}%" for name, (_, values) in curves.items())
    description = f"Accuracy against step; the best: {texts}."
    return _curves(curves, "Validation accuracy", "validation accuracy, %", description, marker="o")


@matplotlib.rc_context(STYLE)
def roc(by_name: Mapping[str, Probabilities], labels: Labels, classes: Sequence[str]) -> Drawing | None:
    """True against false positives of the second of two classes; None if the split lacks a class."""
    from sklearn.metrics import auc, roc_curve

    if len(classes) != 2 or len(set(labels.tolist())) != 2:
        return None
    figure, axes = _axes("false positive rate", "true positive rate")
    areas = []
    for colour, (name, probabilities) in zip(cycle(COLOURS), by_name.items(), strict=False):
        false_rate, true_rate, _ = roc_curve(labels, probabilities[:, 1])
        axes.plot(false_rate, true_rate, color=colour, label=_short(name))
        areas.append(f"{name} {auc(false_rate, true_rate):.4f}")
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":")
    if len(by_name) > 1:
        axes.legend(frameon=False)
    return _drawing("ROC", f"ROC curve of {classes[1]!r}; the area under it: {', '.join(areas)}.", figure)


@matplotlib.rc_context(STYLE)
def reliability(by_name: Mapping[str, Probabilities], labels: Labels, errors: Mapping[str, float]) -> Drawing:
    """Accuracy against confidence over bins of equally many reviews; `errors` are the calibration errors."""
    figure, axes = _axes("confidence", "accuracy")
    for colour, (name, probabilities) in zip(cycle(COLOURS), by_name.items(), strict=False):
        confidence, accuracy, _ = zip(*confidence_bins(probabilities, labels), strict=True)
        axes.plot(confidence, accuracy, color=colour, marker="o", markersize=3, label=_short(name))
        chance = 1 / probabilities.shape[1]
    axes.plot([chance, 1], [chance, 1], color=GREY, linestyle=":")
    axes.legend(frameon=False)
    texts = ", ".join(f"{name} {100 * error:.2f}%" for name, error in errors.items())
    return _drawing("Reliability", f"Accuracy against confidence; the calibration error: {texts}.", figure)


@matplotlib.rc_context(STYLE)
def confusion(evaluation: Evaluation) -> Drawing:
    """Counts by true and predicted class."""
    figure, axes = _axes("predicted", "true")
    counts = np.array(evaluation.confusion)
    axes.imshow(counts / np.maximum(counts.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    for (i, j), count in np.ndenumerate(counts):
        is_dark = count > counts[i].sum() / 2
        axes.text(j, i, f"{count:,}", ha="center", va="center", color="white" if is_dark else "#222222")
    axes.set_xticks(range(len(counts)), evaluation.classes)
    axes.set_yticks(range(len(counts)), evaluation.classes)
    description = f"{np.trace(counts):,} of {evaluation.num_examples:,} reviews are on the diagonal."
    return _drawing("Confusion", description, figure)


@matplotlib.rc_context(STYLE)
def slices(evaluation: Evaluation) -> Drawing | None:
    """Accuracy of each slice of the reviews."""
    if not evaluation.slices:
        return None
    figure, axes = _axes("accuracy, %")
    accuracies = {name: 100 * part.accuracy for name, part in evaluation.slices.items()}
    axes.barh(list(accuracies), list(accuracies.values()), color=BLUE)
    axes.invert_yaxis()
    axes.set_xlim(max(0, min(accuracies.values()) - 5), 100)
    texts = ", ".join(f"{name} {accuracy:.1f}%" for name, accuracy in accuracies.items())
    return _drawing("Accuracy by kind of review", f"Accuracy: {texts}.", figure)


def _loss_curve(metrics: Metrics) -> Curve | None:
    """Steps, and the training loss averaged over a fiftieth of them."""
    points = [(line["step"], line["loss"]) for line in metrics if "loss" in line]
    if not points:
        return None
    steps, values = np.array(points).T
    window = max(1, len(values) // 50)
    return steps[window - 1 :], np.convolve(values, np.ones(window) / window, mode="valid")


def _accuracy_curve(metrics: Metrics) -> Curve | None:
    """Steps, and the validation accuracy in percent."""
    points = [(line["step"], line["validation"]["accuracy"]) for line in metrics if "validation" in line]
    if not points:
        return None
    steps, values = np.array(points).T
    return steps, 100 * values


@matplotlib.rc_context(STYLE)
def _curves(
    curves: Mapping[str, Curve], title: str, y: str, description: str, marker: str = ""
) -> Drawing | None:
    """A curve for each run; None if there is none."""
    if not curves:
        return None
    figure, axes = _axes("step", y)
    for colour, (name, curve) in zip(cycle(COLOURS), curves.items(), strict=False):
        axes.plot(*curve, color=colour, marker=marker, markersize=3, label=_short(name))
    if len(curves) > 1:
        axes.legend(frameon=False)
    return _drawing(title, description, figure)


def _short(name: str) -> str:
    """The end of a long name: a wide legend would leave no room for the curves."""
    return name if len(name) <= LEGEND_WIDTH else f"…{name[1 - LEGEND_WIDTH :]}"


def _axes(x: str, y: str = "") -> tuple[Figure, Any]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _drawing(title: str, description: str, figure: Figure) -> Drawing:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # Black becomes the page's text colour, which is readable in dark mode.
    return Drawing(title, description, svg.replace("#000000", "currentColor"))
