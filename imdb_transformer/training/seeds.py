"""Repeats a recipe with several seeds: a run for each, and the mean and spread of their scores."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from imdb_transformer.config import MAX_INT, Config
from imdb_transformer.data import corpus
from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.evaluation.evaluate import CLEAN, evaluate
from imdb_transformer.store import run
from imdb_transformer.training.loop import Update
from imdb_transformer.training.prepare import soft_labels_of
from imdb_transformer.training.train import TrainingResult, trainings


def seed_trainings(
    config: Config, base: Path, num_seeds: int, *, teachers: tuple[Path, ...] = (), test: bool = False
) -> Iterator[tuple[Path, Iterator[Update]]]:
    """The runs of each seed, BASE-seed-N, as `trainings` gives them.

    Runs of an interrupted call are continued. The teachers predict once. Raises ConfigError with `test` if
    there is no test split.
    """
    if not base.name:
        raise RunError(f"--run-dir {base} ends without a name. With --seeds the runs are called NAME-seed-N.")
    if (last := config.train.seed + num_seeds - 1) > MAX_INT:
        raise ConfigError(f"The last of {num_seeds} seeds would be {last:,}; the largest is {MAX_INT:,}.")
    if test and "test" not in corpus.ensure(config.data).manifest.splits:
        raise ConfigError(f"{config.data.source} has no test split: leave out --test.")
    soft_labels = None
    for seed in range(config.train.seed, config.train.seed + num_seeds):
        seeded = config.replaced("train", seed=seed)
        folder = base.with_name(f"{base.name}-seed-{seed}")
        yield from trainings(seeded, folder, teachers=teachers, soft_labels=soft_labels, resume=True)
        soft_labels = soft_labels_of(run.open_run(folder))


def summarise(results: Sequence[TrainingResult], *, test: bool) -> dict[str, Any]:
    """Scores of several runs of one recipe. With `test`, each run is evaluated on test now.

    A score has the mean, the standard deviation of the sample (over n - 1) and the value of each run, and is
    None unless each run has it. The calibration errors (`ece`) are on test, before and after calibration;
    the accuracy of the yardstick is on validation. Times and speeds are medians.
    """
    tested = [evaluate(result.run) for result in results] if test else []
    scores = {
        "validation_accuracy": [each.validation.accuracy for each in results if each.validation],
        "yardstick_accuracy": [each.yardstick.accuracy for each in results if each.yardstick],
        "test_accuracy": [each.accuracy for each in tested],
        "clean_test_accuracy": [each.slices[CLEAN].accuracy for each in tested if CLEAN in each.slices],
        "raw_ece": [each.raw.ece for each in tested],
        "calibrated_ece": [each.calibrated.ece for each in tested],
    }
    spreads = {
        name: {"mean": mean(each), "sd": stdev(each), "each": each} if len(each) == len(results) else None
        for name, each in scores.items()
    }
    medians = {
        key: median(getattr(each, key) for each in results) for key in ("train_seconds", "tokens_per_second")
    }
    return {"runs": [result.run for result in results], **spreads, **medians}
