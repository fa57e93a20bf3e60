"""Step time and peak memory of one layer against length: attention, windows, LSTM, convolution.

    python scripts/bench_length.py [--width 128] [--radius 16] [--seconds 120] [--plot lengths.svg] [--json]

The complexity table of "Attention Is All You Need" (table 1), measured: forward and backward of one layer
on a batch of 8,192 tokens without padding. Prints a Markdown table, a row a length: medians of
milliseconds, and memory, as the largest resident set of a process that does only that, less that of one
that has only imported torch. Takes `--seconds`, shared out evenly, and a minute: two warm-up steps and the
start of a process for each figure are excluded.

The columns:
- fused: full attention as torch's users write it, `scaled_dot_product_attention` between two linear maps.
  That the fused kernel is taken is confirmed by a profile; otherwise the benchmark fails;
- unfused: full attention by our own product of matrices, which keeps L x L weights in memory;
- windowed: ours with `--radius`. It skips all that lies further away;
- lstm_fp32: `nn.LSTM`, in fp32, the faster type for it on a CPU;
- convolution: `nn.Conv1d` with a kernel of 3. It sees one position on either side.

All but the LSTM compute in the type that the hardware computes fastest in. All processes have the package's
allocator settings.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import contest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdb_transformer import hardware
from imdb_transformer.config import ModelConfig, TrainConfig
from imdb_transformer.model.attention import SelfAttention, attention_bias

TOKENS = 8192
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
KINDS = ("fused", "unfused", "windowed", "lstm_fp32", "convolution")
HEAD_WIDTH = 64
KERNEL = 3
NUM_WARM_UP = 2
LEAST_STEPS = 3
Layer = Callable[[Tensor], Tensor]


def our_layer(kind: str, width: int, radius: int) -> Layer:
    """Our own attention, full or windowed."""
    heads = {"num_heads": width // HEAD_WIDTH, "head_width": HEAD_WIDTH}
    radius = radius if kind == "windowed" else 0
    config = ModelConfig.model_validate({"width": width, **heads, "radius": radius})
    layer = SelfAttention(config)

    def forward(x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[:2], dtype=torch.bool)
        return layer(x, attention_bias(mask, radius, x.dtype), None)

    return forward


def fused_layer(width: int, dtype: torch.dtype) -> Layer:
    """Full attention by torch's fused kernel."""
    project_in, project_out = (nn.Linear(width, n * width, dtype=dtype) for n in (3, 1))

    def forward(x: Tensor) -> Tensor:
        qkv = project_in(x).unflatten(-1, (3, width // HEAD_WIDTH, HEAD_WIDTH))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, L, K) each
        return project_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    return forward


def make_layer(kind: str, width: int, radius: int, dtype: torch.dtype) -> Layer:
    """A layer by the name of its column."""
    if kind == "fused":
        return fused_layer(width, dtype)
    if kind == "lstm_fp32":
        lstm = nn.LSTM(width, width, batch_first=True)
        return lambda x: lstm(x)[0]
    if kind == "convolution":
        convolution = nn.Conv1d(width, width, KERNEL, padding="same", dtype=dtype)
        return lambda x: convolution(x.transpose(1, 2))
    return our_layer(kind, width, radius)


def measure(task: tuple[str, int, int, int, float]) -> tuple[float, float, int]:
    """(median milliseconds, MiB, steps) of one layer at one length; runs in a process of its own."""
    kind, length, width, radius, seconds = task
    hardware.keep_freed_memory()
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dtype = torch.float32 if kind == "lstm_fp32" else hardware.choose(TrainConfig()).dtype
    layer = make_layer(kind, width, radius, dtype)
    x = torch.randn(TOKENS // length, length, width).to(dtype).requires_grad_()

    def step(x: Tensor) -> None:
        layer(x).sum().backward()

    timings: list[float] = []
    while len(timings) < NUM_WARM_UP + LEAST_STEPS or sum(timings) < seconds:
        timings.append(contest.seconds_of(step, x))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if kind == "fused":  # after the memory was read: a profile takes some
        contest.confirm_fused(partial(step, x), backward=True)
    counted = timings[NUM_WARM_UP:]
    return 1000 * statistics.median(counted), (peak - base) / 1024, len(counted)


def rows_of(
    width: int, radius: int, seconds: float, lengths: tuple[int, ...] = LENGTHS
) -> list[dict[str, float]]:
    """A row for each length: milliseconds, MiB and counted steps of each kind."""
    context = multiprocessing.get_context("spawn")
    share = seconds / len(lengths) / len(KINDS)
    rows = []
    for length in lengths:
        row: dict[str, float] = {"length": length}
        for kind in KINDS:
            with context.Pool(1) as pool:  # a fresh process: its peak memory is this layer's
                milliseconds, mebibytes, steps = pool.map(measure, [(kind, length, width, radius, share)])[0]
            row |= {f"{kind}_ms": round(milliseconds, 1), f"{kind}_mib": round(mebibytes, 1)}
            row[f"{kind}_n"] = steps
        rows.append(row)
    return rows


def plot(rows: list[dict[str, float]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    lengths = [row["length"] for row in rows]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5))
    for axis, unit, title in ((axes[0], "ms", "milliseconds a step"), (axes[1], "mib", "peak memory, MiB")):
        for kind in KINDS:
            axis.plot(lengths, [row[f"{kind}_{unit}"] for row in rows], marker="o", label=kind)
        axis.set(
            xscale="log", yscale="log", xlabel="length", title=title, xticks=lengths, xticklabels=lengths
        )
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path)


def table(rows: list[dict[str, float]]) -> str:
    """A Markdown row for each length."""
    header = ["length", *(cell for kind in KINDS for cell in (f"{kind.replace('_', ' ')} ms", "MiB"))]
    cells: list[list[object]] = [
        [
            int(row["length"]),
            *(cell for kind in KINDS for cell in (f"{row[f'{kind}_ms']:.1f}", f"{row[f'{kind}_mib']:.0f}")),
        ]
        for row in rows
    ]
    return contest.markdown(header, cells)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--radius", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = rows_of(arguments.width, arguments.radius, arguments.seconds)
    if arguments.plot:
        plot(rows, arguments.plot)
    settings: dict[str, Any] = {
        "tokens": TOKENS, "width": arguments.width, "radius": arguments.radius,
        "n": int(min(row[f"{kind}_n"] for row in rows for kind in KINDS)),
    }  # fmt: skip
    if arguments.json:
        print(json.dumps({**contest.context(), **settings, "rows": rows}))
        return
    print(f"{contest.context()}, {settings}\n")
    print(table(rows))


if __name__ == "__main__":
    main()
