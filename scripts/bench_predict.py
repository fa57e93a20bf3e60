"""Prediction speed on a CPU, from text to label, beside the peers, each as its own expert would run it.

    python scripts/bench_predict.py RUN [--source FOLDER] [--seconds 180] [--json]

Prints a Markdown table of reviews a second (medians and quartiles), one factor a row, and the ratios;
`tokenize_seconds` of the whole test split (median of 3); `cold_seconds`, the wall time of one `imdb-tx
predict`, beside that of `import torch` (medians of 9, in turns). Takes `--seconds` and about 5 minutes: the
choice of variants and one round of warm-up come before and are excluded. RUN may be a run of the package,
such as `imdb`.

The work is parts of 1,000 reviews of the run's test split, or of that of `--source`. Contestants take turns
on them, each in a process of its own with the package's allocator settings; ratios are medians over paired
parts. Ours is the run's Predictor: as it is; and with full attention, which is like for like.
`ratio_pipeline` and `ratio_onnxruntime` are like for like, `as_configured_...` are of the run as it is.

The peers have a BERT of the run's sizes (untrained: only speed is measured) and its tokenizer, with texts
sorted by length. Each chooses its fastest batches in a short sweep, and the first two also attention by
torch's fused kernel, which a profile confirms, or by plain products:
- pipeline: `transformers`' text-classification pipeline in bf16 where the hardware computes in it, with a
  fast tokenizer;
- loop: the same model without the pipeline, which tokenizes texts one by one: all texts tokenized at once,
  batches of a number of tokens;
- onnxruntime: the same model, exported, in fp32: its CPU kernels have no bf16. All cores, all its
  optimisations; its offline fusion of BERT's attention is among the variants. Tokenized and batched as the
  loop;
- scikit_learn: TF-IDF with logistic regression, fitted on train: another kind of model.

Tried, without help: BERT exported by torch's newer exporter or from "sdpa" attention (slower in ONNX
Runtime). What `imdb-tx export` makes of the run itself is measured by bench_export.py.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import contest
import numpy as np
import torch
from numpy.typing import NDArray
from peers import bert

from imdb_transformer import hardware
from imdb_transformer.config import Config, DataConfig, TrainConfig
from imdb_transformer.data.batches import BATCH_TOKENS as OUR_BATCH_TOKENS
from imdb_transformer.data.batches import in_order, length_batches, pad
from imdb_transformer.data.corpus import ensure, read_split
from imdb_transformer.data.tokenizer import PAD_ID, Tokenizer, tokenizer_of
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.store import run

# transformers' pipeline turns it off for the process, unless it is set.
os.environ["TOKENIZERS_PARALLELISM"] = "true"

PART = 1000  # reviews a turn
SAMPLE = 300  # reviews to choose variants on
NUM_PARTS = 2
NUM_COLD = 9
BATCH_TEXTS = (8, 16, 32, 64, 128)
BATCH_TOKENS = (2048, 4096, 8192, 16_384, 32_768)
MULTIPLE = 8
LIKE = "ours_full_attention"
OURS = ("ours", LIKE)
Logits = Callable[[NDArray[np.int64], NDArray[np.bool_]], NDArray[Any]]  # of ids and mask, (B, L)
DESCRIPTIONS = {
    "ours": ("imdb-tx, as configured", "attention beyond its window"),
    "ours_full_attention": ("+ full attention (like for like)", "nothing"),
    "pipeline": ("`transformers`' pipeline, BERT", "nothing"),
    "loop": ("`transformers`' BERT, loop by hand", "nothing"),
    "onnxruntime": ("ONNX Runtime, BERT, fp32", "nothing"),
    "scikit_learn": ("scikit-learn's TF-IDF with logistic regression", "all of an encoder"),
}


# ---- the contestants; each maker runs in a process of its own


def make_ours(path: Path, *, full_attention: bool) -> contest.Variants:
    """The run's Predictor."""
    predictor = Predictor.load(path)
    if full_attention:
        attend_fully(predictor)
    return {f"{OUR_BATCH_TOKENS['cpu']:,} tokens": lambda texts: list(predictor(texts))}


def attend_fully(predictor: Predictor) -> None:
    """Lets each position see all others, with the same weights."""
    encoder = predictor.models[0].classifier.encoder
    encoder.config = encoder.config.model_copy(update={"radius": 0})
    for block in encoder.blocks:
        block.attention.windowed = False


