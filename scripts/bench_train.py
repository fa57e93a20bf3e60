"""Training speed of the base model beside what a user would write instead, on a CPU, on the same batches.

    python scripts/bench_train.py [--config base.toml] [--set data.source=...] [--seconds 120] [--json]

A step is forward, backward, clipping and optimiser. Contestants take turns, a round over the batches each,
in processes of their own as a user would run them: the package's model as configured; the same with full
attention and all words, like for like (word dropout computes nothing for the words that it drops);
`torch.nn.TransformerEncoder` of the same dimensions with its padding mask; `transformers`'
BertForSequenceClassification of the same dimensions (where it is installed, by the extra `bench`). The
latter two run as their manuals say: bf16 autocast, fused AdamW.
Prints medians of tokens/s (of a batch's tokens, dropped or not; padding is not counted) over all rounds after
one of warm-up, ratios as medians of the steps' ratios, and two shares of the peak, which is a large bf16
matrix product in the same round: of what the steps compute, and of what a step that skips nothing would have
to (three times the forward pass; "model FLOPs utilization", Chowdhery et al. 2022, appendix B).
"""

import argparse
import importlib.util
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from imdb_transformer import config_file, hardware
from imdb_transformer.config import Config
from imdb_transformer.data.tokenized import tokenize
from imdb_transformer.data.tokenizer import PAD_ID
from imdb_transformer.hardware import Hardware
from imdb_transformer.inference.forward import Batch
from imdb_transformer.training.classification import make_model
from imdb_transformer.training.plan import gather, make_plan
from imdb_transformer.training.step import make_learner, train_step
from imdb_transformer.training.task import classification

NUM_BATCHES = 12
Step = Callable[[Batch], None]
Arrays = tuple[NDArray[Any], NDArray[Any]]  # ids and labels of a batch


