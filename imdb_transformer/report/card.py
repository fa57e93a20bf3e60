"""The model card of a run: README.md with a YAML head, as the Hugging Face hub reads it.

With it a run's folder is a complete repository of the hub (Mitchell et al. 2019, "Model Cards for Model
Reporting"; huggingface.co/docs/hub/model-cards).
"""

import re
from pathlib import Path
from typing import Any

import yaml

from imdb_transformer import config_file
from imdb_transformer.evaluation.scores import Evaluation
from imdb_transformer.report.evaluations import score_rows
from imdb_transformer.report.page import text_beside
from imdb_transformer.report.tables import percent
from imdb_transformer.store import run
from imdb_transformer.store.files import write_whole

FILE_NAME = "README.md"
IMDB = "stanfordnlp/imdb"  # the hub's name of it


def write_card(opened: run.Run, evaluation: Evaluation) -> Path:
    """Writes the card of a classifier into its run, with the scores of an evaluation."""
    path = opened.reports / FILE_NAME
    write_whole(path, card(opened, evaluation).encode())
    return path


def card(opened: run.Run, evaluation: Evaluation) -> str:
    """The card as Markdown."""
    config, name = opened.config, opened.folder.resolve().name
    is_imdb, init_from = config.data.source == "hub", config.train.init_from
    model = config.model
    recalls = [
        (label, sum(row), percent(row[i], sum(row)) if sum(row) else "-")
        for i, (label, row) in enumerate(zip(evaluation.classes, evaluation.confusion, strict=True))
    ]
    slices = [(part, f"{s.num_examples:,}", percent(s.accuracy)) for part, s in evaluation.slices.items()]
    return text_beside("card.md").format(
        head=yaml.safe_dump(_head(name, evaluation, is_imdb=is_imdb), sort_keys=False),
        name=_plain(name),
        model=f"{model.num_layers} layers, width {model.width}, {model.attention} attention",
        classes=", ".join(map(_plain, evaluation.classes)),
        source=f"IMDB's labelled training reviews ({IMDB})" if is_imdb else _last(config.data.source),
        start=f"Its encoder started from {_last(init_from)}."
        if init_from
        else "It started from random weights.",
        split=evaluation.split,
        num_examples=evaluation.num_examples,
        scores=_rows(score_rows(evaluation)),
        recalls=_rows(recalls),
        slices=_rows(slices),
        config=config_file.dump(config),
    )


def _head(name: str, evaluation: Evaluation, *, is_imdb: bool) -> dict[str, Any]:
    """The YAML head; the hub shows its scores beside the model."""
    metrics = [{"type": "accuracy", "value": round(evaluation.accuracy, 4)},
               {"type": "f1", "value": round(evaluation.f1, 4)}]  # fmt: skip
    data = {
        "type": IMDB if is_imdb else "own",
        "name": "IMDB" if is_imdb else "own",
        "split": evaluation.split,
    }
    result = {"task": {"type": "text-classification"}, "dataset": data, "metrics": metrics}
    head: dict[str, Any] = {"library_name": "imdb-tx", "pipeline_tag": "text-classification"}
    if is_imdb:
        head |= {"language": "en", "datasets": [IMDB]}
    return {**head, "metrics": ["accuracy", "f1"], "model-index": [{"name": name, "results": [result]}]}


def _rows(rows: list[Any]) -> str:
    return "\n".join(f"| {' | '.join(_plain(str(cell)) for cell in row)} |" for row in rows)


def _last(path: str) -> str:
    """The last part of a path: a card is for others, who do not have these folders."""
    return _plain(Path(path).name)


def _plain(text: str) -> str:
    """Text that is neither Markdown nor HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(text.split()))
