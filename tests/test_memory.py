"""Peak memory of whole commands, as the system saw it."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import write_jsonl

# Of `train --config base.toml` on reviews of 1,000 words: recorded on 2 cores with torch 2.13.0.
BASE_PEAK_MIB = 1150
TOLERANCE = 0.2


# A process between: Linux counts what a process was before it became another program; the tests are large.
MEASURE = (
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, capture_output=True); "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)


def peak_mib(*arguments: object) -> float:
    """The largest resident size of a command."""
    command = [sys.executable, "-m", "imdb_transformer", *map(str, arguments)]
    told = subprocess.run([sys.executable, "-c", MEASURE, *command], capture_output=True, check=True)
    return int(told.stdout) / 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident sizes are counted otherwise")
def test_training_the_base_model_takes_the_memory_it_is_said_to_take(tmp_path: Path) -> None:
    generator = random.Random(0)
    letters = "aeioubcdfglmnprst"
    words = ["".join(generator.choices(letters, k=generator.randint(3, 9))) for _ in range(20_000)]
    texts = [" ".join(generator.choices(words, k=1000)) for _ in range(400)]
    source = tmp_path / "reviews.jsonl"
    write_jsonl(source, texts, ["neg", "pos"] * 200)
    peak = peak_mib(
        "train", "--config", "base.toml", "--run-dir", tmp_path / "run",
        *("--set", f"data.source={source}", "--set", f"data.data_dir={tmp_path / 'data'}"),
        *("--set", "train.epochs=1", "--set", "train.num_threads=2"),
    )  # fmt: skip
    assert peak == pytest.approx(BASE_PEAK_MIB, rel=TOLERANCE)
