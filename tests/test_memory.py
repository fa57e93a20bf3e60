"""Peak memory of whole commands, as the system saw it."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import write_jsonl

# Of `train --config base.toml` on reviews of 1,000 words: recorded on 2 cores with torch 2.13.0.
BASE_PEAK_MIB = 850
TOLERANCE = 0.2


def peak_mib(*arguments: object) -> float:
    """The largest resident size of a command."""
    command = [sys.executable, "-m", "imdb_transformer", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # waited for, behind its back
    assert process.returncode == 0, command
    return usage.ru_maxrss / 1024


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
