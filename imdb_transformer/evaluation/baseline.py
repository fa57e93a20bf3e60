"""Fits linear models over n-grams with scikit-learn, as runs of their own or beside a training.

Shapes: N reviews, F n-grams, C classes.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from imdb_transformer.config import Config
from imdb_transformer.data import corpus, encoded
from imdb_transformer.errors import DataError, RunError
from imdb_transformer.evaluation.compare import pair_of
from imdb_transformer.evaluation.evaluate import (
    evaluate,
    fit_temperature,
    measured,
    predict_split,
    save,
    validation_logits,
)
from imdb_transformer.evaluation.scores import Evaluation, Score, is_uneven, score
from imdb_transformer.inference.linear import LinearModel, vectorizer, weighted
from imdb_transformer.inference.predictor import locate
from imdb_transformer.store import run
from imdb_transformer.store.files import write_whole
from imdb_transformer.store.run import Weighting

MIN_DOCUMENTS = 2  # rarer n-grams are left out
# Inverse strengths of regularisation, chosen on IMDB's validation split.
STRENGTH = {"tfidf": 20.0, "nb": 0.3}
YARDSTICK = "yardstick.json"


class Baseline(BaseModel):
    """The run of a fitted linear model, and its score on validation if that was held out."""

    run: str
    weighting: Weighting
    num_ngrams: int
    validation: Score | None


def make_baseline(folder: Path, config: Config, weighting: Weighting) -> Baseline:
    """Fits a linear model with `nb` or `tfidf` weights on the train split, and writes it as a run.

    Raises DataError, and RunError if the folder is not free.
    """
    run.check_free(folder)
    stored, _ = corpus.ensure(config.data)
    train = encoded.rows_of(config.data, stored, "train")
    model = fit(weighting, train.texts, np.array(train.labels), num_classes=len(stored.manifest.classes))
    opened = run.create(
        folder, config, kind="linear", weighting=weighting, vocabulary=model,
        classes=stored.manifest.classes, corpus_hash=stored.content_hash, hardware="CPU",
        fill=lambda new: model.save_weights(new, new.checkpoints / "best"),
    )  # fmt: skip
    validation = None
    if config.data.validation:
        logits, labels = validation_logits(opened)
        validation = score(logits, labels)
        opened = opened.updated(temperature=fit_temperature(logits, labels))
    opened.with_status("finished")
    return Baseline(run=str(folder), weighting=weighting, num_ngrams=len(model.ngrams), validation=validation)


def fit(
    weighting: Weighting, texts: list[str], labels: NDArray[np.int64], *, num_classes: int
) -> LinearModel:
    """A linear model of labelled texts.

    `tfidf`: sublinear counts of words and bigrams, normalised. `nb`: presence of words, bigrams and trigrams,
    each weighted by its naive-Bayes log-count ratio (Wang and Manning 2012, section 2.3), with logistic
    regression instead of their support vector machine (Mesnil et al. 2015). Raises DataError if the texts
    have no n-gram in common.
    """
    from sklearn.feature_extraction.text import TfidfTransformer

    counter = vectorizer(weighting, min_df=MIN_DOCUMENTS)
    try:
        counts = counter.fit_transform(texts)
    except ValueError:  # "After pruning, no terms remain"
        raise DataError(
            f"No n-gram occurs in {MIN_DOCUMENTS} of the {len(texts):,} training reviews. They are too few "
            "or too short for a linear model."
        ) from None
    ngrams = [str(ngram) for ngram in counter.get_feature_names_out()]
    targets = [labels == 1] if num_classes == 2 else [labels == c for c in range(num_classes)]
    if weighting == "tfidf":
        scale = TfidfTransformer().fit(counts).idf_.astype(np.float32)
        features = weighted(weighting, counts, scale)
        parts = [_regression(features, target, weighting) for target in targets]
    else:
        scale = np.ones(len(ngrams), np.float32)
        parts = []
        for target in targets:
            ratio = log_count_ratio(counts, target)
            coefficients, intercept = _regression(counts.multiply(ratio).tocsr(), target, weighting)
            parts.append((ratio * coefficients, intercept))
    weights, intercepts = map(np.array, zip(*parts, strict=True))
    return LinearModel(weighting, ngrams, scale, weights, intercepts.astype(np.float32))


def log_count_ratio(counts: Any, target: NDArray[np.bool_]) -> NDArray[np.float32]:
    """(F,) log of how much likelier an n-gram is in reviews of the target class; counts smoothed by 1."""
    inside, outside = (1 + np.asarray(counts[rows].sum(0)).ravel() for rows in (target, ~target))
    ratio = np.log((inside / inside.sum()) / (outside / outside.sum()))
    return np.asarray(ratio, np.float32)


def _regression(
    features: Any, target: NDArray[np.bool_], weighting: Weighting
) -> tuple[NDArray[np.float32], float]:
    """(F,) weights and the intercept of one class, from sparse (N, F) features."""
    from sklearn.linear_model import LogisticRegression

    # liblinear's dual solver: a second for ten million n-grams; its tolerance is far below the noise.
    fitted = LogisticRegression(
        C=STRENGTH[weighting], solver="liblinear", dual=True, tol=0.01, random_state=0, max_iter=1000
    ).fit(features, target)
    return fitted.coef_[0].astype(np.float32), float(fitted.intercept_[0])


def baselines_beside(path: Path, split: str, *, data_dir: str | None = None) -> dict[str, Evaluation]:
    """Evaluations of the linear runs in the same folder that learnt the same reviews, by their folder.

    A run that was not evaluated on this split is evaluated now, in seconds. A damaged run is left out.
    """
    opened, _ = locate(path)
    evaluations = {}
    for info in sorted(opened.folder.parent.glob(f"*/{run.INFO}")):
        with suppress(RunError, DataError, OSError):
            other = run.open_run(info.parent)
            is_baseline = other.info.kind == "linear" and other.info.status == "finished"
            same_reviews = other.info.corpus_hash == opened.info.corpus_hash
            same_split = other.config.data.validation == opened.config.data.validation
            if is_baseline and same_reviews and same_split and other.folder != opened.folder:
                before = measured(other, f"best-{split}")  # of this version
                now = before[0] if before else evaluate(other.folder, split, data_dir=data_dir)
                evaluations[str(other.folder)] = now
    return evaluations


class Yardstick(BaseModel, extra="forbid", frozen=True):
    """A run compared on validation with a linear model (`nb`) of the same training reviews."""

    accuracy: float
    """of the linear model"""
    difference: float
    """accuracy of the run minus that of the linear model"""
    low: float
    high: float
    """95% interval of the difference (`evaluation/compare.py`)"""


def conclude(opened: run.Run) -> run.Run:
    """Ends a training: fits the temperature and writes the yardstick, if validation was held out.

    If there are many classes or a rare one, it also writes the evaluation on validation. Returns the run.
    """
    if not opened.config.data.validation or opened.info.kind == "encoder":
        return opened
    logits, labels = validation_logits(opened)
    if opened.config.train.yardstick:
        _write_yardstick(opened, logits.argmax(1) == labels)
    opened = opened.updated(temperature=fit_temperature(logits, labels))
    if is_uneven(labels, len(opened.info.classes)):
        save(predict_split([opened.folder], "validation"))
    return opened


def _write_yardstick(opened: run.Run, correct: NDArray[np.bool_]) -> None:
    config = opened.config.data
    stored, _ = corpus.ensure(config, known=opened.info.corpus_hash)
    train, held_out = (encoded.rows_of(config, stored, name) for name in ("train", "validation"))
    try:
        linear = fit("nb", train.texts, np.array(train.labels), num_classes=len(opened.info.classes))
    except DataError:  # too few or too short
        return
    beside = linear.logits(held_out.texts).argmax(1) == held_out.labels
    pair = pair_of("nb", str(opened.folder), beside, correct)
    yardstick = Yardstick(
        accuracy=float(beside.mean()), difference=pair.difference, low=pair.low, high=pair.high
    )
    write_whole(opened.folder / YARDSTICK, yardstick.model_dump_json().encode())


def yardstick_of(folder: Path) -> Yardstick | None:
    """The yardstick of a run; None if it has none."""
    try:
        return Yardstick.model_validate_json((folder / YARDSTICK).read_bytes())
    except (OSError, ValidationError):
        return None
