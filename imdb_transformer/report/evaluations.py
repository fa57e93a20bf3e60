"""Scores of runs: tables for the terminal and for pages, and a run's model card.

The card is README.md with a YAML head, as the Hugging Face hub reads it. With it a run's folder is a complete
repository of the hub (Mitchell et al. 2019, "Model Cards for Model Reporting";
huggingface.co/docs/hub/model-cards).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from imdb_transformer import config_file
from imdb_transformer.data.sources import HUB_NAME
from imdb_transformer.errors import command_line, warn
from imdb_transformer.evaluation.baseline import yardstick_of
from imdb_transformer.evaluation.compare import Comparison
from imdb_transformer.evaluation.evaluate import stored_evaluations
from imdb_transformer.evaluation.scores import Accuracy, Evaluation
from imdb_transformer.report import summaries
from imdb_transformer.report.layout import markdown_table, markdown_text, percent, read_asset, text_table
from imdb_transformer.store import run
from imdb_transformer.store.files import write_whole

Table = tuple[Sequence[str], Sequence[Sequence[object]]]  # header, rows


def as_text(tables: Sequence[Table]) -> str:
    """What `imdb-tx eval` and `imdb-tx compare` print."""
    return "\n\n".join(text_table(*table) for table in tables)


def score_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Name and text of each score."""
    raw, calibrated = evaluation.raw, evaluation.calibrated
    classes, error = evaluation.classes, evaluation.mean_absolute_error
    of_class = f" of {classes[1]}" if len(classes) == 2 else ""
    return [
        ("reviews", f"{evaluation.num_examples:,}{_learnt(evaluation)}"),
        ("accuracy", f"{percent(evaluation.accuracy)} (95% interval {_interval(evaluation)})"),
        (f"F1{of_class}" if of_class else "macro F1", f"{evaluation.f1:.4f}"),
        *([] if error is None else [("mean absolute error", f"{error:.4f}")]),
        ("ROC AUC", _or_undefined(evaluation.roc_auc)),
        (f"average precision{of_class}", _or_undefined(evaluation.average_precision)),
        ("loss", f"{calibrated.loss:.4f} (before calibration {raw.loss:.4f})"),
        ("Brier score", f"{calibrated.brier:.4f} (before calibration {raw.brier:.4f})"),
        ("calibration error", f"{percent(calibrated.ece)} (before calibration {percent(raw.ece)})"),
    ]


def _learnt(evaluation: Evaluation) -> str:
    """How many of the reviews were in training or validation; empty for none."""
    number = evaluation.num_learnt
    return f" ({number:,} of them also in training or validation)" if number else ""


def confusion_table(evaluation: Evaluation) -> Table:
    """The reviews of each true and predicted class; if there are many classes, the most frequent errors."""
    classes, confusion = evaluation.classes, evaluation.confusion
    if len(classes) <= summaries.MAX_CLASSES:
        rows = [[name, *counts] for name, counts in zip(classes, confusion, strict=True)]
        return ("true \\ predicted", *classes), rows
    errors = [
        (classes[i], classes[j], count)
        for i, counts in enumerate(confusion)
        for j, count in enumerate(counts)
        if count and i != j
    ]
    errors.sort(key=lambda error: -error[2])
    return ("true (most frequent errors)", "predicted", "reviews"), errors[: summaries.MAX_CLASSES]


