"""The commands: each parses, calls plain functions, and prints. Nothing below this file prints or exits.

Results go to stdout, progress to stderr. Everything heavy is imported inside the commands, so that
`imdb-tx --help` answers at once.
"""

import io
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from imdb_transformer import display
from imdb_transformer.errors import ConfigError
from imdb_transformer.exits import exiting, until_reader_leaves

app = typer.Typer(
    name="imdb-tx",
    help="Train an encoder-only transformer with a max-pool head, from scratch, on IMDB or your own reviews.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DEFAULT_CONFIG = "demo.toml"
ConfigOption = Annotated[
    str, typer.Option("--config", "-c", help="A config file, or the name of a shipped one (base.toml).")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key: section.key=value. Repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of text.")]


@app.command()
def download(
    source: Annotated[str, typer.Option(help="hub, demo, or a path or URL (README, Sources).")] = "hub",
    data_dir: Annotated[str, typer.Option(help="Folder that keeps stored corpora.")] = "data",
    text_column: Annotated[str, typer.Option(help="Column with the review, in tables.")] = "text",
    label_column: Annotated[str, typer.Option(help="Column with the class, in tables.")] = "label",
    as_json: JsonOption = False,
) -> None:
    """Import a corpus, check it, and show what is in it."""
    from imdb_transformer import config_file
    from imdb_transformer.data import corpus

    data = {"source": source, "data_dir": data_dir, "text_column": text_column, "label_column": label_column}
    config = config_file.parse({"data": data}, origin="command line").data
    stored, was_there = corpus.ensure(config, complete=True)
    if as_json:
        place = {"folder": str(stored.folder), "was_there": was_there, "content_hash": stored.content_hash}
        print(json.dumps(place | stored.manifest.model_dump(mode="json")))
    else:
        print(display.corpus(stored, was_there=was_there))


@app.command()
def tokenize(
    config: ConfigOption = DEFAULT_CONFIG, overrides: SetOption = None, as_json: JsonOption = False
) -> None:
    """Train the tokenizer on training and unlabelled text, and encode every split."""
    from imdb_transformer import config_file
    from imdb_transformer.data import tokenized
    from imdb_transformer.data.corpus import ensure, split_path

    resolved = config_file.load(config, overrides or ())
    stored, _ = ensure(resolved.data)
    names = [name for name in stored.manifest.splits if split_path(stored, name).exists()]
    if not resolved.data.validation and "validation" in names:
        names.remove("validation")  # it is part of train
    print(f"tokenizing {stored.folder} ...", file=sys.stderr)
    result = tokenized.tokenize(resolved, names)
    reports = {name: split.report.model_dump() for name, split in result.splits.items()}
    if as_json:
        hashes = {"tokenizer_hash": result.tokenizer.content_hash, "corpus_hash": stored.content_hash}
        print(json.dumps({"vocab_size": result.tokenizer.vocab_size, **hashes, "splits": reports}))
    else:
        print(display.tokenized(result, resolved.tokenizer))


@app.command()
def train(
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", help="A config file, or a shipped one; by default demo.toml."),
    ] = None,
    overrides: SetOption = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default a new one in runs/.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue this run; takes no config.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it would cost; train nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a model; download and tokenize first where that is not done yet."""
    from imdb_transformer import config_file, hardware, run
    from imdb_transformer.data import tokenized
    from imdb_transformer.training import loop

    if resume is not None:
        if config or overrides or run_dir or dry_run:
            raise ConfigError("--resume continues a run with its own config: it goes with --json only.")
        opened = run.open_run(resume)
        chosen = hardware.choose(opened.config.train)
        print(f"preparing {opened.config.data.source} ...", file=sys.stderr)
        splits = loop.splits_of(opened)
        _train(lambda: opened, splits, chosen, as_json=as_json)
        return
    name = config or DEFAULT_CONFIG
    resolved = config_file.load(name, overrides or ())
    folder = run_dir or run.new_folder(Path(name).stem)
    run.check_free(folder)
    chosen = hardware.choose(resolved.train)
    print(f"preparing {resolved.data.source} ...", file=sys.stderr)
    data = tokenized.tokenize(resolved, tokenized.training_splits(resolved.data))
    if dry_run:
        _show_cost(resolved, data, chosen, as_json=as_json)
    else:
        _train(lambda: loop.start(folder, resolved, data, chosen), data.splits, chosen, as_json=as_json)


def _show_cost(config: Any, data: Any, hardware: Any, *, as_json: bool) -> None:
    from imdb_transformer import config_file
    from imdb_transformer.training.estimate import estimate

    num_classes = len(data.corpus.manifest.classes)
    cost = estimate(
        config, data.splits, hardware, vocab_size=data.tokenizer.vocab_size, num_classes=num_classes
    )
    if as_json:
        print(json.dumps({"config": config.model_dump(), "estimate": cost.model_dump()}))
    else:
        print(f"{config_file.dump(config)}\n{display.estimate(cost)}")


def _train(begin: Callable[[], Any], splits: Any, hardware: Any, *, as_json: bool) -> None:
    """Drives the loop with a progress bar, and prints how the run ended."""
    from tqdm import tqdm

    from imdb_transformer.training import loop
    from imdb_transformer.training.interruption import stop_request

    with stop_request() as stop, tqdm(unit="step", file=sys.stderr, disable=None, dynamic_ncols=True) as bar:
        opened = begin()
        bar.write(f"training in {opened.folder} on {hardware.describe()}", file=sys.stderr)
        for update in loop.train(opened, splits, hardware, stop):
            if not bar.n:  # a resumed run's earlier steps took none of this bar's time
                bar.initial = bar.n = update.step - 1
            bar.total = update.num_steps
            bar.set_postfix_str(display.postfix(update), refresh=False)
            bar.update()
            if update.validation is not None:
                bar.write(display.validation(update), file=sys.stderr)
    result = loop.result_of(opened)
    print(json.dumps(result.model_dump()) if as_json else display.result(result))


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


def main() -> None:
    """The console script: runs a command, and turns what can go wrong into a sentence and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an old terminal shows an emoji's number
            stream.reconfigure(errors="backslashreplace")
    with exiting():
        app()
