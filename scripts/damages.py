"""Failing disks and damaged files: trials of scripts/reliability.py."""

import ctypes
import errno
import os
import random
import shutil
from pathlib import Path
from typing import NamedTuple

from pyarrow import parquet

from imdb_transformer.errors import USER_ERRORS
from imdb_transformer.store.metrics import EVENTS
from scripts.forked import Ended, Outcome, Place, must, run, stopping
from tests import fuzz


class Fault(NamedTuple):
    """How a write fails. `manner` is as in failing_writes.c."""

    number: int
    manner: int
    only_renames: int

    def __str__(self) -> str:
        manner = ("once", "from then on", "after half, and from then on")[self.manner]
        return f"{errno.errorcode[self.number]} {manner}{', renames only' if self.only_renames else ''}"


FORMER, NUM_PREDICTED = b"the former output", 50
ONCE, FROM_THEN_ON, HALF = 0, 1, 2
OF_WRITES = [
    Fault(errno.ENOSPC, FROM_THEN_ON, 0),
    Fault(errno.ENOSPC, HALF, 0),
    Fault(errno.EIO, ONCE, 0),
    Fault(errno.EACCES, ONCE, 0),
]
OF_RENAMES = [Fault(errno.EIO, ONCE, 1)]


class Workshop(NamedTuple):
    """A folder whose writes fail, and a copy of its content."""

    place: Place
    work: Path
    copy: Path

    def renew(self) -> None:
        """Restores the folder from the copy."""
        shutil.rmtree(self.work)
        shutil.copytree(self.copy, self.work)

    def arm(self, at: int, fault: Fault) -> None:
        """Makes the `at`-th write of this process fail. 0 only counts the writes."""
        library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        library.failing_writes_arm(str(self.work).encode(), ctypes.c_long(at), *fault)
        if at:
            return
        leave, count = os._exit, self.place.folder / "count"

        def tell(code: int) -> None:
            count.write_text(str(library.failing_writes_count()))
            leave(code)

        os._exit = tell  # type: ignore[assignment]


def failing_writes(place: Place, count: int) -> Outcome:
    """Each write and rename of each command fails in turn (full disk, half a write, EIO, EACCES): exit code 6
    or 4 and the file's name, or success; earlier files stay whole, and the command can be repeated."""
    shop = Workshop(place, place.folder / "work", place.folder / "copy")
    failures, cases = [], 0
    for i, (name, command) in enumerate(_prepared(shop).items()):
        if count == 1 and name == "export":
            continue  # the short form: its graph takes ten seconds; tests/test_export.py has a full disk
        for faults in (OF_WRITES, OF_RENAMES) if count > 1 else [(OF_WRITES, OF_RENAMES)[i % 2]]:
            shop.renew()
            must(run(place, *command, before=lambda faults=faults: shop.arm(0, faults[0])), 0)  # type: ignore[misc]
            total = int((place.folder / "count").read_text())
            for at, fault in _attempts(total, count, faults, i):
                shop.renew()
                end = run(place, *command, before=lambda at=at, fault=fault: shop.arm(at, fault))  # type: ignore[misc]
                problem = _told_badly(end) or _damage(shop, name, command, end)
                cases += 1
                if problem:
                    failures.append(f"{name}, write {at} of {total}, {fault}: {problem}")
    return Outcome(cases, failures)


