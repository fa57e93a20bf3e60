"""Predicts with trained runs: texts to labels and probabilities, in bounded memory.

Shapes: N texts, C classes.
"""

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from os import PathLike
from pathlib import Path
from typing import NamedTuple, Protocol, Self, overload

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.data.reviews import in_chunks
from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.inference.export import SUFFIX, ExportedModel
from imdb_transformer.inference.linear import LinearModel
from imdb_transformer.inference.plain import PlainModel
from imdb_transformer.store import checkpoint, run
from imdb_transformer.store.files import sha256_of

CHUNK = 2000  # texts held at a time when predicting a stream


class Model(Protocol):
    """A transformer, a linear model or an exported file."""

    origin: run.Run  # the run that it comes from; for an exported file, in the file's folder
    checkpoint: Path  # the folder of its weights, or the exported file
    classes: tuple[str, ...]  # in the order of the logits
    temperature: float  # divides the logits for calibrated probabilities
    step: int  # of the training, when its weights were saved
    precision: str  # `bf16` or `fp32`; predictions differ a little between the two

    def logits(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, C) logits of one or more texts."""


class Prediction(NamedTuple):
    """The class that is predicted for a text, and its probability."""

    label: str
    probability: float
    text: str
    probabilities: dict[str, float]  # of each class, by its name


class Predictor:
    """The model of a run, ready for texts. Several models predict the mean of their probabilities.

    >>> predictor = Predictor.load("runs/base")  # doctest: +SKIP
    >>> predictor("I hated it: a boring film").label  # doctest: +SKIP
    'neg'
    >>> [prediction.label for prediction in predictor(["a great film", "awful"])]  # doctest: +SKIP
    ['pos', 'neg']
    >>> predictor.probabilities(["a great film"]).shape  # doctest: +SKIP
    (1, 2)
    >>> predictor.probabilities("a great film").shape  # doctest: +SKIP
    (2,)
    """

    def __init__(self, models: Sequence[Model], *, threshold: float | None = None) -> None:
        self.models, self.classes, self.threshold = models, models[0].classes, threshold
        if threshold is not None and len(self.classes) != 2:
            raise ConfigError(f"A threshold needs two classes, and there are {len(self.classes)}.")
        if threshold is not None and not 0 <= threshold <= 1:
            raise ConfigError(f"A threshold is a probability from 0 to 1, not {threshold}.")

    @classmethod
    def load(
        cls, *paths: str | Path, device: str = "auto", exact: bool = False, few: bool = False,
        threshold: float | None = None,
    ) -> Self:  # fmt: skip
        """The predictor of runs (their best checkpoints), checkpoints or exported files.

        `device`: "auto" uses a GPU if there is one, unless the run was trained with "cpu". `exact`: compute
        in fp32 even if bf16 is faster. `few`: compute in fp32 without torch. For a few texts this takes less
        time than the import of torch. `threshold`: the probability from which the second of two classes is
        predicted; without it, the more probable class. Raises RunError and ConfigError, and TypeError for a
        list.
        """
        if not all(isinstance(path, str | PathLike) for path in paths):
            raise TypeError('Name runs one by one, such as Predictor.load("imdb", "runs/nb"), not in a list.')
        if not paths:
            raise ConfigError("No run is named. Name one, such as imdb, or several.")
        models = [load_model(Path(path), device, exact=exact, few=few) for path in paths]
        for path, model in zip(paths, models, strict=True):
            if model.classes != models[0].classes:
                raise RunError(
                    f"{path} and {paths[0]} cannot be combined. The classes of {path} are "
                    f"{', '.join(model.classes)}; those of {paths[0]} are {', '.join(models[0].classes)}."
                )
        return cls(models, threshold=threshold)

    @overload
    def __call__(self, texts: str) -> Prediction: ...  # type: ignore[overload-overlap]  # a str is iterable too
    @overload
    def __call__(self, texts: Iterable[str], *, chunk: int = CHUNK) -> Iterator[Prediction]: ...
    def __call__(
        self, texts: str | Iterable[str], *, chunk: int = CHUNK
    ) -> Prediction | Iterator[Prediction]:
        """The prediction for a text. For several texts, an iterator of their predictions, in order.

        The iterator is a stream: it reads and predicts `chunk` texts at a time while you take its items. The
        texts need not fit in memory. `list(predictor(texts))` makes a list. Raises TypeError if a text is not
        a str.
        """
        if isinstance(texts, str):
            return next(self([texts]))
        return (
            self._prediction(text, row)
            for part in in_chunks(_texts_of(texts), chunk)
            for text, row in zip(part, self.probabilities(part).tolist(), strict=True)
        )

    def _prediction(self, text: str, row: list[float]) -> Prediction:
        best = row.index(max(row)) if self.threshold is None else int(row[1] >= self.threshold)
        return Prediction(self.classes[best], row[best], text, dict(zip(self.classes, row, strict=True)))

    def probabilities(self, texts: str | Iterable[str]) -> NDArray[np.float64]:
        """(N, C) probabilities of a list or a pandas Series of texts, or (C,) of a text.

        Columns are in the order of `classes`. Raises TypeError if a text is not a str.
        """
        if isinstance(texts, str):
            return self.probabilities([texts])[0]
        listed = list(_texts_of(texts))
        if not listed:
            return np.empty((0, len(self.classes)))
        return np.exp(self.log_probabilities([model.logits(listed) for model in self.models]))

    def __repr__(self) -> str:
        models = " + ".join(f"{type(model).__name__}(step={model.step})" for model in self.models)
        return f"Predictor(classes={self.classes}, {models})"

    def log_probabilities(
        self, logits: Sequence[NDArray[np.floating]], *, calibrated: bool = True
    ) -> NDArray[np.float64]:
        """(N, C) logarithms of the models' mean probabilities, from the (N, C) logits of each model.

        `calibrated`: each model's logits are divided by its temperature first.
        """
        by_model = []
        for model, scores in zip(self.models, logits, strict=True):
            scaled = scores.astype(np.float64) / (model.temperature if calibrated else 1.0)
            # Not scipy's log_softmax: importing scipy takes a tenth of the time of a first prediction.
            by_model.append(scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True))
        mean: NDArray[np.float64] = np.logaddexp.reduce(by_model, axis=0) - np.log(len(by_model))
        return mean


def _texts_of(texts: object) -> Iterator[str]:
    """The texts, one by one. Raises TypeError for anything else, at once or when it comes."""
    if hasattr(texts, "columns"):  # iterating over a DataFrame gives the names of its columns
        raise TypeError("A whole table was passed; pass its column of texts, such as frame['text'].")
    if isinstance(texts, bytes | bytearray):
        raise TypeError("Bytes were passed; pass a str, such as text.decode().")
    if isinstance(texts, Mapping):
        raise TypeError("A dict was passed; pass a list of its texts, such as list(texts.values()).")
    if not isinstance(texts, Iterable):
        raise TypeError(f"Texts must be a str or an iterable of them, not {reprlib.repr(texts)}.")
    return map(_checked, texts, count(1))


def _checked(text: object, number: int) -> str:
    if isinstance(text, str):
        return text
    shown = reprlib.repr(text)
    is_missing = shown in ("None", "nan", "<NA>", "NaT")  # pandas' missing values
    hint = "leave missing texts out, or fill them with ''" if is_missing else "each text must be a str"
    raise TypeError(f"Text {number} is {shown}: {hint}.")


def origin_of(path: Path) -> run.Run:
    """The run of a model; a run's weights are not loaded. Raises RunError and ConfigError."""
    return ExportedModel(path).origin if _is_exported(path) else run.locate(path)[0]


