"""Pretraining, training on labels and evaluation on a GPU that is available for minutes at a time.

    python scripts/gpu.py --data data --runs runs/gpu

Each call goes on where the last one stopped, and stops itself in time: interrupted commands save their state.
Three seeds learn the labels side by side, because one alone keeps a GPU waiting. No network is needed: the
folder of the data must have the stored corpus (`data/imdb-*`, 57 MB), and the rest is made anew in seconds.
When all is done, the last lines are the results, as JSON. To rehearse it on a CPU in some minutes:

    python scripts/gpu.py --pretrain demo.toml --train demo.toml --data data --runs runs/rehearsal
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_SECONDS = 20  # to save and end after the signal
SEEDS = (0, 1, 2)


def main() -> None:
    """Runs the commands in order until all are done or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pretrain", default="large.toml", help="config of pretraining")
    parser.add_argument("--train", default="large-labels.toml", help="config of training on labels")
    parser.add_argument("--data", type=Path, required=True, help="folder with the stored corpus")
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--source", help="of the reviews, if not what the configs say")
    parser.add_argument("--seconds", type=float, default=540.0, help="stop after this time")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds - GRACE_SECONDS
    common = [f"data.data_dir={options.data}"]
    if options.source:
        common.append(f"data.source={options.source}")
    encoder, classifiers = options.runs / "encoder", [options.runs / f"seed-{seed}" for seed in SEEDS]
    pretraining = training("pretrain", options.pretrain, encoder, common)
    trainings = [
        training(
            "train", options.train, folder, [*common, f"train.init_from={encoder}", f"train.seed={seed}"]
        )
        for folder, seed in zip(classifiers, SEEDS, strict=True)
    ]
    evaluations = [["eval", str(folder), "--json"] for folder in classifiers]
    printed: list[str] = []
    for commands in ([pretraining], trainings, evaluations):
        printed = side_by_side(commands, end)
        if not printed:
            print("to be continued: call this again")
            return
    for folder, line in zip(classifiers, printed, strict=True):
        told = json.loads(line)
        print(json.dumps({"run": folder.name, "test": told["accuracy"], "loss": told["loss"],
                          "validation": validation_of(folder)}))  # fmt: skip


def training(command: str, config: str, folder: Path, overrides: list[str]) -> list[str]:
    """The command that starts a training, or continues it. A finished one ends at once."""
    if folder.exists():
        return [command, "--resume", str(folder)]
    sets = [word for override in overrides for word in ("--set", override)]
    return [command, "--config", config, "--run-dir", str(folder), *sets]


def side_by_side(commands: list[list[str]], end: float) -> list[str]:
    """What each command prints on stdout. Empty if the time was over first: all have saved their state."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "imdb_transformer", *command], stdout=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    printed = []
    for process in processes:
        try:
            printed.append(process.communicate(timeout=max(end - time.monotonic(), 0.1))[0])
        except subprocess.TimeoutExpired:
            for running in processes:
                running.send_signal(signal.SIGTERM)
            for running in processes:
                running.communicate()
            return []
        if process.returncode:
            sys.exit(process.returncode)
    return printed


def validation_of(folder: Path) -> dict[str, float]:
    """The last score on validation."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["validation"] for line in lines if "validation" in line][-1]


if __name__ == "__main__":
    main()
