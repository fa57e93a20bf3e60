"""Contestants of a benchmark take turns: what bench_train.py and bench_predict.py share.

Each contestant works in a process of its own with the package's allocator settings. Before the counted rounds
it tries its variants (batch sizes, precisions) and keeps the fastest. The first round warms up and does not
count. In a round each contestant does every part of the work before the next round starts, so that the times
of a part are paired: ratios are medians over pairs.
"""

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from imdb_transformer import hardware

Work = Callable[[Any], object]
Variants = dict[str, Work]
FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"
ATTENTION = ("fused", "unfused")  # ways of torch to compute a peer's attention; see `attention_by`
PACKAGES = ("torch", "transformers", "onnxruntime", "tokenizers")


class Turns(NamedTuple):
    """The variant that each contestant chose, and its seconds for each part of each counted round."""

    chosen: dict[str, str]
    seconds: dict[str, list[float]]


def take_turns(
    makers: dict[str, Callable[[], Variants]], parts: Sequence[Any], *, seconds: float, least_rounds: int = 2,
    sample: Any = None, between: Callable[[], object] = lambda: None,
) -> Turns:  # fmt: skip
    """Rounds over `parts` until the time is over; choosing variants and the first round come before.

    A maker runs in the contestant's process. A contestant that fails ends the benchmark with its sentence.
    Variants are tried on `sample`, by default the middle part. `between` is called after each counted round,
    when all contestants wait.
    """
    context = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    for name, make in makers.items():
        ends[name], other = context.Pipe()
        context.Process(target=contestant, args=(name, make, other), daemon=True).start()
    for end in ends.values():
        answer_of(end)  # all are ready before the first is timed
    sample = parts[len(parts) // 2] if sample is None else sample
    chosen = {name: ask(end, sample) for name, end in ends.items()}
    taken: dict[str, list[float]] = {name: [] for name in ends}
    one_round(ends, parts)
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < least_rounds or time.perf_counter() < deadline:
        for name, times in one_round(ends, parts).items():
            taken[name] += times
        between()
        rounds += 1
    for end in ends.values():
        end.send(None)
    return Turns(chosen, taken)


def one_round(ends: dict[str, Connection], parts: Sequence[Any]) -> dict[str, list[float]]:
    """Seconds of each contestant on each part."""
    return {name: [ask(end, part) for part in parts] for name, end in ends.items()}


def ask(end: Connection, part: Any) -> Any:
    """A contestant's answer to a part."""
    end.send(part)
    return answer_of(end)


def answer_of(end: Connection) -> Any:
    """What a contestant says next. Its errors end the benchmark."""
    answer = end.recv()
    if isinstance(answer, Exception):
        sys.exit(str(answer))
    return answer


def contestant(name: str, make: Callable[[], Variants], turns: Connection) -> None:
    """A contestant's process. It says when it is ready, which variant it chose, then seconds of each part."""
    hardware.keep_freed_memory()
    try:
        variants = make()
        turns.send(None)
        best = fastest(variants, turns.recv())
        work = variants[best]
        variants.clear()  # frees the others' weights
        turns.send(best)
        while (part := turns.recv()) is not None:
            turns.send(seconds_of(work, part))
    except Exception as error:
        turns.send(RuntimeError(f"{name} failed: {error}"))


def fastest(variants: Variants, part: Any, clock: Callable[[Work, Any], float] | None = None) -> str:
    """The variant that does a part soonest: the better of two turns, after one of warm-up."""
    if len(variants) == 1:
        return next(iter(variants))
    clock = clock or seconds_of
    best = {name: min([clock(work, part) for _ in range(3)][1:]) for name, work in variants.items()}
    return min(best, key=best.__getitem__)


def seconds_of(work: Work, part: Any) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    work(part)
    return time.perf_counter() - began


@contextmanager
def attention_by(way: str) -> Iterator[None]:
    """Torch's attention as it is by default ("fused"), or by plain matrix products ("unfused").

    The products have the precision of their inputs. By default torch would compute them in fp32.
    """
    if way == "fused":
        yield
        return
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # not for CUDA alone, despite its name
    with sdpa_kernel(SDPBackend.MATH):
        yield


def confirm_fused(work: Callable[[], object], *, backward: bool) -> None:
    """Raises RuntimeError where a peer's attention does not take torch's fused kernel."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen:  # torch 2.11 warns without it
        work()
    names = {event.key for event in seen.key_averages()}
    wanted = [FUSED, f"{FUSED}_backward"] if backward else [FUSED]
    for name in wanted:
        if name not in names:
            raise RuntimeError(
                f"its attention did not take torch's fused kernel ({name} is not in a profile of its work), "
                "so it would not be at its best"
            )


def ratio(mine: Sequence[float], peers: Sequence[float]) -> float:
    """How many times faster than a peer: the median over pairs of seconds.

    >>> ratio([1.0, 2.0, 1.0], [2.0, 6.0, 4.0])
    3.0
    """
    return round(statistics.median(b / a for a, b in zip(mine, peers, strict=True)), 2)


def quartiles(values: Sequence[float]) -> list[int]:
    """[lower quartile, median, upper quartile], rounded.

    >>> quartiles([10.0, 20.0, 30.0])
    [10, 20, 30]
    """
    return [round(value) for value in statistics.quantiles(values, n=4)]


def context() -> dict[str, Any]:
    """What every published figure needs beside it: date, processor, threads, versions."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "hardware": f"{hardware.processor_name()}, {torch.get_num_threads()} threads",
        "versions": {name: number for name in PACKAGES if (number := installed(name))},
    }


def installed(name: str) -> str | None:
    """The version of a package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table.

    >>> print(markdown(["", "ms"], [["ours", 1]]))
    |  | ms |
    |---|---:|
    | ours | 1 |
    """
    lines = [header, *rows]
    cells = ["| " + " | ".join(map(str, line)) + " |" for line in lines]
    return "\n".join([cells[0], "|---|" + "---:|" * (len(header) - 1), *cells[1:]])
