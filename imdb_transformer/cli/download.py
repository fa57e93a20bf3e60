"""`imdb-tx download`: imports a corpus, checks it, and shows its statistics."""

import json
from typing import Annotated

import typer

from imdb_transformer.cli import options
from imdb_transformer.errors import ConfigError

SOURCE_HELP = "hub, demo, or a path or URL.  [default: hub]"
Source = Annotated[str | None, typer.Argument(metavar="SOURCE", help=SOURCE_HELP, show_default=False)]


@options.for_reviews("""imdb-tx download
imdb-tx download reviews.csv --text-column body --label-column stars""")
def download(
    source: Source = None,
    source_option: Annotated[str | None, typer.Option("--source", hidden=True)] = None,
    data_dir: Annotated[str, typer.Option(metavar="FOLDER", help="Where corpora are stored.")] = "data",
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = None,
    bad_rows: options.OnBadRows = None,
    as_json: options.Json = False,
) -> None:
    """Import a corpus, check it, and show its statistics."""
    from imdb_transformer.config_file import shipped
    from imdb_transformer.data import corpus
    from imdb_transformer.data.reviews import SPLITS
    from imdb_transformer.report import summaries

    if source and source_option:
        raise ConfigError("Name one source: SOURCE, or the same as --source SOURCE.")
    columns = (text_column, label_column, encoding, bad_rows)
    defaults = str(shipped()["base.toml"])  # the path: a file of that name may be here, too
    config = options.load(defaults, None, source or source_option, *columns, data_dir=data_dir).data
    stored = corpus.ensure(config, needs=SPLITS)
    if as_json:
        place = {"folder": str(stored.folder), "content_hash": stored.content_hash}
        print(json.dumps(place | {"was_stored": not stored.is_new} | stored.manifest.model_dump(mode="json")))
    else:
        print(summaries.corpus(stored))
