"""How good runs are and where they fail, as self-contained pages that fetch nothing."""

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from imdb_transformer import config_file
from imdb_transformer.evaluation.compare import Comparison
from imdb_transformer.evaluation.evaluate import Answers
from imdb_transformer.evaluation.figures import Evaluation
from imdb_transformer.inference.explanation import explain
from imdb_transformer.inference.transformer import EncoderModel
from imdb_transformer.report import figures
from imdb_transformer.report.marking import marked_words
from imdb_transformer.report.page import figures_of, table_of, write_page
from imdb_transformer.report.words import figures as figure_rows
from imdb_transformer.store import metrics, run

NUM_ERRORS = 20


def write_report(paths: Sequence[Path], found: Answers, baselines: Mapping[str, Evaluation]) -> Path:
    """Writes the page about what runs say of a split into the first one's folder, beside linear baselines."""
    opened = run.locate(paths[0])[0]
    evaluation = found.evaluation
    title = f"{' + '.join(path.name for path in paths)} on {evaluation.split}"
    sections = [
        _figures(opened.folder.name, evaluation, baselines),
        figures_of(_plots(opened, found)),
        f"<h2>The {NUM_ERRORS} worst errors</h2>",
        *_errors(found),
        "<h2>Config</h2>",
        f"<pre>{html.escape(config_file.dump(opened.config))}</pre>",
        "<h2>Environment</h2>",
        f"<pre>{html.escape(_environment(opened))}</pre>",
    ]
    path = opened.folder / "report.html"
    write_page(path, title, sections)
    return path


def write_comparison(path: Path, compared: Comparison, found: Sequence[Answers]) -> None:
    """Writes a page with the runs' figures and their curves together."""
    opened = {name: run.locate(Path(name))[0] for name in compared.runs}
    logged = {name: metrics.read(own.folder) for name, own in opened.items()}
    answered = {name: np.exp(own.log_probabilities) for name, own in zip(compared.runs, found, strict=True)}
    labels, evaluations = found[0].labels, dict(zip(compared.runs, compared.evaluations, strict=True))
    drawn = [
        figures.losses(logged),
        figures.validations(logged),
        figures.roc(answered, labels, evaluations[compared.runs[0]].classes),
        figures.reliability(
            answered, labels, {name: own.calibrated.ece for name, own in evaluations.items()}
        ),
    ]
    differences = {key: list(map(str, values)) for key, values in compared.differences.items()}
    pairs = {
        f"{pair.second} less {pair.first}": [
            f"{100 * pair.difference:+.2f} points (95% interval {100 * pair.low:+.2f} to "
            f"{100 * pair.high:+.2f}), p = {pair.p_value:.2g} (McNemar)"
        ]
        for pair in compared.pairs
    }
    sections = [
        table_of(compared.runs, _figures_by_name(evaluations)),
        table_of(["difference in accuracy"], pairs),
        figures_of(drawn),
        "<h2>Configs</h2>", table_of(compared.runs, differences) if differences else "<p>The same.</p>",
    ]  # fmt: skip
    write_page(path, f"{', '.join(compared.runs)} on {found[0].evaluation.split}", sections)


def _figures(name: str, found: Evaluation, baselines: Mapping[str, Evaluation]) -> str:
    rows = _figures_by_name({name: found, **baselines})
    return table_of([name, *baselines] if baselines else [], {**rows, "checkpoint": [found.checkpoint]})


def _figures_by_name(found: Mapping[str, Evaluation]) -> dict[str, list[str]]:
    columns = [dict(figure_rows(evaluation)) for evaluation in found.values()]
    names = dict.fromkeys(name for column in columns for name in column)
    return {name: [column.get(name, "-") for column in columns] for name in names}


def _plots(opened: run.Run, found: Answers) -> list[figures.Plot | None]:
    raw, calibrated = np.exp(found.raw_log_probabilities), np.exp(found.log_probabilities)
    evaluation = found.evaluation
    errors = {"before": evaluation.raw.ece, "after calibration": evaluation.calibrated.ece}
    return [
        figures.learning_curves(metrics.read(opened.folder)),
        figures.roc({opened.folder.name: calibrated}, found.labels, evaluation.classes),
        figures.reliability(dict(zip(errors, (raw, calibrated), strict=True)), found.labels, errors),
        figures.confusion(evaluation),
        figures.slices(evaluation),
    ]


def _errors(found: Answers) -> list[str]:
    """The reviews that the model was surest and wrong about, with the words that decided."""
    predictor = found.predictor
    explained = len(predictor.models) == 1 and isinstance(predictor.models[0], EncoderModel)
    rows = np.arange(len(found.labels))
    losses = -found.log_probabilities[rows, found.labels]
    wrong = rows[~found.correct]
    classes = found.evaluation.classes
    entries = []
    for i in wrong[np.argsort(-losses[wrong], kind="stable")][:NUM_ERRORS]:
        probabilities = np.exp(found.log_probabilities[i])
        answer = int(probabilities.argmax())
        text = found.texts[i]
        words = marked_words(explain(predictor, text)) if explained else html.escape(text)
        title = (
            f"{classes[answer]} at {100 * probabilities[answer]:.2f}%, labelled {classes[found.labels[i]]}: "
            f"{text[:80]}"
        )
        entries.append(f"<details><summary>{html.escape(title)}</summary><p>{words}</p></details>")
    return entries or ["<p>None.</p>"]


def _environment(opened: run.Run) -> str:
    try:
        return json.dumps(json.loads((opened.folder / run.ENVIRONMENT).read_bytes()), indent=1)
    except (OSError, ValueError, RecursionError):
        return "not recorded"
