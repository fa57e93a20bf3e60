"""Predictions of `imdb-tx predict`: printed, shown with their reasons, or written to a file."""

import json
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from imdb_transformer.cli import options, screen
from imdb_transformer.errors import ConfigError, DataError, Interrupted
from imdb_transformer.report import reviews, summaries, terminal

if TYPE_CHECKING:  # heavy: imported in the functions
    import pyarrow as pa

    from imdb_transformer.inference.explanation import Attention, Explanation
    from imdb_transformer.inference.predictor import Predictor

Method = Literal["pooling", "gradients"]
STDIN = Path("standard input")
ENDS_OF_PREDICTING = (Interrupted, DataError, OSError, MemoryError, RuntimeError)  # the last: torch
FEW = 32  # texts; predicting them without torch takes less time than importing torch


class Request(NamedTuple):
    """Which runs predict, what is shown of each review, and how a file of reviews is read."""

    paths: list[Path]
    threshold: float | None  # the probability from which the second of two classes is predicted
    each_class: bool  # whether to show the probability of each class
    as_json: bool
    method: Method | None  # of the explanation; None shows none
    attention: bool
    layer: int | None
    head: int
    html: Path | None
    text_column: str = "text"
    encoding: str = "utf-8"
    bad_rows: options.BadRows = "fail"

    @property
    def has_views(self) -> bool:
        """Whether an explanation or attention is shown, which needs torch."""
        return self.method is not None or self.attention


def load(request: Request, *, exact: bool = False, few: bool = False) -> "Predictor":
    """Loads a predictor. `exact`: one text and many get the same probability. `few`: without torch."""
    from imdb_transformer.inference.predictor import Predictor

    predictor = Predictor.load(
        *request.paths, exact=exact, few=few and not request.has_views, threshold=request.threshold
    )
    if any(model.origin.config.data.source == "demo" for model in predictor.models):
        screen.note(summaries.DEMO_NOTE)
    if "torch" in sys.modules:  # an exported file does not need it
        from imdb_transformer import hardware

        hardware.keep_freed_memory()
    return predictor


def predict_texts(request: Request, texts: list[str]) -> None:
    """Prints the predictions of texts."""
    predictor = load(request, exact=True, few=len(texts) <= FEW)
    if num_empty := sum(not text.strip() for text in texts):
        several = f"empty reviews: {num_empty:,} of {len(texts):,}"
        which = several if len(texts) > 1 else "this review is empty"
        screen.note(f"note: {which}. A prediction for an empty review means nothing.")
    for text in texts:
        with suppress(OSError):  # a text may be too long for a name
            if Path(text).is_file():
                screen.note(f"note: {text} is a file. To classify its reviews: --input {shlex.quote(text)}")
    _show(predictor, [texts], request)


def _note_unfamiliar(predictor: "Predictor", texts: list[str]) -> None:
    from imdb_transformer.inference.predictor import unfamiliar

    if strange := unfamiliar(predictor, texts):
        which = f"{len(strange):,} of {len(texts):,} reviews" if len(texts) > 1 else "this review"
        is_shipped = any(model.origin.is_shipped for model in predictor.models)
        knows = "imdb was trained on English film reviews and knows" if is_shipped else "the run knows"
        screen.note(f"note: {knows} few words of {which}. Its predictions may be wrong.")


def _show(
    predictor: "Predictor", blocks: Iterable[list[str]], request: Request, *, is_typed: bool = False
) -> None:
    """Prints the predictions of each block of texts as it comes, and writes the page that was asked for.

    A note says if there are unfamiliar reviews in the first block or, if a person types them, in any.
    """
    has_colours = terminal.has_colours(sys.stdout)
    sections = []
    try:
        for i, texts in enumerate(blocks):
            if is_typed or i == 0:
                _note_unfamiliar(predictor, texts)
            with screen.until_reader_leaves():
                for prediction in predictor(texts, chunk=1) if request.has_views else predictor(texts):
                    why, weights, heads = _views(predictor, prediction.text, request)
                    if request.html is not None:
                        sections.append(reviews.as_html(prediction, why, weights, heads))
                    if request.as_json:
                        views = {"explanation": why, "attention": weights}
                        records = {name: each.record() for name, each in views.items() if each is not None}
                        print(json.dumps(prediction._asdict() | records))
                        continue
                    print(reviews.as_text(prediction, why, weights, each_class=request.each_class))
                    if why is not None and has_colours:
                        print(reviews.coloured(why), file=terminal.beneath(sys.stdout), flush=True)
    finally:  # also if the reader leaves
        if request.html is not None and sections:
            explained, attended = request.method is not None, request.attention
            reviews.write_reviews(request.html, sections, explained=explained, attended=attended)
            screen.note(f"written to {request.html}")


