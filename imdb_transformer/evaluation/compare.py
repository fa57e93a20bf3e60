"""Runs side by side: how their configs and figures differ, and whether that is more than chance."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from scipy.stats import binomtest

from imdb_transformer.errors import DataError
from imdb_transformer.evaluation.evaluate import Answers, answers
from imdb_transformer.evaluation.figures import Evaluation
from imdb_transformer.store import run

NUM_RESAMPLES = 10_000


class Pair(BaseModel):
    """Two runs on the same reviews."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first: str
    second: str
    only_first_right: int
    only_second_right: int
    p_value: float
    """of McNemar's exact test that neither is right more often (McNemar 1947)"""
    difference: float
    """accuracy of the second less that of the first"""
    low: float
    high: float
    """95% interval of the difference: a bootstrap over reviews, the same for both runs (Efron 1979)"""


class Comparison(BaseModel):
    """What `imdb-tx compare` shows."""

    runs: list[str]
    differences: dict[str, list[Any]]
    """by config key (and `kind`), the value of each run, where they are not all the same"""
    evaluations: list[Evaluation]
    pairs: list[Pair]


def compare(paths: Sequence[Path], split: str) -> tuple[Comparison, list[Answers]]:
    """Runs or checkpoints on one split of the corpus that all were trained beside; and what each answered."""
    names = [str(path) for path in paths]
    configs = [_flat(run.locate(path)[0]) for path in paths]
    found = [answers([path], split) for path in paths]
    for name, other in zip(names, found, strict=True):
        if other.texts != found[0].texts:
            raise DataError(f"{name} and {names[0]} have other reviews in {split}: they cannot be compared.")
        classes, labels = other.evaluation.classes, other.labels
        if classes != found[0].evaluation.classes or not np.array_equal(labels, found[0].labels):
            raise DataError(f"{name} and {names[0]} have other labels in {split}: they cannot be compared.")
    pairs = [
        pair_of(names[i], names[j], found[i].correct, found[j].correct)
        for i, j in combinations(range(len(paths)), 2)
    ]
    compared = Comparison(
        runs=names,
        differences={
            key: values for key in configs[0]
            if len(set(map(repr, values := [config[key] for config in configs]))) > 1
        },
        evaluations=[answer.evaluation for answer in found],
        pairs=pairs,
    )  # fmt: skip
    return compared, found


def pair_of(
    first: str, second: str, first_correct: NDArray[np.bool_], second_correct: NDArray[np.bool_]
) -> Pair:
    """McNemar's test and a bootstrap of two runs' right answers, (N,) each, review by review."""
    only_first = int((first_correct & ~second_correct).sum())
    only_second = int((second_correct & ~first_correct).sum())
    num = len(first_correct)
    shares = np.array([only_first, only_second, num - only_first - only_second]) / num
    # Resampling reviews is drawing how many of each of the three kinds there are.
    drawn = np.random.default_rng(0).multinomial(num, shares, NUM_RESAMPLES)
    low, high = np.quantile((drawn[:, 1] - drawn[:, 0]) / num, [0.025, 0.975])
    disagreed = only_first + only_second
    return Pair(
        first=first,
        second=second,
        only_first_right=only_first,
        only_second_right=only_second,
        p_value=float(binomtest(only_second, disagreed, 0.5).pvalue) if disagreed else 1.0,
        difference=(only_second - only_first) / num,
        low=float(low),
        high=float(high),
    )


def _flat(opened: run.Run) -> dict[str, Any]:
    """What a run is, and each key of its config."""
    flat: dict[str, Any] = {"kind": opened.info.weighting or opened.info.kind}
    for section, keys in opened.config.model_dump().items():
        flat |= {f"{section}.{key}": value for key, value in keys.items()}
    return flat
