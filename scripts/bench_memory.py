"""Peak memory of whole commands: import, tokenizing and prediction of files of any size; training.

    python scripts/bench_memory.py RUN [--rows 10000 100000 1000000] [--json]
    python scripts/bench_memory.py --rows --minutes 5 [--json] --command pretrain --config pretrain.toml

The first form writes CSV files of reviews by the demo's grammar and lets `imdb-tx download`, `tokenize` and
`predict` run over them, each in a process of its own. `--command`, which comes last, does the same for
`imdb-tx train` or `imdb-tx pretrain` with the options that follow it; after `--minutes` it is stopped by
Ctrl-C, which it takes as an order to save and end. Prints the largest resident size that the system saw,
and the time. Nothing is warmed up: the peak is that of a whole command. Takes a minute, 10 for a million
rows, and `--minutes`.
"""

import argparse
import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from imdb_transformer.data import demo

INTERRUPTED = 128 + signal.SIGINT


def peak(*arguments: object, seconds: float | None = None) -> tuple[float, float]:
    """(MiB, seconds) of a command, which is interrupted after `seconds`."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "imdb_transformer", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    timer = threading.Timer(seconds or threading.TIMEOUT_MAX, process.send_signal, [signal.SIGINT])
    timer.daemon = True
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    code = os.waitstatus_to_exitcode(status)
    if code and not (seconds and code == INTERRUPTED):
        raise SystemExit(f"{arguments} ended with status {code}")
    return usage.ru_maxrss / 1024, time.perf_counter() - began


def write_reviews(path: Path, num_rows: int) -> None:
    """A CSV file of reviews by the demo's grammar."""
    reviews = [
        (text, label)
        for split in ("train", "test")
        for text, label in zip(*demo.reviews().splits[split], strict=True)
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for number, (text, label) in enumerate(itertools.islice(itertools.cycle(reviews), num_rows)):
            writer.writerow([f"{text} {number}", label])  # a text that stands twice is left out


def of_reading(run: Path, num_rows: int, folder: Path) -> dict[str, tuple[float, float]]:
    """Peaks of import, tokenizing and prediction."""
    path, data = folder / "reviews.csv", folder / str(num_rows)
    write_reviews(path, num_rows)
    size = f"{num_rows:,} rows, {path.stat().st_size / 2**20:,.0f} MiB"
    source = ("--set", f"data.source={path}", "--set", f"data.data_dir={data}")
    return {
        f"download {size}": peak("download", "--source", path, "--data-dir", data),
        f"tokenize {size}": peak("tokenize", *source),
        f"predict {size}": peak("predict", "--run", run, "--input", path, "--output", folder / "out.csv"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, nargs="?", help="needed for --rows")
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--minutes", type=float, help="of the command")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--command", nargs=argparse.REMAINDER, help="train or pretrain, and its options; last"
    )
    arguments = parser.parse_args()
    if arguments.rows and not arguments.run:
        parser.error("--rows needs a run to predict with; without any number it measures none.")
    peaks: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for num_rows in arguments.rows:
            peaks |= of_reading(arguments.run, num_rows, Path(name))
        if arguments.command:
            seconds = 60 * arguments.minutes if arguments.minutes else None
            command = [*arguments.command, "--run-dir", Path(name) / "run"]
            peaks[" ".join(arguments.command[:3])] = peak(*command, seconds=seconds)
            if not any(Path(name).glob("run/checkpoints/*")):
                raise SystemExit("The command was stopped before its training began; give it more --minutes.")
    if arguments.json:
        print(json.dumps({what: {"mib": round(m), "seconds": round(s, 1)} for what, (m, s) in peaks.items()}))
        return
    for what, (mebibytes, seconds) in peaks.items():
        print(f"{what:<40}{mebibytes:>8,.0f} MiB{seconds:>9.1f} s")


if __name__ == "__main__":
    main()
