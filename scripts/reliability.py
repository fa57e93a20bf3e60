"""What can happen to a run, made to happen: every promise of README's "Reliability", counted.

    python scripts/reliability.py                                  the long form, on reviews of the demo
    python scripts/reliability.py --source FOLDER                  on your own: a folder with splits
    python scripts/reliability.py --short                          a few of each, as the tests run it
    python scripts/reliability.py --only kill-anywhere

Every trial is a process of its own, forked after the imports. Needs Linux; failing writes need a C compiler.
"""

import argparse
import ctypes
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from imdb_transformer.cli import main as imdb_tx
from imdb_transformer.data import corpus, sources, tokenized  # noqa: F401  (imported before forking)
from imdb_transformer.errors import USER_ERRORS
from imdb_transformer.files import sha256_of

HERE = Path(__file__).parent
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


# --- 1: exact resume


def exact_resume(place: Place, count: int) -> Outcome:
    """Stopped after any step by SIGTERM, and resumed: the same bytes as never stopped."""
    from imdb_transformer.training import loop

    variants = [
        (command, precision, threads)
        for command in ("train", "pretrain")
        for precision in ("fp32", "bf16")
        for threads in (1, 2)
    ]
    failures, cases = [], 0
    real = loop.train_step

    def stopping(at: int) -> Callable[[], None]:
        def arm() -> None:
            steps = iter(range(1, 10**9))

            def step(*args: object, **options: object) -> object:
                if next(steps) == at:
                    os.kill(os.getpid(), signal.SIGTERM)
                return real(*args, **options)  # type: ignore[arg-type]

            loop.train_step = step  # type: ignore[assignment]

        return arm

    for command, precision, threads in variants:
        name = f"{command}-{precision}-{threads}"
        config = place.config(name, precision=precision, threads=threads, evals=2)
        whole = place.folder / name
        must(run(place, command, "--config", config, "--run-dir", whole), 0)
        expected = hashes(whole)
        num_steps = sum('"loss"' in line for line in (whole / "metrics.jsonl").read_text().splitlines())
        points = range(1, num_steps)
        for at in list(points)[:: max(1, len(points) * len(variants) // count)]:
            cut = place.folder / f"{name}-cut"
            shutil.rmtree(cut, ignore_errors=True)
            first = run(place, command, "--config", config, "--run-dir", cut, before=stopping(at))
            second = run(place, command, "--resume", cut)
            cases += 1
            if (first.code, second.code) != (143, 0) or hashes(cut) != expected:
                failures.append(
                    f"{name} stopped at step {at}: {first.code}, {second.code} {second.told[-300:]}"
                )
    return Outcome(cases, failures)


# --- 2: kill anywhere


def kill_anywhere(place: Place, count: int) -> Outcome:
    """SIGKILL at random moments, saves included; resumed until it ends: the same bytes as never killed."""
    config = place.config("kill", epochs=4, evals=10)
    whole, killed = place.folder / "whole", place.folder / "killed"
    began = time.monotonic()
    must(run(place, "train", "--config", config, "--run-dir", whole), 0)
    span = time.monotonic() - began
    expected = hashes(whole)
    generator, failures, kills = random.Random(0), [], 0
    log = place.folder / "log"
    while kills < count:
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


# --- 3: failing writes


def failing_writes(place: Place, count: int) -> Outcome:
    """Every write of every command fails in turn: told with exit code 6 or 4, and what was there is whole."""
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    work = place.folder / "work"
    reviews = place.folder / "reviews.csv"
    reviews.write_text("id,text\n" + "".join(f'{i},"a good film, number {i}"\n' for i in range(50)))
    config = place.config("failing", epochs=1, evals=2)
    text = config.read_text().replace(str(place.folder / "data"), str(work / "data"))
    config.write_text(text)
    commands: dict[str, tuple[object, ...]] = {
        "download": ("download", "--source", place.source, "--data-dir", work / "fresh"),
        "tokenize": ("tokenize", "--config", config, "--set", "tokenizer.vocab_size=300"),
        "train": ("train", "--config", config, "--run-dir", work / "new"),
        "train --resume": ("train", "--resume", work / "stopped"),
        "pretrain": ("pretrain", "--config", config, "--run-dir", work / "pretrained"),
        "baseline": ("baseline", "--config", config, "--run-dir", work / "nb"),
        "eval": ("eval", work / "run"),
        "predict": ("predict", "--run", work / "run", "--input", reviews, "--output", work / "out.parquet"),
        "explain": ("predict", "--run", work / "run", "--explain", "--html", work / "why.html", "a film"),
    }
    for name in ("run", "stopped"):
        must(run(place, "train", "--config", config, "--run-dir", work / name), 0)
    (work / "out.parquet").write_bytes(b"what was there")
    kept = place.folder / "kept"
    shutil.copytree(work, kept)
    faults = [
        (errno.ENOSPC, 1, 0),
        (errno.EIO, 0, 0),
        (errno.EACCES, 0, 0),
        (errno.ENOSPC, 2, 0),
        (errno.EIO, 0, 1),
    ]
    failures, cases = [], 0

    def arm(at: int, number: int, manner: int, renames: int) -> Callable[[], None]:
        return lambda: library.failing_writes_arm(
            str(work).encode(), ctypes.c_long(at), number, manner, renames
        )

    def counted(renames: int) -> Callable[[], None]:
        def begin() -> None:
            import atexit

            library.failing_writes_arm(str(work).encode(), ctypes.c_long(0), 0, 0, renames)
            real = os._exit

            def leave(code: int) -> None:
                (place.folder / "count").write_text(str(library.failing_writes_count()))
                real(code)

            os._exit = leave  # type: ignore[assignment]
            del atexit

        return begin

    for name, command in commands.items():
        for number, manner, renames in faults:
            _fresh(kept, work)
            must(run(place, *command, before=counted(renames)), 0)
            total = int((place.folder / "count").read_text())
            for at in _spread(total, count):
                _fresh(kept, work)
                end = run(place, *command, before=arm(at, number, manner, renames))
                cases += 1
                case = f"{name}, write {at} of {total}, {errno.errorcode[number]} manner {manner}: "
                if end.code not in (0, 4, 6) or "Traceback" in end.told:
                    failures.append(f"{case}exit {end.code}: {end.told[-400:]}")
                    continue
                if end.code and "/" not in end.told.splitlines()[-1]:
                    failures.append(f"{case}no file is named: {end.told.splitlines()[-1]}")
                problem = _damage(place, work, kept, name, command, end)
                if problem:
                    failures.append(case + problem)
    return Outcome(cases, failures)


def _fresh(kept: Path, work: Path) -> None:
    shutil.rmtree(work)
    shutil.copytree(kept, work)


def _spread(total: int, count: int) -> list[int]:
    """At most `count` of the numbers from 1 to `total`, first and last among them."""
    return sorted({round(x) for x in np.linspace(1, total, min(count, total))})


def _damage(place: Place, work: Path, kept: Path, name: str, command: tuple[object, ...], end: Ended) -> str:
    """What a command that failed has broken; empty where nothing is, and it can be done again."""
    if end.code and name != "eval":
        for path in (kept / "run").rglob("*"):
            if path.is_file() and (work / path.relative_to(kept)).read_bytes() != path.read_bytes():
                return f"{path.relative_to(kept)} changed"
    if end.code and name == "predict" and (work / "out.parquet").read_bytes() != b"what was there":
        return "the former output is gone"
    for other in ("run", "stopped"):
        check = run(place, "verify", work / other)
        if check.code:
            return f"{other} is damaged: {check.told}"
    made = next((Path(str(command[i + 1])) for i, word in enumerate(command) if word == "--run-dir"), None)
    again = command
    if made is not None and (made / "run.json").exists() and name in ("train", "pretrain"):
        again = (command[0], "--resume", made)
    elif made is not None and made.exists():
        shutil.rmtree(made)
    last = run(place, *again)
    return "" if last.code == 0 else f"cannot be done again: {last.told[-300:]}"


# --- 4: signals


def signals(place: Place, count: int) -> Outcome:
    """SIGINT or SIGTERM at a random moment of a command: exit 130 or 143, and it can be done again."""
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
        time.sleep(generator.uniform(0.02, 1.5))
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


# --- 5: corruption


def corruption(place: Place, count: int) -> Outcome:
    """Every file of a run, corpus and encoded split cut short or with a bit flipped: refused by name."""
    config = place.config("corrupt", evals=2)
    trained = place.folder / "corrupt"
    must(run(place, "train", "--config", config, "--run-dir", trained), 0)
    read: dict[str, tuple[object, ...]] = {
        "corrupt/checkpoints/best": ("predict", "--run", trained, "a good film"),
        "corrupt/checkpoints/last": ("train", "--resume", trained),
        "corrupt": ("predict", "--run", trained, "a good film"),
        "data": ("train", "--resume", trained),
    }
    files = [
        path
        for path in sorted([*trained.rglob("*"), *(place.folder / "data").rglob("*")])
        if path.is_file()
        and path.name not in ("metrics.jsonl", "environment.json", "test.parquet")
        and "previous" not in path.parts
    ]
    generator, failures, cases = random.Random(2), [], 0
    for path in files:
        name = str(path.relative_to(place.folder))
        command = next(command for start, command in read.items() if name.startswith(start + "/"))
        if "encoded" in name or "tokenizers" in name:
            command = ("train", "--resume", trained)
        content = path.read_bytes()
        expected = run(place, *command).told
        for case in range(count):
            if case % 2:
                damaged = content[: generator.randrange(len(content))]
            else:
                i = generator.randrange(len(content))
                damaged = content[:i] + bytes([content[i] ^ 1 << generator.randrange(8)]) + content[i + 1 :]
            path.write_bytes(damaged)
            end = run(place, *command)
            cases += 1
            refused = end.code in (3, 4) and "Traceback" not in end.told and str(path.parent) in end.told
            harmless = end.code == 0 and _last(end.told) == _last(expected)
            if not (refused or (harmless and "tokenizers" in name)):
                failures.append(
                    f"{name} ({'cut' if case % 2 else 'flipped'}): exit {end.code}: {end.told[-300:]}"
                )
            path.write_bytes(content)
    return Outcome(cases, failures)


def _last(told: str) -> str:
    return told.strip().rpartition("\n")[2]


# --- 8: same seed, same bytes


def same_bytes(place: Place, count: int) -> Outcome:
    """Two runs of a config end with the same bytes, whatever PYTHONHASHSEED."""
    failures, cases = [], 0
    for command in ("train", "pretrain"):
        config = place.config(f"same-{command}")
        found = []
        for seed in range(count):
            folder = place.folder / f"{command}-{seed}"
            environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
            arguments = [command, "--config", str(config), "--run-dir", str(folder),
                         "--set", f'data.data_dir="{place.folder / f"data-{seed}"}"']  # fmt: skip
            subprocess.run(
                [sys.executable, "-m", "imdb_transformer", *arguments], env=environment, check=True,
                capture_output=True, timeout=SECONDS,
            )  # fmt: skip
            found.append(hashes(folder))
            cases += 1
        if any(other != found[0] for other in found):
            failures.append(f"{command}: {found}")
    return Outcome(cases, failures)


# --- 6: hostile input


def fuzzing(place: Place, count: int) -> Outcome:
    """Damaged configs, tables, archives and checkpoints: refused by our own errors, or read."""
    sys.path.insert(0, str(HERE.parent))
    from tests import fuzz

    failures = []
    for name, reader, seeds in fuzz.readers(place.folder):
        for case in range(count):
            content = fuzz.mutated(seeds, case)
            try:
                reader(content)
            except USER_ERRORS:
                pass
            except Exception as error:
                failures.append(f"{name}, case {case}: {type(error).__name__}: {error}"[:300])
    return Outcome(4 * count, failures)


TRIALS = {  # name: (trial, how many in the long form, in the short one)
    "exact-resume": (exact_resume, 56, 8),
    "kill-anywhere": (kill_anywhere, 200, 8),
    "failing-writes": (failing_writes, 12, 1),
    "signals": (signals, 60, 6),
    "corruption": (corruption, 40, 2),
    "same-bytes": (same_bytes, 3, 2),
    "fuzzing": (fuzzing, 100_000, 300),
}


@contextmanager
def place_of(source: str) -> Iterator[Place]:
    """A temporary folder with 400 reviews of a source, as a folder of tables."""
    with tempfile.TemporaryDirectory(prefix="imdb-tx-reliability-") as name:
        folder = Path(name)
        (folder / "source").mkdir()
        from imdb_transformer.config import DataConfig

        reviews = sources.read(DataConfig(source=source))
        for split, rows in reviews.splits.items():
            step = max(1, len(rows.texts) // 200)
            lines = [
                json.dumps({"text": text, "label": reviews.classes[label] if label >= 0 else ""})
                for text, label in list(zip(*rows, strict=True))[::step][:200]
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
            command = [sys.executable, __file__, "--json", "--only", name, "--source", options.source]
            found = subprocess.run(
                [*command, *(["--short"] if options.short else [])], env=environment, check=True,
                stdout=subprocess.PIPE,
            ).stdout  # fmt: skip
        outcome = Outcome(**json.loads(found))
        what = (trial.__doc__ or "").strip()
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
