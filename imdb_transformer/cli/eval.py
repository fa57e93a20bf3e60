"""`imdb-tx eval`: evaluates a run, or the mean prediction of several."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imdb_transformer.cli import options, screen
from imdb_transformer.errors import ConfigError, warn

if TYPE_CHECKING:  # heavy: imported in the functions
    from imdb_transformer.evaluation.evaluate import Predictions
    from imdb_transformer.evaluation.scores import Evaluation

_of_source = partial(typer.Option, rich_help_panel="Other reviews")
RUNS_HELP = "A run, or one of its checkpoints. If you name several, their mean is evaluated."
SPLIT_HELP = "test, validation or train. With --source, also all.  [default: test; for a file, all]"
SOURCE_HELP = "Evaluate on reviews other than the run's. Options for a file of reviews need --source."
Source = Annotated[str | None, _of_source(metavar="SOURCE", help=SOURCE_HELP)]


@options.for_trained_runs(
    """imdb-tx eval runs/base
imdb-tx eval runs/base --source other.csv --text-column body""",
    name="eval",
)
def evaluate(
    paths: Annotated[list[Path], typer.Argument(help=RUNS_HELP, **options.takes_run("encoder"))],
    split: Annotated[str | None, typer.Option(metavar="SPLIT", help=SPLIT_HELP)] = None,
    data_dir: Annotated[str | None, _of_source(metavar="FOLDER", help=options.DATA_DIR_HELP)] = None,
    source: Source = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = None,
    bad_rows: options.OnBadRows = None,
    as_json: options.Json = False,
) -> None:
    """Evaluate a trained model on a split of its reviews.

    Writes scores and a page with figures into the run. On test, a finished classifier also gets a model card.
    """
    reading = {
        "text_column": text_column, "label_column": label_column, "encoding": encoding, "bad_rows": bad_rows,
    }  # fmt: skip
    if source is None and any(value is not None for value in reading.values()):
        raise ConfigError("--text-column, --label-column, --encoding and --bad-rows describe a --source.")
    screen.note(f"evaluating {' + '.join(map(str, paths))}{f' on {source}' if source else ''} ...")
    from imdb_transformer import hardware  # this and the next take seconds
    from imdb_transformer.evaluation.baseline import baselines_beside
    from imdb_transformer.evaluation.evaluate import predict_split
    from imdb_transformer.report import evaluations

    hardware.keep_freed_memory()
    predictions = predict_split(paths, split, data_dir=data_dir, source=source, **reading)
    opened, split = predictions.run, predictions.evaluation.split
    baselines = {} if source else baselines_beside(opened, split, data_dir=data_dir)
    tables = evaluations.evaluation_tables(predictions.evaluation, baselines)
    try:
        page = _write(predictions, baselines, has_card=len(paths) == 1 and not paths[0].is_file())
    finally:  # a user who may not write into the run sees the scores, too
        beside = {name: baseline.model_dump() for name, baseline in baselines.items()}
        record = predictions.evaluation.model_dump() | {"baselines": beside}
        print(json.dumps(record) if as_json else evaluations.as_text(tables))
    if page and not as_json:
        print(f"written to {predictions.file} and {page}")


def _write(predictions: "Predictions", baselines: "dict[str, Evaluation]", *, has_card: bool) -> Path | None:
    """Writes the scores, the page and, if the run is a classifier and may have one, its model card.

    Returns the page. None if the run has changed meanwhile, so that nothing is written.
    """
    from imdb_transformer.evaluation.evaluate import save
    from imdb_transformer.report import evaluations, pages

    if not save(predictions):
        return None
    page = pages.write_evaluation(predictions, baselines)
    opened = predictions.run
    if opened.info.status != "finished":
        warn(f"{opened.folder} is not finished: it is not calibrated, and gets no model card")
    elif has_card and opened.info.kind == "classifier":
        evaluations.write_card(opened)
    return page
