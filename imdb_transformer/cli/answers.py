"""What `predict` prints: predictions, and views of why."""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from imdb_transformer.cli.exits import until_reader_leaves
from imdb_transformer.report import results, review_page, terminal

if TYPE_CHECKING:  # heavy: imported in the functions
    from imdb_transformer.inference.predictor import Predictor

ExplainMethod = Literal["pooling", "gradients"]


class View(NamedTuple):
    """What to show of a review beside its prediction."""

    explained: bool
    method: ExplainMethod
    attention: bool
    layer: int | None
    head: int


def load(paths: list[Path]) -> "Predictor":
    """The predictor of a command, whose process keeps the memory that it frees."""
    from imdb_transformer.inference.predictor import Predictor

    predictor = Predictor.load(*paths)
    if "torch" in sys.modules:  # an exported file needs none
        from imdb_transformer import hardware

        hardware.keep_freed_memory()
    return predictor


def show_views(
    predictor: "Predictor", reviews: Iterable[str], view: View, html: Path | None, *, as_json: bool
) -> None:
    """Each review's prediction with what the view asks for, and all of them on a page."""
    from imdb_transformer.inference.attention import attention
    from imdb_transformer.inference.explanation import explain

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    sections = []
    with until_reader_leaves():
        for prediction in predictor(reviews, chunk=1):
            text = prediction.text
            why = explain(predictor, text, method=view.method) if view.explained else None
            looked = attention(predictor, text, layer=view.layer, head=view.head) if view.attention else None
            if as_json:
                record = prediction.record()
                if why is not None:
                    record["explanation"] = why.record()
                if looked is not None:
                    record["attention"] = looked.record()
                print(json.dumps(record))
            else:
                print(results.views(prediction, why, looked))
                if why is not None and colour:
                    print(results.coloured(why), file=terminal.beneath(sys.stdout), flush=True)
            if html is not None:
                sections.append(review_page.section(prediction, why, looked))
    if html is not None:
        review_page.write_views(html, sections)
        print(f"written to {html}", file=sys.stderr)


def show(predictions: Iterable[Any], *, as_json: bool, flush: bool) -> None:
    """A line each, as they come."""
    with until_reader_leaves():
        for prediction in predictions:
            print(json.dumps(prediction.record()) if as_json else results.prediction(prediction), flush=flush)
