"""What an exported model costs and keeps: accuracy and speed on all of test, beside the run itself.

    python scripts/bench_export.py RUN [--json]

Exports the run as fp32 and int8; takes turns on parts of the test split; prints accuracy, reviews a second
(medians over the parts), the largest difference of a probability from the run's own in fp32 over the first
1,000 reviews, the files' sizes, and the wall time of one cold `imdb-tx predict` (medians of 5, in turns).
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from imdb_transformer import run
from imdb_transformer.data import corpus, tokenized
from imdb_transformer.inference.export import export
from imdb_transformer.inference.predict import Predictor

PART = 2500  # reviews a turn
NUM_COMPARED = 1000
NUM_COLD = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    config = run.open_run(arguments.run).config.data
    stored, _ = corpus.ensure(config)
    texts, labels = tokenized.rows_of(config, stored, "test")
    exact = Predictor.load(arguments.run, device="cpu")
    exact.models[0].hardware = exact.models[0].hardware._replace(dtype=torch.float32)
    expected = exact.probabilities(texts[:NUM_COMPARED])
    with tempfile.TemporaryDirectory() as folder:
        paths = {"run": arguments.run}
        for precision in ("fp32", "int8"):
            paths[precision] = Path(folder) / f"{precision}.onnx"
            export(arguments.run, paths[precision], precision)
        predictors = {name: Predictor.load(path) for name, path in paths.items()}
        found: dict[str, list[np.ndarray]] = {name: [] for name in paths}
        speeds: dict[str, list[float]] = {name: [] for name in paths}
        for predictor in predictors.values():
            predictor.probabilities(texts[:64])  # warm-up
        for start in range(0, len(texts), PART):
            part = texts[start : start + PART]
            for name, predictor in predictors.items():
                began = time.perf_counter()
                found[name].append(predictor.probabilities(part))
                speeds[name].append(len(part) / (time.perf_counter() - began))
        cold: dict[str, list[float]] = {name: [] for name in paths}
        for _ in range(NUM_COLD):
            for name, path in paths.items():
                command = [
                    sys.executable,
                    "-m",
                    "imdb_transformer",
                    "predict",
                    "--run",
                    str(path),
                    "a good film",
                ]
                began = time.perf_counter()
                subprocess.run(command, capture_output=True, check=True)
                cold[name].append(time.perf_counter() - began)
        rows = {}
        for name, parts in found.items():
            probabilities = np.concatenate(parts)
            rows[name] = {
                "accuracy": round(float((probabilities.argmax(1) == np.array(labels)).mean()), 5),
                "largest_difference": float(np.abs(probabilities[:NUM_COMPARED] - expected).max()),
                "reviews_per_second": round(statistics.median(speeds[name])),
                "cold_seconds": round(statistics.median(cold[name]), 2),
                "mib": round(paths[name].stat().st_size / 2**20, 1) if name != "run" else None,
            }
    if arguments.json:
        print(json.dumps({"date": time.strftime("%Y-%m-%d"), "n": len(speeds["run"]), **rows}))
        return
    print(f"{'':6}{'accuracy':>10}{'difference':>12}{'reviews/s':>11}{'cold s':>8}{'MiB':>7}")
    for name, row in rows.items():
        print(
            f"{name:6}{100 * row['accuracy']:>9.2f}%{row['largest_difference']:>12.1e}"
            f"{row['reviews_per_second']:>11,}{row['cold_seconds']:>8.2f}{row['mib'] or '':>7}"
        )


if __name__ == "__main__":
    main()
