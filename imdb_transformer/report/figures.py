"""Figures as SVG text, each with words that say what it shows.

Shapes: N reviews, C classes.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from imdb_transformer.evaluation.figures import Evaluation, confidence_bins

LEGEND_WIDTH = 40  # characters
SIZE = (5.0, 3.4)  # inches; the page scales them
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a class may be called $$
    "svg.hashsalt": "imdb-tx",  # the same figure, the same bytes
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
}
GREY = "#888888"
BLUE, ORANGE = "#3b7dd8", "#d9822b"  # told apart in light and dark, and by the colour-blind

Metrics = Sequence[dict[str, Any]]
Probabilities = NDArray[np.float64]  # (N, C)
Labels = NDArray[np.int64]  # (N,)


class Plot(NamedTuple):
    """A figure of the report."""

    title: str
    description: str
    svg: str


@matplotlib.rc_context(STYLE)
def learning_curves(metrics: Metrics) -> Plot | None:
    """Training loss and validation accuracy against the step; none where nothing was logged."""
    losses = [(line["step"], line["loss"]) for line in metrics if "loss" in line]
    validations = [(line["step"], line["validation"]["accuracy"]) for line in metrics if "validation" in line]
    if not losses:
        return None
    figure, axes = _axes()
    steps, smooth = _smooth(losses)
    axes.plot(steps, smooth, color=BLUE, label="training loss")
    axes.set_xlabel("step")
    axes.set_ylabel("training loss", color=BLUE)
    description = f"Training loss goes from {smooth[0]:.3f} to {smooth[-1]:.3f} in {int(steps[-1]):,} steps."
    if validations:
        right = axes.twinx()
        at, accuracies = np.array(validations).T
        right.plot(at, 100 * accuracies, color=ORANGE, marker="o", markersize=3)
        right.set_ylabel("validation accuracy, %", color=ORANGE)
        description += f" The best validation accuracy is {100 * accuracies.max():.2f}%."
    return _plot("Learning curves", description, figure)


@matplotlib.rc_context(STYLE)
def losses(by_run: Mapping[str, Metrics]) -> Plot | None:
    """Training loss of several runs against the step; none where nothing was logged."""
    figure, axes = _axes()
    ends = []
    for colour, (name, metrics) in zip(_colours(), by_run.items(), strict=False):
        points = [(line["step"], line["loss"]) for line in metrics if "loss" in line]
        if points:
            steps, values = _smooth(points)
            axes.plot(steps, values, color=colour, label=_short(name))
            ends.append(f"{name} {values[-1]:.3f}")
    if not ends:
        return None
    _label(axes, "step", "training loss", legend=True)
    return _plot("Training loss", f"Training loss at the end: {', '.join(ends)}.", figure)


@matplotlib.rc_context(STYLE)
def validations(by_run: Mapping[str, Metrics]) -> Plot | None:
    """Validation accuracy of several runs against the step; none where none was validated."""
    figure, axes = _axes()
    bests = []
    for colour, (name, metrics) in zip(_colours(), by_run.items(), strict=False):
        points = [(line["step"], line["validation"]["accuracy"]) for line in metrics if "validation" in line]
        if points:
            steps, values = np.array(points).T
            axes.plot(steps, 100 * values, color=colour, marker="o", markersize=3, label=_short(name))
            bests.append(f"{name} {100 * values.max():.2f}%")
    if not bests:
        return None
    _label(axes, "step", "validation accuracy, %", legend=True)
    return _plot("Validation accuracy", f"The best validation accuracy: {', '.join(bests)}.", figure)


@matplotlib.rc_context(STYLE)
def roc(by_name: Mapping[str, Probabilities], labels: Labels, classes: Sequence[str]) -> Plot | None:
    """True against false positives, of the second of two classes; none where the split lacks a class."""
    from sklearn.metrics import auc, roc_curve

    if len(classes) != 2 or len(set(labels.tolist())) != 2:
        return None
    figure, axes = _axes()
    areas = []
    for colour, (name, probabilities) in zip(_colours(), by_name.items(), strict=False):
        false_rate, true_rate, _ = roc_curve(labels, probabilities[:, 1])
        axes.plot(false_rate, true_rate, color=colour, label=_short(name))
        areas.append(f"{name} {auc(false_rate, true_rate):.4f}")
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":")
    _label(axes, "false positive rate", "true positive rate", legend=len(by_name) > 1)
    return _plot("ROC", f"ROC curve of {classes[1]!r}; the area under it: {', '.join(areas)}.", figure)


@matplotlib.rc_context(STYLE)
def reliability(by_name: Mapping[str, Probabilities], labels: Labels, errors: Mapping[str, float]) -> Plot:
    """Accuracy against confidence over bins of as many reviews each; `errors` are the calibration errors."""
    figure, axes = _axes()
    for colour, (name, probabilities) in zip(_colours(), by_name.items(), strict=False):
        confidence, accuracy, _ = zip(*confidence_bins(probabilities, labels), strict=True)
        axes.plot(confidence, accuracy, color=colour, marker="o", markersize=3, label=_short(name))
        low = 1 / probabilities.shape[1]
    axes.plot([low, 1], [low, 1], color=GREY, linestyle=":")
    _label(axes, "confidence", "accuracy", legend=True)
    told = ", ".join(f"{name} {100 * error:.2f}%" for name, error in errors.items())
    return _plot("Reliability", f"Accuracy against confidence; the calibration error: {told}.", figure)


@matplotlib.rc_context(STYLE)
def confusion(found: Evaluation) -> Plot:
    """Counts by true and predicted class."""
    figure, axes = _axes()
    counts = np.array(found.confusion)
    axes.imshow(counts / np.maximum(counts.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    for (i, j), count in np.ndenumerate(counts):
        dark = count > counts[i].sum() / 2
        axes.text(j, i, f"{count:,}", ha="center", va="center", color="white" if dark else "#222222")
    axes.set_xticks(range(len(found.classes)), found.classes)
    axes.set_yticks(range(len(found.classes)), found.classes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    right = sum(counts[i, i] for i in range(len(counts)))
    return _plot("Confusion", f"{right:,} of {found.num_examples:,} reviews are on the diagonal.", figure)


@matplotlib.rc_context(STYLE)
def slices(found: Evaluation) -> Plot | None:
    """Accuracy of each slice of the reviews."""
    if not found.slices:
        return None
    figure, axes = _axes()
    names = list(found.slices)[::-1]
    accuracies = [100 * found.slices[name].accuracy for name in names]
    axes.barh(names, accuracies, color=BLUE)
    axes.set_xlim(max(0, min(accuracies) - 5), 100)
    axes.set_xlabel("accuracy, %")
    parts = ", ".join(
        f"{name} {value:.1f}%" for name, value in zip(names[::-1], accuracies[::-1], strict=True)
    )
    return _plot("Accuracy by kind of review", f"Accuracy: {parts}.", figure)


def _smooth(points: Sequence[tuple[int, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps, and the mean over a fiftieth of them."""
    steps, values = np.array(points).T
    window = max(1, len(values) // 50)
    return steps[window - 1 :], np.convolve(values, np.ones(window) / window, mode="valid")


def _colours() -> Iterator[str]:
    """One after another, beginning with the two that the report uses."""
    return cycle([BLUE, ORANGE, *(f"C{i}" for i in range(2, 10))])


def _short(name: str) -> str:
    """The end of a long name: a legend as wide as the figure leaves no room for the curves."""
    return name if len(name) <= LEGEND_WIDTH else f"…{name[1 - LEGEND_WIDTH :]}"


def _label(axes: Any, x: str, y: str, *, legend: bool) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if legend:
        axes.legend(frameon=False)


def _axes() -> tuple[Figure, Any]:
    figure = Figure(figsize=SIZE, layout="constrained")
    return figure, figure.subplots()


def _plot(title: str, description: str, figure: Figure) -> Plot:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # What is black takes the page's colour of text, so that it can be read in the dark.
    return Plot(title, description, svg.replace("#000000", "currentColor"))
