"""A linear model over n-grams of words: fitting with scikit-learn, and prediction.

Shapes: N texts, F n-grams, C classes, or 1 for the second of two.
"""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.data.reviews import BREAK_TAG, WITHOUT_BLANKS, word_pattern
from imdb_transformer.errors import DataError, RunError
from imdb_transformer.progress import tracked
from imdb_transformer.store import checkpoint, run
from imdb_transformer.store.files import write_whole

FILE_NAME = "ngrams.txt"
PART = 1000  # texts predicted at a time
MIN_DOCUMENTS = 2  # rarer n-grams are left out
# Inverse strengths of regularisation, chosen on IMDB's validation split.
STRENGTH = {"tfidf": 20.0, "nb": 0.3}
ORDERS = {"tfidf": (1, 2), "nb": (1, 3)}  # lengths of n-grams


@dataclass(eq=False)
class LinearModel:
    """TF-IDF (`tfidf`) or presence (`nb`) of n-grams, and a weight for each. It is its own vocabulary."""

    weighting: run.Weighting
    ngrams: list[str]  # in the order of the weights; a run has them in `ngrams.txt`, one on each line
    scale: NDArray[np.float32]  # (F,): inverse document frequencies; ones for nb
    weights: NDArray[np.float32]  # (C or 1, F)
    intercept: NDArray[np.float32]  # (C or 1,)
    classes: tuple[str, ...] = ()
    temperature: float = 1.0
    step: int = 0
    precision: str = "fp32"
    origin: run.Run = field(init=False)  # set by `load`, like the next
    checkpoint: Path = field(init=False)

    @classmethod
    def load(cls, opened: run.Run, folder: Path) -> Self:
        """From a run and the folder of its checkpoint. Raises RunError if they do not fit or are damaged."""
        assert opened.info.weighting is not None  # it is a linear run
        path = opened.folder / FILE_NAME
        try:
            content = path.read_bytes()
            ngrams = content.decode().split("\n")
        except (OSError, UnicodeDecodeError):
            raise RunError(f"{path} is missing or damaged.") from None
        _, stored = checkpoint.read_model(folder, tokenizer_hash=hashlib.sha256(content).hexdigest())
        scale, weights, intercept = (stored[name] for name in ("scale", "weights", "intercept"))
        classes, temperature = opened.info.classes, opened.temperature_of(folder)
        model = cls(opened.info.weighting, ngrams, scale, weights, intercept, classes, temperature)
        model.origin, model.checkpoint = opened, folder
        return model

    @property
    def content_hash(self) -> str:
        """The hash of `ngrams.txt`: it changes if some text may have other features."""
        return hashlib.sha256("\n".join(self.ngrams).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Writes `ngrams.txt` into a run's folder."""
        write_whole(folder / FILE_NAME, "\n".join(self.ngrams).encode())

    def save_weights(self, opened: run.Run) -> None:
        """Writes the only checkpoint of a run."""
        arrays = {"scale": self.scale, "weights": self.weights, "intercept": self.intercept}
        folder, of_run = opened.checkpoints / "best", opened.info.tokenizer_hash
        checkpoint.save(folder, step=0, counters={}, model=arrays, tokenizer_hash=of_run)

    def logits(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, C) logits of one or more texts."""
        starts = range(0, len(texts), PART)
        parts = (texts[i : i + PART] for i in tracked(starts, "predicting, part", len(starts)))
        products = [self._vectorizer.transform(part) @ self.weights.T for part in parts]
        scores = (np.concatenate(products) + self.intercept).astype(np.float32)  # (N, C or 1)
        return scores if scores.shape[1] > 1 else np.hstack([-scores / 2, scores / 2])

    @cached_property
    def _vectorizer(self) -> Any:
        ready = vectorizer(self.weighting, vocabulary=self.ngrams)
        ready.idf_ = self.scale
        return ready


def fit(
    weighting: run.Weighting, texts: list[str], labels: NDArray[np.int64], *, num_classes: int
) -> LinearModel:
    """A linear model of labelled texts.

    `tfidf`: sublinear counts of words and bigrams, normalised. `nb`: presence of words, bigrams and trigrams,
    each weighted by its naive-Bayes log-count ratio (Wang and Manning 2012, section 2.3), with logistic
    regression instead of their support vector machine (Mesnil et al. 2015). Raises DataError if the texts
    have no n-gram in common.
    """
    from sklearn.linear_model import LogisticRegression

    words = vectorizer(weighting, min_df=MIN_DOCUMENTS, use_idf=weighting == "tfidf")
    try:
        features = words.fit_transform(texts)
    except ValueError:  # "After pruning, no terms remain"
        raise DataError(
            f"The {len(texts):,} training reviews are too few or too short for a linear model: no n-gram "
            f"occurs in {MIN_DOCUMENTS} of them."
        ) from None
    ngrams = [str(ngram) for ngram in words.get_feature_names_out()]
    targets = [labels == 1] if num_classes == 2 else [labels == c for c in range(num_classes)]
    ratio, parts = np.ones(len(ngrams), np.float32), []
    scale = words.idf_ if weighting == "tfidf" else ratio
    for target in targets:
        if weighting == "nb":
            ratio = log_count_ratio(features, target)
        # liblinear's dual solver: a second for ten million n-grams; its tolerance is far below the noise.
        fitted = LogisticRegression(
            C=STRENGTH[weighting], solver="liblinear", dual=True, tol=0.01, random_state=0, max_iter=1000
        ).fit(features.multiply(ratio).tocsr(), target)
        parts.append((ratio * fitted.coef_[0].astype(np.float32), fitted.intercept_[0]))
    weights, intercepts = map(np.array, zip(*parts, strict=True))
    return LinearModel(weighting, ngrams, scale, weights, intercepts.astype(np.float32))


def log_count_ratio(counts: Any, target: NDArray[np.bool_]) -> NDArray[np.float32]:
    """(F,) log of how much likelier an n-gram is in reviews of the target class; counts smoothed by 1."""
    inside, outside = (1 + np.asarray(counts[rows].sum(0)).ravel() for rows in (target, ~target))
    ratio = np.log((inside / inside.sum()) / (outside / outside.sum()))
    return np.asarray(ratio, np.float32)


def vectorizer(weighting: run.Weighting, **options: Any) -> Any:
    """Scikit-learn's reader of texts: (N, F) weighted n-grams, sparse."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    is_tfidf = weighting == "tfidf"
    return TfidfVectorizer(
        preprocessor=_cleaned, token_pattern=word_pattern(), ngram_range=ORDERS[weighting],
        binary=not is_tfidf, sublinear_tf=is_tfidf, norm="l2" if is_tfidf else None, dtype=np.float32,
        **options,
    )  # fmt: skip


def _cleaned(text: str) -> str:
    text = re.sub(BREAK_TAG, " ", text.lower())
    if text.isascii():
        return text
    return re.sub(WITHOUT_BLANKS, r" \g<0> ", unicodedata.normalize("NFC", text))
