"""A linear model over n-grams of words. `evaluation/baseline.py` fits it.

Shapes: N texts, F n-grams, C classes, or 1 for the second of two.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.data.reviews import BREAK_TAG
from imdb_transformer.errors import RunError
from imdb_transformer.progress import tracked
from imdb_transformer.store import checkpoint, run
from imdb_transformer.store.files import write_whole
from imdb_transformer.store.run import Weighting

FILE_NAME = "ngrams.txt"
PART = 1000  # texts predicted at a time
ORDERS = {"tfidf": (1, 2), "nb": (1, 3)}  # lengths of n-grams
# Words and runs of punctuation, as in the tokenizer: "!!" carries meaning.
WORDS = r"\w+|[^\w\s]+"


@dataclass(frozen=True, eq=False)
class LinearModel:
    """TF-IDF (`tfidf`) or presence (`nb`) of n-grams, and a weight for each. It is its own vocabulary."""

    weighting: Weighting
    ngrams: list[str]  # in the order of the weights; a run has them in `ngrams.txt`, one on each line
    scale: NDArray[np.float32]  # (F,): inverse document frequencies; ones for nb
    weights: NDArray[np.float32]  # (C or 1, F)
    intercept: NDArray[np.float32]  # (C or 1,)
    classes: tuple[str, ...] = ()
    temperature: float = 1.0
    step: int = 0
    precision: str = "fp32"

    @classmethod
    def load(cls, opened: run.Run, folder: Path) -> Self:
        """From a run and the folder of its checkpoint. Raises RunError if they do not fit or are damaged."""
        assert opened.info.weighting is not None  # it is a linear run
        path, classes = opened.folder / FILE_NAME, opened.info.classes
        try:
            ngrams = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError):
            raise RunError(f"{path} is missing or damaged.") from None
        meta = checkpoint.read_meta(folder, tokenizer_hash=_hash_of(ngrams))
        stored = checkpoint.load_arrays(folder, checkpoint.MODEL, meta)
        rows = 1 if len(classes) == 2 else len(classes)
        shapes = {"scale": (len(ngrams),), "weights": (rows, len(ngrams)), "intercept": (rows,)}
        if {name: tuple(array.shape) for name, array in stored.items()} != shapes:
            raise RunError(f"{folder} belongs to another model than {opened.folder}.")
        scale, weights, intercept = (stored[name] for name in shapes)
        temperature = opened.temperature_of(folder)
        return cls(opened.info.weighting, ngrams, scale, weights, intercept, classes, temperature)

    @property
    def vocab_size(self) -> int:
        """F."""
        return len(self.ngrams)

    @property
    def content_hash(self) -> str:
        """Changes if some text may have other features."""
        return _hash_of(self.ngrams)

    def save(self, folder: Path) -> None:
        """Writes `ngrams.txt` into `folder`."""
        write_whole(folder / FILE_NAME, "\n".join(self.ngrams).encode())

    def save_weights(self, opened: run.Run, folder: Path) -> None:
        """Writes scale, weights and intercept into a checkpoint's folder."""
        arrays = {"scale": self.scale, "weights": self.weights, "intercept": self.intercept}
        checkpoint.save(folder, step=0, counters={}, model=arrays, tokenizer_hash=opened.info.tokenizer_hash)

    def logits(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, C) logits of texts, one at least."""
        starts = range(0, len(texts), PART)
        parts = (texts[i : i + PART] for i in tracked(starts, "predicting, part", len(starts)))
        scores = np.concatenate([self._scores(part) for part in parts])
        return scores if scores.shape[1] > 1 else np.hstack([-scores / 2, scores / 2])

    def _scores(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, C or 1)."""
        features = weighted(self.weighting, self._counter.transform(texts), self.scale)
        return np.asarray(features @ self.weights.T + self.intercept, dtype=np.float32)

    @cached_property
    def _counter(self) -> Any:
        return vectorizer(self.weighting, vocabulary={name: i for i, name in enumerate(self.ngrams)})


def _hash_of(ngrams: list[str]) -> str:
    return hashlib.sha256("\n".join(ngrams).encode()).hexdigest()


def vectorizer(weighting: Weighting, **options: Any) -> Any:
    """Scikit-learn's counter of the n-grams."""
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(
        preprocessor=_cleaned, token_pattern=WORDS, ngram_range=ORDERS[weighting], binary=weighting == "nb",
        dtype=np.float32, **options,
    )  # fmt: skip


def weighted(weighting: Weighting, counts: Any, scale: NDArray[np.float32]) -> Any:
    """(N, F) counts, sparse, weighted."""
    if weighting == "nb":
        return counts
    from sklearn.feature_extraction.text import TfidfTransformer

    transformer = TfidfTransformer(sublinear_tf=True)
    transformer.idf_ = scale
    return transformer.transform(counts)


def _cleaned(text: str) -> str:
    return re.sub(BREAK_TAG, " ", text.lower())
