"""Linear models of the same reviews: as runs of their own, and beside a training as its yardstick.

Shapes: N reviews, C classes.
"""

from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from scipy.special import log_softmax

from imdb_transformer.config import Config
from imdb_transformer.data import corpus, encoded
from imdb_transformer.errors import DataError, RunError, warn
from imdb_transformer.evaluation import scores
from imdb_transformer.evaluation.compare import NORMAL_95, pair_of
from imdb_transformer.evaluation.evaluate import evaluate, stored_evaluations, validation_logits
from imdb_transformer.inference.linear import fit
from imdb_transformer.store import run
from imdb_transformer.store.files import write_whole
from imdb_transformer.store.run import Weighting
from imdb_transformer.store.upkeep import run_files

YARDSTICK = "yardstick.json"
MIN_COMPARED = 20  # reviews; fewer say nothing about the mean of two models


class Baseline(BaseModel):
    """The run of a fitted linear model, and its score on validation if that was held out."""

    run: str
    weighting: Weighting
    num_ngrams: int
    validation: scores.Score | None


def make_baseline(folder: Path, config: Config, weighting: Weighting) -> Baseline:
    """Fits a linear model with `nb` or `tfidf` weights on the train split, and writes it as a run.

    Raises ConfigError without a label column, DataError, and RunError if the folder is not free.
    """
    run.check_free(folder)
    config.data.check_labelled()
    stored = corpus.ensure(config.data)
    train = encoded.rows_of(config.data, stored, "train")
    model = fit(weighting, train.texts, np.array(train.labels), num_classes=len(stored.manifest.classes))
    with run.create(
        folder, config, kind="linear", weighting=weighting, save_vocabulary=model.save,
        vocab_size=len(model.ngrams), tokenizer_hash=model.content_hash,
        classes=stored.manifest.classes, corpus_hash=stored.content_hash, hardware="CPU",
    ) as new:  # fmt: skip
        model.save_weights(new)
    opened = new._replace(folder=folder)
    validation = None
    if config.data.held_out_fraction:
        logits, labels = validation_logits(opened)
        validation = scores.score(logits, labels)
        counters = {"best": validation.model_dump()}
        opened = opened.write_info(temperature=scores.fit_temperature(logits, labels), counters=counters)
    opened.write_status("finished")
    return Baseline(run=str(folder), weighting=weighting, num_ngrams=len(model.ngrams), validation=validation)


def baselines_beside(
    opened: run.Run, split: str, *, data_dir: str | None = None
) -> dict[str, scores.Evaluation]:
    """Evaluations of the linear runs in the same folder that learnt the same reviews, by their folder.

    A run that was not evaluated on this split is evaluated now, in seconds. A damaged run is left out.
    """
    evaluations = {}
    for info in run_files(opened.folder.parent):
        with suppress(RunError, DataError, OSError):
            other = run.open_run(info.parent)
            is_baseline = other.info.kind == "linear" and other.info.status == "finished"
            same_reviews = other.info.corpus_hash == opened.info.corpus_hash
            holds_out = bool(other.config.data.held_out_fraction)
            same_split = holds_out == bool(opened.config.data.held_out_fraction)
            if is_baseline and same_reviews and same_split and other.folder != opened.folder:
                before = stored_evaluations(other, f"best-{split}")  # of this version
                now = before[0] if before else evaluate(other.folder, split, data_dir=data_dir)
                evaluations[str(other.folder)] = now
    return evaluations


class Yardstick(BaseModel, extra="forbid", frozen=True):
    """A run compared on validation with a linear model (`nb`) of the same training reviews."""

    accuracy: float  # of the linear model
    difference: float  # accuracy of the run minus that of the linear model
    low: float
    high: float  # 95% interval of the difference (`evaluation/compare.py`)
    together: float | None = None
    """accuracy of the mean of both models' probabilities, if it is better than each by more than chance"""


def write_yardstick(opened: run.Run, logits: NDArray[np.floating], labels: NDArray[np.int64]) -> None:
    """Compares a run's calibrated logits on validation, (N, C), with those of a linear model."""
    config = opened.config.data
    stored = corpus.of_run(config, opened.info.corpus_hash, opened.folder)
    train, held_out = (encoded.rows_of(config, stored, name) for name in ("train", "validation"))
    try:
        linear = fit("nb", train.texts, np.array(train.labels), num_classes=len(opened.info.classes))
    except DataError as error:
        warn(f"there is no linear model to compare with. {error}")
        return
    linear_logits = linear.logits(held_out.texts)
    calibrated = linear_logits / scores.fit_temperature(linear_logits, labels)
    of_run, of_linear = log_softmax(logits, axis=1), log_softmax(calibrated, axis=1)
    correct, alone = (each.argmax(1) == labels for each in (of_run, of_linear))
    pair = pair_of("nb", str(opened.folder), alone, correct)
    yardstick = Yardstick(
        accuracy=float(alone.mean()), difference=pair.difference, low=pair.low, high=pair.high,
        together=accuracy_together(of_run, of_linear, labels),
    )  # fmt: skip
    write_whole(opened.folder / YARDSTICK, yardstick.model_dump_json().encode())


def accuracy_together(
    first: NDArray[np.floating], second: NDArray[np.floating], labels: NDArray[np.int64]
) -> float | None:
    """Accuracy of the mean of two models' probabilities, from the (N, C) logarithms of both.

    It is None unless the mean has a higher accuracy or a lower log loss than each model, by more than chance,
    and is not worse by the other score.
    """
    if len(labels) < MIN_COMPARED:
        return None
    models = [each.astype(np.float64) for each in (first, second, np.logaddexp(first, second) - np.log(2))]
    correct = [(each.argmax(1) == labels).astype(np.float64) for each in models]
    likelihoods = [each[np.arange(len(labels)), labels] for each in models]  # logarithms
    gains = [together - max(alone, key=np.mean) for *alone, together in (correct, likelihoods)]
    is_better = any(each.mean() > NORMAL_95 * each.std() / np.sqrt(len(labels)) for each in gains)
    is_worse = any(each.mean() < 0 for each in gains)
    return float(correct[-1].mean()) if is_better and not is_worse else None


def yardstick_of(folder: Path) -> Yardstick | None:
    """The yardstick of a run; None if it has none."""
    try:
        return Yardstick.model_validate_json((folder / YARDSTICK).read_bytes())
    except (OSError, ValidationError):
        return None
