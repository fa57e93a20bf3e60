"""`imdb-tx compare`: shows how runs differ, and whether by more than chance."""

from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli import options, screen
from imdb_transformer.errors import ConfigError

HTML_HELP = "Also write a page with the curves of all runs."


@options.for_trained_runs("""imdb-tx compare runs/base runs/nb
imdb-tx compare base base-2 --html compare.html""")
def compare(
    paths: Annotated[list[Path], typer.Argument(help="Runs or checkpoints.", **options.takes_run("encoder"))],
    split: Annotated[str, typer.Option(metavar="SPLIT", help="test, validation or train.")] = "validation",
    data_dir: Annotated[str | None, typer.Option(metavar="FOLDER", help=options.DATA_DIR_HELP)] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help=HTML_HELP)] = None,
    as_json: options.Json = False,
) -> None:
    """Compare runs on the same reviews.

    Shows how their configs and scores differ, and whether the accuracies differ by more than chance.
    """
    if len(paths) < 2:
        raise ConfigError("compare takes two runs or more.")
    screen.note(f"comparing {len(paths)} runs on {split} ...")  # the next imports take seconds
    from imdb_transformer import hardware
    from imdb_transformer.evaluation.compare import compare as compare_runs
    from imdb_transformer.report import evaluations, pages
    from imdb_transformer.report.layout import PAGE_ENDINGS
    from imdb_transformer.store.files import check_writable

    if html is not None:
        check_writable("--html", html, PAGE_ENDINGS)
    hardware.keep_freed_memory()
    comparison, predictions = compare_runs(paths, split, data_dir)
    if html is not None:  # before stdout, whose reader may leave
        pages.write_comparison(html, comparison, predictions)
        screen.note(f"written to {html}")
    shown = evaluations.as_text(evaluations.comparison_tables(comparison))
    print(comparison.model_dump_json() if as_json else shown)
