"""`imdb-tx predict`: classifies reviews, and shows why."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from imdb_transformer.cli import options
from imdb_transformer.cli.exits import until_reader_leaves
from imdb_transformer.cli.options import command
from imdb_transformer.errors import ConfigError, Interrupted, RunError
from imdb_transformer.report import terminal

if TYPE_CHECKING:  # heavy: imported in the functions
    from imdb_transformer.inference.predictor import Prediction, Predictor

FEW = 32  # texts that take less time without torch than torch takes to import

BadRows = Literal["fail", "skip"]
Method = Literal["pooling", "gradients"]

Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Reviews; - for lines of stdin.")]
TABLE, WHY = "A file of reviews", "Why"  # headings of --help
Input = Annotated[
    Path | None,
    typer.Option(
        "--input", metavar="FILE", help="A txt, CSV, TSV, JSONL or Parquet file.", rich_help_panel=TABLE
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Where to write the table with predictions.", rich_help_panel=TABLE),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue an unfinished --output.", rich_help_panel=TABLE)
]
Column = Annotated[
    str, typer.Option(metavar="COLUMN", help="The column with the review.", rich_help_panel=TABLE)
]
OnBadRows = Annotated[
    BadRows,
    typer.Option(
        metavar="fail|skip", help="At a row that is malformed or has no text: stop, or skip and warn.",
        rich_help_panel=TABLE,
    ),
]  # fmt: skip
RUN_HELP = (
    "A run, checkpoint or exported file. Several answer by their mean.  "
    "[default: your newest classifier, else imdb]"
)
RunPaths = Annotated[
    list[Path] | None,
    typer.Option(
        "--run", metavar="RUN", help=RUN_HELP, parser=options.run_path, autocompletion=options.complete_runs
    ),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Show which words decided; not with --input.", rich_help_panel=WHY)
]
METHOD_HELP = "Of --explain: max-pooling's shares, or integrated gradients.  [default: pooling]"
ExplainMethod = Annotated[
    Method | None, typer.Option(metavar="pooling|gradients", help=METHOD_HELP, rich_help_panel=WHY)
]
ShowAttention = Annotated[
    bool, typer.Option("--attention", help="Show which words a head attends to.", rich_help_panel=WHY)
]
Layer = Annotated[
    int | None,
    typer.Option(metavar="N", help="Of --attention, from 1.  [default: the last]", rich_help_panel=WHY),
]
Head = Annotated[
    int | None,
    typer.Option(metavar="N", help="Of --attention, from 1.  [default: the first]", rich_help_panel=WHY),
]
Html = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also write --explain or --attention as a page.", rich_help_panel=WHY),
]


class View(NamedTuple):
    """What to show of a review beside its prediction."""

    method: Method | None
    """of the explanation; None shows none"""
    attention: bool
    layer: int | None
    head: int
    html: Path | None


@command(
    options.USING,
    """imdb-tx predict "I laughed, I cried." "an awful, boring film"
