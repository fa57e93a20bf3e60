"""What happens when a training ends: calibration, and a linear model on the same reviews as a yardstick."""

from pathlib import Path

import numpy as np
from pydantic import BaseModel, ValidationError

from imdb_transformer.data import corpus, encoded
from imdb_transformer.errors import DataError
from imdb_transformer.evaluation.baseline import fit
from imdb_transformer.evaluation.compare import pair_of
from imdb_transformer.evaluation.evaluate import fit_temperature, validation_logits
from imdb_transformer.store import run
from imdb_transformer.store.files import write_whole

FILE = "yardstick.json"


class Yardstick(BaseModel, extra="forbid", frozen=True):
    """A linear model (`nb`) on the training reviews of a run, and the run, both on its validation reviews."""

    accuracy: float
    """of the linear model"""
    difference: float
    """accuracy of the run less that of the linear model"""
    low: float
    high: float
    """95% interval of the difference (`evaluation/compare.py`)"""


def conclude(opened: run.Run) -> run.Run:
    """The run with its temperature fitted and its yardstick written, if validation was held out."""
    if not opened.config.data.validation or opened.info.kind == "encoder":
        return opened
    logits, labels = validation_logits(opened)
    if opened.config.train.yardstick:
        stored, _ = corpus.ensure(opened.config.data, known=opened.info.corpus_hash)
        train, held_out = (
            encoded.rows_of(opened.config.data, stored, name) for name in ("train", "validation")
        )
        try:
            linear = fit("nb", train.texts, np.array(train.labels), num_classes=len(opened.info.classes))
        except DataError:  # too few or too short
            pass
        else:
            beside = linear.logits(held_out.texts).argmax(1) == labels
            pair = pair_of("nb", str(opened.folder), beside, logits.argmax(1) == labels)
            measured = Yardstick(
                accuracy=float(beside.mean()), difference=pair.difference, low=pair.low, high=pair.high
            )
            write_whole(opened.folder / FILE, measured.model_dump_json().encode())
    return opened.updated(temperature=fit_temperature(logits, labels))


def yardstick_of(folder: Path) -> Yardstick | None:
    """The yardstick of a run; None if it has none."""
    try:
        return Yardstick.model_validate_json((folder / FILE).read_bytes())
    except (OSError, ValidationError):
        return None
