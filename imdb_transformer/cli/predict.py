"""`imdb-tx predict`: a trained run classifies reviews, and says why."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli import options, predictions, screen
from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.report.layout import check_page

_why = partial(typer.Option, rich_help_panel="Why")
Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Reviews, or - to read stdin.")]
INPUT_HELP = "A txt, CSV, TSV, JSON, JSONL, Parquet or Excel file."
OUTPUT_HELP = "Where to write the table with predictions."
COLUMN_HELP = "The column with the review.  [default: the run's]"
RUN_HELP = (
    "A run, checkpoint or exported file. Repeat it for their mean.  "
    "[default: your newest classifier, or else imdb]"
)
RunPaths = Annotated[list[Path] | None, typer.Option("--run", help=RUN_HELP, **options.takes_run("encoder"))]
THRESHOLD_HELP = "Predict the second class (pos) if its probability is at least P."
Threshold = Annotated[float | None, typer.Option(metavar="P", min=0.0, max=1.0, help=THRESHOLD_HELP)]
EACH_HELP = "Show the probability of each class. JSON always has them; a page has none."
METHOD_HELP = "How --explain finds the words: max-pooling or gradients.  [default: pooling]"
Layer = Annotated[int | None, _why(metavar="N", help="Layer of --attention, from 1.  [default: the last]")]
Head = Annotated[int | None, _why(metavar="N", help="Head of --attention, from 1.  [default: the first]")]
Html = Annotated[Path | None, _why(metavar="FILE", help="Also write --explain or --attention as a page.")]


@options.command(
    options.USING,
    """imdb-tx predict "I laughed, I cried." "an awful, boring film"
imdb-tx predict --input reviews.csv --text-column body --output out.csv""",
)
def predict(
    texts: Texts = None,
    input_file: Annotated[Path | None, options.of_table("--input", metavar="FILE", help=INPUT_HELP)] = None,
    output: Annotated[Path | None, options.of_table(metavar="FILE", help=OUTPUT_HELP)] = None,
    resume: Annotated[bool, options.of_table("--resume", help="Continue an unfinished --output.")] = False,
    force: Annotated[bool, options.of_table("--force", help="Let --output overwrite --input.")] = False,
    text_column: Annotated[str | None, options.of_table(metavar="COLUMN", help=COLUMN_HELP)] = None,
    encoding: options.Encoding = "utf-8",
    bad_rows: options.OnBadRows = None,
    run_paths: RunPaths = None,
    threshold: Threshold = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help=EACH_HELP)] = False,
    explain: Annotated[bool, _why("--explain", help="Show which words decided. Not with --input.")] = False,
    method: Annotated[predictions.Method | None, _why(metavar="pooling|gradients", help=METHOD_HELP)] = None,
    attention: Annotated[bool, _why("--attention", help="Show which words a head attends to.")] = False,
    layer: Layer = None,
    head: Head = None,
    html: Html = None,
    as_json: options.Json = False,
) -> None:
    """Classify reviews, each with the probability of its class.

    Without arguments on a terminal, it prompts for reviews.
    """
    texts = _texts_of(texts or [], has_input=input_file is not None)
    is_stdin = texts == ["-"] or input_file == Path("-")
    if bool(texts) == (input_file is not None):
        raise ConfigError('predict takes reviews ("an awful film"), - for standard input, or --input FILE.')
    if (method and not explain) or ((layer is not None or head is not None) and not attention):
        raise ConfigError("--method needs --explain. --layer and --head need --attention.")
    _check_views(html, has_views=explain or attention, has_texts=bool(texts))
    can_resume = output is not None and input_file is not None and input_file.is_file()
    if (output is not None and input_file is None) or (resume and not can_resume):
        raise ConfigError("--output needs --input. --resume needs --output, and a file as --input.")
    has_table_options = text_column is not None or encoding != "utf-8" or bad_rows is not None
    if (has_table_options and texts and not is_stdin) or (force and output is None):
        raise ConfigError(
            "--text-column, --encoding and --bad-rows need --input or standard input. --force needs --output."
        )
    paths = run_paths or [default_run()]
    if not run_paths:
        screen.note(f"run: {paths[0]}")
    request = predictions.Request(
        paths, threshold, probabilities, as_json, (method or "pooling") if explain else None, attention,
        layer, 1 if head is None else head, html,
    )  # fmt: skip
    source = predictions.STDIN if is_stdin else input_file
    if source is None:
        predictions.predict_texts(request, texts)
        return
    from imdb_transformer.inference.predictor import locate

    column = text_column or locate(paths[0])[0].config.data.text_column
    reading = predictions.InputFormat(column, "utf-8" if encoding is None else encoding, bad_rows or "fail")
    if output is None:
        predictions.predict_rows(request, source, reading)
    else:
        predictions.write_rows(request, source, reading, output, resume=resume, force=force)


def _texts_of(texts: list[str], *, has_input: bool) -> list[str]:
    """The texts, or - for standard input if there are none and it is a terminal. Raises ConfigError."""
    if "-" in texts and len(texts) > 1:
        raise ConfigError("- reads standard input, and takes no other text beside it.")
    return ["-"] if not texts and not has_input and sys.stdin and sys.stdin.isatty() else texts


def _check_views(html: Path | None, *, has_views: bool, has_texts: bool) -> None:
    """Raises ConfigError if the options under "Why" do not fit the others, or the page cannot be written."""
    if (has_views and not has_texts) or (html and not has_views):
        raise ConfigError("--explain and --attention take no --input. --html needs --explain or --attention.")
    if html is not None:
        check_page(html)


def default_run(runs: Path = options.RUNS) -> Path:
    """The classifier of `imdb-tx train` that finished last, or else `imdb`, if it comes with the package.

    A run on the demo is left out: it knows a toy grammar.
    """
    from imdb_transformer.store import run
    from imdb_transformer.store.upkeep import run_files

    finished = []
    for path in run_files(runs):
        try:
            _, config, info = run.open_run(path.parent)
        except (RunError, PermissionError) as error:
            screen.note(f"left out: {error}")
            continue
        is_ready = info.kind == "classifier" and info.status == "finished"
        if is_ready and config.data.source != "demo":
            finished.append((info.ended, path.parent))
    if not finished and not (run.SHIPPED / "imdb").exists():
        raise RunError(f"No finished run under {runs}/; `imdb-tx train` makes one, or name one with --run.")
    return max(finished)[1] if finished else run.of_package("imdb")
