"""Evaluates a run on a split of its corpus or of another.

Shapes: N reviews, C classes.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from imdb_transformer import config_file
from imdb_transformer.config import DataConfig
from imdb_transformer.data import corpus, encoded, imdb, sources
from imdb_transformer.data.layouts import ALL, LABELLED_SPLITS, measured_split
from imdb_transformer.data.reviews import Rows, joined, normalized
from imdb_transformer.errors import ConfigError, DataError, RunError, warn
from imdb_transformer.evaluation.scores import Evaluation, evaluation_of
from imdb_transformer.inference.predictor import Model, Predictor, load_model
from imdb_transformer.inference.transformer import TransformerModel
from imdb_transformer.store import checkpoint, run
from imdb_transformer.store.files import write_whole

LENGTHS = (100, 200, 400)  # words, where slices end
LONGEST_NAMES = 60  # bytes of the other runs' names in a file's name
CLEAN = "not in training"  # the slice without reviews that are in training or validation, too


class Predictions(NamedTuple):
    """The predictions of one or more runs for each review of a split, and their scores."""

    evaluation: Evaluation
    texts: list[str]
    labels: NDArray[np.int64]  # (N,)
    log_probabilities: NDArray[np.float64]  # (N, C)
    raw_log_probabilities: NDArray[np.float64]  # (N, C), before calibration
    predictor: Predictor
    run: run.Run
    file: Path  # for the evaluation, in the first run
    page: Path  # for its page, in the first run

    @property
    def correct(self) -> NDArray[np.bool_]:
        """(N,), true where the predicted class is the label."""
        return self.log_probabilities.argmax(1) == self.labels


def evaluate(
    paths: str | Path | Sequence[str | Path], split: str | None = None, **data: object
) -> Evaluation:
    """Scores of a run or checkpoint on a split, which are also written into the run.

    Several runs predict together, by their mean probability. `data` replaces keys of the first run's [data]:
    data_dir, source, text_column, label_column, encoding, bad_rows. With `source`, the last two are "utf-8"
    and "fail" unless they are named. All but data_dir need `source`. The default `split` is test, or all of a
    table file or of a folder that has neither train nor validation. Raises TypeError, ConfigError, DataError
    and RunError.

    >>> evaluate("runs/base").accuracy  # doctest: +SKIP
    0.9
    """
    predictions = predict_split([paths] if isinstance(paths, str | Path) else paths, split, **data)
    save(predictions)
    return predictions.evaluation


def save(predictions: Predictions) -> bool:
    """Writes an evaluation into its run. Warns, and returns False, if the run has changed meanwhile."""
    opened, is_folder = predictions.run, predictions.predictor.models[0].checkpoint.is_dir()
    if is_folder and run.open_info(opened.folder) != opened.info:
        warn(f"{opened.folder} has changed meanwhile: this evaluation is not kept. Evaluate it again")
        return False
    predictions.file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(predictions.file, predictions.evaluation.model_dump_json(indent=1).encode())
    return True


def stored_evaluations(opened: run.Run, name: str) -> list[Evaluation]:
    """A run's evaluations of its current `best`, oldest first. `name` is a pattern such as `best-*`."""
    evaluations = []
    with suppress(RunError):  # there is no `best` yet
        meta = checkpoint.read_meta(opened.checkpoint("best"), tokenizer_hash=opened.info.tokenizer_hash)
        files = (opened.reports / "evaluation").glob(f"{name}.json")
        for path in sorted(files, key=lambda file: file.stat().st_mtime_ns):
            with suppress(OSError, ValidationError):
                evaluation = Evaluation.model_validate_json(path.read_bytes())
                if evaluation.checkpoint == f"best (step {meta.step})":
                    evaluations.append(evaluation)
    return evaluations