def evaluation_tables(evaluation: Evaluation, baselines: Mapping[str, Evaluation]) -> list[Table]:
    """All scores of an evaluation, and the main ones of baselines."""
    slices = [
        (name, part.num_examples, percent(part.accuracy), _interval(part))
        for name, part in evaluation.slices.items()
    ]
    tables: list[Table] = [
        ((evaluation.split, evaluation.checkpoint), score_rows(evaluation)),
        summaries.class_table(evaluation.per_class),
        (("subset", "reviews", "accuracy", "95% interval"), slices),
        confusion_table(evaluation),
    ]
    return [*tables, side_by_side("baseline", baselines.items())] if baselines else tables


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Differences of the configs, scores, and differences of the accuracies."""
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
        side_by_side("run", zip(comparison.runs, comparison.evaluations, strict=True)),
        (header, pairs),
    ]


def side_by_side(title: str, evaluations: Iterable[tuple[str, Evaluation]]) -> Table:
    """The main scores, one row for each evaluation."""
    header = [title, "accuracy", "95% interval", "loss", "calibration error", "ROC AUC"]
    rows = [
        [
            name, percent(each.accuracy), _interval(each), f"{each.loss:.4f}", percent(each.calibrated.ece),
            _or_undefined(each.roc_auc),
        ]
        for name, each in evaluations
    ]  # fmt: skip
    return header, rows


def _interval(part: Accuracy) -> str:
    return f"{100 * part.accuracy_low:.2f} to {100 * part.accuracy_high:.2f}"


def _or_undefined(value: float | None) -> str:
    return "undefined: a class is absent" if value is None else f"{value:.4f}"


def write_card(opened: run.Run) -> None:
    """Writes the card of a classifier into its run, if the run was evaluated on test.

    A README.md that is no card is the user's own, and stays. Warns then.
    """
    if run.has_other_readme(opened.reports):
        readme = opened.reports / run.CARD
        warn(f"{readme} is not a model card, and was kept. For a card, rename it and evaluate again")
    elif evaluations := stored_evaluations(opened, "best-test"):
        write_whole(opened.reports / run.CARD, card(opened, evaluations[0]).encode())


def card(opened: run.Run, evaluation: Evaluation) -> str:
    """The card as Markdown, with this evaluation and those on other reviews."""
    config, name = opened.config, opened.folder.name
    is_imdb, init_from = config.data.source == "hub", config.train.init_from
    model, yardstick = config.model, yardstick_of(opened.folder)
    source = markdown_text(Path(config.data.source).name)  # readers of the card do not have the other folders
    if is_imdb:
        source = f"IMDB's labelled training reviews ({HUB_NAME}), which belong to their authors"
    start, repeat = "It started from random weights.", ["train", "--config", "config.toml"]
    if init_from:
        start = f"Its encoder started from {markdown_text(_run_name(init_from))}."
    if teachers := [_run_name(path) for path in opened.info.teachers]:
        names = markdown_text(", ".join(teachers))
        start += f" It also learnt the predictions of {names} for the unlabelled reviews."
        repeat += [word for name in teachers for word in ("--teacher", name)]
    scores, *details = (markdown_table(*table) for table in evaluation_tables(evaluation, {}))
    attention = f"windowed (radius {model.radius})" if model.radius else "full"
    comparison = "It was not compared."
    if yardstick is not None:
        comparison = f"On validation, {summaries.yardstick_line(yardstick)}."
    return read_asset("card.md").format(
        head=_head(name, evaluation, opened),
        name=markdown_text(name),
        run=name if opened.is_shipped else ".",
        model=f"{model.num_layers} layers, width {model.width}, {attention} attention",
        classes=", ".join(map(markdown_text, evaluation.classes)),
        data=f"It was trained on {source}. {start} The HTML pages quote up to 20 texts each. The other "
        "texts are not included.",
        split=evaluation.split,
        num_examples=evaluation.num_examples,
        scores=scores,
        comparison=comparison,
        others=_on_other_texts(opened),
        details="\n\n".join(details),
        repeat=command_line(*repeat),
        config=config_file.dump(config),
    )


def _on_other_texts(opened: run.Run) -> str:
    """A table of the evaluations on other reviews than the run's. Files of the same name are numbered."""
    evaluations, names = [], Counter[str]()
    for each in stored_evaluations(opened, "best-*"):
        if " of " in each.split:
            names[each.split] += 1
            number = f" ({names[each.split]})" if names[each.split] > 1 else ""
            evaluations.append((each.split + number + _learnt(each), each))
    if not evaluations:
        return "It was not evaluated on other texts."
    return markdown_table(*side_by_side("reviews", evaluations))


def _head(name: str, evaluation: Evaluation, opened: run.Run) -> str:
    """The YAML head; the hub shows its scores beside the model."""
    is_imdb = opened.config.data.source == "hub"
    is_from_scratch = opened.is_shipped or not opened.config.train.init_from
    tags = ["sentiment-analysis" if is_imdb else "text-classification"]
    tags += ["trained-from-scratch"] if is_from_scratch else []
    data_type, data_name = (HUB_NAME, "IMDB") if is_imdb else ("own", "own")
    scores = {"accuracy": evaluation.accuracy, "f1": evaluation.f1}
    results = [
        EvalResult("text-classification", data_type, data_name, score, round(value, 4),
                   dataset_split=evaluation.split)
        for score, value in scores.items()
    ]  # fmt: skip
    data = ModelCardData(
        library_name="imdb-tx", pipeline_tag="text-classification", tags=tags, model_name=name,
        eval_results=results,
        language="en" if is_imdb else None, datasets=[HUB_NAME] if is_imdb else None,
        license="mit" if opened.is_shipped else None, metrics=list(scores),
    )  # fmt: skip
    return data.to_yaml()


def _run_name(path: str) -> str:
    """The name of a run, or of the run that a checkpoint belongs to."""
    folder = Path(path)
    return folder.parent.parent.name if run.is_checkpoint(folder) else folder.name