def _is_exported(path: Path) -> bool:
    return path.suffix.lower() == SUFFIX and path.is_file()


def load_model(path: Path, device: str = "auto", *, exact: bool = False, few: bool = False) -> Model:
    """The model of a run (its best checkpoint), a checkpoint or an exported file.

    Raises RunError and ConfigError.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"{device!r} is not a device: choose auto, cpu or cuda.")
    if _is_exported(path):
        if device == "cuda":
            raise ConfigError(f"{path} is an exported file, which predicts on the CPU.")
        return ExportedModel(path)
    opened, folder = run.locate(path)
    if opened.info.kind == "linear":
        return LinearModel.load(opened, folder)
    if few and device != "cuda":
        return PlainModel(opened, folder)
    from imdb_transformer.inference.transformer import TransformerModel  # imports torch

    return TransformerModel(opened, folder, device=device, exact=exact)


def identity_of(model: Model) -> str:
    """A name and a hash, which differ if predictions may differ."""
    file = model.checkpoint if model.checkpoint.is_file() else model.checkpoint / checkpoint.META
    return f"{model.origin.folder.name} {sha256_of(file)} {model.temperature}"


def unfamiliar(predictor: Predictor, texts: Sequence[str]) -> list[str]:
    """The texts whose words one of the runs hardly knows."""
    indices: set[int] = set()
    for model in predictor.models:
        tokenizer, usual = getattr(model, "tokenizer", None), model.origin.info.characters_per_piece
        if tokenizer is not None:
            indices |= {i for i, text in enumerate(texts) if tokenizer.knows_few_words([text], usual)}
    return [texts[i] for i in sorted(indices)]
