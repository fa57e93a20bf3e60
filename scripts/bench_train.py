"""Training speed on a CPU beside the peers, each as its own expert would run it.

    python scripts/bench_train.py [--config scratch.toml] [--set data.source=...] [--seconds 180] [--json]

Prints a Markdown table of tokens a second (medians and quartiles; padding is not counted) with one factor a
row, the ratios, and the share of the processor's peak. Takes `--seconds` and about 6 minutes: the choice of
variants and one round of warm-up come before and are excluded.

The work is six parts of 32,768 tokens of reviews of like length, taken evenly from the longest to the
shortest. A contestant cuts a part into batches and takes a step on each: padding, forward, backward,
clipping, update. Ratios are medians over paired parts.

Ours takes the config's batches in every row. From the config one factor is changed at a time: no bigrams
(which no peer has), all words (word dropout leaves words out, and computes nothing for them), dropout by
element (ours draws a random number a review and channel), full attention (ours has windows). Ours also keeps
a moving average of the weights where the config says so, which no peer does.

The peers have our sizes, vocabulary, batches sorted by length, fused AdamW, clipping, allocator settings,
fp32 weights, and dropout by element at the same places with the same rate: none on attention weights, which
would take them off torch's fused kernel. Each chooses the fastest of batches of 2,048 to 32,768 tokens, in
autocast or with weights cast to bf16 once a step, with attention by torch's fused kernel or by plain
products, as ours. That the fused kernel is taken, forward and backward, is confirmed by a profile; otherwise
the benchmark fails:
- torch: `nn.TransformerEncoder` with its padding mask and max-pooling. It lacks positions, which ours has;
- transformers: BERT with attention "sdpa". It adds learned positions, token types and a pooler;
- modernbert: ModernBERT with attention "sdpa", our windows in all layers (no global layer) and rotary
  positions. Its feed-forward is gated, with two thirds of our width, which gives as many weights. Torch's
  kernel computes its windows as a mask over full attention. Its like is ours with windows.

Tried, without help: `torch.compile` (BERT and torch's encoder became slower, ModernBERT stayed level, and
it needs a C++ compiler); embeddings left in fp32 beside cast weights (level). Not to be had on a CPU:
ModernBERT without padding (it needs FlashAttention), the fused kernel over nested tensors. All run on all
cores.

The peak is the best of many warmed matrix products of several shapes, in turns with the contestants. A
share above 1 ends the benchmark. It is a diagnostic, not a goal.
"""

import argparse
import importlib.util
import itertools
import json
import operator
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import contest
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from peers import make_peer
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from imdb_transformer import config_file, hardware
from imdb_transformer.config import Config
from imdb_transformer.data.batches import PADDING_MULTIPLE, length_batches, pad
from imdb_transformer.data.encoded import EncodedSplit, tokenize
from imdb_transformer.data.tokenizer import PAD_ID
from imdb_transformer.hardware import Hardware
from imdb_transformer.training.optimizers import ADAM_EPS, BETA1
from imdb_transformer.training.plan import Batch
from imdb_transformer.training.prepare import make_classifier
from imdb_transformer.training.step import make_learner, train_step

