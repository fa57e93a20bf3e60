"""Prediction speed: reviews a second from text to label, and the wall time of one cold `imdb-tx predict`.

    python scripts/bench_predict.py RUN [--seconds 120] [--json]

Contestants take turns on parts of the run's test split: the package's Predictor; `transformers`' pipeline
with a BERT of the same dimensions (untrained: only speed is measured; where it is installed, by the extra
`bench`); scikit-learn's TF-IDF with logistic regression, fitted on train. Prints medians over the parts;
`tokenize_seconds` for the whole split; `cold_seconds` beside that of `import torch` (medians of 9, in turns).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

from imdb_transformer import run
from imdb_transformer.data.corpus import ensure, read_split
from imdb_transformer.data.reviews import Rows
from imdb_transformer.inference.predict import Predictor

# transformers' pipeline turns it off for the process, unless it is set: ours would tokenize on one core.
os.environ["TOKENIZERS_PARALLELISM"] = "true"

PART = 2500  # reviews a turn
PART_TRANSFORMERS = 250  # it is slower; its speed is a rate all the same
NUM_COLD = 9
Predict = Callable[[list[str]], object]


def pipeline_of(path: Path) -> Predict | None:
    """transformers' text-classification pipeline with a BERT of the run's dimensions and its tokenizer."""
    try:
        from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline
    except ImportError:
        return None
    opened = run.open_run(path)
    config, c = opened.config, opened.config.model
    bert = BertConfig(
        vocab_size=opened.info.vocab_size, hidden_size=c.width, num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads, intermediate_size=c.feedforward_width, hidden_act=c.activation,
        max_position_embeddings=config.tokenizer.max_length,
    )  # fmt: skip
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"), pad_token="[PAD]")
    classify = pipeline(
        "text-classification", model=BertForSequenceClassification(bert).eval(), tokenizer=tokenizer
    )
    longest = config.tokenizer.max_length

    def predict(texts: list[str]) -> object:
        return classify(texts, batch_size=32, truncation=True, max_length=longest)

    return predict


def linear_model(train: Rows) -> Predict:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000)).fit(train.texts, train.labels)
    return lambda texts: model.predict(texts)


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def cold_start(path: Path) -> list[str]:
    """The command that asks a run or an exported file about one review."""
    return [sys.executable, "-m", "imdb_transformer", "predict", "--run", str(path), "a good film"]


def medians_in_turns(commands: dict[str, list[str]]) -> dict[str, float]:
    """Wall seconds of whole commands, each NUM_COLD times, taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(NUM_COLD):
        for name, command in commands.items():
            call = partial(subprocess.run, command, capture_output=True, check=True)
            seconds[name].append(seconds_of(call))
    return {name: round(statistics.median(values), 2) for name, values in seconds.items()}


def speeds_in_turns(
    contestants: dict[str, tuple[Predict, int]], texts: list[str], seconds: float
) -> dict[str, list[float]]:
    """Reviews a second of each contestant on each part of the texts, until the time is over."""
    for predict, _ in contestants.values():
        predict(texts[:64])  # warm-up
    speeds: dict[str, list[float]] = {name: [] for name in contestants}
    deadline = time.perf_counter() + seconds
    for start in range(0, len(texts), PART):
        if time.perf_counter() >= deadline:
            break
        for name, (predict, size) in contestants.items():
            part = texts[start : start + size]
            speeds[name].append(len(part) / seconds_of(partial(predict, part)))
    return speeds


def measure(path: Path, seconds: float) -> dict[str, object]:
    """Everything that is printed, by name."""
    corpus, _ = ensure(run.open_run(path).config.data)
    test = read_split(corpus, "test").texts
    predictor = Predictor.load(path)
    contestants: dict[str, tuple[Predict, int]] = {
        "ours": (lambda texts: list(predictor(texts)), PART),
        "scikit_learn": (linear_model(read_split(corpus, "train")), PART),
    }
    if pipeline := pipeline_of(path):
        contestants["transformers"] = (pipeline, PART_TRANSFORMERS)
    speeds = speeds_in_turns(contestants, test, seconds)
    result: dict[str, object] = {
        "date": time.strftime("%Y-%m-%d"),
        "hardware": predictor.models[0].hardware.describe(),
        "n": len(speeds["ours"]),
    }
    for name, values in speeds.items():
        suffix = "" if name == "ours" else f"_{name}"
        result[f"reviews_per_second{suffix}"] = round(statistics.median(values))
    if "transformers" in speeds:
        pairs = zip(speeds["ours"], speeds["transformers"], strict=True)
        result["ratio_transformers"] = round(statistics.median(a / b for a, b in pairs), 2)
    result["tokenize_seconds"] = round(seconds_of(lambda: predictor.models[0].tokenizer.encode(test)), 2)
    commands = {
        "cold_seconds": cold_start(path),
        "import_torch_seconds": [sys.executable, "-c", "import torch"],
    }
    return result | medians_in_turns(commands)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # transformers warns about pipelines over lists
    result = measure(arguments.run, arguments.seconds)
    if arguments.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{key:<34}{value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
