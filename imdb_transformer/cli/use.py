"""`eval`, `compare`, `verify` and `export`: a trained run is measured, checked and taken elsewhere."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli.options import JsonOption, app
from imdb_transformer.errors import ConfigError
from imdb_transformer.report import results


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
    text_column: Annotated[str | None, typer.Option(help="Of --source: its column with the review.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Of --source: its column with the label.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a trained model on a split, and write the figures into the run."""
    if (text_column or label_column) and source is None:
        raise ConfigError("--text-column and --label-column are those of a --source, and none is named.")
    from imdb_transformer import hardware
    from imdb_transformer.distributed import joined
    from imdb_transformer.evaluation.evaluate import answers, record
    from imdb_transformer.evaluation.linear_runs import linear_baselines
    from imdb_transformer.report.evaluation_page import write_report

    hardware.keep_freed_memory()
    with joined() as world:
        if world.is_first:
            print(f"evaluating {' + '.join(map(str, paths))} on {split} ...", file=sys.stderr)
        found = answers(
            paths, split, world=world, data_dir=data_dir, source=source, text_column=text_column,
            label_column=label_column,
        )  # fmt: skip
    if not world.is_first:
        return
    written = record(paths, found, named=source is not None)
    baselines = {} if source is not None else linear_baselines(paths[0], split, data_dir=data_dir)
    report = write_report(paths, found, baselines)
    if as_json:
        beside = {name: own.model_dump() for name, own in baselines.items()}
        print(json.dumps({**found.evaluation.model_dump(), "baselines": beside}))
    else:
        print(f"{results.evaluation(found.evaluation, baselines)}\nwritten to {written} and {report}")


@app.command()
def compare(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN...", help="Runs, or their checkpoints; two at least.")
    ],
    split: Annotated[str, typer.Option(help="test, validation or train.")] = "test",
    html: Annotated[Path | None, typer.Option(help="Also write a page with their curves together.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what differs between runs, and whether their accuracies differ by more than chance."""
    if len(paths) < 2:
        raise ConfigError("compare takes two runs or more.")
    from imdb_transformer import hardware
    from imdb_transformer.evaluation.compare import compare as compare_runs
    from imdb_transformer.report.evaluation_page import write_comparison

    hardware.keep_freed_memory()
    print(f"comparing {len(paths)} runs on {split} ...", file=sys.stderr)
    found, answered = compare_runs(paths, split)
    if html is not None:  # first: whoever reads stdout may leave
        write_comparison(html, found, answered)
        print(f"written to {html}", file=sys.stderr)
    print(found.model_dump_json() if as_json else results.comparison(found))


@app.command()
def export(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="A run, or one of its checkpoints.")
    ],
    output: Annotated[
        Path | None, typer.Option(help="The file to write; by default model.onnx in the run.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a trained model as one file for other engines; predict --run takes it, without torch."""
    from imdb_transformer.inference.export import export as export_run

    print(f"exporting {path} ...", file=sys.stderr)
    written = export_run(path, output)
    num_bytes = written.stat().st_size
    if as_json:
        print(json.dumps({"file": str(written), "num_bytes": num_bytes}))
    else:
        print(f'{written}: {num_bytes / 2**20:.1f} MiB\nnext: imdb-tx predict --run {written} "some review"')
