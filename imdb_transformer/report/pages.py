"""The pages of a training, of an evaluation and of a comparison."""

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np

from imdb_transformer import config_file
from imdb_transformer.data.reviews import BREAK_TAG
from imdb_transformer.errors import shortened
from imdb_transformer.evaluation.baseline import yardstick_of
from imdb_transformer.evaluation.compare import Comparison
from imdb_transformer.evaluation.evaluate import Predictions
from imdb_transformer.evaluation.scores import Evaluation
from imdb_transformer.inference.explanation import explain
from imdb_transformer.inference.transformer import TransformerModel
from imdb_transformer.report import evaluations, figures, summaries
from imdb_transformer.report.layout import duration, folded, html_table, percent, tiles, write_page
from imdb_transformer.report.reviews import marked_words, with_breaks
from imdb_transformer.store import metrics, run
from imdb_transformer.training.loop import Update
from imdb_transformer.training.train import result_of

NUM_ERRORS = 20
FILE_NAME = "report.html"
REFRESH_SECONDS = 10  # while the run is training


def with_page(steps: Iterable[Update], folder: Path) -> Iterator[Update]:
    """The steps of a training. Writes the run's page after the first, each checkpoint and the last."""
    update = None
    try:
        for update in steps:
            if update.saved or update.step == 1:
                write_training(folder, update.num_steps)
            yield update
    finally:
        if update is not None:
            write_training(folder, update.num_steps)
    page = run.locate(folder)[0].folder / FILE_NAME
    if update is None and page.exists() and 'http-equiv="refresh"' in page.read_text(encoding="utf-8"):
        write_training(folder, result_of(folder).num_steps)  # the run was killed after its last step


def write_training(folder: Path, num_steps: int) -> Path:
    """Writes the page of a training, running or ended: its progress and its curves."""
    opened, _ = run.locate(folder)
    so_far, status = result_of(folder), opened.info.status
    time_left, is_running = "", status == "running"
    if is_running and 0 < so_far.num_steps < num_steps:
        seconds = so_far.train_seconds * (num_steps / so_far.num_steps - 1)
        time_left = f", about {duration(seconds)} left"
    logged = metrics.read(opened.folder)
    scores = [
        ("step", f"{so_far.num_steps:,} (of {num_steps:,})"),
        ("time", f"{duration(so_far.train_seconds)} ({so_far.tokens_per_second:,.0f} tokens/s)"),
    ]
    if so_far.validation:
        at = f"(at step {so_far.best_step:,})"
        accuracy_of = "accuracy on held-out tokens" if so_far.kind == "encoder" else "validation accuracy"
        scores.append((accuracy_of, f"{percent(so_far.validation.accuracy)} {at}"))
        scores.append(("validation loss", f"{so_far.validation.loss:.4f} {at}"))
    name = opened.folder.name
    drawn = [
        figures.losses({name: logged}),
        figures.accuracies({name: logged}),
        figures.logged_curve(logged, "lr", "Learning rate"),
        figures.logged_curve(logged, "gradient_norm", "Gradient norm"),
    ]
    sections = [
        f'<p class="lead">{status}{time_left}. Written {datetime.now():%Y-%m-%d %H:%M:%S}.</p>',
        f'<progress value="{so_far.num_steps}" max="{num_steps}"></progress>',
        tiles(scores),
        *([html_table(*summaries.class_table(so_far.per_class))] if so_far.per_class else []),
        *_yardstick(opened),
        figures.grid(drawn),
        *_origin(opened),
    ]
    path = opened.folder / FILE_NAME
    write_page(path, f"Training of {name}", sections, refresh_seconds=REFRESH_SECONDS * is_running)
    return path


def write_evaluation(predictions: Predictions, baselines: Mapping[str, Evaluation]) -> Path:
    """Writes the page about an evaluation into its run."""
    opened, evaluation = predictions.run, predictions.evaluation
    num_others = len(predictions.predictor.models) - 1
    name = f"{opened.folder.name} and {num_others} more" if num_others else opened.folder.name
    sections = [
        f'<p class="lead">{html.escape(evaluation.checkpoint)}</p>',
        tiles(evaluations.score_rows(evaluation)),
        _figures({name: predictions}, of_training=not num_others),
        *(html_table(*table) for table in evaluations.evaluation_tables(evaluation, baselines)[1:]),
        *([] if num_others else _yardstick(opened)),
        "<h2>The worst errors</h2>",
        *_errors(predictions),
        *([] if num_others else _origin(opened)),
    ]
    write_page(predictions.page, f"{name} on {evaluation.split}", sections)
    return predictions.page


def write_comparison(path: Path, comparison: Comparison, predictions: Sequence[Predictions]) -> None:
    """Writes a page with the scores of several runs and their curves together."""
    by_name = dict(zip(comparison.runs, predictions, strict=True))
    tables = [html_table(*table) for table in evaluations.comparison_tables(comparison)]
    title = f"{', '.join(by_name)} on {predictions[0].evaluation.split}"
    write_page(path, title, [*tables, _figures(by_name)])


def _figures(by_name: Mapping[str, Predictions], *, of_training: bool = True) -> str:
    """Curves of runs on the same reviews, without those of training if they are of several runs together."""
    curves = [figures.roc(by_name), figures.reliability(by_name)]
    if not of_training:
        return figures.grid(curves)
    logged = {name: metrics.read(each.run.folder) for name, each in by_name.items()}
    levels = {
        name: each.evaluation.accuracy
        for name, each in by_name.items()
        if each.evaluation.split == "validation"
    }
    return figures.grid([figures.losses(logged), figures.accuracies(logged, levels), *curves])


def _yardstick(opened: run.Run) -> list[str]:
    """The comparison with a linear model, from the end of the training."""
    if (comparison := yardstick_of(opened.folder)) is None:
        return []
    text = html.escape(summaries.yardstick(comparison, str(opened.folder))).replace("\n", "<br>")
    return ["<h2>Comparison with a linear model, on validation</h2>", f"<p>{text}</p>"]


def _origin(opened: run.Run) -> list[str]:
    """Config and environment, which open at a click."""
    recorded = opened.folder / run.ENVIRONMENT
    environment = recorded.read_text(errors="replace") if recorded.exists() else "not recorded"
    return [
        "<h2>The run</h2>",
        folded("Config", f"<pre>{html.escape(config_file.dump(opened.config))}</pre>"),
        folded("Environment", f"<pre>{html.escape(environment)}</pre>"),
    ]


def _errors(predictions: Predictions) -> list[str]:
    """The reviews whose true class got the lowest probability, with the words that decided."""
    models, classes = predictions.predictor.models, predictions.evaluation.classes
    can_explain = len(models) == 1 and isinstance(models[0], TransformerModel)
    rows = np.arange(len(predictions.labels))
    losses = -predictions.log_probabilities[rows, predictions.labels]
    wrong = rows[~predictions.correct]
    entries = []
    for i in wrong[np.argsort(-losses[wrong], kind="stable")][:NUM_ERRORS]:
        probabilities, text = np.exp(predictions.log_probabilities[i]), predictions.texts[i]
        best = int(probabilities.argmax())
        answer = (
            f"{classes[best]} at {percent(probabilities[best])}, labelled {classes[predictions.labels[i]]}"
        )
        summary = f"{answer}: {shortened(re.sub(BREAK_TAG, ' ', text, flags=re.IGNORECASE), 80)}"
        words = marked_words(explain(predictions.predictor, text), text) if can_explain else with_breaks(text)
        entries.append(folded(summary, f'<p class="review">{words}</p>'))
    return entries or ["<p>None.</p>"]
