"""What an exported model costs and keeps: accuracy and speed on all of test, beside the run itself.

    python scripts/bench_export.py RUN [--source FOLDER] [--json]

Exports the run; takes turns on parts of the test split; prints accuracy, reviews a second
(medians over the parts), the largest difference of a probability from the run's own in fp32 over the first
1,000 reviews, the file's size, and the wall time of one cold `imdb-tx predict` (medians of 9, in turns).
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from bench_predict import cold_start, medians_in_turns, reviews_of

from imdb_transformer.data import corpus, encoded
from imdb_transformer.inference.export import export
from imdb_transformer.inference.predictor import Predictor

PART = 2500  # reviews a turn
NUM_COMPARED = 1000
Row = dict[str, float | None]


class Turns(NamedTuple):
    """What each contestant said of all texts, and its speed on each part of them."""

    probabilities: dict[str, np.ndarray]
    speeds: dict[str, list[float]]


def in_fp32(path: Path, texts: list[str]) -> np.ndarray:
    """(N, C): the run's own probabilities, in full precision."""
    exact = Predictor.load(path, device="cpu")
    exact.models[0].hardware = exact.models[0].hardware._replace(dtype=torch.float32)
    return exact.probabilities(texts)


def take_turns(paths: dict[str, Path], texts: list[str]) -> Turns:
    """Every contestant predicts a part of the texts, then every one the next."""
    predictors = {name: Predictor.load(path) for name, path in paths.items()}
    for predictor in predictors.values():
        predictor.probabilities(texts[:64])  # warm-up
    answers: dict[str, list[np.ndarray]] = {name: [] for name in paths}
    speeds: dict[str, list[float]] = {name: [] for name in paths}
    for start in range(0, len(texts), PART):
        part = texts[start : start + PART]
        for name, predictor in predictors.items():
            began = time.perf_counter()
            answers[name].append(predictor.probabilities(part))
            speeds[name].append(len(part) / (time.perf_counter() - began))
    return Turns({name: np.concatenate(parts) for name, parts in answers.items()}, speeds)


def measure(path: Path, source: str | None) -> tuple[int, dict[str, Row]]:
    """The number of turns, and what is printed of each contestant."""
    config = reviews_of(path, source)
    stored = corpus.ensure(config)
    texts, labels = encoded.rows_of(config, stored, "test")
    expected = in_fp32(path, texts[:NUM_COMPARED])
    with tempfile.TemporaryDirectory() as folder:
        paths = {"run": path, "file": export(path, Path(folder) / "model.onnx")}
        turns = take_turns(paths, texts)
        cold = medians_in_turns({name: cold_start(file) for name, file in paths.items()})
        sizes = {name: file.stat().st_size / 2**20 for name, file in paths.items() if file.is_file()}
    rows: dict[str, Row] = {}
    for name, probabilities in turns.probabilities.items():
        rows[name] = {
            "accuracy": round(float((probabilities.argmax(1) == np.array(labels)).mean()), 5),
            "largest_difference": float(np.abs(probabilities[:NUM_COMPARED] - expected).max()),
            "reviews_per_second": round(statistics.median(turns.speeds[name])),
            "cold_seconds": cold[name],
            "mib": round(sizes[name], 1) if name in sizes else None,
        }
    return len(turns.speeds["run"]), rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--source", help="other reviews than the run's")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    num_turns, rows = measure(arguments.run, arguments.source)
    if arguments.json:
        print(json.dumps({"date": time.strftime("%Y-%m-%d"), "n": num_turns, **rows}))
        return
    print(f"{'':6}{'accuracy':>10}{'difference':>12}{'reviews/s':>11}{'cold s':>8}{'MiB':>7}")
    for name, row in rows.items():
        print(
            f"{name:6}{100 * row['accuracy']:>9.2f}%{row['largest_difference']:>12.1e}"
            f"{row['reviews_per_second']:>11,}{row['cold_seconds']:>8.2f}{row['mib'] or '':>7}"
        )


if __name__ == "__main__":
    main()