def make_pipeline(path: Path, sizes: Sequence[int]) -> contest.Variants:
    """transformers' pipeline over texts sorted by length, in batches of several sizes."""
    from transformers import PreTrainedTokenizerFast, pipeline

    warnings.simplefilter("ignore")  # it advises against lists on a GPU
    opened = run.open_run(path)
    tokenizer_file = str(opened.folder / "tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file, pad_token="[PAD]")
    model = peer_model(opened)
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    longest = opened.config.tokenizer.max_length

    def work(texts: list[str], size: int, attention: str = "fused") -> list[Any]:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        ordered = [texts[i] for i in order]
        with contest.attention_by(attention):
            answers = classify(ordered, batch_size=size, truncation=True, max_length=longest)
        return [answer for _, answer in sorted(zip(order, answers, strict=True), key=lambda pair: pair[0])]

    contest.confirm_fused(partial(work, ["a good film", "a bad one"], 2), backward=False)
    return {
        f"{size} texts, {attention}": partial(work, size=size, attention=attention)
        for size, attention in itertools.product(sizes, contest.ATTENTION)
    }


def make_loop(path: Path, sizes: Sequence[int]) -> contest.Variants:
    """The same model called on batches of a number of tokens."""
    opened = run.open_run(path)
    model = peer_model(opened)

    @torch.inference_mode()
    def logits(ids: NDArray[np.int64], mask: NDArray[np.bool_]) -> NDArray[Any]:
        answer = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask).long())
        return answer.logits.float().numpy()

    tokenizer = tokenizer_of(opened)

    def work(texts: Sequence[str], size: int, attention: str = "fused") -> list[int]:
        with contest.attention_by(attention):
            return by_batches(texts, tokenizer, logits, size)

    contest.confirm_fused(partial(work, ["a good film", "a bad one"], size=sizes[0]), backward=False)
    return {
        f"{size:,} tokens, {attention}": partial(work, size=size, attention=attention)
        for size, attention in itertools.product(sizes, contest.ATTENTION)
    }


def make_onnxruntime(path: Path, sizes: Sequence[int]) -> contest.Variants:
    """The exported model, as it is and with BERT's attention fused."""
    import onnxruntime

    opened = run.open_run(path)
    tokenizer = tokenizer_of(opened)
    variants: contest.Variants = {}
    for kind, graph in exported(opened.config, opened.info.vocab_size).items():
        session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        names = [entry.name for entry in session.get_inputs()]
        logits = partial(run_session, session, names)
        for size in sizes:
            work = partial(by_batches, tokenizer=tokenizer, logits=logits, size=size)
            variants[f"{size:,} tokens, {kind}"] = work
    return variants


def make_linear(data: DataConfig) -> contest.Variants:
    """scikit-learn's TF-IDF with logistic regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline as in_a_row

    corpus = ensure(data)
    train = read_split(corpus, "train")
    model = in_a_row(TfidfVectorizer(), LogisticRegression(max_iter=1000)).fit(train.texts, train.labels)
    return {"all texts": model.predict}


def peer_model(opened: run.Run) -> torch.nn.Module:
    """BERT of a run's sizes, in the type that the hardware computes fastest in."""
    dtype = hardware.choose(TrainConfig(device="cpu")).dtype
    torch.manual_seed(0)
    return bert(opened.config, opened.info.vocab_size).eval().to(dtype)


def by_batches(texts: Sequence[str], tokenizer: Tokenizer, logits: Logits, size: int) -> list[int]:
    """Labels of texts: tokenized at once, sorted by length, in batches of `size` tokens."""
    reviews = tokenizer.encode(texts)
    lengths = np.array([len(review) for review in reviews])
    batches = length_batches(lengths, batch_tokens=size, multiple=MULTIPLE)
    padded = [pad([reviews[i] for i in indices], multiple=MULTIPLE) for indices in batches]
    return in_order([logits(ids, ids != PAD_ID) for ids in padded], batches).argmax(1).tolist()


def run_session(
    session: Any, names: Sequence[str], ids: NDArray[np.int64], mask: NDArray[np.bool_]
) -> NDArray[Any]:
    """(B, L) -> (B, 2) by ONNX Runtime."""
    return session.run(None, dict(zip(names, (ids, mask.astype(np.int64)), strict=True)))[0]


def exported(config: Config, vocab_size: int) -> dict[str, bytes]:
    """BERT of a config's sizes as ONNX graphs: "plain", and with its attention "fused"."""
    from onnxruntime.transformers import optimizer

    torch.manual_seed(0)  # the weights of `peer_model`
    model = bert(config, vocab_size, attention="eager").eval()
    example = torch.ones(3, 40, dtype=torch.long)
    free = {0: "batch", 1: "length"}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter
        plain, fused = Path(folder) / "plain.onnx", Path(folder) / "fused.onnx"
        torch.onnx.export(
            model, (example, example), plain, dynamo=False, opset_version=17,
            input_names=["input_ids", "mask"], output_names=["logits"],
            dynamic_axes={"input_ids": free, "mask": free},
        )  # fmt: skip
        c = config.model
        optimizer.optimize_model(
            str(plain), model_type="bert", num_heads=c.num_heads, hidden_size=c.width, opt_level=1
        ).save_model_to_file(str(fused))
        return {"plain": plain.read_bytes(), "fused": fused.read_bytes()}


