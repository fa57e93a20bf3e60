"""Counts how often the promises of scripts/README.md hold: stops, kills, failing disks, damaged files.

    python scripts/reliability.py                                  the long form, on reviews of the demo
    python scripts/reliability.py --source FOLDER                  on your own: a folder with splits
    python scripts/reliability.py --short                          a few of each, as tests/test_reliability.py
    python scripts/reliability.py --only kill-anywhere

About half an hour on 2 cores in the long form. Needs Linux; failing writes need a C compiler.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scripts.forked import Place

HERE = Path(__file__).parent
NUM_REVIEWS = 200  # of each split

TRIALS = {  # name: (its file in scripts/, trials in the long form, trials in the short one)
    "exact-resume": ("interruptions", 56, 3),
    "kill-anywhere": ("interruptions", 200, 4),
    "failing-writes": ("damages", 100_000, 1),  # of a command, or all that it has
    "signals": ("interruptions", 60, 6),
    "corruption": ("damages", 26, 1),
    "same-bytes": ("interruptions", 3, 2),
    "fuzzing": ("damages", 100_000, 300),
}


@contextmanager
def place_of(source: str) -> "Iterator[Place]":
    """A temporary folder with 200 reviews of each split of a source, as a folder of tables."""
    from imdb_transformer.config import DataConfig
    from imdb_transformer.data import sources
    from scripts.forked import Place

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


def outcome_of(name: str, source: str, short: bool) -> dict[str, Any]:
    """Makes the trials of a promise in this process, which has imported everything and computed nothing."""
    import torch

    torch.set_num_threads(1)
    module, long_count, short_count = TRIALS[name]
    trial = getattr(importlib.import_module(f"scripts.{module}"), name.replace("-", "_"))
    with place_of(source) as place:
        outcome = trial(place, short_count if short else long_count)
    return {"promise": " ".join(trial.__doc__.split()).rstrip("."), **outcome._asdict()}


def in_a_process(name: str, source: str, short: bool) -> dict[str, Any]:
    """The same in a process of its own. Of failing writes, the C library must be loaded when it starts."""
    command = [sys.executable, "-m", "scripts.reliability", "--json", "--only", name, "--source", source]
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        if name == "failing-writes":
            environment["LD_PRELOAD"] = compiled(Path(folder))
        ended = subprocess.run(
            [*command, *(["--short"] if short else [])], env=environment, check=True, stdout=subprocess.PIPE,
            cwd=HERE.parent,
        )  # fmt: skip
    return json.loads(ended.stdout)


def main() -> int:
    """Prints a table with a row for each promise, and the failures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--source", default="demo")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", choices=TRIALS)
    parser.add_argument("--json", action="store_true", help="with --only: the outcome as JSON")
    options = parser.parse_args()
    if Path(options.source).exists():
        options.source = str(Path(options.source).resolve())
    if options.only and options.json:
        print(json.dumps(outcome_of(options.only, options.source, options.short)))
        return 0
    num_failed = 0
    print("| what happens | cases | failures | seconds |\n|---|---:|---:|---:|", flush=True)
    for name in [options.only] if options.only else TRIALS:
        began = time.monotonic()
        outcome = in_a_process(name, options.source, options.short)
        failures, seconds = outcome["failures"], time.monotonic() - began
        print(
            f"| {outcome['promise']} | {outcome['cases']:,} | {len(failures)} | {seconds:.0f} |", flush=True
        )
        for failure in failures[:20]:
            print(f"  {failure}", file=sys.stderr)
        num_failed += len(failures)
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
