"""What can happen to a run, made to happen: the promises of README.md beside this, counted.

    python scripts/reliability.py                                  the long form, on reviews of the demo
    python scripts/reliability.py --source FOLDER                  on your own: a folder with splits
    python scripts/reliability.py --short                          a few of each, as tests/test_reliability.py
    python scripts/reliability.py --only kill-anywhere

About two hours on 2 cores in the long form. Needs Linux; failing writes need a C compiler.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # for its other modules, wherever it is started

from imdb_transformer.config import DataConfig
from imdb_transformer.data import sources
from scripts.damages import corruption, failing_writes, fuzzing
from scripts.forked import Outcome, Place
from scripts.interruptions import exact_resume, kill_anywhere, same_bytes, signals

HERE = Path(__file__).parent
NUM_REVIEWS = 200  # of each split


TRIALS = {  # name: (trial, how many in the long form, in the short one)
    "exact-resume": (exact_resume, 56, 3),
    "kill-anywhere": (kill_anywhere, 200, 4),
    "failing-writes": (failing_writes, 100_000, 1),  # of a command, or all that it has
    "signals": (signals, 60, 6),
    "corruption": (corruption, 26, 1),
    "same-bytes": (same_bytes, 3, 2),
    "fuzzing": (fuzzing, 100_000, 300),
}


@contextmanager
def place_of(source: str) -> Iterator[Place]:
    """A temporary folder with 200 reviews of each split of a source, as a folder of tables."""
    with tempfile.TemporaryDirectory(prefix="imdb-tx-reliability-") as name:
        folder = Path(name)
        (folder / "source").mkdir()
        reviews = sources.read(DataConfig(source=source))
        for split, rows in reviews.splits.items():
            step = max(1, len(rows.texts) // NUM_REVIEWS)
            lines = [
                json.dumps({"text": text, "label": reviews.classes[label] if label >= 0 else ""})
                for text, label in list(zip(*rows, strict=True))[::step][:NUM_REVIEWS]
            ]
            (folder / "source" / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
        yield Place(folder, folder / "source")


def compiled(folder: Path) -> str:
    """The library that makes writes fail."""
    path = folder / "failing_writes.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", path, HERE / "failing_writes.c", "-ldl"], check=True
    )
    return str(path)


def main() -> int:
    """Runs every trial in a process of its own, which has imported everything and computed nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--source", default="demo")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", choices=TRIALS)
    parser.add_argument("--json", action="store_true", help="with --only: the outcome as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only and options.json:
        trial, long, short = TRIALS[options.only]
        with place_of(options.source) as place:
            outcome = trial(place, short if options.short else long)
        print(json.dumps(outcome._asdict()))
        return 0
    failed = 0
    print("| what happens | cases | failures | seconds |\n|---|---:|---:|---:|", flush=True)
    for name, (trial, _, _) in TRIALS.items():
        if options.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ)
            if name == "failing-writes":
                environment["LD_PRELOAD"] = compiled(Path(folder))
            began = time.monotonic()
            command = [
                sys.executable,
                "-m",
                "scripts.reliability",
                "--json",
                "--only",
                name,
                "--source",
                options.source,
            ]
            found = subprocess.run(
                [*command, *(["--short"] if options.short else [])], env=environment, check=True,
                stdout=subprocess.PIPE,
            ).stdout  # fmt: skip
        outcome = Outcome(**json.loads(found))
        what = " ".join((trial.__doc__ or "").split()).rstrip(".")
        print(
            f"| {what} | {outcome.cases:,} | {len(outcome.failures)} | {time.monotonic() - began:.0f} |",
            flush=True,
        )
        for failure in outcome.failures[:20]:
            print(f"  {failure}", file=sys.stderr)
        failed += len(outcome.failures)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