def reviews_of(path: Path, source: str | None) -> DataConfig:
    """Where a run's reviews come from, or those of another source."""
    data = run.open_run(path).config.data
    return data.model_copy(update={"source": source}) if source else data


def contestants(
    path: Path, data: DataConfig, batch_texts: Sequence[int] = BATCH_TEXTS,
    batch_tokens: Sequence[int] = BATCH_TOKENS,
) -> dict[str, Callable[[], contest.Variants]]:  # fmt: skip
    """All of them by name; a peer takes part where it is installed."""
    makers: dict[str, Callable[[], contest.Variants]] = {
        name: partial(make_ours, path, full_attention=name == LIKE) for name in OURS
    }
    if find_spec("transformers"):
        makers["pipeline"] = partial(make_pipeline, path, batch_texts)
        makers["loop"] = partial(make_loop, path, batch_tokens)
        if find_spec("onnxruntime") and find_spec("onnx"):
            makers["onnxruntime"] = partial(make_onnxruntime, path, batch_tokens)
    return {**makers, "scikit_learn": partial(make_linear, data)}


# ---- what is measured and printed


def cold_start(path: Path) -> list[str]:
    """The command that asks a run or an exported file about one review."""
    return [sys.executable, "-m", "imdb_transformer", "predict", "--run", str(path), "a good film"]


def medians_in_turns(commands: dict[str, list[str]], repeats: int = NUM_COLD) -> dict[str, float]:
    """Wall seconds of whole commands, each several times, taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            call = partial(subprocess.run, capture_output=True, check=True)
            seconds[name].append(contest.seconds_of(call, command))
    return {name: round(statistics.median(values), 2) for name, values in seconds.items()}


def result_of(turns: contest.Turns, parts: list[list[str]]) -> dict[str, Any]:
    """The part of `--json` that comes from the turns."""
    times = turns.seconds
    result: dict[str, Any] = {**contest.context(), "n": len(times["ours"])}
    for name in times:
        if name not in OURS:
            if name != "scikit_learn":  # which is like nothing of ours
                result[f"ratio_{name}"] = contest.ratio(times[LIKE], times[name])
            result[f"as_configured_{name}"] = contest.ratio(times["ours"], times[name])
    for name, seconds in times.items():
        suffix = "" if name == "ours" else f"_{name}"
        speeds = [len(parts[i % len(parts)]) / taken for i, taken in enumerate(seconds)]
        low, middle, high = contest.quartiles(speeds)
        result[f"reviews_per_second{suffix}"] = middle
        result[f"quartiles_{name}"] = [low, high]
    return {**result, "batches": turns.chosen}


def measure(path: Path, seconds: float, source: str | None = None) -> dict[str, Any]:
    """Everything that is printed, by name."""
    opened, data = run.open_run(path), reviews_of(path, source)
    corpus = ensure(data)
    test = read_split(corpus, "test").texts
    parts = [test[i::NUM_PARTS][:PART] for i in range(NUM_PARTS)]
    turns = contest.take_turns(contestants(path, data), parts, seconds=seconds, sample=parts[0][:SAMPLE])
    encode = tokenizer_of(opened).encode
    encode(parts[0])  # which also starts the threads
    commands = {
        "cold_seconds": cold_start(path),
        "import_torch_seconds": [sys.executable, "-c", "import torch"],
    }
    return {
        **result_of(turns, parts),
        "tokenize_seconds": round(statistics.median(contest.seconds_of(encode, test) for _ in range(3)), 2),
        **medians_in_turns(commands),
    }


def table(result: dict[str, Any]) -> str:
    """A Markdown row for each contestant."""
    rows = []
    for name, batches in result["batches"].items():
        low, high = result[f"quartiles_{name}"]
        middle = result["reviews_per_second" if name == "ours" else f"reviews_per_second_{name}"]
        ratios = [result.get(f"{kind}_{name}", "") for kind in ("ratio", "as_configured")]
        rows.append([*DESCRIPTIONS[name], batches, f"{middle:,} ({low:,} to {high:,})", *ratios])
    header = ["", "skips or lacks", "batches", "reviews/s (quartiles)", "like for like", "as configured"]
    return contest.markdown(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--source", help="other reviews than the run's")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments.run, arguments.seconds, arguments.source)
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{result['hardware']}; {result['versions']}; n = {result['n']} paired parts; {result['date']}\n")
    print(table(result))
    for key in ("tokenize_seconds", "cold_seconds", "import_torch_seconds"):
        print(f"\n{key} {result[key]}")


if __name__ == "__main__":
    main()
