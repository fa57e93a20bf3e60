"""The short form of scripts/reliability.py: a few trials of each promise."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif(
    not (sys.platform.startswith("linux") and shutil.which("cc")), reason="needs Linux and cc"
)
@pytest.mark.parametrize(
    "trial", ["exact-resume", "kill-anywhere", "failing-writes", "signals", "corruption", "same-bytes"]
)
def test_no_trial_of_a_promise_fails(trial: str) -> None:
    command = [sys.executable, ROOT / "scripts" / "reliability.py", "--short", "--only", trial]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"\| [1-9][\d,]* \| 0 \|", ended.stdout), ended.stdout  # some cases, no failure
