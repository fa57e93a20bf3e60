"""Evaluation of a run on a split of its corpus, or of another corpus with the same classes."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.config import DataConfig
from imdb_transformer.data import corpus, tokenized
from imdb_transformer.distributed import ALONE, World
from imdb_transformer.errors import ConfigError, DataError
from imdb_transformer.evaluation.figures import Evaluation, evaluate
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.inference.transformer import EncoderModel
from imdb_transformer.store import run
from imdb_transformer.store.files import write_whole

LENGTHS = (100, 200, 400)  # words, where slices end
SPLITS = ("test", "validation", "train")
LONGEST_NAME = 120  # of a file of figures; file systems take 255 bytes, a temporary name's addition included
CLEAN = "not in training"
"""The slice of test without the reviews that stand in train or validation as well"""


class Answers(NamedTuple):
    """What runs say of a split."""

    evaluation: Evaluation
    texts: list[str]
    labels: NDArray[np.int64]  # (N,)
    log_probabilities: NDArray[np.float64]  # (N, C)
    raw_log_probabilities: NDArray[np.float64]  # (N, C), before calibration
    predictor: Predictor
    corpus: corpus.Corpus

    @property
    def correct(self) -> NDArray[np.bool_]:
        """(N,)."""
        return self.log_probabilities.argmax(1) == self.labels


def evaluate_split(paths: Sequence[Path], split: str, **given: str | None) -> tuple[Evaluation, Path]:
    """Figures of runs or checkpoints, together, on a split; and the JSON file that they were written to.

    `given`: see `answers`. Several answer with the mean of their probabilities; the file lies in the first
    one's run.
    """
    found = answers(paths, split, world=ALONE, **given)
    return found.evaluation, record(paths, found, named=given.get("source") is not None)


def record(paths: Sequence[Path], found: Answers, *, named: bool) -> Path:
    """Writes figures into the run of the first path; `named`: of another corpus than the run's."""
    (opened, folder), *others = map(run.locate, paths)
    names = [f"{folder.name}-{found.evaluation.split}", *([found.corpus.folder.name] if named else [])]
    together = [
        other.folder.name if at.name == "best" else f"{other.folder.name}-{at.name}" for other, at in others
    ]
    name = "-with-".join(["-".join(names), *together])
    which = hashlib.sha256("\n".join(str(at.resolve()) for _, at in others).encode()).hexdigest()[:8]
    if len(name) > LONGEST_NAME:
        name = f"{'-'.join(names)}-with-{len(others)}-others-{which}"
    elif any(other.folder.resolve().parent != opened.folder.resolve().parent for other, _ in others):
        name = f"{name}-{which}"  # runs of other folders may have the same names
    written = figures_file(opened.folder, name)
    written.parent.mkdir(exist_ok=True)
    write_whole(written, found.evaluation.model_dump_json(indent=1).encode())
    return written


def figures_file(folder: Path, name: str) -> Path:
    """Where a run keeps figures: of a checkpoint and split, `best-test`."""
    return folder / "evaluation" / f"{name}.json"


def answers(paths: Sequence[Path], split: str, *, world: World = ALONE, **given: str | None) -> Answers:
    """What runs or checkpoints say of a split, together. Raises ConfigError, DataError and RunError.

    `given` (data_dir, source, text_column, label_column): in the place of the first run's own, unless None.
    The processes of `world` share the work; each gets all of it.
    """
    if split not in SPLITS:
        raise ConfigError(f"There is no labelled split {split!r}; choose one of {', '.join(SPLITS)}.")
    located = [run.locate(path) for path in paths]
    opened = located[0][0]
    config = opened.config.data.model_copy(update={key: value for key, value in given.items() if value})
    is_named = given.get("source") is not None
    for other, _ in located:
        if split == "validation" and not is_named and not other.config.data.validation:
            raise ConfigError(f"{other.folder} was trained on the validation split too; choose another.")
    predictor = Predictor.load(*paths, world=world)
    known = "" if is_named else opened.info.corpus_hash
    stored, _ = world.in_turn(lambda: corpus.ensure(config, needs=[split], known=known))
    for other, _ in located:
        _check_corpus(other, stored, config, named=is_named)
    rows = tokenized.rows_of(config, stored, split)
    labels = np.array(rows.labels)
    logits = predictor.logits(rows.texts)
    names = [
        f"{f'{other.folder.name}/' if len(located) > 1 else ''}{at.name} (step {model.step})"
        for (other, at), model in zip(located, predictor.models, strict=True)
    ]
    calibrated = predictor.log_probabilities(logits)
    raw = predictor.uncalibrated().log_probabilities(logits)
    found = evaluate(
        calibrated, labels, raw_logits=raw, encoder_logits=_encoder_logits(predictor, rows.texts),
        slices=_slices(rows.texts, predictor) | ({} if is_named else _clean(rows.texts, split, stored)),
        split=split, checkpoint=" + ".join(names), classes=opened.info.classes,
    )  # fmt: skip
    return Answers(found, rows.texts, labels, calibrated, raw, predictor, stored)


def _encoder_logits(predictor: Predictor, texts: list[str]) -> NDArray[np.float64] | None:
    """(N, C) log-probabilities without the n-grams beside the encoders; None where no model has n-grams."""
    models = [
        model.without_ngrams() if isinstance(model, EncoderModel) else model for model in predictor.models
    ]
    if all(alone is model for alone, model in zip(models, predictor.models, strict=True)):
        return None
    alone = Predictor(models, predictor.classes, [1.0] * len(models))
    return alone.log_probabilities(alone.logits(texts))


def _slices(texts: list[str], predictor: Predictor) -> dict[str, NDArray[np.bool_]]:
    """Which reviews are of which length, and which were cut."""
    num_words = np.array([len(text.split()) for text in texts])
    slices, low = {}, 0
    for high in LENGTHS:
        slices[f"up to {high} words" if not low else f"{low + 1} to {high} words"] = (num_words > low) & (
            num_words <= high
        )
        low = high
    slices[f"over {low} words"] = num_words > low
    encoders = [model for model in predictor.models if isinstance(model, EncoderModel)]
    if encoders:
        limit = encoders[0].limit
        cut = np.array([len(ids) > limit for ids in encoders[0].tokenizer.encode_whole(texts)])
        slices |= {"cut": cut, "not cut": ~cut}
    return slices


def _clean(texts: list[str], split: str, stored: corpus.Corpus) -> dict[str, NDArray[np.bool_]]:
    """Which reviews of test do not stand in train or validation as well."""
    if split != "test":
        return {}
    learnt = {text for name in ("train", "validation") if name in stored.manifest.splits
              for text in corpus.read_split(stored, name).texts}  # fmt: skip
    return {CLEAN: np.array([text not in learnt for text in texts])}


def _check_corpus(opened: run.Run, stored: corpus.Corpus, config: DataConfig, *, named: bool) -> None:
    """Raises DataError where a run's own test split is not this corpus's, or its classes are others."""
    if not named and stored.content_hash != opened.info.corpus_hash:
        raise DataError(
            f"{config.source} differs from the reviews that {opened.folder} was trained on: its test split "
            "may hold some of them. To measure on it all the same, name it with --source."
        )
    if stored.manifest.classes != opened.info.classes:
        raise DataError(
            f"The classes of {config.source} are {', '.join(stored.manifest.classes)}; "
            f"those of {opened.folder} are {', '.join(opened.info.classes)}."
        )
