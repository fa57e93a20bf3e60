"""Figures as SVG text, each with a sentence that says what it shows.

Shapes: N reviews, C classes.
"""

import html
import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

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
BLUE, ORANGE = "#3b7dd8", "#d9822b"  # distinct in light and dark, and for the colour-blind
COLOURS = (BLUE, ORANGE, *(f"C{i}" for i in range(2, 10)))

Metrics = Sequence[dict[str, Any]]
Probabilities = NDArray[np.float64]  # (N, C)
Labels = NDArray[np.int64]  # (N,)
Curve = tuple[ArrayLike, ArrayLike]  # x, y


class Drawing(NamedTuple):
    """A figure of a page."""

    title: str
    description: str
    svg: str


def grid(drawings: Iterable[Drawing | None]) -> str:
    """The figures that exist, each with its title and description."""
    figures = [
        f'<figure><div role="img" aria-label="{html.escape(drawing.description)}">{drawing.svg}</div>'
        f"<figcaption><b>{drawing.title}.</b> {html.escape(drawing.description)}</figcaption></figure>"
        for drawing in drawings
        if drawing is not None
    ]
    return f'<h2>Figures</h2>\n<div class="figures">{"".join(figures)}</div>'


def losses(by_run: Mapping[str, Metrics]) -> Drawing | None:
    """Training loss of each run against the step, averaged over a fiftieth of the steps; None without any."""
    curves: dict[str, Curve] = {}
    texts = []
    for name, metrics in by_run.items():
        points = [(line["step"], line["loss"]) for line in metrics if "loss" in line]
        if points:
            steps, values = np.array(points).T
            window = max(1, len(values) // 50)
            means = np.convolve(values, np.ones(window) / window, mode="valid")
            curves[name] = steps[window - 1 :], means
            texts.append(f"{name} from {means[0]:.3f} to {means[-1]:.3f} in {int(steps[-1]):,} steps")
    description = f"Loss against step: {', '.join(texts)}."
    return _curves(curves, "Training loss", description, x="step", y="training loss") if curves else None


def validations(by_run: Mapping[str, Metrics]) -> Drawing | None:
    """Validation accuracy of each run against the step; None if no run was validated."""
    curves: dict[str, Curve] = {}
    texts = []
    for name, metrics in by_run.items():
        points = [(line["step"], line["validation"]["accuracy"]) for line in metrics if "validation" in line]
        if points:
            steps, accuracies = np.array(points).T
            curves[name] = steps, 100 * accuracies
            texts.append(f"{name} {100 * accuracies.max():.2f}%")
    if not curves:
        return None
    description = f"Accuracy against step; the best: {', '.join(texts)}."
    return _curves(
        curves, "Validation accuracy", description, x="step", y="validation accuracy, %", marker="o"
    )


def roc(by_name: Mapping[str, Probabilities], labels: Labels, classes: Sequence[str]) -> Drawing | None:
    """True against false positives of the second of two classes; None if the split lacks a class."""
    from sklearn.metrics import auc, roc_curve

    if len(classes) != 2 or len(set(labels.tolist())) != 2:
        return None
    curves = {name: roc_curve(labels, each[:, 1])[:2] for name, each in by_name.items()}
    areas = ", ".join(f"{name} {auc(*curve):.4f}" for name, curve in curves.items())
    description = f"ROC curve of {classes[1]!r}; the area under it: {areas}."
    return _curves(curves, "ROC", description, x="false positive rate", y="true positive rate", diagonal=0)


def reliability(by_name: Mapping[str, Probabilities], labels: Labels, errors: Mapping[str, float]) -> Drawing:
    """Accuracy against confidence over bins of equally many reviews; `errors` are the calibration errors."""
    curves: dict[str, Curve] = {}
    for name, probabilities in by_name.items():
        confidence, accuracy, _ = zip(*confidence_bins(probabilities, labels), strict=True)
        curves[name] = confidence, accuracy
        chance = 1 / probabilities.shape[1]
    texts = ", ".join(f"{name} {100 * error:.2f}%" for name, error in errors.items())
    description = f"Accuracy against confidence; the calibration error: {texts}."
    return _curves(
        curves, "Reliability", description, x="confidence", y="accuracy", marker="o", diagonal=chance
    )


@matplotlib.rc_context(STYLE)
def confusion(evaluation: Evaluation) -> Drawing:
    """Counts by true and predicted class."""
    from sklearn.metrics import ConfusionMatrixDisplay

    figure, axes = _axes()
    counts = np.array(evaluation.confusion)
    display = ConfusionMatrixDisplay(counts, display_labels=evaluation.classes)
    display.plot(ax=axes, cmap="Blues", values_format=",d", colorbar=False)
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


@matplotlib.rc_context(STYLE)
def _curves(
    curves: Mapping[str, Curve], title: str, description: str, *, x: str, y: str, marker: str = "",
    diagonal: float | None = None,
) -> Drawing:  # fmt: skip
    """A curve for each run, and a dotted diagonal from `diagonal` to 1."""
    figure, axes = _axes(x, y)
    for colour, (name, curve) in zip(cycle(COLOURS), curves.items(), strict=False):
        # A wide legend would leave no room for the curves.
        label = name if len(name) <= LEGEND_WIDTH else f"…{name[1 - LEGEND_WIDTH :]}"
        axes.plot(*curve, color=colour, marker=marker, markersize=3, label=label)
    if diagonal is not None:
        axes.plot([diagonal, 1], [diagonal, 1], color="grey", linestyle=":")
    if len(curves) > 1:
        axes.legend(frameon=False)
    return _drawing(title, description, figure)


def _axes(x: str = "", y: str = "") -> tuple[Figure, Any]:
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
