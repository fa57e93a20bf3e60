"""`predict`: a trained run says what reviews are, how surely, and why."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer

from imdb_transformer.cli import answers
from imdb_transformer.cli.options import JsonOption, app
from imdb_transformer.cli.predict_file import Table, predict_file
from imdb_transformer.errors import ConfigError

TextsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[TEXT]...", help="Reviews; - reads stdin, one a line.")
]
InputOption = Annotated[Path | None, typer.Option("--input", help="A txt, CSV, TSV, JSONL or Parquet file.")]
OutputOption = Annotated[Path | None, typer.Option(help="Where to write the table with predictions.")]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Continue an --output that an earlier call did not finish.")
]
ColumnOption = Annotated[str, typer.Option(help="Column with the review, in --input.")]
BadRowsOption = Annotated[
    Literal["fail", "skip"],
    typer.Option(help="Rows of --input that are malformed or have no text: stop, or skip and warn."),
]
RunsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--run",
        help="A run, checkpoint or exported file; by default the newest finished run. "
        "Repeatable: their mean.",
    ),
]
ExplainOption = Annotated[
    bool, typer.Option("--explain", help="Show which words decided (texts given here or on stdin).")
]
MethodOption = Annotated[
    answers.ExplainMethod | None,
    typer.Option(help="Of --explain: what max-pooling took (the default), or integrated gradients."),
]
AttentionOption = Annotated[
    bool, typer.Option("--attention", help="Show what each word looked at, in one layer and head.")
]
LayerOption = Annotated[int | None, typer.Option(help="Of --attention, from 1; by default the last.")]
HeadOption = Annotated[int | None, typer.Option(help="Of --attention, from 1; by default the first.")]
HtmlOption = Annotated[
    Path | None, typer.Option(help="With --explain or --attention: write a page with the words coloured.")
]


@app.command()
def predict(
    texts: TextsArgument = None,
    input_file: InputOption = None,
    output: OutputOption = None,
    resume: ResumeOption = False,
    text_column: ColumnOption = "text",
    bad_rows: BadRowsOption = "fail",
    run_paths: RunsOption = None,
    explained: ExplainOption = False,
    method: MethodOption = None,
    attention: AttentionOption = False,
    layer: LayerOption = None,
    head: HeadOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Classify reviews, each with the probability of its class."""
    shown = explained or attention
    if bool(texts) == (input_file is not None):
        raise ConfigError('predict takes reviews ("an awful film"), - for standard input, or --input FILE.')
    _check_views(shown, from_file=input_file is not None, html=html is not None)
    if (method and not explained) or ((layer is not None or head is not None) and not attention):
        raise ConfigError("--method goes with --explain, and --layer and --head with --attention.")
    if (output is not None and input_file is None) or (resume and output is None):
        raise ConfigError("--output goes with --input, and --resume with --output.")
    from imdb_transformer.cli import runs

    paths = run_paths or [runs.newest_finished()]
    if not run_paths:
        print(f"run: {paths[0]}", file=sys.stderr)
    if input_file is not None:
        table = Table(input_file, output, text_column, bad_rows == "skip", resume)
        predict_file(paths, table, as_json=as_json)
        return
    typed = texts == ["-"] and sys.stdin.isatty()  # a person waits for each answer
    predictor = answers.load(paths)
    reviews = _reviews(texts or [])
    if shown:
        view = answers.View(explained, method or "pooling", attention, layer, 1 if head is None else head)
        answers.show_views(predictor, reviews, view, html, as_json=as_json)
    else:
        predictions = predictor(reviews, chunk=1) if typed else predictor(reviews)
        answers.show(predictions, as_json=as_json, flush=typed)


def _check_views(shown: bool, *, from_file: bool, html: bool) -> None:
    if (shown and from_file) or (html and not shown):
        raise ConfigError(
            "--explain and --attention need reviews as arguments or on stdin (-); --html needs either."
        )


def _reviews(texts: list[str]) -> Iterable[str]:
    from imdb_transformer.data.reviews import lines_of

    return lines_of(sys.stdin.buffer, "standard input") if texts == ["-"] else texts
