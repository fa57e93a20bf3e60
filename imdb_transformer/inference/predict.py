"""A run answers: texts to labels and probabilities, in bounded memory."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from imdb_transformer import run
from imdb_transformer.inference.encoder import EncoderModel
from imdb_transformer.inference.linear import LinearModel

CHUNK = 2000  # texts held at a time when predicting a stream


class Prediction(NamedTuple):
    """The most probable class of a text."""

    label: str
    probability: float
    text: str


class Predictor:
    """A run's model, ready for texts."""

    def __init__(self, source: run.Run, folder: Path, *, device: str = "auto") -> None:
        """From a run and one of its checkpoints' folders. Raises RunError where they do not fit."""
        self.classes = source.info.classes
        self.model: EncoderModel | LinearModel = (
            EncoderModel(source, folder, device=device)
            if source.info.kind == "encoder"
            else LinearModel.load(source, folder)
        )

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto") -> Self:
        """The predictor of a run (its best checkpoint) or of one of its checkpoints. Raises RunError."""
        return cls(*run.locate(Path(path)), device=device)

    def probabilities(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """(N, C) probabilities of texts, in the order of `classes`."""
        if not texts:
            return np.empty((0, len(self.classes)))
        return torch.from_numpy(self.model.logits(texts)).double().softmax(1).numpy()

    def __call__(self, texts: Iterable[str], *, chunk: int = CHUNK) -> Iterator[Prediction]:
        """Predictions in the order of `texts`, which may be any number: `chunk` are held at a time."""
        iterator = iter(texts)
        while part := list(islice(iterator, chunk)):
            for text, row in zip(part, self.probabilities(part), strict=True):
                best = int(row.argmax())
                yield Prediction(self.classes[best], float(row[best]), text)