def _views(
    predictor: "Predictor", text: str, request: Request
) -> "tuple[Explanation | None, Attention | None, list[Attention]]":
    """The explanation, the attention of the chosen head, and that of all heads, if they were asked for."""
    if not request.has_views:
        return None, None, []
    from imdb_transformer.inference.explanation import all_heads, choose_head, explain

    why = explain(predictor, text, method=request.method) if request.method else None
    heads = all_heads(predictor, text) if request.attention else []
    return why, choose_head(heads, request.layer, request.head) if heads else None, heads


@contextmanager
def _opened(
    source: Path, request: Request, *, keeps_all: bool
) -> "Iterator[tuple[pa.Schema, Iterator[pa.Table]]]":
    """The columns and rows of a file or of standard input. At the end, a note says how many were skipped."""
    from imdb_transformer.data.reviews import refuse
    from imdb_transformer.data.tables import NUM_REPORTED
    from imdb_transformer.inference.predicted_tables import open_reviews

    num_skipped = 0  # no list of them: standard input may never end

    def skip(problem: str) -> None:
        nonlocal num_skipped
        num_skipped += 1
        if num_skipped <= NUM_REPORTED:
            screen.note(f"skipped: {problem}")

    file = sys.stdin.buffer if source == STDIN else None
    bad_row = skip if request.bad_rows == "skip" else refuse
    column, encoding = request.text_column, request.encoding
    yield open_reviews(source, column, encoding=encoding, bad_row=bad_row, file=file, keeps_all=keeps_all)
    if num_skipped:
        screen.note(f"skipped rows: {num_skipped:,}")


def predict_rows(request: Request, source: Path) -> None:
    """Prints the predictions of each block of rows as it comes. A person at a terminal is prompted."""
    is_typed = source == STDIN and sys.stdin.isatty()
    with _opened(source, request, keeps_all=False) as (_, parts):
        predictor = load(request, exact=not source.is_file(), few=is_typed)
        blocks: Iterator[list[str]] = (part.column(request.text_column).to_pylist() for part in parts)
        _show(predictor, _typed(blocks) if is_typed else blocks, request, is_typed=is_typed)


def _typed(blocks: Iterator[list[str]]) -> Iterator[list[str]]:
    """The reviews that a person types after a prompt, without blank lines."""
    screen.note("Type a review and press Enter. Ctrl-D ends.")
    while True:
        print("> ", end="", file=terminal.beneath(sys.stderr), flush=True)
        if (block := next(blocks, None)) is None:
            screen.note("")
            return
        yield [text for text in block if text.strip()]


def write_rows(request: Request, source: Path, output: Path, *, resume: bool, force: bool) -> None:
    """Writes the rows with their predictions."""
    from imdb_transformer.inference import predicted_tables, table_formats

    column, encoding = request.text_column, request.encoding
    with _opened(source, request, keeps_all=True) as (schema, parts):
        table_formats.check_output(output, schema, source, force=force)
        predictor = load(request, exact=not source.is_file())
        classes = predictor.classes if request.each_class else ()
        if column in (added := predicted_tables.added_columns(classes)):
            raise ConfigError(f"The predictions would replace the reviews: rename their column {column!r}.")
        if replaced := [name for name in schema.names if name in added]:
            screen.note(f"note: the predictions replace these columns of the input: {', '.join(replaced)}")
        call = predicted_tables.describe_call(predictor, source, column, encoding, classes)
        written = predicted_tables.write_predictions(
            predictor, parts, schema, column, output, call, resume=resume, classes=classes
        )
        num_rows = 0
        with screen.bar("review", _num_rows(source, column, encoding)) as bar:
            try:
                for is_new, num_rows in written:
                    bar.update(num_rows - bar.n)
                    if not is_new:  # rows of an earlier call do not count for the speed of this one
                        bar.initial = num_rows
            except ENDS_OF_PREDICTING as stopped:
                if not source.is_file():  # a pipe cannot be read again
                    shutil.rmtree(predicted_tables.parts_folder(output), ignore_errors=True)
                    raise
                if isinstance(stopped, DataError) or not num_rows:
                    raise
                saved = f"Predictions saved: {num_rows:,}; add --resume to continue."
                if isinstance(stopped, Interrupted):
                    raise Interrupted(f"{stopped} {saved}", exit_code=stopped.exit_code) from None
                screen.note(saved)
                raise
    if request.as_json:
        print(json.dumps({"output": str(output), "num_rows": num_rows}))
    screen.note(f"{num_rows:,} predictions written to {output}")


def _num_rows(source: Path, column: str, encoding: str) -> int | None:
    """The number of rows, for a bar; None without a terminal or for a pipe.

    Counting takes a small part of the time of predicting.
    """
    from imdb_transformer.inference.predicted_tables import open_reviews

    if not (sys.stderr.isatty() and source.is_file()):
        return None
    _, parts = open_reviews(source, column, encoding=encoding, bad_row=lambda _: None)
    return sum(part.num_rows for part in parts)
