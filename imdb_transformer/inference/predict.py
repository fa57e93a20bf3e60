"""A run answers: texts to labels and probabilities, in bounded memory."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self, overload

import numpy as np
from numpy.typing import NDArray

from imdb_transformer import run
from imdb_transformer.data.reviews import in_chunks
from imdb_transformer.errors import RunError
from imdb_transformer.inference.encoder import EncoderModel
from imdb_transformer.inference.linear import LinearModel

CHUNK = 2000  # texts held at a time when predicting a stream

Model = EncoderModel | LinearModel


class Prediction(NamedTuple):
    """The most probable class of a text."""

    label: str
    probability: float
    text: str


class Predictor:
    """One or several runs' models, ready for texts; several answer with the mean of their probabilities."""

    def __init__(
        self, models: Sequence[Model], classes: tuple[str, ...], temperatures: Sequence[float]
    ) -> None:
        self.models, self.classes, self.temperatures = models, classes, temperatures

    @classmethod
    def load(cls, *paths: str | Path, device: str = "auto") -> Self:
        """The predictor of runs (their best checkpoints) or checkpoints. Raises RunError."""
        located = [run.locate(Path(path)) for path in paths]
        first = located[0][0]
        for source, _ in located[1:]:
            if source.info.classes != first.info.classes:
                raise RunError(
                    f"{source.folder} tells {', '.join(source.info.classes)} apart, {first.folder} "
                    f"{', '.join(first.info.classes)}: they cannot answer together."
                )
        models = [_load(source, folder, device) for source, folder in located]
        # Fitted for `best`; `last` is a state of training.
        temperatures = [
            source.info.temperature if folder.name.startswith("best") else 1.0 for source, folder in located
        ]
        return cls(models, first.info.classes, temperatures)

    def uncalibrated(self) -> Self:
        """The same models, their probabilities as training left them."""
        return type(self)(self.models, self.classes, [1.0] * len(self.models))

    def logits(self, texts: Sequence[str]) -> list[NDArray[np.float64]]:
        """(N, C) logits of each model before calibration, for texts, one at least."""
        return [model.logits(texts).astype(np.float64) for model in self.models]

    def log_probabilities(self, logits: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """(N, C) logarithms of the mean over models of calibrated probabilities."""
        scaled = [own / temperature for own, temperature in zip(logits, self.temperatures, strict=True)]
        # numpy's, not scipy's: importing that would cost a cold prediction a tenth of its time.
        each = [own - np.logaddexp.reduce(own, axis=1, keepdims=True) for own in scaled]
        mean: NDArray[np.float64] = np.logaddexp.reduce(each, axis=0) - np.log(len(each))
        return mean

    def probabilities(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """(N, C) probabilities of texts, in the order of `classes`."""
        if not texts:
            return np.empty((0, len(self.classes)))
        return np.exp(self.log_probabilities(self.logits(texts)))

    @overload
    def __call__(self, texts: str) -> Prediction: ...  # type: ignore[overload-overlap]  # a str is iterable too
    @overload
    def __call__(self, texts: Iterable[str], *, chunk: int = CHUNK) -> Iterator[Prediction]: ...
    def __call__(
        self, texts: str | Iterable[str], *, chunk: int = CHUNK
    ) -> Prediction | Iterator[Prediction]:
        """The prediction of a text; or those of texts, which may be any number, in order.

        Of many, `chunk` are held at a time.
        """
        return next(self._stream([texts], 1)) if isinstance(texts, str) else self._stream(texts, chunk)

    def _stream(self, texts: Iterable[str], chunk: int) -> Iterator[Prediction]:
        for part in in_chunks(texts, chunk):
            for text, row in zip(part, self.probabilities(part), strict=True):
                best = int(row.argmax())
                yield Prediction(self.classes[best], float(row[best]), text)


def _load(source: run.Run, folder: Path, device: str) -> Model:
    if source.info.kind in ("tfidf", "nb"):
        return LinearModel.load(source, folder)
    return EncoderModel(source, folder, device=device)
