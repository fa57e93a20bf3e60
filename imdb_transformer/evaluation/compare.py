"""Compares runs: how their configs and scores differ, and whether by more than chance."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from imdb_transformer.errors import DataError
from imdb_transformer.evaluation.evaluate import Predictions, predict_split
from imdb_transformer.evaluation.scores import Evaluation
from imdb_transformer.inference.predictor import origin_of
from imdb_transformer.store import run

NORMAL_95 = 1.96  # standard errors on each side of a 95% interval


class Pair(BaseModel, extra="forbid", frozen=True):
    """Two runs on the same reviews."""

    first: str
    second: str
    only_first_right: int
    only_second_right: int
    p_value: float  # of McNemar's exact test that neither is right more often (McNemar 1947)
    difference: float  # accuracy of the second minus that of the first
    low: float
    high: float  # 95% interval of the difference, for runs on the same reviews (Agresti and Min 2005)


class Comparison(BaseModel):
    """Result of `imdb-tx compare`."""

    runs: list[str]
    differences: dict[str, list[Any]]
    """by config key (also `kind` and `teachers`), the value of each run, if they are not all the same"""
    evaluations: list[Evaluation]
    pairs: list[Pair]


def compare(
    paths: Sequence[Path], split: str, data_dir: str | None = None
) -> tuple[Comparison, list[Predictions]]:
    """Compares runs or checkpoints on one split. Also returns the predictions of each run.

    `data_dir` is where corpora are stored, by default that of each run. Raises DataError if this split
    differs between their corpora.
    """
    names = [str(path) for path in paths]
    configs = [_flat(origin_of(path)) for path in paths]  # a missing run is found before another is evaluated
    predictions = [predict_split([path], split, data_dir=data_dir) for path in paths]
    first = predictions[0]
    for name, other in zip(names, predictions, strict=True):
        same_classes = other.evaluation.classes == first.evaluation.classes
        same_labels = same_classes and np.array_equal(other.labels, first.labels)
        if other.texts != first.texts or not same_labels:
            part = "labels" if other.texts == first.texts else "reviews"
            raise DataError(
                f"{name} and {names[0]} have different {part} in {split}: they cannot be compared."
            )
    by_key = {key: [config[key] for config in configs] for key in configs[0]}
    differences = {key: values for key, values in by_key.items() if len(set(map(repr, values))) > 1}
    pairs = [
        pair_of(names[i], names[j], predictions[i].correct, predictions[j].correct)
        for i, j in combinations(range(len(paths)), 2)
    ]
    evaluations = [each.evaluation for each in predictions]
    return Comparison(runs=names, differences=differences, evaluations=evaluations, pairs=pairs), predictions


def pair_of(
    first: str, second: str, first_correct: NDArray[np.bool_], second_correct: NDArray[np.bool_]
) -> Pair:
    """McNemar's test and an interval from two runs' correct predictions, (N,) each.

    The interval is Wald's, of large samples, after half a review is added to each of the four counts: both
    right, both wrong, only one right. A bootstrap would be too narrow if the runs rarely disagree.
    """
    from scipy.stats import binomtest  # 58 MiB, which a training would carry

    only_first = int((first_correct & ~second_correct).sum())
    only_second = int((second_correct & ~first_correct).sum())
    num = len(first_correct)
    disagreed, more = only_first + only_second, only_second - only_first
    middle = more / (num + 2)
    margin = NORMAL_95 * np.sqrt(disagreed + 1 - more * middle) / (num + 2)
    low, high = np.clip([middle - margin, middle + margin], -1, 1).tolist()
    p_value = float(binomtest(only_second, disagreed, 0.5).pvalue) if disagreed else 1.0
    return Pair(
        first=first, second=second, only_first_right=only_first, only_second_right=only_second,
        p_value=p_value, difference=more / num, low=low, high=high,
    )  # fmt: skip


def _flat(opened: run.Run) -> dict[str, Any]:
    """A run's kind, teachers and reviews, and each key of its config."""
    info = opened.info
    flat = {"kind": info.weighting or info.kind, "teachers": ", ".join(info.teachers) or "none"}
    flat["hash of the reviews"] = info.corpus_hash[:8]
    for section, keys in opened.config.model_dump().items():
        flat |= {f"{section}.{key}": value for key, value in keys.items()}
    return flat
