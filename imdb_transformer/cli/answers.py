"""Answers of `imdb-tx predict`: printed, shown with their reasons, or written to a file."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from imdb_transformer.cli import options
from imdb_transformer.cli.exits import until_reader_leaves
from imdb_transformer.errors import Interrupted
from imdb_transformer.report import terminal

if TYPE_CHECKING:  # heavy: imported in the functions
    import pyarrow as pa

    from imdb_transformer.inference.predictor import Prediction, Predictor

Method = Literal["pooling", "gradients"]
STDIN = Path("standard input")


class Reading(NamedTuple):
    """How a file of reviews is read."""

    text_column: str
    encoding: str
    bad_rows: options.BadRows


class View(NamedTuple):
    """What to show of a review beside its prediction."""

    method: Method | None
    """of the explanation; None shows none"""
    attention: bool
    layer: int | None
    head: int
    html: Path | None


def load(paths: list[Path], *, exact: bool = False, few: bool = False) -> "Predictor":
    """The predictor of runs. `exact`: one text and many get the same probability. `few`: without torch."""
    from imdb_transformer.inference.predictor import Predictor

    predictor = Predictor.load(*paths, exact=exact, few=few)
    if "torch" in sys.modules:  # an exported file needs none
        from imdb_transformer import hardware

        hardware.keep_freed_memory()
    return predictor


def answer_texts(predictor: "Predictor", texts: Iterable[str], view: View | None, as_json: bool) -> None:
    if view is None:
        _show(predictor(texts), as_json)
    else:
        _show_views(predictor, texts, view, as_json)


def _show(predictions: "Iterable[Prediction]", as_json: bool) -> None:
    from imdb_transformer.report import reviews

    with until_reader_leaves():
        for prediction in predictions:
            line = json.dumps(prediction.record()) if as_json else reviews.prediction_as_text(prediction)
            print(line)


def _show_views(predictor: "Predictor", texts: Iterable[str], view: View, as_json: bool) -> None:
    from imdb_transformer.inference.attention import all_heads, attention
    from imdb_transformer.inference.explanation import explain
    from imdb_transformer.report import reviews

    has_colours = terminal.has_colours(sys.stdout)
    sections = []
    with until_reader_leaves():
        for prediction in predictor(texts, chunk=1):
            text = prediction.text
            why = explain(predictor, text, method=view.method) if view.method else None
            weights = attention(predictor, text, layer=view.layer, head=view.head) if view.attention else None
            if as_json:
                views = {"explanation": why, "attention": weights}
                records = {name: each.record() for name, each in views.items() if each is not None}
                print(json.dumps(prediction.record() | records))
            else:
                print(reviews.as_text(prediction, why, weights))
                if why is not None and has_colours:
                    print(reviews.coloured(why), file=terminal.beneath(sys.stdout), flush=True)
            if view.html is not None:
                heads = all_heads(predictor, text) if weights is not None else []
                sections.append(reviews.as_html(prediction, why, weights, heads))
    if view.html is not None:
        explained, attended = view.method is not None, view.attention
        reviews.write_reviews(view.html, sections, explained=explained, attended=attended)
        print(f"written to {view.html}", file=sys.stderr)


@contextmanager
def _opened(source: Path, reading: Reading) -> "Iterator[tuple[pa.Schema, Iterator[pa.Table]]]":
    """The columns and rows of a file or of standard input; at the end it tells how many rows were skipped."""
    from imdb_transformer.data.reviews import refuse
    from imdb_transformer.data.tables import Skip
    from imdb_transformer.inference.tables import open_reviews

    file = sys.stdin.buffer if source == STDIN else None
    skip = Skip(lambda problem: print(f"skipped: {problem}", file=sys.stderr))
    bad_row = skip if reading.bad_rows == "skip" else refuse
    yield open_reviews(source, reading.text_column, encoding=reading.encoding, bad_row=bad_row, file=file)
    if skip.num_rows:
        print(f"skipped in all: {skip.num_rows:,}", file=sys.stderr)


def answer_rows(paths: list[Path], source: Path, reading: Reading, view: View | None, as_json: bool) -> None:
    """Prints the predictions of each block of rows as it comes."""
    with _opened(source, reading) as (_, parts):
        is_typed = source == STDIN and sys.stdin.isatty()
        predictor = load(paths, exact=source == STDIN, few=view is None and is_typed)
        texts = (part.column(reading.text_column).to_pylist() for part in parts)
        if view is not None:
            _show_views(predictor, chain.from_iterable(texts), view, as_json)
            return
        for block in texts:
            _show(predictor(block), as_json)


def write_rows(
    paths: list[Path],
    source: Path,
    reading: Reading,
    output: Path,
    as_json: bool,
    *,
    resume: bool,
    force: bool,
) -> None:
    """Writes the rows with their predictions."""
    from tqdm import tqdm

    from imdb_transformer.inference import tables

    with _opened(source, reading) as (schema, parts):
        tables.check_output(output, schema, source, force=force)
        predictor = load(paths)
        call = tables.describe_call(predictor, paths, source, reading._asdict())
        written = tables.write_predictions(
            predictor, parts, schema, reading.text_column, output, call, resume=resume
        )
        num_rows = 0
        with tqdm(
            unit=" reviews", file=terminal.beneath(sys.stderr), disable=None, dynamic_ncols=True
        ) as bar:
            try:
                for is_new, num_rows in written:
                    bar.update(num_rows - bar.n)
                    if not is_new:  # an earlier call's rows took no time of this one
                        bar.initial = num_rows
            except Interrupted as stopped:
                message = f"{stopped} {num_rows:,} predictions are saved; add --resume to continue."
                raise Interrupted(message, exit_code=stopped.exit_code) from None
    if as_json:
        print(json.dumps({"output": str(output), "num_rows": num_rows}))
    print(f"{num_rows:,} predictions written to {output}", file=sys.stderr)
