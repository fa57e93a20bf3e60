"""`predict`: a trained run says what reviews are, how surely, and why."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from imdb_transformer.cli.options import JsonOption, app
from imdb_transformer.display import answering, page
from imdb_transformer.errors import ConfigError, Interrupted
from imdb_transformer.exits import until_reader_leaves

if TYPE_CHECKING:  # heavy: imported in the functions
    from imdb_transformer.inference.predict import Predictor

BadRows = Literal["fail", "skip"]
ExplainMethod = Literal["pooling", "gradients"]


class Table(NamedTuple):
    """What is to become of a file of reviews."""

    input_file: Path
    output: Path | None
    column: str
    skip_bad: bool
    resume: bool


@app.command()
def predict(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Reviews; - reads stdin, one a line.")
    ] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="A txt, CSV, TSV, JSONL or Parquet file.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Where to write the table with predictions.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an --output that an earlier call did not finish.")
    ] = False,
    text_column: Annotated[str, typer.Option(help="Column with the review, in --input.")] = "text",
    bad_rows: Annotated[
        BadRows, typer.Option(help="Rows of --input without a text, or torn: an error, or told and left out.")
    ] = "fail",
    run_paths: Annotated[
        list[Path] | None,
        typer.Option(
            "--run",
            help="A run, checkpoint or exported file; by default the newest finished run. "
            "Repeatable: their mean.",
        ),
    ] = None,
    windows: Annotated[
        bool, typer.Option("--windows", help="Of long reviews, read all by windows, not head and tail.")
    ] = False,
    explained: Annotated[
        bool, typer.Option("--explain", help="Show which words decided (texts given here or on stdin).")
    ] = False,
    method: Annotated[
        ExplainMethod, typer.Option(help="Of --explain: what max-pooling took, or integrated gradients.")
    ] = "pooling",
    attention: Annotated[
        bool, typer.Option("--attention", help="Show what each word looked at, in one layer and head.")
    ] = False,
    layer: Annotated[int | None, typer.Option(help="Of --attention, from 1; by default the last.")] = None,
    head: Annotated[int, typer.Option(help="Of --attention, from 1.")] = 1,
    html: Annotated[
        Path | None, typer.Option(help="With --explain or --attention: write a page in colours.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what reviews are, and how surely."""
    shown = explained or attention
    if bool(texts) == (input_file is not None):
        raise ConfigError('predict takes reviews ("an awful film"), - for standard input, or --input FILE.')
    _check_views(shown, from_file=input_file is not None, windows=windows, html=html is not None)
    if (output is not None and input_file is None) or (resume and output is None):
        raise ConfigError("--output goes with --input, and --resume with --output.")
    from imdb_transformer.cli import runs
    from imdb_transformer.inference.predict import Predictor

    paths = run_paths or [runs.newest_finished()]
    if not run_paths:
        print(f"run: {paths[0]}", file=sys.stderr)
    if input_file is not None:
        table = Table(input_file, output, text_column, bad_rows == "skip", resume)
        _predict_file(paths, table, windows=windows, as_json=as_json)
        return
    typed = texts == ["-"] and sys.stdin.isatty()  # a person waits for each answer
    predictor = Predictor.load(*paths, windows=windows)
    reviews = _reviews(texts or [])
    if shown:
        views = View(explained, method, attention, layer, head)
        _show_views(predictor, reviews, views, html, as_json=as_json)
    else:
        predictions = predictor(reviews, chunk=1) if typed else predictor(reviews)
        _show_predictions(predictions, as_json=as_json, flush=typed)


def _check_views(shown: bool, *, from_file: bool, windows: bool, html: bool) -> None:
    if (shown and from_file) or (html and not shown):
        raise ConfigError(
            "--explain and --attention go with reviews given as arguments or by -, and --html with them."
        )
    if shown and windows:
        raise ConfigError("--explain and --attention show what a model reads at once: leave out --windows.")


