"""Soft labels: a teacher's probabilities for the unlabelled reviews. A student learns them beside the labels.

This is self-training with soft targets (Hinton et al. 2015, section 2; Xie et al. 2020, "Noisy Student"). The
teacher is one run or several, on the same reviews. A linear run may teach.

Shapes: N reviews, C classes.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.config import Config
from imdb_transformer.data import encoded
from imdb_transformer.data.corpus import Corpus
from imdb_transformer.data.encoded import EncodedSplit, concatenated
from imdb_transformer.data.reviews import in_chunks
from imdb_transformer.errors import DataError
from imdb_transformer.inference.predictor import CHUNK, Predictor
from imdb_transformer.store import run


def soft_labels(teachers: Sequence[Path], config: Config, corpus: Corpus) -> NDArray[np.float32]:
    """(N, C): the teachers' mean probabilities for each review of `unsupervised`.

    Raises DataError if the corpus has no such split.
    """
    texts = _unlabelled(config, corpus)
    predictor = Predictor.load(*teachers, device=config.train.device)
    parts = [predictor.probabilities(part) for part in in_chunks(texts, CHUNK)]
    return np.concatenate(parts).astype(np.float32)


def even_labels(config: Config, corpus: Corpus) -> NDArray[np.float32]:
    """(N, C): equal probabilities, for a dry run, which needs no teacher."""
    num_classes = len(corpus.manifest.classes)
    return np.full((len(_unlabelled(config, corpus)), num_classes), 1 / num_classes, dtype=np.float32)


def _unlabelled(config: Config, corpus: Corpus) -> list[str]:
    if "unsupervised" not in corpus.manifest.splits:
        raise DataError(f"{config.data.source} has no unlabelled reviews for a teacher to label.")
    return encoded.rows_of(config.data, corpus, "unsupervised").texts


def with_soft_labels(
    train: EncodedSplit, unlabelled: EncodedSplit, soft: NDArray[np.float32]
) -> EncodedSplit:
    """Train, then the unlabelled reviews with the teacher's labels; all labels are (N, C) probabilities."""
    hard = np.eye(soft.shape[1], dtype=np.float32)[train.labels]
    return concatenated([train._replace(labels=hard), unlabelled._replace(labels=soft)])


def soft_labels_of(opened: run.Run) -> NDArray[np.float32] | None:
    """A teacher's probabilities, (reviews, classes), if the run had one. Raises RunError for damage."""
    if run.SOFT_LABELS not in opened.info.file_hashes:
        return None
    run.check_file(opened.folder, opened.info, run.SOFT_LABELS)
    labels: NDArray[np.float32] = np.load(opened.folder / run.SOFT_LABELS, allow_pickle=False)
    return labels
