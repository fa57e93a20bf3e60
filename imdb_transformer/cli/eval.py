"""`imdb-tx eval`: measures a trained run."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from imdb_transformer.cli import options, screen
from imdb_transformer.cli.options import command
from imdb_transformer.errors import ConfigError

RUNS_HELP = "A run, or one of its checkpoints. Several are evaluated together, by mean probability."
Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN", help=RUNS_HELP, parser=options.run_path, autocompletion=options.complete_runs
    ),
]
OTHER = "Other reviews"  # heading of --help


def _of_other(metavar: str, help_text: str) -> Any:
    return typer.Option(metavar=metavar, help=help_text, rich_help_panel=OTHER)


@command(
    options.USING,
    """imdb-tx eval runs/base
imdb-tx eval runs/base --source other.csv --text-column body""",
    name="eval",
)
def evaluate(
    paths: Runs,
    split: options.Split = "test",
    data_dir: Annotated[
        str | None, _of_other("FOLDER", "Where corpora are stored, if not where the run says.")
    ] = None,
    source: Annotated[str | None, _of_other("SOURCE", "Another source of reviews than the run's.")] = None,
    text_column: Annotated[str | None, _of_other("COLUMN", "Of --source: column with the review.")] = None,
    label_column: Annotated[str | None, _of_other("COLUMN", "Of --source: column with the label.")] = None,
    as_json: options.Json = False,
) -> None:
    """Evaluate a trained model on a split of its reviews.

    Scores, a report with figures and a model card are written into the run.
    """
    if (text_column or label_column) and source is None:
        raise ConfigError("--text-column and --label-column describe a --source, and there is no --source.")
    from imdb_transformer import hardware
    from imdb_transformer.evaluation.baseline import baselines_beside
    from imdb_transformer.evaluation.evaluate import answer, save
    from imdb_transformer.report import evaluations, pages
    from imdb_transformer.report.card import write_card

    hardware.keep_freed_memory()
    screen.note(f"evaluating {' + '.join(map(str, paths))} on {split} ...")
    data = {"data_dir": data_dir, "source": source, "text_column": text_column, "label_column": label_column}
    answers = answer(paths, split, **data)
    save(answers)
    baselines = {} if source is not None else baselines_beside(paths[0], split, data_dir=data_dir)
    page = pages.write_evaluation(answers, baselines)
    if split == "test" and source is None and len(paths) == 1 and answers.run.info.kind == "classifier":
        write_card(answers.run, answers.evaluation)
    if as_json:
        beside = {name: baseline.model_dump() for name, baseline in baselines.items()}
        print(json.dumps({**answers.evaluation.model_dump(), "baselines": beside}))
    else:
        print(evaluations.as_text(answers.evaluation, baselines))
        print(f"written to {answers.file} and {page}")
