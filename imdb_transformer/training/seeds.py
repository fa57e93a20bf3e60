"""A recipe over several seeds: mean, spread and each run."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev

from pydantic import BaseModel

from imdb_transformer.evaluation.split import evaluate_split
from imdb_transformer.training.loop import TrainingResult


class Spread(BaseModel):
    """A figure over runs."""

    mean: float
    sd: float
    """standard deviation of the sample, over n - 1"""
    each: list[float]


class SeedsSummary(BaseModel):
    """What `imdb-tx train --seeds` prints."""

    runs: list[str]
    validation_accuracy: Spread | None
    test_accuracy: Spread | None
    train_seconds: float
    """median"""
    tokens_per_second: float
    """median"""


def summarise(results: Sequence[TrainingResult], *, test: bool) -> SeedsSummary:
    """Figures of several runs of one recipe; with `test`, each is evaluated on the test split now."""
    scores = [result.validation for result in results]
    accuracies = [score.accuracy for score in scores if score is not None]
    tested = [evaluate_split([Path(result.run)], "test")[0].accuracy for result in results] if test else []
    return SeedsSummary(
        runs=[result.run for result in results],
        validation_accuracy=_spread(accuracies),
        test_accuracy=_spread(tested),
        train_seconds=median(result.train_seconds for result in results),
        tokens_per_second=median(result.tokens_per_second for result in results),
    )


def _spread(values: list[float]) -> Spread | None:
    return Spread(mean=mean(values), sd=stdev(values), each=values) if values else None
