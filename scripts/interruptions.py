"""Stopped and killed runs: trials of scripts/reliability.py."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from scripts.forked import SECONDS, Ended, Outcome, Place, ended, hashes, must, run, start, stopping


def exact_resume(place: Place, count: int) -> Outcome:
    """SIGTERM in a step, then --resume (train and pretrain, fp32 and bf16, one thread and two; mid-epoch,
    with moving average and dropout): the same bytes as without a stop."""
    variants = [
        (command, precision, threads)
        for command in ("train", "pretrain")
        for precision in ("fp32", "bf16")
        for threads in (1, 2)
    ][:: 1 if count > 8 else 3]
    failures, cases = [], 0
    for command, precision, threads in variants:
        name = f"{command}-{precision}-{threads}"
        config = place.config(name, precision=precision, evals=2)
        whole = place.folder / name
        threaded = partial(torch.set_num_threads, threads)
        must(run(place, command, "--config", config, "--run-dir", whole, before=threaded), 0)
        expected = hashes(whole)
        num_steps = sum('"lr"' in line for line in (whole / "metrics.jsonl").read_text().splitlines())
        points = range(1, num_steps)
        for at in list(points)[:: max(1, len(points) * len(variants) // count)]:
            cut = place.folder / f"{name}-cut"
            shutil.rmtree(cut, ignore_errors=True)
            prepare = partial(_each, threaded, stopping(at))
            first = run(place, command, "--config", config, "--run-dir", cut, before=prepare)
            second = run(place, command, "--resume", cut, before=threaded)
            cases += 1
            if (first.code, second.code) != (143, 0) or hashes(cut) != expected:
                failures.append(
                    f"{name} stopped at step {at}: {first.code}, {second.code} {second.told[-300:]}"
                )
    return Outcome(cases, failures)


def _each(*calls: Callable[[], None]) -> None:
    for call in calls:
        call()


def kill_anywhere(place: Place, count: int) -> Outcome:
    """SIGKILL at random moments, saving included; resumed until the end: the same bytes as without a kill."""
    config = place.config("kill", epochs=4, evals=10)
    whole, killed = place.folder / "whole", place.folder / "killed"
    began = time.monotonic()
    must(run(place, "train", "--config", config, "--run-dir", whole), 0)
    span = time.monotonic() - began
    expected = hashes(whole)
    generator, failures, kills = random.Random(0), [], 0
    log = place.folder / "log"
    while kills < count and not failures:
        shutil.rmtree(killed, ignore_errors=True)
        end = Ended(-1, "")
        while end.code:
            begun = (killed / "run.json").exists()
            arguments = ["--resume", killed] if begun else ["--config", config, "--run-dir", killed]
            process = start("train", *arguments, log=log)
            time.sleep(generator.uniform(0.05, 1.1 * span))
            os.kill(process, signal.SIGKILL)
            end = ended(process, log)
            if end.code == -signal.SIGKILL:
                kills += 1
            elif end.code:
                failures.append(f"kill {kills}: exit {end.code}: {end.told[-300:]}")
                break
        if not end.code and hashes(killed) != expected:
            failures.append(f"after kill {kills} the run ended with other bytes")
    return Outcome(kills, failures)


def signals(place: Place, count: int) -> Outcome:
    """SIGINT or SIGTERM at a random moment of a command: exit 130 or 143, and the command can be repeated."""
    config = place.config("signals", epochs=2)
    reviews = place.folder / "many.csv"
    reviews.write_text("text\n" + "a good film\n" * 4000)
    trained = place.folder / "trained"
    must(run(place, "train", "--config", config, "--run-dir", trained), 0)
    generator, failures, cases = random.Random(1), [], 0
    log, output = place.folder / "log", place.folder / "out.jsonl"
    expected = hashes(trained)
    for case in range(count):
        command = ("download", "train", "predict")[case % 3]
        data, made = place.folder / "fresh", place.folder / "made"
        for old in (data, made):
            shutil.rmtree(old, ignore_errors=True)
        output.unlink(missing_ok=True)
        fresh = ["--set", f'data.data_dir="{data}"']
        whole: list[object] = {
            "download": ["download", "--source", place.source, "--data-dir", data],
            "train": ["train", "--config", config, "--run-dir", made, *fresh],
            "predict": ["predict", "--run", trained, "--input", reviews, "--output", output],
        }[command]  # type: ignore[assignment]
        number = (signal.SIGINT, signal.SIGTERM)[case % 2]
        process = start(*whole, log=log)
        time.sleep(generator.uniform(0.03, 1.5))
        os.kill(process, number)
        if case % 5 == 0:
            time.sleep(0.005)
            os.kill(process, number)  # impatient
        end = ended(process, log)
        cases += 1
        if end.code not in (0, 128 + number) or "Traceback" in end.told:
            failures.append(f"{command}, {number.name}: exit {end.code}: {end.told[-400:]}")
        if command == "train" and (made / "run.json").exists():
            whole = ["train", "--resume", made]
        elif command == "predict":
            whole += ["--resume"]
        again = run(place, *whole)
        if again.code:
            failures.append(f"{command} after {number.name} cannot be done again: {again.told[-300:]}")
        if command == "train" and hashes(made) != expected:
            failures.append(f"train after {number.name} ended with other bytes")
        if command == "predict" and len(output.read_text().splitlines()) != 4000:
            failures.append("predict lost rows")
    return Outcome(cases, failures)


COMMANDS = """
import json, sys
from imdb_transformer.cli import app
for arguments in json.loads(sys.argv[1]):
    app(arguments, standalone_mode=False)
"""


def same_bytes(place: Place, count: int) -> Outcome:
    """Two runs of a config, with different PYTHONHASHSEED: the same bytes."""
    config = place.config("same")
    results: dict[str, list[dict[str, str]]] = {"train": [], "pretrain": []}
    for seed in range(count):
        data = f'data.data_dir="{place.folder / f"data-{seed}"}"'
        folders = {command: place.folder / f"{command}-{seed}" for command in results}
        commands = [
            [command, "--config", str(config), "--run-dir", str(folder), "--set", data]
            for command, folder in folders.items()
        ]
        subprocess.run(
            [sys.executable, "-c", COMMANDS, json.dumps(commands)], check=True, capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)}, timeout=2 * SECONDS,
        )  # fmt: skip
        for command, folder in folders.items():
            results[command].append(hashes(folder))
    failures = [
        f"{command}: {runs}" for command, runs in results.items() if any(run != runs[0] for run in runs)
    ]
    return Outcome(len(results) * count, failures)
