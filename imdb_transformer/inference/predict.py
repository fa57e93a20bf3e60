"""A trained run answers: texts to labels and probabilities, in bounded memory."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from imdb_transformer import checkpoint, hardware, run
from imdb_transformer.data.tokenizer import Tokenizer
from imdb_transformer.errors import RunError
from imdb_transformer.inference.forward import EncodedReview, length_multiple, logits_of
from imdb_transformer.model.classifier import Classifier

CHUNK = 2000  # texts held at a time when predicting a stream
BATCH_TOKENS = 16_384


class Prediction(NamedTuple):
    """The most probable class of a text."""

    label: str
    probability: float
    text: str


class Predictor:
    """A run's tokenizer and weights, ready for texts."""

    def __init__(self, source: run.Run, folder: Path, *, device: str = "auto") -> None:
        """From a run and one of its checkpoints' folders. Raises RunError where they do not fit."""
        options = source.config.train.model_copy(update={"device": device})
        self.hardware = hardware.choose(options)
        self.classes = source.info.classes
        self.multiple = length_multiple(source.config.model)
        self.tokenizer = Tokenizer.load(source.folder, source.config.tokenizer)
        if self.tokenizer.content_hash != source.info.tokenizer_hash:
            raise RunError(
                f"{source.folder / 'tokenizer.json'} is not the tokenizer that this run was trained with."
            )
        meta = checkpoint.read_meta(folder, tokenizer_hash=self.tokenizer.content_hash)
        self.step = meta.step
        self.model = Classifier(
            source.config.model, vocab_size=source.info.vocab_size, num_classes=len(self.classes)
        )
        checkpoint.load_weights(
            self.model, checkpoint.load_tensors(folder, checkpoint.MODEL, meta), origin=folder
        )
        self.model.to(self.hardware.device).eval()

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto") -> "Predictor":
        """The predictor of a run (its best checkpoint) or of one of its checkpoints. Raises RunError."""
        return cls(*run.locate(Path(path)), device=device)

    def logits(self, reviews: Sequence[EncodedReview]) -> NDArray[np.float32]:
        """(N, C) logits of encoded reviews."""
        return logits_of(
            self.model, reviews, hardware=self.hardware, batch_tokens=BATCH_TOKENS, multiple=self.multiple
        )

    def probabilities(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """(N, C) probabilities of texts, in the order of `classes`."""
        if not texts:
            return np.empty((0, len(self.classes)))
        logits = torch.from_numpy(self.logits(self.tokenizer.encode(texts)))
        return logits.double().softmax(1).numpy()

    def __call__(self, texts: Iterable[str], *, chunk: int = CHUNK) -> Iterator[Prediction]:
        """Predictions in the order of `texts`, which may be any number: `chunk` are held at a time."""
        iterator = iter(texts)
        while part := list(islice(iterator, chunk)):
            for text, row in zip(part, self.probabilities(part), strict=True):
                best = int(row.argmax())
                yield Prediction(self.classes[best], float(row[best]), text)
