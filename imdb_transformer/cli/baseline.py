"""`imdb-tx baseline`: fits a linear model to compare with."""

from typing import Annotated, Literal

import typer

from imdb_transformer.cli import options, screen
from imdb_transformer.report import summaries

Weighting = Literal["nb", "tfidf"]
KIND_HELP = "nb: trigrams with naive Bayes weights; tfidf: TF-IDF of words and bigrams."


@options.for_training("""imdb-tx baseline --run-dir runs/nb
imdb-tx baseline reviews.csv --text-column body --label-column stars""")
def baseline(
    source: options.Source = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = None,
    bad_rows: options.OnBadRows = None,
    config: options.ConfigName = "base.toml",
    overrides: options.Overrides = None,
    kind: Annotated[Weighting, typer.Option(metavar="nb|tfidf", help=KIND_HELP)] = "nb",
    run_dir: options.RunDir = None,
    as_json: options.Json = False,
) -> None:
    """Fit a linear model as a baseline."""
    from imdb_transformer.evaluation.baseline import make_baseline
    from imdb_transformer.store.upkeep import run_name, unused

    resolved = options.load(config, overrides, source, text_column, label_column, encoding, bad_rows)
    name = run_name(f"baseline-{kind}", config, resolved.data.source, ending=f"-{kind}")
    folder = run_dir or unused(options.RUNS / name)
    screen.note(f"fitting {kind} on {resolved.data.source} ...")
    fitted = make_baseline(folder, resolved, kind)
    screen.show(fitted.model_dump_json() if as_json else summaries.baseline(fitted))
