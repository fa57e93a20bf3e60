"""Which of the package's two encoders some reviews start from: `train.init_from = "auto"`.

`imdb` learnt from IMDB's labels how opinions are put, and forgot some of what `imdb-encoder` knows of text.
A linear probe of each (Alain and Bengio 2017) tells which of them is worth more for the reviews at hand.

Shapes: N reviews, D model width.
"""

from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from imdb_transformer.config import Config
from imdb_transformer.data import corpus
from imdb_transformer.data.encoded import rows_of
from imdb_transformer.data.reviews import Rows
from imdb_transformer.hardware import Hardware
from imdb_transformer.inference.transformer import logits_of
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.store import run
from imdb_transformer.training import starting_weights

AUTO, UNLABELLED, LABELLED = "auto", "imdb-encoder", "imdb"
NUM_PROBED = 2000  # rows are in a random order, so the first are a sample
NUM_FOLDS, INVERSE_PENALTY = 5, 0.01


def settled(config: Config, kind: run.Kind, hardware: Hardware) -> Config:
    """The config with the run to start from in the place of `auto`.

    Pretraining, and reviews of which one is among those whose labels `imdb` learnt, get `imdb-encoder`.
    """
    if config.train.init_from != AUTO:
        return config
    chosen = UNLABELLED
    stored, _ = corpus.ensure(config.data)
    if kind == "classifier" and not starting_weights.has_imdb_labels(config, stored):
        rows = rows_of(config.data, stored, "train")
        chosen = max((UNLABELLED, LABELLED), key=lambda name: probe(name, config, rows, hardware))
    return config.model_copy(update={"train": config.train.model_copy(update={"init_from": chosen})})


def probe(name: str, config: Config, rows: Rows, hardware: Hardware) -> float:
    """Accuracy, over five folds, of a logistic regression on what a run's encoder makes of the reviews.

    0 if there are fewer than two classes with a review for each fold.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels = rows.labels[:NUM_PROBED]
    common = {label for label, count in Counter(labels).items() if count >= NUM_FOLDS}
    if len(common) < 2:
        return 0.0
    texts = [text for text, label in zip(rows.texts, labels, strict=False) if label in common]
    features = _features(Path(name), config, texts, hardware)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=INVERSE_PENALTY))
    truth = np.array([label for label in labels if label in common])
    return float(cross_val_score(model, features, truth, cv=NUM_FOLDS).mean())


def _features(path: Path, config: Config, texts: list[str], hardware: Hardware) -> NDArray[np.float32]:
    """(N, D), pooled: what the classifier's head would read."""
    tokenizer = starting_weights.tokenizer_of_origin(path, config)
    model = Classifier(config.model, vocab_size=tokenizer.vocab_size, num_classes=2)
    starting_weights.load_encoder(model, path)
    model.head = nn.Identity()  # type: ignore[assignment]
    return logits_of(model.to(hardware.device), tokenizer.encode(texts), hardware)
