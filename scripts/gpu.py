"""Pretraining, training on labels, a student and evaluation, on a GPU that is available for minutes only.

    python scripts/gpu.py --data data --runs runs/gpu

Each call continues the one before, and stops before its time is over. Three seeds learn the labels in
parallel. They are the teachers of the student, which starts from the same encoder; `--teacher` adds others.
No network is needed: the folder of the data must have the stored corpus (`data/imdb-*`, 57 MB), and the rest
is made anew in seconds. When all is done, the last lines are the results, as JSON. To rehearse it on a CPU:

    python scripts/gpu.py --pretrain demo.toml --train demo.toml --data data --runs runs/rehearsal
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_SECONDS = 30  # to save and end after the signal
STOPPED = (128 + signal.SIGTERM, -signal.SIGTERM)  # the second if a command was still starting
SEEDS = (0, 1, 2)


def main() -> None:
    """Runs the commands in order until all are done or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pretrain", default="large.toml", help="config of pretraining")
    parser.add_argument("--train", default="large-labels.toml", help="config of training on labels")
    parser.add_argument("--data", type=Path, required=True, help="folder with the stored corpus")
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--source", help="of the reviews, if not what the configs say")
    parser.add_argument("--teacher", action="append", default=[], help="another teacher of the student")
    parser.add_argument("--seconds", type=float, default=540.0, help="stop after this time")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds - GRACE_SECONDS
    shared = [f"data.data_dir={options.data}"]
    if options.source:
        shared.append(f"data.source={options.source}")
    encoder, student = options.runs / "encoder", options.runs / "student"
    classifiers = [options.runs / f"seed-{seed}" for seed in SEEDS]
    pretraining = training_command("pretrain", options.pretrain, encoder, shared)
    shared.append(f"train.init_from={encoder}")
    trainings = [
        training_command("train", options.train, folder, [*shared, f"train.seed={seed}"])
        for folder, seed in zip(classifiers, SEEDS, strict=True)
    ]
    studying = training_command("train", options.train, student, shared)
    if not student.exists():
        studying += [f"--teacher={teacher}" for teacher in (*classifiers, *options.teacher)]
    evaluations = [["eval", str(folder), "--json"] for folder in (*classifiers, student)]
    printed: list[str] = []
    for commands in ([pretraining], trainings, [studying], evaluations):
        printed = run_in_parallel(commands, end)
        if not printed:
            print("to be continued: call this again")
            return
    for folder, line in zip((*classifiers, student), printed, strict=True):
        scores = json.loads(line)
        print(json.dumps({"run": folder.name, "test": scores["accuracy"], "loss": scores["loss"],
                          "validation": validation_of(folder)}))  # fmt: skip


def training_command(command: str, config: str, folder: Path, overrides: list[str]) -> list[str]:
    """The command that starts a training, or continues it. If it has finished, the command does nothing."""
    if folder.exists():
        return [command, "--resume", str(folder)]
    sets = [word for override in overrides for word in ("--set", override)]
    return [command, "--config", config, "--run-dir", str(folder), *sets]


def run_in_parallel(commands: list[list[str]], end: float) -> list[str]:
    """What each command prints on stdout; empty if the time is over first.

    If a command fails, the others are stopped, and the program ends with its exit code.
    """
    if time.monotonic() > end:
        return []
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "imdb_transformer", *command], stdout=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    while any(process.poll() is None for process in processes):
        if time.monotonic() > end or any(process.returncode for process in processes):
            break
        time.sleep(0.1)
    for process in processes:
        process.terminate()  # does nothing if it has ended
    printed = [process.communicate()[0] for process in processes]
    codes = [process.returncode for process in processes]
    if failures := [code for code in codes if code not in (0, *STOPPED)]:
        sys.exit(failures[0])
    return [] if any(codes) else printed


def validation_of(folder: Path) -> dict[str, float]:
    """The last score on validation."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["validation"] for line in lines if "validation" in line][-1]


if __name__ == "__main__":
    main()
