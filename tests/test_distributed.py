"""Several processes, started by torchrun on this machine, train and evaluate as one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from imdb_transformer import config_file, metrics, run
from imdb_transformer.distributed import ALONE, World
from tests.conftest import TINY_MODEL

PLAIN = ["model.dropout=0.0", "train.precision='fp32'", "train.num_threads=1", "model.attention='full'"]


def torchrun(num_processes: int, *arguments: object) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    module = ["--nproc-per-node", str(num_processes), "-m", "imdb_transformer"]
    return [*launcher, *module, *map(str, arguments)]


def done(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)


def sets(*overrides: str) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, source: Path) -> dict[int, Path]:
    """The same training by one, two and four processes."""
    folder = tmp_path_factory.mktemp("distributed")
    config = folder / "tiny.toml"
    config.write_text(f'[data]\nsource = "{source}"\ndata_dir = "{folder / "data"}"\n' + TINY_MODEL)
    paths = {}
    for number in (1, 2, 4):
        path = folder / f"run-{number}"
        ended = done(
            torchrun(number, "train", "--config", config, "--run-dir", path, "--json", *sets(*PLAIN))
        )
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["run"] == str(path)  # one process speaks
        paths[number] = path
    return paths


@pytest.mark.parametrize("number", [2, 4])
def test_weights_do_not_depend_on_the_number_of_processes(runs: dict[int, Path], number: int) -> None:
    alone, together = (load_file(runs[n] / "checkpoints" / "last" / "model.safetensors") for n in (1, number))
    for name, tensor in alone.items():
        np.testing.assert_allclose(together[name], tensor, atol=2e-3, err_msg=name)
    first, last = ([line["loss"] for line in metrics.read(runs[n]) if "loss" in line] for n in (1, number))
    assert len(first) >= 20
    np.testing.assert_allclose(last, first, atol=1e-3)
    counts = [[line["num_tokens"] for line in metrics.read(runs[n]) if "loss" in line] for n in (1, number)]
    assert counts[0] == counts[1]


def test_evaluation_is_that_of_a_process_alone(runs: dict[int, Path]) -> None:
    found = [json.loads(done(torchrun(n, "eval", runs[1], "--json")).stdout) for n in (1, 2)]
    assert found[0] == found[1]


def test_when_one_is_killed_all_end_and_another_number_goes_on(runs: dict[int, Path], tmp_path: Path) -> None:
    config = runs[1] / "config.toml"
    path = tmp_path / "run"
    command = torchrun(
        2,
        "train",
        "--config",
        config,
        "--run-dir",
        path,
        *sets("train.epochs=3000", "train.evals_per_epoch=1"),
    )
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        wait_for(lambda: path.exists() and len(metrics.read(path)) > 20)
        os.kill(workers(process.pid)[1], signal.SIGKILL)
        began = time.monotonic()
        _, told = process.communicate(timeout=30)
        assert time.monotonic() - began < 30
    finally:
        process.kill()
    assert process.returncode != 0
    assert b"Another process of this training is gone" in told
    opened = run.open_run(path)
    step = json.loads((opened.checkpoint("last") / "checkpoint.json").read_text())["step"]
    shorter = opened.config.model_copy(
        update={"train": opened.config.train.model_copy(update={"epochs": step // 5 + 2})}
    )
    (path / run.CONFIG).write_text(config_file.dump(shorter))
    ended = done([sys.executable, "-m", "imdb_transformer", "train", "--resume", str(path)])
    assert ended.returncode == 0, ended.stderr
    assert run.open_run(path).info.status == "finished"


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come so far"
        time.sleep(0.1)


def workers(launcher: int) -> list[int]:
    """Processes that a launcher started, in order."""
    return [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]


def test_a_process_alone_exchanges_nothing() -> None:
    assert ALONE.gathered("x") == ["x"]
    assert ALONE.map(lambda x: x + 1, [1, 2]) == [2, 3]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_shares_are_put_together_in_order(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    items = list(range(7))

    def gathered(self: World, value: list[int]) -> list[list[int]]:
        parts = [[i * i for i in items[rank :: self.size]] for rank in range(self.size)]
        assert parts[self.rank] == value
        return parts

    monkeypatch.setattr(World, "gathered", gathered)
    for rank in range(size):
        assert World(rank, size).map(lambda i: i * i, items) == [i * i for i in items]
