"""Training time against test accuracy: linear models, fastText with bigrams, and the runs that are named.

    pip install fasttext-wheel matplotlib
    python scripts/frontier.py base=runs/base full=runs/base+runs/pretrain --plot frontier.svg

Each run must be evaluated on test. Its time is that between start and end in `run.json`. A run after a
`+` adds its time alone. NAME=MINUTES:ACCURACY is a point that was measured otherwise. The linear models and
fastText are fitted here, to texts in memory. fastText learns words in lower case, with punctuation split off,
as its own example of text classification does. Its rate and epochs are chosen on validation, out of `GRID`.
Then it is fitted once more, timed, and measured on test. Prints a Markdown table.
"""

import argparse
import itertools
import re
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, get_args

import fasttext
import numpy as np
from contest import markdown

from imdb_transformer import load_config
from imdb_transformer.data import corpus
from imdb_transformer.data.encoded import rows_of
from imdb_transformer.data.reviews import Rows
from imdb_transformer.evaluation.evaluate import stored_evaluations
from imdb_transformer.inference.linear import fit
from imdb_transformer.store import run
from imdb_transformer.store.run import Weighting

# A width of 100 has the accuracy of 10 on validation (88.32 and 88.76% beside 88.32 and 88.88%), in several
# times the time.
GRID = {"lr": (0.25, 0.5, 1.0), "epoch": (5, 10, 25), "dim": (10,)}
FIXED = {"wordNgrams": 2, "minCount": 2, "bucket": 2_000_000, "thread": 2, "verbose": 0}
CHOICES = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
SPLITS = ("train", "validation", "test")


class Point(NamedTuple):
    """A row of the table."""

    name: str
    minutes: float
    accuracy: float


def point_of(spec: str) -> Point:
    """The point of `NAME=RUN[+RUN...]`, or of `NAME=MINUTES:ACCURACY`."""
    name, _, paths = spec.partition("=")
    if known := re.fullmatch(r"([\d.]+):([\d.]+)", paths):
        return Point(name, float(known[1]), float(known[2]) / 100)
    runs = [run.open_run(run.locate(Path(path))[0].folder) for path in paths.split("+")]
    seconds = sum(
        (datetime.fromisoformat(each.info.ended) - datetime.fromisoformat(each.info.started)).total_seconds()
        for each in runs
    )
    (evaluation,) = stored_evaluations(runs[0], "best-test")
    return Point(name, seconds / 60, evaluation.accuracy)


def linear_point(kind: Weighting, splits: dict[str, Rows]) -> Point:
    """A linear model: the time to fit it, and its accuracy on test."""
    train, test = splits["train"], splits["test"]
    start = time.perf_counter()
    model = fit(kind, train.texts, np.array(train.labels), num_classes=2)
    seconds = time.perf_counter() - start
    return Point(kind, seconds / 60, float((model.logits(test.texts).argmax(1) == test.labels).mean()))


def fasttext_point(splits: dict[str, Rows], folder: Path) -> Point:
    """fastText at its best: the choice with the best accuracy on validation, fitted once more and timed."""
    files = {split: folder / f"{split}.txt" for split in SPLITS}
    for split, file in files.items():
        pairs = zip(splits[split].texts, splits[split].labels, strict=True)
        file.write_text("".join(f"__label__{label} {words(text)}\n" for text, label in pairs))
    accuracies = {}
    for i, choice in enumerate(CHOICES):
        model = fasttext.train_supervised(str(files["train"]), **FIXED, **choice)
        accuracies[i] = model.test(str(files["validation"]))[1]
        print(f"fastText {choice}: {accuracies[i]:.4f} on validation", flush=True)
    best = CHOICES[max(accuracies, key=lambda i: accuracies[i])]
    start = time.perf_counter()
    model = fasttext.train_supervised(str(files["train"]), **FIXED, **best)
    seconds = time.perf_counter() - start
    print(f"fastText chose {best}")
    return Point("fastText", seconds / 60, model.test(str(files["test"]))[1])


def words(text: str) -> str:
    """Words in lower case and punctuation, with spaces between them."""
    return " ".join(re.findall(r"[\w']+|[^\w\s]", text.replace("<br />", " ").lower()))


def plot(points: list[Point], path: Path) -> None:
    """The picture: minutes in a logarithmic scale, and the best accuracy so far as a line."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 4))
    best = 0.0
    frontier = [
        p for p in sorted(points, key=lambda p: p.minutes) if p.accuracy > best and (best := p.accuracy)
    ]
    axis.step(
        [p.minutes for p in frontier],
        [100 * p.accuracy for p in frontier],
        where="post",
        color="0.7",
        zorder=0,
    )
    for each in points:
        axis.plot(each.minutes, 100 * each.accuracy, "o", color="C0" if each in frontier else "0.5")
        axis.annotate(
            f"{each.name} {100 * each.accuracy:.2f}", (each.minutes, 100 * each.accuracy),
            xytext=(5, -11), textcoords="offset points",
        )  # fmt: skip
    axis.set(xscale="log", xlabel="minutes of training, two cores", ylabel="accuracy on test, %")
    axis.margins(x=0.2, y=0.15)
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", metavar="NAME=RUN[+RUN]")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    data = load_config("base.toml", options.overrides).data
    stored = corpus.ensure(data)
    splits = {split: rows_of(data, stored, split) for split in SPLITS}
    points = [point_of(spec) for spec in options.runs]
    points += [linear_point(kind, splits) for kind in get_args(Weighting)]
    with tempfile.TemporaryDirectory() as folder:
        points.append(fasttext_point(splits, Path(folder)))
    points.sort(key=lambda each: each.minutes)
    print(
        markdown(
            ["model", "minutes", "test %"],
            [[p.name, f"{p.minutes:.1f}", f"{100 * p.accuracy:.2f}"] for p in points],
        )
    )
    if options.plot:
        plot(points, options.plot)


if __name__ == "__main__":
    main()
