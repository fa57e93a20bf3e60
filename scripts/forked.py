"""Runs commands in forked processes, for scripts/reliability.py. Needs Linux."""

import importlib
import os
import pkgutil
import signal
import sys
import threading
import time
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

import imdb_transformer
from imdb_transformer import config_file
from imdb_transformer.cli import main as imdb_tx
from imdb_transformer.store.files import sha256_of
from tests.tiny import TINY_MODEL

SECONDS = 120  # the longest that a trial may take
# Commands import these on their way, which takes seconds: a forked process finds them loaded.
MODULES = (
    *(module.name for module in pkgutil.walk_packages(imdb_transformer.__path__, "imdb_transformer.")),
    "sklearn.linear_model", "sklearn.feature_extraction.text",
)  # fmt: skip
for module in MODULES:
    if not module.endswith("__main__"):
        importlib.import_module(module)
# These make resuming hard: noise, a moving average, two optimisers.
OVERRIDES = (
    "model.dropout=0.2", "model.word_dropout=0.1", "train.ema_decay=0.9", "train.optimizer=muon",
    "pretrain.num_candidates=64",
)  # fmt: skip


class Outcome(NamedTuple):
    """The number of trials of a promise, and a sentence for each failure."""

    cases: int
    failures: list[str]


class Ended(NamedTuple):
    """How a process ended: its exit code, or minus the signal, and its output."""

    code: int
    told: str


class Place(NamedTuple):
    """A folder for the trials, and the reviews that they use."""

    folder: Path
    source: Path

    def config(
        self,
        name: str = "tiny",
        *,
        epochs: int = 2,
        evals: int = 4,
        precision: str = "fp32",
    ) -> Path:
        """Writes a config for a training of seconds."""
        options = (f"train.epochs={epochs}", f"train.evals_per_epoch={evals}", f"train.precision={precision}")
        tree = tomllib.loads(TINY_MODEL)
        tree["data"] = {"source": str(self.source), "data_dir": str(self.folder / "data")}
        path = self.folder / f"{name}.toml"
        path.write_text(config_file.dump(config_file.parse(tree, [*OVERRIDES, *options], origin=name)))
        return path


def start(*arguments: object, before: Callable[[], None] = lambda: None, log: Path) -> int:
    """Forks a process that runs a command. Returns its id, once the command has begun."""
    sys.stdout.flush()
    log.unlink(missing_ok=True)
    process = os.fork()
    if process:
        while not log.exists():
            time.sleep(0.002)
        return process
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    code = 1
    # tqdm makes its lock when it is imported, and forked processes share it. A process killed while holding
    # the lock would stop all others.
    tqdm.set_lock(threading.RLock())
    try:
        sys.argv = ["imdb-tx", *map(str, arguments)]
        before()
        imdb_tx()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def ended(process: int, log: Path) -> Ended:
    """Waits for a process. Kills it after `SECONDS`."""
    limit = time.monotonic() + SECONDS
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return Ended(os.waitstatus_to_exitcode(status), log.read_text(errors="replace"))
        if time.monotonic() > limit:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.002)


def run(place: Place, *arguments: object, before: Callable[[], None] = lambda: None) -> Ended:
    """Runs a command to its end."""
    log = place.folder / "log"
    return ended(start(*arguments, before=before, log=log), log)


def hashes(folder: Path) -> dict[str, str]:
    """Hashes of all files that depend on the training."""
    files = [*folder.glob("checkpoints/best/*.safetensors"), *folder.glob("checkpoints/last/*.safetensors")]
    metrics = folder / "metrics.jsonl"
    return {str(path.relative_to(folder)): sha256_of(path) for path in [*files, metrics]}


def must(end: Ended, *codes: int) -> None:
    assert end.code in codes, end.told


def stopping(at: int) -> Callable[[], None]:
    """Returns a function for a process that trains: it makes SIGTERM arrive in step `at`."""

    def arm() -> None:
        from imdb_transformer.training import loop

        steps, real = iter(range(1, 10**9)), loop.train_step

        def step(*args: object, **options: object) -> object:
            if next(steps) == at:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(*args, **options)  # type: ignore[arg-type]

        loop.train_step = step  # type: ignore[assignment]

    return arm
