"""Peak memory of whole commands: import, tokenizing and prediction of files of any size, training base.toml.

    python scripts/bench_memory.py RUN [--rows 10000 100000 1000000] [--train CONFIG ...] [--json]

Writes CSV files of reviews by the demo's grammar, lets `imdb-tx download`, `tokenize` and `predict` run over
them, each in a process of its own, and prints the largest resident size that the system saw, and the time.
`--train` does the same for `imdb-tx train --config CONFIG` (and what else is given, such as --set
data.source=...).
"""

import argparse
import csv
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from imdb_transformer.data import demo


def peak(*arguments: object) -> tuple[float, float]:
    """(MiB, seconds) of a command."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "imdb_transformer", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{arguments} ended with status {status}")
    return usage.ru_maxrss / 1024, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--train", nargs=argparse.REMAINDER, help="a config, and other options of train")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    reviews = [
        (text, label)
        for split in ("train", "test")
        for text, label in zip(*demo.reviews().splits[split], strict=True)
    ]
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for num_rows in arguments.rows:
            path = folder / "reviews.csv"
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(["text", "label"])
                for number, (text, label) in enumerate(itertools.islice(itertools.cycle(reviews), num_rows)):
                    writer.writerow([f"{text} {number}", label])  # a text that stands twice is left out
            size = f"{num_rows:,} rows, {path.stat().st_size / 2**20:,.0f} MiB"
            source = ("--set", f"data.source={path}", "--set", f"data.data_dir={folder / str(num_rows)}")
            found[f"download {size}"] = peak(
                "download", "--source", path, "--data-dir", folder / str(num_rows)
            )
            found[f"tokenize {size}"] = peak("tokenize", *source)
            found[f"predict {size}"] = peak(
                "predict", "--run", arguments.run, "--input", path, "--output", folder / "out.csv"
            )
        if arguments.train:
            config, *rest = arguments.train
            found[f"train {config}"] = peak("train", "--config", config, "--run-dir", folder / "run", *rest)
    if arguments.json:
        print(json.dumps({what: {"mib": round(m), "seconds": round(s, 1)} for what, (m, s) in found.items()}))
        return
    for what, (mebibytes, seconds) in found.items():
        print(f"{what:<40}{mebibytes:>8,.0f} MiB{seconds:>9.1f} s")


if __name__ == "__main__":
    main()
