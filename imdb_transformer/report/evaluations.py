"""How good runs are: the same tables on the terminal and on a page, which adds figures and errors."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from imdb_transformer import config_file
from imdb_transformer.evaluation.compare import Comparison
from imdb_transformer.evaluation.evaluate import Answers
from imdb_transformer.evaluation.scores import Evaluation
from imdb_transformer.inference.explanation import explain
from imdb_transformer.inference.transformer import TransformerModel
from imdb_transformer.report import figures
from imdb_transformer.report.page import write_page
from imdb_transformer.report.reviews import marked_words
from imdb_transformer.report.tables import Row, html_table, percent, text_table
from imdb_transformer.store import metrics, run

NUM_ERRORS = 20

Table = tuple[Sequence[str], Sequence[Row]]  # header, rows


def as_text(evaluation: Evaluation, baselines: Mapping[str, Evaluation]) -> str:
    """What `imdb-tx eval` prints."""
    return "\n\n".join(text_table(*table) for table in _tables(evaluation, baselines))


def comparison_as_text(comparison: Comparison) -> str:
    """What `imdb-tx compare` prints."""
    return "\n\n".join(text_table(*table) for table in _comparison_tables(comparison))


def score_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Name and text of each score; scores before calibration are in brackets."""
    raw, calibrated = evaluation.raw, evaluation.calibrated
    return [
        ("reviews", f"{evaluation.num_examples:,}"),
        ("accuracy", f"{percent(evaluation.accuracy)} (95% interval {_interval(evaluation)})"),
        ("F1", f"{evaluation.f1:.4f}"),
        ("ROC AUC", _or_undefined(evaluation.roc_auc)),
        ("average precision", _or_undefined(evaluation.average_precision)),
        ("loss", f"{calibrated.loss:.4f} (before calibration {raw.loss:.4f})"),
        ("Brier score", f"{calibrated.brier:.4f} ({raw.brier:.4f})"),
        ("calibration error", f"{percent(calibrated.ece)} ({percent(raw.ece)})"),
    ]


def _tables(evaluation: Evaluation, baselines: Mapping[str, Evaluation]) -> list[Table]:
    slices = [[name, part.num_examples, percent(part.accuracy)] for name, part in evaluation.slices.items()]
    confusion = zip(evaluation.classes, evaluation.confusion, strict=True)
    tables: list[Table] = [
        ((evaluation.split, evaluation.checkpoint), score_rows(evaluation)),
        (("subset", "reviews", "accuracy"), slices),
        (("true \\ predicted", *evaluation.classes), [[name, *counts] for name, counts in confusion]),
    ]
    return [*tables, _side_by_side("baseline", baselines)] if baselines else tables


def _comparison_tables(comparison: Comparison) -> list[Table]:
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
        _side_by_side("run", dict(zip(comparison.runs, comparison.evaluations, strict=True))),
        (header, pairs),
    ]


def _side_by_side(title: str, evaluations: Mapping[str, Evaluation]) -> Table:
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


def write_report(answers: Answers, baselines: Mapping[str, Evaluation]) -> Path:
    """Writes the page about an evaluation into its run."""
    opened, evaluation = answers.run, answers.evaluation
    num_others = len(answers.predictor.models) - 1
    recorded = opened.folder / run.ENVIRONMENT
    environment = recorded.read_text(errors="replace") if recorded.exists() else "not recorded"
    title = f"{opened.folder.name}{f' and {num_others} more' if num_others else ''} on {evaluation.split}"
    sections = [
        *(html_table(*table) for table in _tables(evaluation, baselines)),
        figures.grid(_figures(answers)),
        f"<h2>The {NUM_ERRORS} worst errors</h2>",
        *_errors(answers),
        "<h2>Config</h2>",
        f"<pre>{html.escape(config_file.dump(opened.config))}</pre>",
        "<h2>Environment</h2>",
        f"<pre>{html.escape(environment)}</pre>",
    ]
    path = opened.folder / "report.html"
    write_page(path, title, sections)
    return path


def write_comparison(path: Path, comparison: Comparison, answers: Sequence[Answers]) -> None:
    """Writes a page with the scores of several runs and their curves together."""
    by_name = dict(zip(comparison.runs, answers, strict=True))
    logged = {name: metrics.read(each.run.folder) for name, each in by_name.items()}
    probabilities = {name: np.exp(each.log_probabilities) for name, each in by_name.items()}
    errors = {name: each.evaluation.calibrated.ece for name, each in by_name.items()}
    labels, evaluation = answers[0].labels, answers[0].evaluation
    sections = [
        *(html_table(*table) for table in _comparison_tables(comparison)),
        figures.grid([
            figures.losses(logged),
            figures.validations(logged),
            figures.roc(probabilities, labels, evaluation.classes),
            figures.reliability(probabilities, labels, errors),
        ]),
    ]  # fmt: skip
    write_page(path, f"{', '.join(by_name)} on {evaluation.split}", sections)


def _figures(answers: Answers) -> list[figures.Drawing | None]:
    evaluation, name = answers.evaluation, answers.run.folder.name
    calibrated = np.exp(answers.log_probabilities)
    both = {"before": np.exp(answers.raw_log_probabilities), "after calibration": calibrated}
    errors = {"before": evaluation.raw.ece, "after calibration": evaluation.calibrated.ece}
    logged = {name: metrics.read(answers.run.folder)}
    return [
        figures.losses(logged),
        figures.validations(logged),
        figures.roc({name: calibrated}, answers.labels, evaluation.classes),
        figures.reliability(both, answers.labels, errors),
        figures.confusion(evaluation),
        figures.slices(evaluation),
    ]


def _errors(answers: Answers) -> list[str]:
    """The wrong answers of the highest confidence, with the words that decided."""
    models, classes = answers.predictor.models, answers.evaluation.classes
    can_explain = len(models) == 1 and isinstance(models[0], TransformerModel)
    rows = np.arange(len(answers.labels))
    losses = -answers.log_probabilities[rows, answers.labels]
    wrong = rows[~answers.correct]
    entries = []
    for i in wrong[np.argsort(-losses[wrong], kind="stable")][:NUM_ERRORS]:
        probabilities, text = np.exp(answers.log_probabilities[i]), answers.texts[i]
        best = int(probabilities.argmax())
        answer = f"{classes[best]} at {percent(probabilities[best])}, labelled {classes[answers.labels[i]]}"
        words = marked_words(explain(answers.predictor, text)) if can_explain else html.escape(text)
        entries.append(
            f"<details><summary>{html.escape(f'{answer}: {text[:80]}')}</summary><p>{words}</p></details>"
        )
    return entries or ["<p>None.</p>"]