def _reviews(texts: list[str]) -> Iterable[str]:
    from imdb_transformer.data.reviews import lines_of

    return lines_of(sys.stdin.buffer, "standard input") if texts == ["-"] else texts


def _predict_file(paths: list[Path], table: Table, *, windows: bool, as_json: bool) -> None:
    from tqdm import tqdm

    from imdb_transformer.inference import tables  # with pyarrow, which a review as an argument does not need
    from imdb_transformer.inference.predict import Predictor

    skip = (lambda what: print(f"skipped: {what}", file=sys.stderr)) if table.skip_bad else None
    schema, parts = tables.open_reviews(table.input_file, table.column, skip=skip)
    if table.output is not None:
        tables.check_output(table.output, schema)
    predictor = Predictor.load(*paths, windows=windows)
    disable = None if table.output else True
    with tqdm(unit=" reviews", file=sys.stderr, disable=disable, dynamic_ncols=True) as bar:
        if table.output is not None:
            _write(predictor, paths, table, schema, parts, bar, as_json=as_json)
            return
        for part in parts:
            predictions = predictor(part.column(table.column).to_pylist())
            _show_predictions(predictions, as_json=as_json, flush=False)


def _write(
    predictor: "Predictor", paths: list[Path], table: Table, schema: Any, parts: Iterator[Any], bar: Any,
    *, as_json: bool,
) -> None:  # fmt: skip
    from imdb_transformer.inference import restart, tables

    output = table.output
    assert output is not None
    out = tables.output_schema(schema, windows=predictor.windows)
    call = _call(paths, table, windows=predictor.windows)
    num_kept = 0
    with restart.begun(output, call, resume=table.resume) as num_done:
        try:
            for i, part in enumerate(parts):
                if i >= num_done:
                    predictions = list(predictor(part.column(table.column).to_pylist()))
                    restart.keep(output, i, tables.with_predictions(part, predictions, out))
                    bar.update(part.num_rows)
                else:  # took none of this bar's time
                    bar.initial = bar.n = num_kept + part.num_rows
                num_kept += part.num_rows
        except Interrupted as stopped:
            raise Interrupted(
                f"{stopped} {num_kept:,} predictions are kept; the same command with --resume goes on.",
                exit_code=stopped.exit_code,
            ) from None
        num_rows = restart.finish(output, out)
    if as_json:
        print(json.dumps({"output": str(output), "num_rows": num_rows}))
    print(f"{num_rows:,} predictions written to {output}", file=sys.stderr)


def _call(paths: list[Path], table: Table, *, windows: bool) -> dict[str, Any]:
    """What the predictions of a file depend on."""
    from imdb_transformer.inference.predict import CHUNK, identity_of

    about = table.input_file.stat()
    return {
        "input": [str(table.input_file.resolve()), about.st_size, about.st_mtime_ns],
        "number of rows a part": CHUNK,
        "text column": table.column,
        "way with bad rows": "skip" if table.skip_bad else "fail",
        "run": [identity_of(path) for path in paths],
        "way with long reviews": "windows" if windows else "head and tail",
    }


class View(NamedTuple):
    """What to show of a review beside its prediction."""

    explained: bool
    method: ExplainMethod
    attention: bool
    layer: int | None
    head: int


def _show_views(
    predictor: "Predictor", reviews: Iterable[str], view: View, html: Path | None, *, as_json: bool
) -> None:
    from imdb_transformer.inference.attended import attention
    from imdb_transformer.inference.explain import explain

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
                print(answering.views(prediction, why, looked, colour=colour))
            if html is not None:
                sections.append(page.section(prediction, why, looked))
    if html is not None:
        page.write_views(html, sections)
        print(f"written to {html}", file=sys.stderr)


def _show_predictions(predictions: Iterable[Any], *, as_json: bool, flush: bool) -> None:
    with until_reader_leaves():
        for prediction in predictions:
            print(
                json.dumps(prediction.record()) if as_json else answering.prediction(prediction), flush=flush
            )