class TorchClassifier(nn.Module):
    """What a good user of torch writes: its encoder, its padding mask, a masked max-pool."""

    def __init__(self, config: Config, vocab_size: int, num_classes: int) -> None:
        super().__init__()
        c = config.model
        self.embedding = nn.Embedding(vocab_size, c.width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(
            c.width, c.num_heads, c.feedforward_width, c.dropout, c.activation, batch_first=True,
            norm_first=c.norm == "pre",
        )  # fmt: skip
        self.encoder = nn.TransformerEncoder(layer, c.num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(c.width, num_classes)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.encoder(self.embedding(ids), src_key_padding_mask=~mask)
        return self.head(x.masked_fill(~mask[..., None], -torch.inf).amax(1))


def our_step(config: Config, chosen: Hardware, vocab_size: int) -> Step:
    learner = make_learner(make_model(config, vocab_size=vocab_size, num_classes=2).train(), config.train)

    def step(batch: Batch) -> None:
        train_step(learner, [batch], classification(), config.train, chosen, step=0, lr=config.train.lr)

    return step


def full_step(config: Config, chosen: Hardware, vocab_size: int) -> Step:
    """Like for like: what the others compute."""
    model = config.model.model_copy(update={"attention": "full", "word_dropout": 0.0})
    return our_step(config.model_copy(update={"model": model}), chosen, vocab_size)


def autocast_step(
    model: nn.Module, forward: Callable[[Batch], Tensor], config: Config, chosen: Hardware
) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.train.lr, fused=True)

    def step(batch: Batch) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=chosen.dtype == torch.bfloat16):
            loss = F.cross_entropy(forward(batch), batch.labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def torch_step(config: Config, chosen: Hardware, vocab_size: int) -> Step:
    model = TorchClassifier(config, vocab_size, 2).train()
    return autocast_step(model, lambda b: model(b.ids, b.mask), config, chosen)


def transformers_step(config: Config, chosen: Hardware, vocab_size: int) -> Step:
    from transformers import BertConfig, BertForSequenceClassification

    c = config.model
    bert = BertConfig(
        vocab_size=vocab_size, hidden_size=c.width, num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads, intermediate_size=c.feedforward_width, hidden_act=c.activation,
        hidden_dropout_prob=c.dropout, max_position_embeddings=config.tokenizer.max_length, num_labels=2,
    )  # fmt: skip
    model = BertForSequenceClassification(bert).train()

    def forward(batch: Batch) -> Tensor:
        return model(input_ids=batch.ids, attention_mask=batch.mask.long()).logits

    return autocast_step(model, forward, config, chosen)


CONTESTANTS = {
    "ours": our_step, "ours_full": full_step, "torch": torch_step, "transformers": transformers_step,
}  # fmt: skip


def contest(
    name: str, arrays: list[Arrays], config: Config, chosen: Hardware, vocab_size: int, turns: Connection
) -> None:
    """A contestant's process: for each turn, the seconds of a step on each batch go back."""
    if name.startswith("ours"):
        hardware.choose(config.train)  # what the package does at the start of a training
    step = CONTESTANTS[name](config, chosen, vocab_size)
    batches = [batch_of(*each) for each in arrays]
    while turns.recv():
        seconds = []
        for batch in batches:
            began = time.perf_counter()
            step(batch)
            seconds.append(time.perf_counter() - began)
        turns.send(seconds)


def batch_of(ids: NDArray[Any], labels: NDArray[Any]) -> Batch:
    mask = torch.from_numpy(ids) != PAD_ID
    return Batch(torch.from_numpy(ids), mask, torch.from_numpy(labels), int(mask.sum()))


def peak_flops(dtype: torch.dtype, size: int = 4096) -> float:
    """FLOP/s of one large square matrix product."""
    a = torch.ones(size, size, dtype=dtype)
    began = time.perf_counter()
    a @ a
    return 2 * size**3 / (time.perf_counter() - began)


def flops_of(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="base.toml")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    config = config_file.load(arguments.config, [*arguments.overrides, 'train.device="cpu"'])
    chosen = hardware.choose(config.train)
    data = tokenize(config, ["train"])
    vocab_size = data.tokenizer.vocab_size
    batches = [
        gather(config, data.splits["train"], indices, chosen)
        for _, indices in make_plan(config, data.splits["train"]).batches[:NUM_BATCHES]
    ]
    step = our_step(config, chosen, vocab_size)
    computed = [flops_of(partial(step, batch)) for batch in batches]
    model = make_model(config, vocab_size=vocab_size, num_classes=2).eval()
    whole = [3 * flops_of(partial(model, batch.ids, batch.mask, chosen.dtype)) for batch in batches]
    names = [name for name in CONTESTANTS if name != "transformers" or importlib.util.find_spec(name)]
    seconds, peaks = take_turns(names, batches, config, chosen, vocab_size, arguments.seconds)
    turns = len(seconds["ours"])
    tokens = [batch.num_tokens for batch in batches]
    speeds = {name: [tokens[i % len(tokens)] / seconds[name][i] for i in range(turns)] for name in names}
    peak = peaks[torch.bfloat16 if chosen.dtype == torch.bfloat16 else torch.float32]
    shares = {
        name: [flops[i % len(flops)] / seconds["ours"][i] / peak[i // len(flops)] for i in range(turns)]
        for name, flops in (("share_of_peak", computed), ("model_flops_share_of_peak", whole))
    }
    report(speeds, shares, peaks, config, chosen, as_json=arguments.json)


def take_turns(
    names: list[str], batches: list[Batch], config: Config, chosen: Hardware, vocab_size: int, bound: float
) -> tuple[dict[str, list[float]], dict[torch.dtype, list[float]]]:
    """Seconds of each step by contestant, and the peak's FLOP/s by round; the first round warms up."""
    context = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    arrays = [(batch.ids.numpy(), batch.labels.numpy()) for batch in batches]
    for name in names:
        ends[name], other = context.Pipe()
        context.Process(
            target=contest, args=(name, arrays, config, chosen, vocab_size, other), daemon=True
        ).start()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    peaks: dict[torch.dtype, list[float]] = {torch.bfloat16: [], torch.float32: []}
    deadline = time.perf_counter() + bound
    rounds = 0
    while rounds < 2 or time.perf_counter() < deadline:
        for name, end in ends.items():
            end.send(True)
            taken = end.recv()
            if rounds:
                seconds[name] += taken
        for dtype, flops in peaks.items():
            product = peak_flops(dtype)
            if rounds:
                flops.append(product)
        rounds += 1
    for end in ends.values():
        end.send(False)
    return seconds, peaks


def report(
    speeds: dict[str, list[float]],
    shares: dict[str, list[float]],
    peaks: dict[torch.dtype, list[float]],
    config: Config,
    chosen: Hardware,
    *,
    as_json: bool,
) -> None:
    result: dict[str, object] = {
        "date": time.strftime("%Y-%m-%d"), "hardware": chosen.describe(), "torch": torch.__version__,
        "n": len(speeds["ours"]),
        **{name: round(statistics.median(values), 3) for name, values in shares.items()},
        "peak_bf16_gflops": round(statistics.median(peaks[torch.bfloat16]) / 1e9),
        "peak_fp32_gflops": round(statistics.median(peaks[torch.float32]) / 1e9),
        **{f"tokens_per_second_{name}": round(statistics.median(values)) for name, values in speeds.items()},
    }  # fmt: skip
    for other in ("torch", "transformers"):
        if other in speeds:
            for mine, suffix in (("ours", ""), ("ours_full", "_full")):
                ratios = [a / b for a, b in zip(speeds[mine], speeds[other], strict=True)]
                result[f"ratio_{other}{suffix}"] = round(statistics.median(ratios), 2)
    if as_json:
        print(json.dumps(result))
        return
    c = config.model
    print(
        f"{c.num_layers} layer(s), width {c.width}, {c.num_heads} heads, feed-forward {c.feedforward_width}, "
        f"{c.attention} attention, batches of {config.train.batch_tokens:,} tokens"
    )
    for name, values in speeds.items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"{name:<14}{middle:>10,.0f} tokens/s  (quartiles {low:,.0f} to {high:,.0f})")
    for key, value in result.items():
        print(f"{key:<32}{value}")


if __name__ == "__main__":
    main()
