"""Several processes, started by torchrun on this machine, train as one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from imdb_transformer.distributed import ALONE, process_group
from imdb_transformer.errors import ConfigError
from imdb_transformer.store import metrics, run
from tests.tiny import TINY_MODEL

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
PLAIN = [
    "model.dropout=0.0", "train.precision='fp32'", "model.radius=0",
    "train.ema_decay=0.9", "train.epochs=4", "train.clip_norm=0.5",
]  # fmt: skip

# With so large an epsilon Adam's step is in proportion to the gradient. With a small one it is the gradient's
# sign, which is noise where the gradient is zero, and hides how large it is.
PROPORTIONAL = """
from imdb_transformer.training import optimizers
optimizers.ADAM_EPS = 0.01
from imdb_transformer.cli import main
main()
"""


def torchrun(num_processes: int, *arguments: object, script: Path | None = None) -> list[str]:
    """A command by several processes; by one, which is quicker to start, without torchrun."""
    program = ["-m", "imdb_transformer"] if script is None else [str(script)]
    if num_processes == 1:
        return [sys.executable, *program, *map(str, arguments)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(num_processes), *program, *map(str, arguments)]


def done(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=ONE_THREAD)


def sets(*overrides: str) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, source: Path) -> dict[int, Path]:
    """The same training by one, two and three processes."""
    folder = tmp_path_factory.mktemp("distributed")
    config = folder / "tiny.toml"
    config.write_text(f'[data]\nsource = "{source}"\ndata_dir = "{folder / "data"}"\n' + TINY_MODEL)
    script = folder / "proportional.py"
    script.write_text(PROPORTIONAL)
    paths = {}
    for number in (1, 2, 3):
        path = folder / f"run-{number}"
        arguments = ("train", "--config", config, "--run-dir", path, "--json", *sets(*PLAIN))
        ended = done(torchrun(number, *arguments, script=script))
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["run"] == str(path)  # one process speaks
        paths[number] = path
    return paths


@pytest.mark.parametrize("number", [2, 3])
def test_weights_do_not_depend_on_the_number_of_processes(runs: dict[int, Path], number: int) -> None:
    alone, together = (load_file(runs[n] / "checkpoints" / "last" / "model.safetensors") for n in (1, number))
    for name, tensor in alone.items():
        np.testing.assert_allclose(together[name], tensor, rtol=0, atol=2e-6, err_msg=name)
    assert_same_steps(runs[1], runs[number])


def assert_same_steps(alone: Path, together: Path) -> None:
    """Losses, gradients (whose norm Adam would hide) and tokens of every step."""
    first, other = ([line for line in metrics.read(path) if "loss" in line] for path in (alone, together))
    assert len(first) == len(other) >= 20
    for name in ("loss", "gradient_norm", "accuracy"):
        np.testing.assert_allclose(
            [line[name] for line in other], [line[name] for line in first], rtol=1e-4, err_msg=name
        )
    assert [line["num_tokens"] for line in other] == [line["num_tokens"] for line in first]


def test_a_process_may_have_nothing_to_do_in_a_step(runs: dict[int, Path], tmp_path: Path) -> None:
    """Batches of a single review, for two processes."""
    config = runs[1] / "config.toml"
    overrides = sets("train.batch_tokens=1", "train.epochs=1", "train.lr=1e-3")
    for number in (1, 2):
        command = torchrun(
            number, "train", "--config", config, "--run-dir", tmp_path / str(number), *overrides
        )
        ended = done(command)
        assert ended.returncode == 0, ended.stderr
    assert_same_steps(tmp_path / "1", tmp_path / "2")


def test_pretraining_by_two_processes_can_be_stopped_by_sigterm_and_resumed(
    runs: dict[int, Path], tmp_path: Path
) -> None:
    path = tmp_path / "run"
    options = ["--config", runs[1] / "config.toml", "--run-dir", path, *sets("train.epochs=30")]
    process = subprocess.Popen(torchrun(2, "pretrain", *options), stderr=subprocess.PIPE, env=ONE_THREAD)
    try:
        wait_for(lambda: path.exists() and len(metrics.read(path)) > 20)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert b"; saved. Continue with:\n  imdb-tx pretrain --resume" in told
    assert run.open_run(path).info.status == "interrupted"
    ended = done(torchrun(2, "pretrain", "--resume", path))
    assert ended.returncode == 0, ended.stderr
    assert run.open_run(path).info.status == "finished"


def test_if_a_process_is_killed_all_end_and_another_number_of_processes_can_resume(
    runs: dict[int, Path], tmp_path: Path
) -> None:
    config = runs[1] / "config.toml"
    path = tmp_path / "run"
    command = torchrun(
        2,
        "train",
        "--config",
        config,
        "--run-dir",
        path,
        *sets("train.epochs=30", "train.evals_per_epoch=1"),
    )
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=ONE_THREAD)
    try:
        wait_for(lambda: path.exists() and len(metrics.read(path)) > 20)
        os.kill(workers(process.pid)[1], signal.SIGKILL)
        began = time.monotonic()
        _, told = process.communicate(timeout=30)
        assert time.monotonic() - began < 30
    finally:
        process.kill()
    assert process.returncode != 0
    assert b"The connection to another process is lost" in told
    ended = done([sys.executable, "-m", "imdb_transformer", "train", "--resume", str(path)])
    assert ended.returncode == 0, ended.stderr
    assert run.open_run(path).info.status == "finished"


def test_all_processes_say_what_was_wrong_for_the_first(tmp_path: Path) -> None:
    ended = done(torchrun(2, "train", tmp_path / "missing.csv", "--run-dir", tmp_path / "run"))
    assert ended.returncode != 0
    assert ended.stderr.count("missing.csv' is not a source") == 2
    assert "connection" not in ended.stderr


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come so far"
        time.sleep(0.1)


def workers(launcher: int) -> list[int]:
    """Processes that a launcher started, in order."""
    return [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]


THREADS_AFTER = """
from pathlib import Path
import torch
from imdb_transformer.distributed import process_group
with process_group() as world:
    import torch._dynamo  # and with it what may hold the group
    world.barrier()
