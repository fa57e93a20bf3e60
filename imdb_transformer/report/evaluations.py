"""How good runs are, in tables for the terminal and for pages."""

from collections.abc import Mapping, Sequence

from imdb_transformer.evaluation.compare import Comparison
from imdb_transformer.evaluation.scores import ClassScore, Evaluation
from imdb_transformer.report.layout import Row, percent, text_table

Table = tuple[Sequence[str], Sequence[Row]]  # header, rows


def as_text(tables: Sequence[Table]) -> str:
    """What `imdb-tx eval` and `imdb-tx compare` print."""
    return "\n\n".join(text_table(*table) for table in tables)


def score_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Name and text of each score."""
    raw, calibrated = evaluation.raw, evaluation.calibrated
    classes, error = evaluation.classes, evaluation.mean_absolute_error
    return [
        ("reviews", f"{evaluation.num_examples:,}"),
        ("accuracy", f"{percent(evaluation.accuracy)} (95% interval {_interval(evaluation)})"),
        (f"F1 of {classes[1]}" if len(classes) == 2 else "macro F1", f"{evaluation.f1:.4f}"),
        *([] if error is None else [("mean absolute error", f"{error:.4f}")]),
        ("ROC AUC", _or_undefined(evaluation.roc_auc)),
        ("average precision", _or_undefined(evaluation.average_precision)),
        ("loss", f"{calibrated.loss:.4f} (before calibration {raw.loss:.4f})"),
        ("Brier score", f"{calibrated.brier:.4f} (before calibration {raw.brier:.4f})"),
        ("calibration error", f"{percent(calibrated.ece)} (before calibration {percent(raw.ece)})"),
    ]


def class_table(per_class: Mapping[str, ClassScore]) -> Table:
    """The scores of each class."""
    rows = [
        (name, f"{each.precision:.4f}", f"{each.recall:.4f}", f"{each.f1:.4f}", each.support)
        for name, each in per_class.items()
    ]
    return ("class", "precision", "recall", "F1", "support"), rows


def evaluation_tables(evaluation: Evaluation, baselines: Mapping[str, Evaluation]) -> list[Table]:
    """All scores of an evaluation, and the main ones of baselines."""
    slices = [[name, part.num_examples, percent(part.accuracy)] for name, part in evaluation.slices.items()]
    confusion = zip(evaluation.classes, evaluation.confusion, strict=True)
    tables: list[Table] = [
        ((evaluation.split, evaluation.checkpoint), score_rows(evaluation)),
        class_table(evaluation.per_class),
        (("subset", "reviews", "accuracy"), slices),
        (("true \\ predicted", *evaluation.classes), [[name, *counts] for name, counts in confusion]),
    ]
    return [*tables, side_by_side("baseline", baselines)] if baselines else tables


def comparison_tables(comparison: Comparison) -> list[Table]:
    """How configs differ, the scores, and how accuracies differ."""
    differences = [[key, *map(str, values)] for key, values in comparison.differences.items()]
    pairs = [
        [
            f"{pair.second} - {pair.first}", f"{100 * pair.difference:+.2f}",
            f"{100 * pair.low:+.2f} to {100 * pair.high:+.2f}",
            pair.only_first_right, pair.only_second_right, f"{pair.p_value:.2g}",
        ]
        for pair in comparison.pairs
    ]  # fmt: skip
    header = ("difference", "points", "95% interval", "only first correct", "only second", "p (McNemar)")
    return [
        (("config", *comparison.runs), differences) if differences else (("the configs are the same",), []),
        side_by_side("run", dict(zip(comparison.runs, comparison.evaluations, strict=True))),
        (header, pairs),
    ]


def side_by_side(title: str, evaluations: Mapping[str, Evaluation]) -> Table:
    """The main scores, one row for each evaluation."""
    header = [title, "accuracy", "95% interval", "loss", "calibration error", "ROC AUC"]
    rows = [
        [
            name, percent(each.accuracy), _interval(each), f"{each.loss:.4f}", percent(each.calibrated.ece),
            _or_undefined(each.roc_auc),
        ]
        for name, each in evaluations.items()
    ]  # fmt: skip
    return header, rows


def _interval(evaluation: Evaluation) -> str:
    return f"{100 * evaluation.accuracy_low:.2f} to {100 * evaluation.accuracy_high:.2f}"


def _or_undefined(value: float | None) -> str:
    return "undefined: a class is absent" if value is None else f"{value:.4f}"
