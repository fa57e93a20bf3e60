"""`imdb-tx download` and `imdb-tx tokenize`: import a corpus, train its tokenizer, and encode it."""

import json
from typing import Annotated

import typer

from imdb_transformer.cli import options, screen


@options.command(
    options.DATA,
    """imdb-tx download
imdb-tx download --source reviews.csv --text-column body""",
)
def download(
    source: Annotated[str, typer.Option(metavar="SOURCE", help="hub, demo, or a path or URL.")] = "hub",
    data_dir: Annotated[str, typer.Option(metavar="FOLDER", help="Where corpora are stored.")] = "data",
    text_column: options.TextColumn = "text",
    label_column: options.LabelColumn = "label",
    encoding: options.Encoding = "utf-8",
    bad_rows: options.OnBadRows = "fail",
    as_json: options.Json = False,
) -> None:
    """Import a corpus, check it, and show its statistics."""
    from imdb_transformer import config_file
    from imdb_transformer.data import corpus
    from imdb_transformer.data.reviews import SPLITS
    from imdb_transformer.report import summaries

    data = {
        "source": source, "data_dir": data_dir, "text_column": text_column, "label_column": label_column,
        "encoding": encoding, "bad_rows": bad_rows,
    }  # fmt: skip
    config = config_file.parse({"data": data}, origin="command line").data
    stored = corpus.ensure(config, needs=SPLITS)
    if as_json:
        place = {"folder": str(stored.folder), "content_hash": stored.content_hash}
        print(json.dumps(place | {"was_there": not stored.is_new} | stored.manifest.model_dump(mode="json")))
    else:
        print(summaries.corpus(stored))


@options.command(
    options.DATA,
    """imdb-tx tokenize --config scratch.toml
imdb-tx tokenize reviews.csv --text-column body --label-column stars""",
)
def tokenize(
    source: options.Source = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = None,
    bad_rows: options.OnBadRows = None,
    config: options.NamedConfig = None,
    overrides: options.Overrides = None,
    as_json: options.Json = False,
) -> None:
    """Train the tokenizer, and encode every split.

    The tokenizer learns from training and unlabelled text.
    """
    name = options.config_for(config, source)
    resolved = options.load_config(name, overrides, source, text_column, label_column, encoding, bad_rows)
    screen.note(f"tokenizing {resolved.data.source} ...")  # the next imports take seconds
    from imdb_transformer.data import encoded
    from imdb_transformer.data.corpus import ensure, split_path
    from imdb_transformer.report import summaries

    stored = ensure(resolved.data)
    names = [name for name in stored.manifest.splits if split_path(stored, name).exists()]
    if not resolved.data.held_out_fraction and "validation" in names:
        names.remove("validation")  # it is part of train
    result = encoded.tokenize(resolved, names)
    if as_json:
        reports = {name: split.report.model_dump() for name, split in result.splits.items()}
        hashes = {"tokenizer_hash": result.tokenizer.content_hash, "corpus_hash": stored.content_hash}
        print(json.dumps({"vocab_size": result.tokenizer.vocab_size, **hashes, "splits": reports}))
    else:
        print(summaries.tokenized(result, resolved.tokenizer))
