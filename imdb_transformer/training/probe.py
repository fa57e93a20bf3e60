"""Linear probes: a logistic regression on the features of a trained encoder (Alain and Bengio 2017).

A probe decides which of the package's two encoders suits some reviews (`train.init_from = "auto"`). `imdb`
also learnt IMDB's labels, and forgot some of the text that `imdb-encoder` knows. A training starts with a
probe as its head.

Shapes: N reviews, D model width.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from imdb_transformer.config import Config
from imdb_transformer.data import corpus
from imdb_transformer.data.batches import EncodedReview
from imdb_transformer.data.encoded import EncodedSplit, rows_of
from imdb_transformer.data.reviews import Rows
from imdb_transformer.hardware import Hardware
from imdb_transformer.inference.transformer import logits_of
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.store import run
from imdb_transformer.training import starting_weights

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

AUTO, UNLABELLED, LABELLED = "auto", "imdb-encoder", "imdb"
# Rows are in a random order, so the first are a sample.
NUM_PROBED = 2000  # to choose an encoder by
NUM_FITTED = 10_000  # to fit a head to
NUM_FOLDS, INVERSE_PENALTY = 5, 0.01
SHORT_DROPOUT, SHORT_LENGTH = 0.1, 250  # for reviews of fewer characters on average


def choose_start(config: Config, kind: run.Kind, hardware: Hardware) -> Config:
    """The config with the run to start from instead of `auto`, and the dropout that goes with it.

    The run is `imdb-encoder` for pretraining, and for reviews that include one whose label `imdb` learnt.
    Other reviews get at least `SHORT_DROPOUT` if they are short: sentences are soon learnt by heart.
    """
    if config.train.init_from != AUTO:
        return config
    chosen, dropout = UNLABELLED, config.model.dropout
    stored = corpus.ensure(config.data)
    if kind == "classifier" and not starting_weights.has_imdb_labels(config, stored):
        rows = rows_of(config.data, stored, "train")
        chosen = max((UNLABELLED, LABELLED), key=lambda name: probe_accuracy(name, config, rows, hardware))
        if np.mean([len(text) for text in rows.texts]) < SHORT_LENGTH:
            dropout = max(dropout, SHORT_DROPOUT)
    return config.replaced("train", init_from=chosen).replaced("model", dropout=dropout)


def probe_accuracy(name: str, config: Config, rows: Rows, hardware: Hardware) -> float:
    """Accuracy, over five folds, of a logistic regression on the features of a run's encoder.

    It is 0 if fewer than two classes have a review for each fold.
    """
    from sklearn.model_selection import cross_val_score

    labels = rows.labels[:NUM_PROBED]
    common = {label for label, count in Counter(labels).items() if count >= NUM_FOLDS}
    if len(common) < 2:
        return 0.0
    texts = [text for text, label in zip(rows.texts, labels, strict=False) if label in common]
    path = Path(name)
    tokenizer = starting_weights.tokenizer_of_origin(path, config)
    model = Classifier(config.model, vocab_size=tokenizer.vocab_size, num_classes=2)
    starting_weights.load_encoder(model, path)
    features = _features(model.to(hardware.device), tokenizer.encode(texts), hardware)
    truth = np.array([label for label in labels if label in common])
    return float(cross_val_score(_regression(), features, truth, cv=NUM_FOLDS).mean())


@torch.no_grad()
def fit_head(model: Classifier, train: EncodedSplit, hardware: Hardware) -> None:
    """Sets the head to a logistic regression on the encoder's features of the reviews.

    The gradients of a random head would distort these features (Kumar et al. 2022, "Fine-tuning can distort
    pretrained features"). A class that is absent from the first `NUM_FITTED` reviews gets zeros,
    and the lowest bias of the others.
    """
    labels = train.labels[:NUM_FITTED]
    if len(set(labels)) < 2:
        return
    features = _features(model, [train.review(i) for i in range(len(labels))], hardware)
    scaler, regression = (step for _, step in _regression().fit(features, labels).steps)
    slopes = regression.coef_ / scaler.scale_
    intercepts = regression.intercept_ - slopes @ scaler.mean_
    if len(regression.classes_) == 2:  # scikit-learn gives the log-odds of the second class
        slopes, intercepts = np.stack([-slopes[0], slopes[0]]) / 2, np.array([-1, 1]) * intercepts / 2
    model.head.weight.zero_()
    model.head.bias.fill_(float(intercepts.min()))
    model.head.weight[regression.classes_] = torch.from_numpy(slopes).float().to(hardware.device)
    model.head.bias[regression.classes_] = torch.from_numpy(intercepts).float().to(hardware.device)


def _regression() -> "Pipeline":
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=INVERSE_PENALTY, max_iter=500))


def _features(model: Classifier, reviews: Sequence[EncodedReview], hardware: Hardware) -> NDArray[np.float32]:
    """(N, D), pooled: what the head reads."""
    head, model.head = model.head, nn.Identity()  # type: ignore[assignment]
    features = logits_of(model, reviews, hardware)
    model.head = head
    return features
