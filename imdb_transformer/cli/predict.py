"""`imdb-tx predict`: a trained run classifies reviews."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli import options, predictions, screen
from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.report.layout import PAGE_ENDINGS

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
THRESHOLD_HELP = "Predict the second class (by number or alphabet) if its probability is at least P."
Threshold = Annotated[float | None, typer.Option(metavar="P", min=0.0, max=1.0, help=THRESHOLD_HELP)]
EACH_HELP = "Show the probability of each class. JSON always shows them, a page never does."
METHOD_HELP = "How --explain finds the words: max-pooling or gradients."
Layer = Annotated[int | None, _why(metavar="N", help="Layer of --attention, from 1.  [default: the last]")]
Head = Annotated[int, _why(metavar="N", help="Head of --attention, from 1.")]
Html = Annotated[Path | None, _why(metavar="FILE", help="Also write --explain or --attention as a page.")]


@options.for_trained_runs("""imdb-tx predict "I laughed, I cried." "an awful, boring film"
imdb-tx predict --input reviews.csv --text-column body --output out.csv""")
def predict(
    context: typer.Context,
    texts: Texts = None,
    input_file: Annotated[Path | None, options.of_table("--input", metavar="FILE", help=INPUT_HELP)] = None,
    output: Annotated[Path | None, options.of_table(metavar="FILE", help=OUTPUT_HELP)] = None,
    resume: Annotated[bool, options.of_table("--resume", help="Continue an unfinished --output.")] = False,
    force: Annotated[bool, options.of_table("--force", help="Let --output overwrite --input.")] = False,
    text_column: Annotated[str | None, options.of_table(metavar="COLUMN", help=COLUMN_HELP)] = None,
    encoding: Annotated[str, options.of_encoding] = "utf-8",
    bad_rows: Annotated[options.BadRows, options.of_bad_rows] = "fail",
    run_paths: RunPaths = None,
    threshold: Threshold = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help=EACH_HELP)] = False,
    explain: Annotated[bool, _why("--explain", help="Show which words decided. Not with --input.")] = False,
    method: Annotated[predictions.Method, _why(metavar="pooling|gradients", help=METHOD_HELP)] = "pooling",
    attention: Annotated[bool, _why("--attention", help="Show which words a head attends to.")] = False,
    layer: Layer = None,
    head: Head = 1,
    html: Html = None,
    as_json: options.Json = False,
) -> None:
    """Classify reviews, each with the probability of its class.

    Without arguments on a terminal, it prompts for reviews.
    """
    source = _source(texts or [], input_file)
    _check_options(options.passed(context), source, html)
    paths = run_paths or [default_run()]
    request = predictions.Request(
        paths, threshold, probabilities, as_json, method if explain else None, attention, layer, head, html
    )
    if source is None:
        predictions.predict_texts(request, texts or [])
        return
    from imdb_transformer.data.tables import is_table
    from imdb_transformer.inference.predictor import origin_of

    if text_column and not is_table(source):
        raise ConfigError("--text-column needs a table: this input is read line by line, without columns.")
    column = text_column or origin_of(paths[0]).config.data.text_column
    request = request._replace(text_column=column, encoding=encoding, bad_rows=bad_rows)
    if output is None:
        predictions.predict_rows(request, source)
    else:
        predictions.write_rows(request, source, output, resume=resume, force=force)


def _source(texts: list[str], input_file: Path | None) -> Path | None:
    """The file of reviews, or `STDIN`; None if the texts are the reviews. Raises ConfigError."""
    is_typed = not texts and input_file is None and sys.stdin.isatty()
    if bool(texts) == (input_file is not None) and not is_typed:
        raise ConfigError('predict takes reviews ("an awful film"), - for standard input, or --input FILE.')
    if "-" in texts and len(texts) > 1:
        raise ConfigError("- reads standard input. Give no other text with it.")
    return predictions.STDIN if is_typed or texts == ["-"] or input_file == Path("-") else input_file


def _check_options(passed: set[str], source: Path | None, html: Path | None) -> None:
    """Raises ConfigError with all mistakes in the options that were passed."""
    has_format, has_view = passed & {"text_column", "encoding", "bad_rows"}, passed & {"explain", "attention"}
    can_resume = "output" in passed and source is not None and source.is_file()
    mistakes = {
        "--text-column, --encoding and --bad-rows need --input or -.": source is None and has_format,
        "--output needs --input.": "output" in passed and "input_file" not in passed,
        "--resume needs --output, and a file as --input.": "resume" in passed and not can_resume,
        "--force needs --output.": "force" in passed and "output" not in passed,
        "--method needs --explain.": "method" in passed and "explain" not in passed,
        "--layer and --head need --attention.": passed & {"layer", "head"} and "attention" not in passed,
        "--explain and --attention do not work with --input.": "input_file" in passed and has_view,
        "--html needs --explain or --attention.": html is not None and not has_view,
    }
    if sentences := [sentence for sentence, is_made in mistakes.items() if is_made]:
        raise ConfigError(" ".join(sentences))
    if html is not None:
        from imdb_transformer.store.files import check_writable

        check_writable("--html", html, PAGE_ENDINGS)


def default_run(runs: Path = options.RUNS) -> Path:
    """The classifier of `imdb-tx train` that finished last, or else `imdb`, if it comes with the package.

    A run on the demo is left out: it knows a toy grammar. A note says which run was chosen.
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
    chosen = max(finished)[1] if finished else run.of_package("imdb")
    screen.note(f"run: {chosen}")
    return chosen
