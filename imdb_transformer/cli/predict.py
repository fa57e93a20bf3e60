"""`imdb-tx predict`: a trained run classifies reviews, and says why."""

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
    texts, has_input = texts or [], input_file is not None
    if not texts and not has_input and sys.stdin and sys.stdin.isatty():
        texts = ["-"]
    if bool(texts) == has_input:
        raise ConfigError('predict takes reviews ("an awful film"), - for standard input, or --input FILE.')
    is_stdin = texts == ["-"] or input_file == Path("-")
    reads_table = is_stdin or has_input
    can_resume = output is not None and input_file is not None and input_file.is_file()
    has_format = text_column is not None or encoding != "utf-8" or bad_rows is not None
    mistakes = {
        "- reads standard input, and takes no other text beside it.": "-" in texts and len(texts) > 1,
        "--text-column, --encoding and --bad-rows need --input or -.": has_format and not reads_table,
        "--output needs --input.": output is not None and not has_input,
        "--resume needs --output, and a file as --input.": resume and not can_resume,
        "--force needs --output.": force and output is None,
    }
    _check_options(mistakes | _mistakes_of_views(has_input, explain, method, attention, layer, head, html))
    if html is not None:
        from imdb_transformer.store.files import check_writable

        check_writable("--html", html, PAGE_ENDINGS)
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
    reading = _input_format(paths[0], text_column, encoding, bad_rows)
    if output is None:
        predictions.predict_rows(request, source, reading)
    else:
        predictions.write_rows(request, source, reading, output, resume=resume, force=force)


def _mistakes_of_views(
    has_input: bool, explain: bool, method: str | None, attention: bool, layer: int | None,
    head: int | None, html: Path | None,
) -> dict[str, bool]:  # fmt: skip
    """What may be wrong with the options under "Why": each mistake, and whether it was made."""
    return {
        "--method needs --explain.": method is not None and not explain,
        "--layer and --head need --attention.": (layer is not None or head is not None) and not attention,
        "--explain and --attention take no --input.": has_input and (explain or attention),
        "--html needs --explain or --attention.": html is not None and not (explain or attention),
    }


def _check_options(mistakes: dict[str, bool]) -> None:
    """Raises ConfigError with all mistakes that were made."""
    if sentences := [sentence for sentence, is_made in mistakes.items() if is_made]:
        raise ConfigError(" ".join(sentences))


def _input_format(
    path: Path, text_column: str | None, encoding: str | None, bad_rows: options.BadRows | None
) -> predictions.InputFormat:
    """How a table is read. By default, the texts are in the column of the run's training reviews."""
    from imdb_transformer.inference.predictor import locate

    column = text_column or locate(path)[0].config.data.text_column
    return predictions.InputFormat(column, "utf-8" if encoding is None else encoding, bad_rows or "fail")


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
