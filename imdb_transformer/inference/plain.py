"""Predicts a few texts at once, without torch: the plain twin of the model with a run's weights."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.data.tokenizer import tokenizer_of
from imdb_transformer.model import plain
from imdb_transformer.store import checkpoint, run


class PlainModel:
    """The classifier of a checkpoint, computed a text at a time by `model/plain.py`."""

    precision = "fp32"

    def __init__(self, opened: run.Run, folder: Path) -> None:
        """From a run and the folder of one of its checkpoints. Raises RunError if they do not fit."""
        run.check_classifies(opened)
        self.config, self.tokenizer = opened.config.model, tokenizer_of(opened)
        self.classes, self.temperature = opened.info.classes, opened.temperature_of(folder)
        meta = checkpoint.read_meta(folder, tokenizer_hash=self.tokenizer.content_hash)
        self.step, self.weights = meta.step, checkpoint.load_arrays(folder, checkpoint.MODEL, meta)

    def logits(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, C) logits of texts, one at least."""
        reviews = self.tokenizer.encode(texts)
        rows = [plain.logits(ids.astype(np.int64), self.weights, self.config) for ids in reviews]
        return np.stack(rows).astype(np.float32)