def predict_split(paths: Sequence[str | Path], split: str | None = None, **data: object) -> Predictions:
    """Like `evaluate`, with the prediction for each review. Writes nothing."""
    if not isinstance(data.get("source"), str | PathLike | None):
        raise TypeError("A source is the name of a file or folder. Write a table to a file first.")
    changes = {key: str(value) for key, value in data.items() if value is not None}
    source = changes.get("source")
    split = measured_split(source, split)
    predictor = Predictor.load(*paths)
    runs = [model.origin for model in predictor.models]
    for each in runs:
        if split == "validation" and source is None and not each.config.data.held_out_fraction:
            raise ConfigError(f"{each.folder} was also trained on the validation split: use --split test.")
    if source:  # not as the run's reviews were read, but as `predict` reads a file
        changes = DataConfig().model_dump(include={"encoding", "bad_rows"}) | changes
    config = config_file.parse({"data": runs[0].config.data.model_dump() | changes}, origin="evaluate").data
    config.check_labelled()
    if source is None and (names := sorted(changes.keys() - {"data_dir"})):
        raise ConfigError(f"Name the source that these describe: {', '.join(names)}.")
    rows = _reviews_of(config, split, runs, is_of_run=source is None)
    labels = np.array(rows.labels)
    logits = [model.logits(rows.texts) for model in predictor.models]
    calibrated, raw = (predictor.log_probabilities(logits, calibrated=each) for each in (True, False))
    slices, num_learnt = _slices(rows.texts, predictor), 0
    if source or split == "test":
        is_new = _new_reviews(rows.texts, runs, changes.get("data_dir"))
        if source is None or not is_new.all():
            slices[CLEAN] = is_new
        num_learnt = int((~is_new).sum())
        if num_learnt and (source or not is_new.any()):
            warn(f"{num_learnt:,} of these {len(is_new):,} reviews were in training or validation")
    evaluation = evaluation_of(
        calibrated, labels, raw_logits=raw, slices=slices, num_learnt=num_learnt,
        checkpoint=_names(predictor.models),
        split=split if source is None else f"{split} of {Path(source).name}", classes=predictor.classes,
    )  # fmt: skip
    file = _file(predictor.models, split, "" if source is None else corpus.corpus_folder(config).name)
    is_of_run = source is None and predictor.models[0].checkpoint.is_dir()  # not an exported file
    page = runs[0].reports / "report.html" if is_of_run else file.with_suffix(".html")
    return Predictions(evaluation, rows.texts, labels, calibrated, raw, predictor, runs[0], file, page)


def _reviews_of(config: DataConfig, split: str, runs: Sequence[run.Run], *, is_of_run: bool) -> Rows:
    """The reviews of a split. Raises DataError if they do not fit the runs."""
    info = runs[0].info
    if split == ALL or (not is_of_run and sources.has_no_train(config, info.classes)):
        reviews = sources.read(config, info.classes)
        _check_classes(reviews.classes, config.source, runs[0])
        names = LABELLED_SPLITS if split == ALL else [split]
        rows = joined([rows for name, rows in reviews.splits.items() if name in names])
        if not rows.texts:
            raise DataError(f"{config.source} has no review with a label (split {split}).")
        return rows
    try:
        stored = corpus.ensure(config, needs=[split], expected_hash=info.corpus_hash if is_of_run else "")
    except DataError as error:
        if not is_of_run or not corpus.is_local(config) or Path(config.source).exists():
            raise
        where = "Name the folder that stores these reviews with --data-dir, or others with eval's --source."
        raise DataError(f"{error} {where}") from None
    if split == "test" and split not in stored.manifest.splits:
        other = "--split validation" if config.held_out_fraction else "--source FILE"
        raise DataError(f"{config.source} has no test split. Evaluate with {other}.")
    for each in runs:
        if is_of_run and runs[0].info.corpus_hash != each.info.corpus_hash:
            raise RunError(f"{runs[0].folder} and {each.folder} were trained on different reviews.")
        if is_of_run and stored.content_hash != each.info.corpus_hash:
            raise DataError(
                f"{config.source} differs from the reviews that {each.folder} was trained on: its test split "
                "may contain some of them. To evaluate on it anyway, name it with --source."
            )
    _check_classes(stored.manifest.classes, config.source, runs[0])
    return encoded.rows_of(config, stored, split)


