"""A run answers: texts to labels and probabilities, in bounded memory."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, overload

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.data.reviews import in_chunks
from imdb_transformer.errors import RunError
from imdb_transformer.inference.exported import SUFFIX, ExportedModel
from imdb_transformer.store import run
from imdb_transformer.store.files import sha256_of

if TYPE_CHECKING:
    from imdb_transformer.distributed import World

CHUNK = 2000  # texts held at a time when predicting a stream


class Model(Protocol):
    """What answers: an encoder, a linear model or an exported file."""

    @property
    def step(self) -> int:
        """Of training, when its weights were taken."""

    @property
    def precision(self) -> str:
        """`bf16` or `fp32`: answers in one differ a little from those in the other."""

    def logits(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, C) logits of texts, one at least."""


class Prediction(NamedTuple):
    """The most probable class of a text."""

    label: str
    probability: float
    text: str

    def record(self) -> dict[str, Any]:
        """Its fields by name, as JSON takes them."""
        return self._asdict()


class Predictor:
    """One or several runs' models, ready for texts; several answer with the mean of their probabilities.

    >>> predictor = Predictor.load("runs/base")  # doctest: +SKIP
    >>> predictor("I hated it: a boring film").label  # doctest: +SKIP
    'neg'
    >>> [found.label for found in predictor(["a great film", "awful"])]  # doctest: +SKIP
    ['pos', 'neg']
    >>> predictor.probabilities(["a great film"]).shape  # doctest: +SKIP
    (1, 2)
    """

    def __init__(
        self, models: Sequence[Model], classes: tuple[str, ...], temperatures: Sequence[float]
    ) -> None:
        self.models, self.classes, self.temperatures = models, classes, temperatures

    @classmethod
    def load(cls, *paths: str | Path, device: str = "auto", world: "World | None" = None) -> Self:
        """The predictor of runs (their best checkpoints), checkpoints or exported files.

        `device`: "cpu" even where there is a GPU. `world`: processes that share the work. Raises RunError.
        """
        loaded = [_load(Path(path), device, world) for path in paths]
        first = loaded[0]
        for path, other in zip(paths, loaded, strict=True):
            if other.classes != first.classes:
                raise RunError(
                    f"{path} predicts the classes {', '.join(other.classes)}, {paths[0]} "
                    f"{', '.join(first.classes)}: they cannot be combined."
                )
        models, _, temperatures = zip(*loaded, strict=True)
        return cls(models, first.classes, temperatures)

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


def identity_of(path: Path) -> str:
    """A name and a hash that differ for whatever may answer differently. Raises RunError."""
    if path.suffix == SUFFIX and path.is_file():
        return f"{path.name} {sha256_of(path)}"
    from imdb_transformer.store.checkpoint import META  # with torch

    source, folder = run.locate(path)
    return f"{path.name} {sha256_of(folder / META)} {source.info.temperature}"


class _Loaded(NamedTuple):
    model: Model
    classes: tuple[str, ...]
    temperature: float


def _load(path: Path, device: str, world: "World | None") -> _Loaded:
    if path.suffix == SUFFIX and path.is_file():
        exported = ExportedModel.load(path)
        return _Loaded(exported, exported.classes, 1.0)
    # Imported here, with torch, which an exported model does not need.
    from imdb_transformer.distributed import ALONE
    from imdb_transformer.inference.linear import LinearModel
    from imdb_transformer.inference.transformer import EncoderModel

    source, folder = run.locate(path)
    model: Model
    if source.info.is_linear:
        model = LinearModel.load(source, folder)
    else:
        model = EncoderModel(source, folder, device=device, world=world or ALONE)
    return _Loaded(model, source.info.classes, source.temperature_of(folder))
