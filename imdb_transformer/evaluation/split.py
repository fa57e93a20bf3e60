"""Evaluation of a run on a split of its corpus, or of another corpus with the same classes."""

from pathlib import Path

import numpy as np

from imdb_transformer import run
from imdb_transformer.data import corpus, tokenized
from imdb_transformer.errors import ConfigError, DataError
from imdb_transformer.evaluation.evaluate import Evaluation, evaluate
from imdb_transformer.files import write_whole
from imdb_transformer.inference.predict import Predictor

SPLITS = ("test", "validation", "train")


def evaluate_split(
    path: Path, split: str, *, data_dir: str | None = None, source: str | None = None
) -> tuple[Evaluation, Path]:
    """Figures of a run or checkpoint on a split, and the JSON file in the run that they were written to."""
    if split not in SPLITS:
        raise ConfigError(f"There is no labelled split {split!r}; choose one of {', '.join(SPLITS)}.")
    opened, folder = run.locate(path)
    given = {"data_dir": data_dir, "source": source}
    config = opened.config.data.model_copy(update={key: value for key, value in given.items() if value})
    predictor = Predictor(opened, folder)
    stored, _ = corpus.ensure(config)
    if source is None and stored.content_hash != opened.info.corpus_hash:
        raise DataError(
            f"The reviews of {config.source} are not those that {opened.folder} was trained beside: its test "
            "split may hold reviews of training. Name them with --source if that is meant."
        )
    if stored.manifest.classes != opened.info.classes:
        raise DataError(
            f"The classes of {config.source} are {', '.join(stored.manifest.classes)}; "
            f"those of {opened.folder} are {', '.join(opened.info.classes)}."
        )
    rows = tokenized.rows_of(config, stored, split)
    logits = predictor.model.logits(rows.texts)
    checkpoint = f"{folder.name} (step {predictor.model.step})"
    found = evaluate(
        logits, np.array(rows.labels), split=split, checkpoint=checkpoint, classes=opened.info.classes
    )
    name = f"{folder.name}-{split}" if source is None else f"{folder.name}-{split}-{stored.folder.name}"
    written = opened.folder / "evaluation" / f"{name}.json"
    written.parent.mkdir(exist_ok=True)
    write_whole(written, found.model_dump_json(indent=1).encode())
    return found, written