for thread in Path("/proc/self/task").iterdir():
    assert "gloo" not in (thread / "comm").read_text()
"""


def test_the_threads_of_a_process_group_end_with_it(tmp_path: Path) -> None:
    """One that ends after the interpreter makes a process abort that has done its work."""
    (tmp_path / "joins.py").write_text(THREADS_AFTER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = done([*launcher, str(tmp_path / "joins.py")])
    assert ended.returncode == 0, ended.stderr


STOPPED_WHILE_ENDING = """
import os, signal, time
from imdb_transformer.cli import screen
from imdb_transformer.distributed import process_group
with screen.exit_on_error(), process_group() as world:
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        world.barrier()
    finally:
        time.sleep(60)  # torchrun's SIGTERM comes in this time
"""


def test_a_process_that_is_stopped_while_it_ends_still_says_why_it_ends(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(STOPPED_WHILE_ENDING)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    began = time.monotonic()
    ended = done([*launcher, str(tmp_path / "ends.py")])
    assert time.monotonic() - began < 60  # it was stopped
    assert ended.returncode != 0
    assert "The connection to another process is lost" in ended.stderr
    assert "Stopped by" not in ended.stderr


def test_a_single_process_exchanges_nothing() -> None:
    tensor = torch.ones(2)
    ALONE.all_reduce_([tensor])
    ALONE.barrier()
    assert tensor.tolist() == [1.0, 1.0]
    assert ALONE.broadcast("x") == "x"


SUMS = """
import sys
from pathlib import Path
import torch
from imdb_transformer.distributed import process_group
with process_group() as world, process_group() as nested:
    assert nested == world
    row, column = torch.full((2,), world.rank + 1.0), torch.full((3, 1), 10.0 * (world.rank + 1))
    world.all_reduce_([row, column])
    assert row.tolist() == [6.0] * 2 and column.tolist() == [[60.0]] * 3
    assert world.broadcast(Path(str(world.rank))) == Path("0")
"""


def test_tensors_are_summed_and_the_first_process_decides(tmp_path: Path) -> None:
    script = tmp_path / "sums.py"
    script.write_text(SUMS)
    ended = done(torchrun(3, script=script))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(("size", "said"), [("2", "not by torchrun"), ("two", "not a whole number")])
def test_a_world_that_torchrun_did_not_make_is_refused(
    size: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=said), process_group():
        pass


def test_a_rank_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "x")
    with pytest.raises(ConfigError, match="LOCAL_RANK is 'x'"), process_group():
        pass


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_waits_for_the_others_can_be_ended(sent: signal.Signals) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    alone = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    script = "import signal; signal.signal(signal.SIGTERM, lambda *_: None)\n"
    script += "from imdb_transformer.distributed import process_group as group\nwith group(): 0"
    with subprocess.Popen([sys.executable, "-c", script], env=ONE_THREAD | alone) as waiting:
        while waiting.poll() is None and not _listens(port):
            time.sleep(0.1)
        waiting.send_signal(sent)
        assert waiting.wait(timeout=60) == -sent


def _listens(port: int) -> bool:
    """Whether a process has taken a port."""
    with socket.socket() as tried:
        try:
            tried.bind(("", port))
        except OSError:
            return True
    return False
