"""Commands as processes of their own, forked after the imports: for scripts/reliability.py. Needs Linux."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from imdb_transformer.cli import main as imdb_tx
from imdb_transformer.data import corpus, sources, tokenized  # noqa: F401  (imported before forking)
from imdb_transformer.files import sha256_of

SECONDS = 120  # that a trial may take
CONFIG = """
[data]
source = "{source}"
data_dir = "{data}"
[tokenizer]
vocab_size = 400
max_length = 64
tail_length = 16
[model]
width = 16
num_layers = 1
num_heads = 2
head_width = 8
feedforward_width = 32
radius = 8
dropout = 0.2
word_dropout = 0.1
ngram_buckets = 1024
[train]
epochs = {epochs}
batch_tokens = 1024
accumulate = 2
lr = 1e-2
ema_decay = 0.9
evals_per_epoch = {evals}
precision = "{precision}"
num_threads = {threads}
[pretrain]
num_candidates = 64
"""


class Outcome(NamedTuple):
    """How many trials of a promise were made, and what went wrong in which."""

    cases: int
    failures: list[str]


class Ended(NamedTuple):
    """How a process ended: its exit code, or minus the signal, and what it told."""

    code: int
    told: str


class Place(NamedTuple):
    """A folder to try things in, and reviews to try them on."""

    folder: Path
    source: Path

    def config(
        self,
        name: str = "tiny",
        *,
        epochs: int = 2,
        evals: int = 4,
        precision: str = "fp32",
        threads: int = 1,
    ) -> Path:
        """Writes a config for a training of seconds."""
        path = self.folder / f"{name}.toml"
        path.write_text(CONFIG.format(
            source=self.source, data=self.folder / "data", epochs=epochs, evals=evals, precision=precision,
            threads=threads,
        ))  # fmt: skip
        return path


def start(*arguments: object, before: Callable[[], None] = lambda: None, log: Path) -> int:
    """Forks a process that runs a command; its number."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    code = 1
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
    """Waits for a process, and kills one that hangs."""
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
    """Of everything that a run's training decides."""
    files = [*folder.glob("checkpoints/best/*.safetensors"), *folder.glob("checkpoints/last/*.safetensors")]
    metrics = folder / "metrics.jsonl"
    return {str(path.relative_to(folder)): sha256_of(path) for path in [*files, metrics]}


def must(end: Ended, *codes: int) -> None:
    assert end.code in codes, end.told


def stopping(at: int) -> Callable[[], None]:
    """To be called in a process that trains: SIGTERM arrives in a step."""

    def arm() -> None:
        from imdb_transformer.training import loop

        steps, real = iter(range(1, 10**9)), loop.train_step

        def step(*args: object, **options: object) -> object:
            if next(steps) == at:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(*args, **options)  # type: ignore[arg-type]

        loop.train_step = step  # type: ignore[assignment]

    return arm
