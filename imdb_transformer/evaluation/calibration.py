"""Calibrated probabilities: one temperature a run, fitted on validation.

Shapes: N reviews, C classes.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from imdb_transformer.data import corpus, encoded
from imdb_transformer.inference.predictor import load_model
from imdb_transformer.store import run

BOUNDS = (-3.0, 3.0)  # of the temperature's logarithm: a factor of 20 either way


def fit_temperature(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    """The temperature that divides (N, C) logits for the least cross-entropy (Guo et al. 2017, section 4.2).

    It is 1 if every answer is right. The best temperature would then be zero, and the first error would cost
    an infinite loss.
    """
    if bool((logits.argmax(1) == labels).all()):
        return 1.0
    exact = logits.astype(np.float64)
    rows = np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(exact / np.exp(log_temperature), axis=1)[rows, labels].mean())

    return float(np.exp(minimize_scalar(loss, bounds=BOUNDS, method="bounded").x))


def calibrate(opened: run.Run) -> run.Run:
    """The run with the temperature of its best checkpoint fitted on validation, if that was held out."""
    if not opened.config.data.validation or opened.info.kind == "encoder":
        return opened
    stored, _ = corpus.ensure(opened.config.data, known=opened.info.corpus_hash)
    rows = encoded.rows_of(opened.config.data, stored, "validation")
    logits = load_model(opened.folder, opened.config.train.device).logits(rows.texts)
    return opened.updated(temperature=fit_temperature(logits, np.array(rows.labels)))
