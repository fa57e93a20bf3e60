"""`eval`, `compare`, `verify` and `predict`: trained runs answer."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from imdb_transformer.cli.options import JsonOption, app
from imdb_transformer.display import answering, page
from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.exits import until_reader_leaves

BadRows = Literal["fail", "skip"]
ExplainMethod = Literal["pooling", "gradients"]


@app.command(name="eval")
def evaluate(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT...",
            help="A run, or one of its checkpoints; several answer together, by their mean probability.",
        ),
    ],
    split: Annotated[str, typer.Option(help="test, validation or train.")] = "test",
    data_dir: Annotated[str | None, typer.Option(help="Folder of stored corpora, if not the run's.")] = None,
    source: Annotated[str | None, typer.Option(help="Another source of reviews than the run's.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a trained model on a split, and write the figures into the run."""
    from imdb_transformer.evaluation.report import write_report
    from imdb_transformer.evaluation.split import answers, record

    print(f"evaluating {' + '.join(map(str, paths))} on {split} ...", file=sys.stderr)
    found = answers(paths, split, data_dir=data_dir, source=source)
    written = record(paths, found, named=source is not None)
    report = write_report(paths, found)
    if as_json:
        print(found.evaluation.model_dump_json())
    else:
        print(f"{answering.evaluation(found.evaluation)}\nwritten to {written} and {report}")


@app.command()
def compare(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN...", help="Runs, or their checkpoints; two at least.")
    ],
    split: Annotated[str, typer.Option(help="test, validation or train.")] = "test",
    as_json: JsonOption = False,
) -> None:
    """Show what differs between runs, and whether their accuracies differ by more than chance."""
    if len(paths) < 2:
        raise ConfigError("compare takes two runs or more.")
    from imdb_transformer.evaluation.compare import compare as compare_runs

    print(f"comparing {len(paths)} runs on {split} ...", file=sys.stderr)
    found = compare_runs(paths, split)
    print(found.model_dump_json() if as_json else answering.comparison(found))


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")], as_json: JsonOption = False
) -> None:
    """Check every file of a run against its checksum."""
    from imdb_transformer.inference.verify import verify as verify_run

    verdicts = verify_run(path)
    print(
        json.dumps({"run": str(path), "parts": {v.part: v.problem or "ok" for v in verdicts}})
        if as_json
        else "\n".join(f"{v.part}: {v.problem or 'ok'}" for v in verdicts)
    )
    damaged = [v.part for v in verdicts if v.problem]
    if damaged:
        raise RunError(f"{path} is damaged: {', '.join(damaged)}.")


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
    bad_rows: Annotated[
        BadRows, typer.Option(help="Rows of --input without a text, or torn: an error, or told and left out.")
    ] = "fail",
    run_paths: Annotated[
        list[Path] | None,
        typer.Option(
            "--run", help="A run or checkpoint; by default the newest finished run. Repeatable: their mean."
        ),
    ] = None,
    explained: Annotated[
        bool, typer.Option("--explain", help="Show which words decided (texts given here or on stdin).")
    ] = False,
    method: Annotated[
        ExplainMethod, typer.Option(help="Of --explain: what max-pooling took, or integrated gradients.")
    ] = "pooling",
    html: Annotated[
        Path | None, typer.Option(help="With --explain: write a page with coloured words.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what reviews are, and how surely."""
    if bool(texts) == (input_file is not None):
        raise ConfigError('predict takes reviews ("an awful film"), - for standard input, or --input FILE.')
    if (explained and input_file is not None) or (html is not None and not explained):
        raise ConfigError(
            "--explain goes with reviews given as arguments or by -, and --html with --explain."
        )
    if output is not None and input_file is None:
        raise ConfigError("--output goes with --input.")
    from imdb_transformer import run
    from imdb_transformer.data.reviews import lines_of
    from imdb_transformer.inference.predict import CHUNK, Predictor

    paths = run_paths or [run.newest_finished()]
    if not run_paths:
        print(f"run: {paths[0]}", file=sys.stderr)
    if input_file is not None:
        _predict_file(paths, input_file, output, text_column, skip_bad=bad_rows == "skip", as_json=as_json)
        return
    typed = texts == ["-"] and sys.stdin.isatty()  # a person waits for each answer
    reviews = lines_of(sys.stdin.buffer, "standard input") if texts == ["-"] else texts or []
    if explained:
        _show_explanations(Predictor.load(*paths), reviews, method, html, as_json=as_json)
        return
    predictions = Predictor.load(*paths)(reviews, chunk=1 if typed else CHUNK)
    _show_predictions(predictions, as_json=as_json, flush=typed)


def _predict_file(
    paths: list[Path], input_file: Path, output: Path | None, column: str, *, skip_bad: bool, as_json: bool
) -> None:
    from tqdm import tqdm

    from imdb_transformer.inference import tables  # with pyarrow, which a review as an argument does not need
    from imdb_transformer.inference.predict import Predictor

    skip = (lambda what: print(f"skipped: {what}", file=sys.stderr)) if skip_bad else None
    schema, parts = tables.open_reviews(input_file, column, skip=skip)
    if output is not None:
        tables.check_output(output, schema)
    predictor = Predictor.load(*paths)
    with tqdm(unit=" reviews", file=sys.stderr, disable=None if output else True, dynamic_ncols=True) as bar:

        def predicted() -> Iterator[tuple[Any, list[Any]]]:
            for table in parts:
                yield table, list(predictor(table.column(column).to_pylist()))
                bar.update(table.num_rows)

        if output is None:
            for _, predictions in predicted():
                _show_predictions(predictions, as_json=as_json, flush=False)
            return
        num_rows = tables.write_predictions(schema, predicted(), output)
    print(f"{num_rows:,} predictions written to {output}", file=sys.stderr)


def _show_explanations(
    predictor: Any, reviews: Iterable[str], method: ExplainMethod, html: Path | None, *, as_json: bool
) -> None:
    from imdb_transformer.files import write_whole
    from imdb_transformer.inference.explain import explain

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    pages = []
    with until_reader_leaves():
        for prediction in predictor(reviews, chunk=1):
            found = explain(predictor, prediction.text, method=method)
            if as_json:
                words = [word._asdict() for word in found.words]
                print(
                    json.dumps({**prediction._asdict(), "explanation": {**found._asdict(), "words": words}})
                )
            else:
                print(answering.explanation(prediction, found, colour=colour))
            if html is not None:
                pages.append(page.section(prediction, found))
    if html is not None:
        write_whole(html, page.page(pages).encode())
        print(f"written to {html}", file=sys.stderr)


def _show_predictions(predictions: Iterable[Any], *, as_json: bool, flush: bool) -> None:
    with until_reader_leaves():
        for prediction in predictions:
            print(
                json.dumps(prediction._asdict()) if as_json else answering.prediction(prediction), flush=flush
            )