def _attempts(total: int, count: int, faults: list[Fault], offset: int) -> list[tuple[int, Fault]]:
    """Writes to fail, counted from 1, each with the next fault: all of them, or `count` if that is fewer."""
    attempts = [(at, faults[(at + offset) % len(faults)]) for at in range(1, total + 1)]
    return attempts if count >= total else attempts[offset % total :: max(1, total // count)][:count]


def _prepared(shop: Workshop) -> dict[str, tuple[object, ...]]:
    """The commands to disturb; the folder holds a finished run, a stopped one and a former output."""
    place, work = shop.place, shop.work
    reviews = place.folder / "reviews.csv"
    reviews.write_text(
        "id,text\n" + "".join(f'{i},"a good film, number {i}"\n' for i in range(NUM_PREDICTED))
    )
    config = place.config("failing", epochs=1, evals=2)
    config.write_text(config.read_text().replace(str(place.folder / "data"), str(work / "data")))
    must(run(place, "train", "--config", config, "--run-dir", work / "run"), 0)
    must(run(place, "train", "--config", config, "--run-dir", work / "stopped", before=stopping(3)), 143)
    (work / "out.parquet").write_bytes(FORMER)
    shutil.copytree(work, shop.copy)
    return {
        "download": ("download", "--source", place.source, "--data-dir", work / "fresh"),
        "tokenize": ("tokenize", "--config", config, "--set", "tokenizer.vocab_size=300"),
        "train": ("train", "--config", config, "--run-dir", work / "new"),
        "train --resume": ("train", "--resume", work / "stopped"),
        "pretrain": ("pretrain", "--config", config, "--run-dir", work / "pretrained"),
        "baseline": ("baseline", "--config", config, "--run-dir", work / "nb"),
        "eval": ("eval", work / "run"),
        "predict": ("predict", "--run", work / "run", "--input", reviews, "--output", work / "out.parquet"),
        "export": ("export", work / "run", "--output", work / "model.onnx"),
        "explain": ("predict", "--run", work / "run", "--explain", "--html", work / "why.html", "a film"),
    }


def _told_badly(end: Ended) -> str:
    """The fault in how a command ended, or an empty string."""
    if end.code not in (0, 4, 6) or "Traceback" in end.told:
        return f"exit {end.code}: {end.told[-400:]}"
    last = end.told.strip().rpartition("\n")[2]
    return f"no file is named: {last}" if end.code and "/" not in last else ""


def _damage(shop: Workshop, name: str, command: tuple[object, ...], end: Ended) -> str:
    """The damage that a failed command did, or an empty string. The command must also work again."""
    place, work = shop.place, shop.work
    if end.code and name == "predict" and not _is_whole(work / "out.parquet"):
        return "the output is neither the former one nor the new"
    for other in ("run", "stopped"):
        check = run(place, "verify", work / other)
        if check.code:
            return f"{other} is damaged: {check.told}"
    made = next((Path(str(command[i + 1])) for i, word in enumerate(command) if word == "--run-dir"), None)
    if made is not None and made.exists():
        check = run(place, "verify", made)
        if check.code:
            return f"{made.name} is damaged: {check.told}"
        again: tuple[object, ...] = ("verify", made) if name == "baseline" else (command[0], "--resume", made)
    else:
        again = command
    last = run(place, *again)
    return "" if last.code == 0 else f"cannot be done again: {last.told[-300:]}"


def _is_whole(output: Path) -> bool:
    """Whether it is the former output, or the new one if only a later write has failed."""
    return output.read_bytes() == FORMER or parquet.read_metadata(output).num_rows == NUM_PREDICTED


def corruption(place: Place, count: int) -> Outcome:
    """A file of a checkpoint, a corpus, an encoded split or a run is cut short or has a bit flipped: refused
    by name."""
    config = place.config("corrupt", evals=1000)
    trained = place.folder / "corrupt"
    # Not to its end, where --resume has nothing left to read, but past validations: a best is there.
    must(run(place, "train", "--config", config, "--run-dir", trained, before=stopping(4)), 143)
    asked, resumed = ("predict", "--run", trained, "a good film"), ("train", "--resume", trained)
    encoded = ("tokenize", "--config", config)
    must(run(place, *asked), 0)
    generator, failures, cases = random.Random(2), [], 0
    for number, path in enumerate(sorted([*trained.rglob("*"), *(place.folder / "data").rglob("*")])):
        unread = (
            "metrics.jsonl", "environment.json", "report.html", "yardstick.json", "test.parquet",
            Path(EVENTS).name,
        )  # fmt: skip
        if not path.is_file() or path.name in unread or "previous" in path.parts:
            continue
        name = path.relative_to(place.folder)
        is_cache = "tokenizers" in name.parts
        command = encoded if is_cache else resumed if {"data", "last"} & set(name.parts) else asked
        for case in range(number, number + count):
            content = path.read_bytes()
            path.write_bytes(damaged(content, generator, cut=bool(case % 2)))
            end = run(place, *command)
            is_mended = end.code == 0 and path.read_bytes() == content
            path.write_bytes(content)
            cases += 1
            refused = end.code in (3, 4) and "Traceback" not in end.told and str(path.parent) in end.told
            # A damaged tokenizer in the cache is known by its hash, and one trained anew takes its place.
            if not (is_mended if is_cache else refused):
                what = "cut" if case % 2 else "flipped"
                failures.append(f"{name} ({what}): exit {end.code}: {end.told[-300:]}")
    return Outcome(cases, failures)


def damaged(content: bytes, generator: random.Random, *, cut: bool) -> bytes:
    """The content cut short at a random place, or with a random bit flipped."""
    i = generator.randrange(len(content))
    if cut:
        return content[:i]
    return content[:i] + bytes([content[i] ^ 1 << generator.randrange(8)]) + content[i + 1 :]


def fuzzing(place: Place, count: int) -> Outcome:
    """Damaged configs, tables, archives and checkpoints, a fourth each: read, or refused with our errors."""
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
