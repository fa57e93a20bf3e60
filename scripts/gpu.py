"""Pretraining, fine-tuning and evaluation on a machine that is lent for minutes at a time, without a network.

    python scripts/gpu.py --data data --runs runs/gpu --finetune train.epochs=2 --finetune train.lr=2e-4 \\
        --finetune train.ema_decay=0.998

Each call goes on where the last one stopped, and stops itself in time: interrupted commands save their state.
The folder of the data needs the stored corpus only (`data/imdb-*`, 57 MB); the rest is made anew in half a
minute. When all is done, the last lines are the results, as JSON. To rehearse it on a CPU in a minute:

    python scripts/gpu.py --config demo.toml --data data --runs runs/rehearsal --seconds 20
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
    parser.add_argument("--config", default="large.toml")
    parser.add_argument("--data", type=Path, required=True, help="folder with the stored corpus")
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--source", help="of the reviews, if not what the config says")
    parser.add_argument("--seconds", type=float, default=540.0, help="stop after this time")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--finetune", action="append", default=[], metavar="KEY=VALUE", help="of fine-tuning only"
    )
    options = parser.parse_args()
    end = time.monotonic() + options.seconds - GRACE_SECONDS
    common = [f"data.data_dir={options.data}", *options.overrides]
    if options.source:
        common.append(f"data.source={options.source}")
    encoder = options.runs / "encoder"
    trainings = [("pretrain", encoder, common)]
    for seed in SEEDS:
        changes = [*common, f"train.seed={seed}", f"train.init_from={encoder}", *options.finetune]
        trainings.append(("train", options.runs / f"seed-{seed}", changes))
    for command, folder, overrides in trainings:
        if not is_finished(folder) and not advance(command, folder, options.config, overrides, end):
            print(f"to be continued: {command} {folder}")
            return
    for _, folder, _ in trainings[1:]:
        ended = imdb_tx("eval", str(folder), "--json", end=end + GRACE_SECONDS)
        if ended is None:
            print(f"to be continued: eval {folder}")
            return
        told = json.loads(ended)
        print(json.dumps({"run": folder.name, "test": told["accuracy"], "loss": told["loss"],
                          "validation": validation_of(folder)}))  # fmt: skip


def advance(command: str, folder: Path, config: str, overrides: list[str], end: float) -> bool:
    """Starts or resumes a training; whether it has finished."""
    if folder.exists():
        arguments = ["--resume", str(folder)]
    else:
        arguments = ["--config", config, "--run-dir", str(folder)]
        arguments += [word for override in overrides for word in ("--set", override)]
    imdb_tx(command, *arguments, end=end)
    return is_finished(folder)


def imdb_tx(*arguments: str, end: float) -> str | None:
    """What a command prints on stdout; None if the time was over first, after it has saved its state."""
    process = subprocess.Popen(
        [sys.executable, "-m", "imdb_transformer", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        printed, _ = process.communicate(timeout=max(end - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.communicate()
        return None
    if process.returncode:
        sys.exit(process.returncode)
    return printed


def is_finished(folder: Path) -> bool:
    """Whether a run has ended."""
    path = folder / "run.json"
    return path.exists() and json.loads(path.read_bytes())["status"] == "finished"


def validation_of(folder: Path) -> dict[str, float]:
    """The last score on validation."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["validation"] for line in lines if "validation" in line][-1]


if __name__ == "__main__":
    main()
