"""Evaluation of a run on a split of its corpus or of another, and calibration of its probabilities.

Shapes: N reviews, C classes.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from imdb_transformer.data import corpus, encoded
from imdb_transformer.errors import ConfigError, DataError
from imdb_transformer.evaluation.scores import Evaluation, evaluation_of
from imdb_transformer.inference.predictor import Predictor, load_model
from imdb_transformer.inference.transformer import TransformerModel
from imdb_transformer.store import run
from imdb_transformer.store.files import write_whole

LENGTHS = (100, 200, 400)  # words, where slices end
SPLITS = ("test", "validation", "train")
LOG_TEMPERATURES = (-3.0, 3.0)  # a factor of 20 either way
LONGEST_NAMES = 60  # characters of the other runs' names in a file's name
CLEAN = "not in training"
"""The slice of test without the reviews that are in train or validation as well"""


class Answers(NamedTuple):
    """What runs predict for each review of a split, and their scores."""

    evaluation: Evaluation
    texts: list[str]
    labels: NDArray[np.int64]  # (N,)
    log_probabilities: NDArray[np.float64]  # (N, C)
    raw_log_probabilities: NDArray[np.float64]  # (N, C), before calibration
    predictor: Predictor
    run: run.Run
    file: Path
    """in the first run, for the evaluation"""

    @property
    def correct(self) -> NDArray[np.bool_]:
        """(N,)."""
        return self.log_probabilities.argmax(1) == self.labels


def evaluate(paths: str | Path | Sequence[str | Path], split: str = "test", **data: str | None) -> Evaluation:
    """Scores of a run or checkpoint on a split, which are also written into the run.

    Several runs predict together, by their mean probability. `data` replaces keys of the first run's [data]:
    data_dir, source, text_column, label_column. Raises ConfigError, DataError and RunError.

    >>> evaluate("runs/base").accuracy  # doctest: +SKIP
    0.9
    """
    answers = answer([paths] if isinstance(paths, str | Path) else paths, split, **data)
    save(answers)
    return answers.evaluation


def save(answers: Answers) -> None:
    """Writes an evaluation into its run."""
    answers.file.parent.mkdir(exist_ok=True)
    write_whole(answers.file, answers.evaluation.model_dump_json(indent=1).encode())


def answer(paths: Sequence[str | Path], split: str = "test", **data: str | None) -> Answers:
    """Like `evaluate`, with the prediction for each review. Writes nothing."""
    if split not in SPLITS:
        raise ConfigError(f"There is no labelled split {split!r}; choose one of {', '.join(SPLITS)}.")
    located = [run.locate(Path(path)) for path in paths]
    opened = located[0][0]
    is_own = data.get("source") is None
    for each, _ in located:
        if split == "validation" and is_own and not each.config.data.validation:
            raise ConfigError(f"{each.folder} was trained on the validation split too; choose another.")
    predictor = Predictor.load(*paths)
    config = opened.config.data.model_copy(update={key: value for key, value in data.items() if value})
    stored, _ = corpus.ensure(config, needs=[split], known=opened.info.corpus_hash if is_own else "")
    for each, _ in located:
        _check_corpus(each, stored, config.source, is_own=is_own)
    rows = encoded.rows_of(config, stored, split)
    labels = np.array(rows.labels)
    logits = [model.logits(rows.texts) for model in predictor.models]
    calibrated = predictor.log_probabilities(logits)
    raw = predictor.log_probabilities(logits, calibrated=False)
    slices = _slices(rows.texts, predictor)
    if split == "test" and is_own:
        slices |= _clean(rows.texts, stored)
    evaluation = evaluation_of(
        calibrated, labels, raw_logits=raw, slices=slices, split=split,
        checkpoint=_names(located, predictor), classes=opened.info.classes,
    )  # fmt: skip
    file = _file(located, split, "" if is_own else stored.folder.name)
    return Answers(evaluation, rows.texts, labels, calibrated, raw, predictor, opened, file)


def _names(located: Sequence[tuple[run.Run, Path]], predictor: Predictor) -> str:
    """The checkpoints and their steps, such as `best (step 300)`."""
    return " + ".join(
        f"{f'{each.folder.name}/' if len(located) > 1 else ''}{folder.name} (step {model.step})"
        for (each, folder), model in zip(located, predictor.models, strict=True)
    )


def _file(located: Sequence[tuple[run.Run, Path]], split: str, corpus_name: str) -> Path:
    """The evaluation's file in the first run. Its name includes the names of the other runs.

    It also includes a hash of their paths, as runs in different folders may have the same name.
    """
    (opened, folder), *others = located
    parts = [folder.name, split, *([corpus_name] if corpus_name else [])]
    if others:
        names = "-".join(
            each.folder.name if checkpoint.name == "best" else f"{each.folder.name}-{checkpoint.name}"
            for each, checkpoint in others
        )
        paths = "\n".join(str(checkpoint.resolve()) for _, checkpoint in others)
        parts += ["with", names[:LONGEST_NAMES], hashlib.sha256(paths.encode()).hexdigest()[:8]]
    return opened.folder / "evaluation" / f"{'-'.join(parts)}.json"


def _slices(texts: list[str], predictor: Predictor) -> dict[str, NDArray[np.bool_]]:
    """By name, the reviews of each range of lengths, and those that were cut or not."""
    num_words = np.array([len(text.split()) for text in texts])
    slices, low = {}, 0
    for high in LENGTHS:
        name = f"{low + 1} to {high} words" if low else f"up to {high} words"
        slices[name] = (num_words > low) & (num_words <= high)
        low = high
    slices[f"over {low} words"] = num_words > low
    encoders = [model for model in predictor.models if isinstance(model, TransformerModel)]
    if encoders:
        limit = encoders[0].max_length
        cut = np.array([len(ids) > limit for ids in encoders[0].tokenizer.encode_whole(texts)])
        slices |= {"cut": cut, "not cut": ~cut}
    return slices


def _clean(texts: list[str], stored: corpus.Corpus) -> dict[str, NDArray[np.bool_]]:
    """Which reviews of test are not in train or validation as well."""
    names = [name for name in ("train", "validation") if name in stored.manifest.splits]
    learnt = {text for name in names for text in corpus.read_split(stored, name).texts}
    return {CLEAN: np.array([text not in learnt for text in texts])}


def _check_corpus(opened: run.Run, stored: corpus.Corpus, source: str, *, is_own: bool) -> None:
    """Raises DataError if a run was trained on other reviews than this corpus's, or on other classes."""
    if is_own and stored.content_hash != opened.info.corpus_hash:
        raise DataError(
            f"{source} differs from the reviews that {opened.folder} was trained on: its test split may hold "
            "some of them. To evaluate on it all the same, name it with --source."
        )
    if stored.manifest.classes != opened.info.classes:
        raise DataError(
            f"The classes of {source} are {', '.join(stored.manifest.classes)}; "
            f"those of {opened.folder} are {', '.join(opened.info.classes)}."
        )


def fit_temperature(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    """The temperature that divides (N, C) logits for the least cross-entropy (Guo et al. 2017, section 4.2).

    It is 1 if every answer is right. The best temperature would then be zero, and the first error would cost
    an infinite loss.
    """
    if bool((logits.argmax(1) == labels).all()):
        return 1.0
    exact = logits.astype(np.float64)
    rows = np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(exact / np.exp(log_temperature), axis=1)[rows, labels].mean())

    return float(np.exp(minimize_scalar(loss, bounds=LOG_TEMPERATURES, method="bounded").x))


def validation_logits(opened: run.Run) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(N, C) logits and (N,) labels of a run's validation reviews."""
    stored, _ = corpus.ensure(opened.config.data, known=opened.info.corpus_hash)
    rows = encoded.rows_of(opened.config.data, stored, "validation")
    logits = load_model(opened.folder, opened.config.train.device).logits(rows.texts)
    return logits, np.array(rows.labels)
