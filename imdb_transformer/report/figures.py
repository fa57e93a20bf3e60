"""Figures of a page as HTML, each with a description. A figure without data is empty."""

import html
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from imdb_transformer.evaluation.evaluate import Predictions
from imdb_transformer.evaluation.scores import confidence_bins
from imdb_transformer.report import charts
from imdb_transformer.report.charts import Curve

NUM_MEANS = 50  # points of a training curve, each the mean of a fiftieth of the steps
NUM_POINTS = 200  # of a ROC curve; more make no visible difference

MetricsLines = Sequence[dict[str, Any]]


def grid(figures: Iterable[str]) -> str:
    """The figures side by side, if there is room."""
    return f'<div class="figures">{"".join(figures)}</div>'


def _figure(title: str, description: str, drawn: Sequence[Curve], svg: str) -> str:
    """A chart with its title and description, and the names of the curves if there are several."""
    description = html.escape(description)
    names = {curve.colour: html.escape(curve.name) for curve in drawn}
    entries = "".join(
        f'<span class="c{colour % charts.COLOURS}"><i></i>{name}</span>' for colour, name in names.items()
    )
    legend = f'<div class="legend">{entries}</div>' if len(names) > 1 else ""
    return (
        f"<figure><figcaption><b>{title}</b><span>{description}</span></figcaption>{legend}"
        f'<div role="img" aria-label="{description}">{svg}</div></figure>'
    )


def losses(by_run: Mapping[str, MetricsLines]) -> str:
    """Loss of each run against the step, in training and on validation."""
    drawn, texts = [], []
    alone = len(by_run) == 1
    for i, (name, metrics) in enumerate(by_run.items()):
        training = binned_means([(line["step"], line["loss"]) for line in metrics if "loss" in line])
        validation = [(line["step"], line["validation"]["loss"]) for line in metrics if "validation" in line]
        prefix = "" if alone else f"{name}, "
        if training:
            labelled = None if validation else training[-1]
            drawn.append(Curve(f"{prefix}training", training, i, "thin", labelled))
            first, last = training[0][1], training[-1][1]
            texts.append(f"{name} from {first:.3f} to {last:.3f} in {training[-1][0]:,} steps")
        if validation:
            best = min(validation, key=itemgetter(1))
            drawn.append(Curve(f"{prefix}validation", validation, i + alone, "dots", best))
    if not drawn:
        return ""
    kinds = "" if alone else " Thin lines are training, lines with dots validation."
    svg = charts.line_chart(drawn, "step", "loss", digits=3)
    legend = drawn if alone else [curve._replace(name=list(by_run)[curve.colour]) for curve in drawn]
    return _figure("Loss", f"Training: {', '.join(texts)}.{kinds}", legend, svg)


def accuracies(by_run: Mapping[str, MetricsLines], levels: Mapping[str, float] | None = None) -> str:
    """Validation accuracy of each run against the step; empty if no run was validated.

    A run without steps, such as a linear model, is a dashed line at its accuracy in `levels`.
    """
    drawn, texts = [], []
    last = max((line["step"] for metrics in by_run.values() for line in metrics), default=0)
    for i, (name, metrics) in enumerate(by_run.items()):
        validated = [line for line in metrics if "validation" in line]
        points = [(line["step"], 100 * line["validation"]["accuracy"]) for line in validated]
        if points:
            best = max(points, key=itemgetter(1))
            drawn.append(Curve(name, points, i + (len(by_run) == 1), "dots", best))
            texts.append(f"{name} {best[1]:.2f}%")
        elif last and levels and not metrics:
            level = 100 * levels[name]
            drawn.append(Curve(name, [(0, level), (last, level)], i, "level", (last, level)))
            texts.append(f"{name} {level:.2f}% (dashed)")
    if not drawn:
        return ""
    values = [y for curve in drawn for _, y in curve.points]
    y_range = (min(*values, max(values) - 1), max(values))
    svg = charts.line_chart(drawn, "step", "accuracy, %", digits=2, y_range=y_range)
    description = f"The best: {', '.join(texts)}. The axis starts at {charts.ticks(*y_range)[0]:g}%."
    return _figure("Validation accuracy", description, drawn, svg)


def logged_curve(metrics: MetricsLines, key: str, title: str) -> str:
    """A number that each step logs, such as the learning rate, against the step."""
    points = binned_means([(line["step"], line[key]) for line in metrics if key in line])
    if not points:
        return ""
    drawn = [Curve(title, points, 0)]
    svg = charts.line_chart(drawn, "step", title.lower(), digits=5)
    return _figure(title, f"From {points[0][1]:.3g} to {points[-1][1]:.3g}.", drawn, svg)


def binned_means(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most 50 points. Each is the mean of several steps, and lies at the last of them.

    >>> binned_means([(step, step) for step in range(1, 101)])[:2]
    [(2, 1.5), (4, 3.5)]
    """
    size = -(-len(points) // NUM_MEANS)
    parts = [points[i : i + size] for i in range(0, len(points), size)] if points else []
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]


def roc(by_name: Mapping[str, Predictions]) -> str:
    """True against false positives of the second of two classes; empty if the split lacks a class."""
    from sklearn.metrics import roc_curve

    drawn, areas = [], []
    for i, (name, each) in enumerate(by_name.items()):
        evaluation = each.evaluation
        if len(evaluation.classes) != 2 or evaluation.roc_auc is None:
            return ""
        x, y, _ = roc_curve(each.labels, np.exp(each.log_probabilities[:, 1]))
        points = np.unique(np.linspace(0, len(x) - 1, NUM_POINTS).astype(int))
        drawn.append(Curve(name, list(zip(x[points].tolist(), y[points].tolist(), strict=True)), i))
        areas.append(f"{name} {evaluation.roc_auc:.4f}")
    svg = charts.line_chart(drawn, "false positive rate", "true positive rate", digits=3, diagonal=0)
    return _figure("ROC", f"Class {evaluation.classes[1]!r}; AUC: {', '.join(areas)}.", drawn, svg)


def reliability(by_name: Mapping[str, Predictions]) -> str:
    """Accuracy against confidence in bins of equally many reviews. A run alone is also shown uncalibrated."""
    first = next(iter(by_name.values()))
    shown = [(name, each.log_probabilities, each.evaluation.calibrated) for name, each in by_name.items()]
    if len(by_name) == 1:
        shown = [
            ("before calibration", first.raw_log_probabilities, first.evaluation.raw),
            ("after", first.log_probabilities, first.evaluation.calibrated),
        ]
    drawn = []
    for i, (name, log_probabilities, _) in enumerate(shown):
        bins = confidence_bins(np.exp(log_probabilities), first.labels)
        drawn.append(Curve(name, [(confidence, accuracy) for confidence, accuracy, _ in bins], i, "dots"))
    chance = 1 / len(first.evaluation.classes)
    lowest = min(chance, *(accuracy for curve in drawn for _, accuracy in curve.points))
    svg = charts.line_chart(drawn, "confidence", "accuracy", digits=3, y_range=(lowest, 1), diagonal=chance)
    errors = ", ".join(f"{name} {100 * calibration.ece:.2f}%" for name, _, calibration in shown)
    return _figure("Reliability", f"Calibration error: {errors}.", drawn, svg)
