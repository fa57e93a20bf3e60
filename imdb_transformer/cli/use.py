"""`eval` and `predict`: a trained run answers."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from imdb_transformer import display
from imdb_transformer.cli.options import JsonOption, app
from imdb_transformer.errors import ConfigError
from imdb_transformer.exits import until_reader_leaves


@app.command(name="eval")
def evaluate(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="A run, or one of its checkpoints.")
    ],
    split: Annotated[str, typer.Option(help="test, validation or train.")] = "test",
    data_dir: Annotated[str | None, typer.Option(help="Folder of stored corpora, if not the run's.")] = None,
    source: Annotated[str | None, typer.Option(help="Another source of reviews than the run's.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a trained model on a split, and write the figures into the run."""
    from imdb_transformer.evaluation import split as split_evaluation

    print(f"evaluating {path} on {split} ...", file=sys.stderr)
    evaluation, written = split_evaluation.evaluate_split(path, split, data_dir=data_dir, source=source)
    print(
        evaluation.model_dump_json() if as_json else f"{display.evaluation(evaluation)}\nwritten to {written}"
    )


@app.command()
def predict(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Reviews; - reads stdin, one a line.")
    ] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="A txt, CSV, TSV, JSONL or Parquet file.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Where to write the table with predictions.")] = None,
    text_column: Annotated[str, typer.Option(help="Column with the review, in --input.")] = "text",
    run_path: Annotated[
        Path | None, typer.Option("--run", help="A run or checkpoint; by default the newest finished run.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what reviews are, and how surely."""
    if bool(texts) == (input_file is not None):
        raise ConfigError('predict takes reviews ("an awful film"), - for standard input, or --input FILE.')
    if output is not None and input_file is None:
        raise ConfigError("--output goes with --input.")
    from imdb_transformer import run
    from imdb_transformer.data.reviews import lines_of
    from imdb_transformer.inference.predict import CHUNK, Predictor

    path = run_path or run.newest_finished()
    if run_path is None:
        print(f"run: {path}", file=sys.stderr)
    if input_file is not None:
        _predict_file(path, input_file, output, text_column, as_json=as_json)
        return
    typed = texts == ["-"] and sys.stdin.isatty()  # a person waits for each answer
    reviews = lines_of(sys.stdin.buffer, "standard input") if texts == ["-"] else texts or []
    predictions = Predictor.load(path)(reviews, chunk=1 if typed else CHUNK)
    _show_predictions(predictions, as_json=as_json, flush=typed)


def _predict_file(path: Path, input_file: Path, output: Path | None, column: str, *, as_json: bool) -> None:
    from imdb_transformer.inference import tables  # with pyarrow, which a review as an argument does not need
    from imdb_transformer.inference.predict import Predictor

    table = tables.read_reviews(input_file, column)
    if output is not None:
        tables.check_output(output, table)
    predictions = Predictor.load(path)(table.column(column).to_pylist())
    if output is None:
        _show_predictions(predictions, as_json=as_json, flush=False)
        return
    tables.write_predictions(table, predictions, output)
    print(f"{table.num_rows:,} predictions written to {output}", file=sys.stderr)


def _show_predictions(predictions: Iterable[Any], *, as_json: bool, flush: bool) -> None:
    with until_reader_leaves():
        for prediction in predictions:
            print(
                json.dumps(prediction._asdict()) if as_json else display.prediction(prediction), flush=flush
            )