imdb-tx predict --input reviews.csv --text-column body --output out.csv""",
)
def predict(
    texts: Texts = None,
    input_file: Input = None,
    output: Output = None,
    resume: Resume = False,
    text_column: Column = "text",
    bad_rows: OnBadRows = "fail",
    run_paths: RunPaths = None,
    explain: Explain = False,
    method: ExplainMethod = None,
    attention: ShowAttention = False,
    layer: Layer = None,
    head: Head = None,
    html: Html = None,
    as_json: options.Json = False,
) -> None:
    """Classify reviews, each with the probability of its class."""
    if bool(texts) == (input_file is not None):
        raise ConfigError('predict takes reviews ("an awful film"), - for standard input, or --input FILE.')
    if (method and not explain) or ((layer is not None or head is not None) and not attention):
        raise ConfigError("--method goes with --explain, and --layer and --head with --attention.")
    if (output is not None and input_file is None) or (resume and output is None):
        raise ConfigError("--output goes with --input, and --resume with --output.")
    has_view = explain or attention
    if (has_view and not texts) or (html and not has_view):
        raise ConfigError("--explain and --attention take no --input; --html needs one of them.")
    if html is not None:
        from imdb_transformer.report.page import check_page

        check_page(html)
    paths = run_paths or [default_run()]
    if not run_paths:
        print(f"run: {paths[0]}", file=sys.stderr)
    if input_file is not None:
        _predict_file(paths, input_file, output, text_column, bad_rows, resume, as_json)
        return
    view = View(method or "pooling" if explain else None, attention, layer, 1 if head is None else head, html)
    _predict_texts(paths, texts or [], view if has_view else None, as_json)


def default_run(runs: Path = Path("runs")) -> Path:
    """The classifier of `imdb-tx train` that finished last, or else the one that comes with the package.

    The demo's is left out: it knows a toy grammar.
    """
    from imdb_transformer.store import run

    finished = []
    for path in runs.glob(f"*/{run.INFO}"):
        try:
            opened = run.open_run(path.parent)
        except RunError:
            continue  # --run with this folder says what is wrong
        is_ready = opened.info.kind == "classifier" and opened.info.status == "finished"
        if is_ready and opened.config.data.source != "demo":
            finished.append((opened.info.ended, path.parent))
    return max(finished)[1] if finished else Path("imdb")


def _load(paths: list[Path], *, exact: bool = False, few: bool = False) -> "Predictor":
    from imdb_transformer.inference.predictor import Predictor

    predictor = Predictor.load(*paths, exact=exact, few=few)
    if "torch" in sys.modules:  # an exported file needs none
        from imdb_transformer import hardware

        hardware.keep_freed_memory()
    return predictor


def _predict_texts(paths: list[Path], arguments: list[str], view: View | None, as_json: bool) -> None:
    from imdb_transformer.data.reviews import lines_of

    from_stdin = arguments == ["-"]
    typed = from_stdin and sys.stdin.isatty()
    few = view is None and (typed or (not from_stdin and len(arguments) <= FEW))
    predictor = _load(paths, exact=True, few=few)  # one text or many: the same probability
    texts = lines_of(sys.stdin.buffer, "standard input") if from_stdin else arguments
    if view is not None:
        _show_views(predictor, texts, view, as_json)
    elif typed:  # a person waits for each answer
        _show(predictor(texts, chunk=1), as_json, flush=True)
    else:
        _show(predictor(texts), as_json)


def _show(predictions: "Iterable[Prediction]", as_json: bool, *, flush: bool = False) -> None:
    from imdb_transformer.report import reviews

    with until_reader_leaves():
        for prediction in predictions:
            line = json.dumps(prediction.record()) if as_json else reviews.prediction_as_text(prediction)
            print(line, flush=flush)


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


def _predict_file(
    paths: list[Path], input_file: Path, output: Path | None, column: str, bad_rows: BadRows, resume: bool,
    as_json: bool,
) -> None:  # fmt: skip
    from tqdm import tqdm

    from imdb_transformer.inference import tables  # with pyarrow, which a single review does not need

    skip = (lambda what: print(f"skipped: {what}", file=sys.stderr)) if bad_rows == "skip" else None
    schema, parts = tables.open_reviews(input_file, column, skip=skip)
    if output is None:
        predictor = _load(paths)
        for part in parts:
            _show(predictor(part.column(column).to_pylist()), as_json)
        return
    tables.check_output(output, schema)
    predictor = _load(paths)
    call = tables.describe_call(predictor, paths, input_file, column, bad_rows)
    written = tables.write_predictions(predictor, parts, schema, column, output, call, resume=resume)
    num_rows = 0
    with tqdm(unit=" reviews", file=terminal.beneath(sys.stderr), disable=None, dynamic_ncols=True) as bar:
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
