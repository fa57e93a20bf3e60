"""Step time and peak memory of one layer against length: full and windowed attention, LSTM, convolution.

    python scripts/bench_length.py [--width 128] [--radius 16] [--plot lengths.svg] [--json]

The complexity table of "Attention Is All You Need" (table 1), measured: forward and backward of one layer
on a batch of 8,192 tokens, in the precision that the hardware computes fastest in (the LSTM in fp32, which
is faster for it on a CPU), median of 7 after 2 of warm-up; and memory, as the largest resident set of a
process that does only that, less that of one that has only imported torch. Takes 3 minutes.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from imdb_transformer import hardware
from imdb_transformer.config import ModelConfig, TrainConfig
from imdb_transformer.model.attention import SelfAttention, attention_bias

TOKENS = 8192
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
HEAD_WIDTH = 64
KERNEL = 3
Layer = Callable[[Tensor], Tensor]


def attention_layer(kind: str, width: int, radius: int) -> Layer:
    heads = {"num_heads": width // HEAD_WIDTH, "head_width": HEAD_WIDTH}
    config = ModelConfig.model_validate({"width": width, **heads, "attention": kind, "radius": radius})
    layer = SelfAttention(config)

    def forward(x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[:2], dtype=torch.bool)
        return layer(x, attention_bias(mask, radius if layer.windowed else 0, x.dtype), None)

    return forward


def make_layer(kind: str, width: int, radius: int) -> Layer:
    if kind == "lstm":
        lstm = nn.LSTM(width, width, batch_first=True)
        return lambda x: lstm(x.float())[0]
    if kind == "convolution":
        convolution = nn.Conv1d(width, width, KERNEL, padding="same").to(hardware.choose(TrainConfig()).dtype)
        return lambda x: convolution(x.transpose(1, 2))
    return attention_layer(kind, width, radius)


def measure(task: tuple[str, int, int, int]) -> tuple[float, float]:
    """(milliseconds, MiB) of one layer at one length; runs in a process of its own."""
    kind, length, width, radius = task
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dtype = hardware.choose(TrainConfig()).dtype
    layer = make_layer(kind, width, radius)
    x = torch.randn(TOKENS // length, length, width).to(dtype).requires_grad_()
    timings = []
    for _ in range(9):
        began = time.perf_counter()
        layer(x).sum().backward()
        timings.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1000 * statistics.median(timings[2:]), (peak - base) / 1024


def plot(rows: list[dict[str, float]], kinds: list[str], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5))
    for axis, unit, title in ((axes[0], "ms", "milliseconds a step"), (axes[1], "mib", "peak memory, MiB")):
        for kind in kinds:
            axis.plot(LENGTHS, [row[f"{kind}_{unit}"] for row in rows], marker="o", label=kind)
        axis.set(
            xscale="log", yscale="log", xlabel="length", title=title, xticks=LENGTHS, xticklabels=LENGTHS
        )
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--radius", type=int, default=16)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    kinds = ["full", "windowed", "lstm", "convolution"]
    rows = []
    context = multiprocessing.get_context("spawn")
    for length in LENGTHS:
        row: dict[str, float] = {"length": length}
        for kind in kinds:
            with context.Pool(1) as pool:  # a fresh process: its peak memory is this layer's
                task = (kind, length, arguments.width, arguments.radius)
                row[f"{kind}_ms"], row[f"{kind}_mib"] = (round(x, 1) for x in pool.map(measure, [task])[0])
        rows.append(row)
    if arguments.plot:
        plot(rows, kinds, arguments.plot)
    if arguments.json:
        print(
            json.dumps({"tokens": TOKENS, "width": arguments.width, "radius": arguments.radius, "rows": rows})
        )
        return
    print("| length | " + " | ".join(f"{kind} ms | MiB" for kind in kinds) + " |")
    print("|---:" * (1 + 2 * len(kinds)) + "|")
    for row in rows:
        cells = [f"{row[f'{kind}_ms']:.1f} | {row[f'{kind}_mib']:.0f}" for kind in kinds]
        print(f"| {row['length']} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