def _check_classes(classes: Sequence[str], source: str, opened: run.Run) -> None:
    if tuple(classes) != opened.info.classes:
        known = ", ".join(opened.info.classes)
        raise DataError(
            f"The classes of {source} are {', '.join(classes)}; those of {opened.folder} are {known}."
        )


def _names(models: Sequence[Model]) -> str:
    """The checkpoints and their steps, such as `best (step 300)`."""
    return " + ".join(
        f"{f'{each.origin.folder.name}/' if len(models) > 1 else ''}{each.checkpoint.name} (step {each.step})"
        for each in models
    )


def _file(models: Sequence[Model], split: str, corpus_name: str) -> Path:
    """The evaluation's file in the first run. Its name tells the other runs, with a hash of their paths."""
    first, *others = models
    parts = [first.checkpoint.name, split, *([corpus_name] if corpus_name else [])]
    if others:
        names = "-".join(
            each.origin.folder.name + ("" if each.checkpoint.name == "best" else f"-{each.checkpoint.name}")
            for each in others
        )
        paths = "\n".join(str(each.checkpoint.resolve()) for each in others)
        short = names.encode()[:LONGEST_NAMES].decode(errors="ignore")
        parts += ["with", short, hashlib.sha256(paths.encode()).hexdigest()[:8]]
    return first.origin.reports / "evaluation" / f"{'-'.join(parts)}.json"


def _new_reviews(texts: list[str], runs: Sequence[run.Run], data_dir: str | None) -> NDArray[np.bool_]:
    """(N,), false for the texts that are known to be a run's training or validation reviews."""
    learnt: set[str] = set()
    for opened in runs:
        config = opened.config.data
        for folder in {config.data_dir, data_dir or config.data_dir}:
            config = config.model_copy(update={"data_dir": folder})
            learnt |= corpus.learnt_texts(config, opened.info.corpus_hash)
    is_new = np.array([normalized(text) not in learnt for text in texts])
    imdb_hash = run.open_run(run.of_package(run.SHIPPED_CLASSIFIER)).info.corpus_hash
    learnt_imdb = (each.info.corpus_hash == imdb_hash and each.info.kind != "encoder" for each in runs)
    starts = [Path(each.config.train.init_from).name for each in runs]
    if any(learnt_imdb) or run.SHIPPED_CLASSIFIER in starts:
        is_new &= imdb.stars_of(texts) == imdb.UNKNOWN  # also if IMDB's reviews are not stored
    return is_new


def _slices(texts: list[str], predictor: Predictor) -> dict[str, NDArray[np.bool_]]:
    """By name, a mask of reviews: by length, and cut or not."""
    num_words = [len(text.split()) for text in texts]
    between = [f"{low + 1} to {high} words" for low, high in pairwise(LENGTHS)]
    names = [f"up to {LENGTHS[0]} words", *between, f"over {LENGTHS[-1]} words"]
    which = np.searchsorted(LENGTHS, num_words)
    slices = {name: which == i for i, name in enumerate(names)}
    encoders = [model for model in predictor.models if isinstance(model, TransformerModel)]
    if encoders:
        tokenizer = encoders[0].tokenizer
        cut = np.array([len(ids) > tokenizer.max_length for ids in tokenizer.encode(texts, whole=True)])
        slices |= {"cut": cut, "not cut": ~cut}
    return slices


def validation_logits(opened: run.Run) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(N, C) logits and (N,) labels of a run's validation reviews."""
    stored = corpus.of_run(opened.config.data, opened.info.corpus_hash, opened.folder)
    rows = encoded.rows_of(opened.config.data, stored, "validation")
    logits = load_model(opened.folder, opened.config.train.device).logits(rows.texts)
    return logits, np.array(rows.labels)