NUM_PARTS = 6
PEER_MULTIPLE = 8  # of lengths: less padding than ours
BATCH_TOKENS = (2048, 4096, 8192, 16_384, 32_768)
PEAK_SHAPES = (
    (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (16_384, 128, 512), (16_384, 512, 128),
    (8192, 1024, 1024),
)  # fmt: skip
# The same model, one factor a row from the config on. The peers' like is the fourth (windows) or the fifth.
FACTORS: dict[str, dict[str, object]] = {
    "ours": {},
    "ours_no_bigrams": {"bigram_buckets": 0},
    "ours_all_words": {"word_dropout": 0.0},
    "ours_element_dropout": {"dropout_mask": "element"},
    "ours_full_attention": {"radius": 0},
}
OURS: dict[str, dict[str, object]] = dict(
    zip(FACTORS, itertools.accumulate(FACTORS.values(), operator.or_), strict=True)
)
LIKES = {
    "torch": "ours_full_attention",
    "transformers": "ours_full_attention",
    "modernbert": "ours_element_dropout",
}
Shapes = tuple[tuple[int, int, int], ...]
Step = Callable[[Batch], object]


class Part(NamedTuple):
    """Reviews of like length."""

    reviews: list[NDArray[Any]]
    labels: NDArray[Any]

    @property
    def num_tokens(self) -> int:
        """Padding not counted."""
        return sum(map(len, self.reviews))


# ---- the work


def parts_of(split: EncodedSplit, part_tokens: int, num_parts: int = NUM_PARTS) -> list[Part]:
    """Parts evenly from the shortest reviews to the longest."""
    batches = length_batches(split.lengths, batch_tokens=part_tokens, multiple=PEER_MULTIPLE)
    places = [len(batches) * (2 * i + 1) // (2 * num_parts) for i in range(num_parts)]
    return [Part([split.review(j) for j in batches[i]], split.labels[batches[i]]) for i in places]


def batches_of(part: Part, batch_tokens: int, multiple: int) -> list[Batch]:
    """A part cut into equal batches of about `batch_tokens`, padding included, longest first."""
    order = np.argsort([-len(review) for review in part.reviews], kind="stable")
    padded = -(-max(map(len, part.reviews)) // multiple) * multiple * len(order)
    count = min(len(order), max(1, round(padded / batch_tokens)))
    batches = []
    for indices in np.array_split(order, count):
        reviews = [part.reviews[i] for i in indices]
        ids = torch.from_numpy(pad(reviews, multiple=multiple))
        labels = torch.from_numpy(part.labels[indices].astype(np.int64))
        batches.append(Batch(ids, ids != PAD_ID, labels, sum(map(len, reviews))))
    return batches


def each_batch(step: Step, batch_tokens: int, multiple: int) -> contest.Work:
    """A contestant's work on a part."""

    def work(part: Part) -> None:
        for batch in batches_of(part, batch_tokens, multiple):
            step(batch)

    return work


# ---- ours


def with_factors(config: Config, factors: dict[str, object]) -> Config:
    """A config with other choices for its model."""
    return config.replaced("model", **factors)


def our_step(config: Config, chosen: Hardware, vocab_size: int) -> Step:
    """What `imdb-tx train` does with a batch."""
    model = make_classifier(config, vocab_size=vocab_size, num_classes=2).train()
    learner, steps = make_learner(model, config, "classifier", chosen.dtype), itertools.count()

    def step(batch: Batch) -> None:
        train_step(learner, batch, next(steps), 10_000)

    return step


def make_ours(config: Config, vocab_size: int) -> contest.Variants:
    """One variant: the config's own batches."""
    step = our_step(config, hardware.choose(config.train), vocab_size)
    size = config.train.batch_tokens
    return {f"{size:,}": each_batch(step, size, PADDING_MULTIPLE)}


# ---- the peers


def peer_step(model: nn.Module, config: Config, precision: str, attention: str = "fused") -> Step:
    """A step of fused AdamW. `precision`: "fp32", bf16 by "autocast", or "cast" weights.

    `attention` is one of `contest.ATTENTION`.
    """
    t = config.train
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=t.lr, betas=(BETA1, t.beta2), eps=ADAM_EPS, weight_decay=t.weight_decay,
        fused=True,
    )  # fmt: skip

    def forward(batch: Batch) -> Tensor:
        if precision != "cast":
            return model(batch.ids, batch.mask)
        weights = {name: weight.bfloat16() for name, weight in model.named_parameters()}
        return functional_call(model, weights, (batch.ids, batch.mask))

    def step(batch: Batch) -> None:
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast")
        with autocast, contest.attention_by(attention):
            logits = forward(batch)
        F.cross_entropy(logits.float(), batch.labels).backward()
        if t.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), t.clip_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def make_peers(
    name: str, config: Config, vocab_size: int, sizes: tuple[int, ...], part: Part
) -> contest.Variants:
    """All variants of a peer. In each precision the fused kernel is confirmed to be taken by default."""
    in_bf16 = hardware.choose(config.train).dtype == torch.bfloat16
    precisions = ("autocast", "cast") if in_bf16 else ("fp32",)
    variants: contest.Variants = {}
    for precision, attention in itertools.product(precisions, contest.ATTENTION):
        step = peer_step(make_peer(name, config, vocab_size), config, precision, attention)
        if attention == "fused":
            batch = batches_of(part, sizes[0], PEER_MULTIPLE)[0]
            contest.confirm_fused(partial(step, batch), backward=True)
        for size in sizes:
            variants[f"{size:,} {precision}, {attention}"] = each_batch(step, size, PEER_MULTIPLE)
    return variants


# ---- the peak


def peak_flops(dtype: torch.dtype, shapes: Shapes = PEAK_SHAPES, repeats: int = 5) -> float:
    """FLOP/s of the best of many warmed matrix products."""
    best = 0.0
    for rows, inner, columns in shapes:
        a, b = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
        out = a @ b  # warms up
        for _ in range(repeats):
            taken = contest.seconds_of(partial(torch.mm, a, out=out), b)
            best = max(best, 2 * rows * inner * columns / taken)
    return best


def flops_of(work: Callable[[], object]) -> int:
    """What torch counts."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def share_of_peak(flops: list[int], seconds: list[float], peak: float) -> float:
    """The median share of the peak over parts. Ends the benchmark where one is above 1."""
    shares = [count / taken / peak for count, taken in zip(flops, seconds, strict=True)]
    if max(shares) > 1:
        sys.exit(
            f"A part was computed at {max(shares):.2f} of the peak, so the peak is wrong: something else "
            "slowed its measurement. Repeat the benchmark on a quiet machine."
        )
    return round(float(np.median(shares)), 3)


# ---- what is printed

DESCRIPTIONS = {
    "ours": "imdb-tx, as configured",
    "ours_no_bigrams": "without bigrams",
    "ours_all_words": "+ all words",
    "ours_element_dropout": "+ dropout by element (like for like with ModernBERT)",
    "ours_full_attention": "+ full attention (like for like with the other two)",
    "torch": "`nn.TransformerEncoder`",
    "transformers": "`transformers`' BERT",
    "modernbert": "`transformers`' ModernBERT",
}


def lacks(name: str, config: Config) -> str:
    """What a row of ours does not compute, and a peer does; what a peer has in another way."""
    if name not in OURS:
        missing = {"torch": ["positions"], "transformers": [], "modernbert": ["attention beyond its window"]}
        return "; ".join([*missing[name], *(["bigrams"] if config.model.bigram_buckets else [])])
    c = with_factors(config, OURS[name]).model
    skipped = {
        f"{c.word_dropout:.0%} of the words": c.word_dropout > 0,
        "a random number for each element": c.dropout > 0 and c.dropout_mask == "channel",
        f"attention beyond {c.radius} positions": c.radius > 0,
    }
    return "; ".join(text for text, holds in skipped.items() if holds)


def result_of(turns: contest.Turns, parts: list[Part]) -> dict[str, Any]:
    """What `--json` prints, but for the share of the peak."""
    times = turns.seconds
    result: dict[str, Any] = {**contest.context(), "n": len(times["ours"])}
    peers = [name for name in times if name in LIKES]
    result |= {f"like_for_like_{name}": contest.ratio(times[LIKES[name]], times[name]) for name in peers}
    result |= {f"as_configured_{name}": contest.ratio(times["ours"], times[name]) for name in peers}
    tokens = [part.num_tokens for part in parts]
    for name, seconds in times.items():
        speeds = [tokens[i % len(tokens)] / taken for i, taken in enumerate(seconds)]
        low, middle, high = contest.quartiles(speeds)
        result[f"tokens_per_second_{name}"] = middle
        result[f"quartiles_{name}"] = [low, high]
    return {**result, "batch_tokens": turns.chosen}


def table(result: dict[str, Any], config: Config) -> str:
    """A Markdown row for each contestant."""
    rows = []
    for name, batch_tokens in result["batch_tokens"].items():
        low, high = result[f"quartiles_{name}"]
        speed = f"{result[f'tokens_per_second_{name}']:,} ({low:,} to {high:,})"
        ratios = [f"{result.get(f'{kind}_{name}', '')}" for kind in ("like_for_like", "as_configured")]
        rows.append([DESCRIPTIONS[name], lacks(name, config) or "nothing", batch_tokens, speed, *ratios])
    header = ["", "skips or lacks", "batch, tokens", "tokens/s (quartiles)", "like for like", "as configured"]
    return contest.markdown(header, rows)


# ---- the command


def contestants(
    config: Config, vocab_size: int, sizes: tuple[int, ...], part: Part
) -> dict[str, Callable[[], contest.Variants]]:
    """All of them by name; `transformers` takes part where it is installed."""
    c = config.model
    if c.width != c.num_heads * c.head_width:
        sys.exit("The peers need width = num_heads * head_width, and this config has another.")
    makers: dict[str, Callable[[], contest.Variants]] = {
        name: partial(make_ours, with_factors(config, factors), vocab_size)
        for name, factors in OURS.items()
        if name != "ours_no_bigrams" or config.model.bigram_buckets
    }
    installed = importlib.util.find_spec("transformers") is not None
    for name in LIKES if installed else ["torch"]:
        makers[name] = partial(make_peers, name, config, vocab_size, sizes, part)
    return makers


def measure(
    config: Config, parts: list[Part], vocab_size: int, *, seconds: float,
    sizes: tuple[int, ...] = BATCH_TOKENS, shapes: Shapes = PEAK_SHAPES,
) -> dict[str, Any]:  # fmt: skip
    """Everything that is printed, by name."""
    hardware.keep_freed_memory()
    chosen = hardware.choose(config.train)
    step = each_batch(our_step(config, chosen, vocab_size), config.train.batch_tokens, PADDING_MULTIPLE)
    flops = [flops_of(partial(step, part)) for part in parts]
    peaks: list[float] = []
    turns = contest.take_turns(
        contestants(config, vocab_size, sizes, parts[0]), parts, seconds=seconds,
        between=lambda: peaks.append(peak_flops(chosen.dtype, shapes)),
    )  # fmt: skip
    times = turns.seconds["ours"]
    share = share_of_peak([flops[i % len(flops)] for i in range(len(times))], times, max(peaks))
    return {**result_of(turns, parts), "share_of_peak": share, "peak_gflops": round(max(peaks) / 1e9)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="scratch.toml")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=BATCH_TOKENS, help="sizes to try")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    config = config_file.load(arguments.config, [*arguments.overrides, 'train.device="cpu"'])
    data = tokenize(config, ["train"])
    sizes = tuple(arguments.batch_tokens)
    parts = parts_of(data.splits["train"], max(sizes))
    result = measure(config, parts, data.tokenizer.vocab_size, seconds=arguments.seconds, sizes=sizes)
    if arguments.json:
        print(json.dumps(result))
        return
    c = config.model
    print(
        f"{c.num_layers} layer(s), width {c.width}, {c.num_heads} heads, feed-forward {c.feedforward_width}; "
        f"{result['hardware']}; {result['versions']}; n = {result['n']} paired parts; {result['date']}\n"
    )
    print(table(result, config))
    print(
        f"\nOurs as configured computes at {result['share_of_peak']:.0%} of {result['peak_gflops']} GFLOP/s."
    )


if __name__ == "__main__":
    main()
