"""`imdb-tx download` and `tokenize`: import a corpus, and encode it."""

import json
import sys
from typing import Annotated

import typer

from imdb_transformer.cli import options
from imdb_transformer.cli.options import app


@app.command()
def download(
    source: Annotated[str, typer.Option(help="hub, demo, or a path or URL.")] = "hub",
    data_dir: Annotated[str, typer.Option(help="Folder of stored corpora.")] = "data",
    text_column: Annotated[str, typer.Option(help="Of a table: column with the review.")] = "text",
    label_column: Annotated[str, typer.Option(help="Of a table: column with the label.")] = "label",
    as_json: options.Json = False,
) -> None:
    """Import a corpus, check it, and show its statistics."""
    from imdb_transformer import config_file
    from imdb_transformer.data import corpus
    from imdb_transformer.data.reviews import SPLITS
    from imdb_transformer.report import summaries

    data = {"source": source, "data_dir": data_dir, "text_column": text_column, "label_column": label_column}
    config = config_file.parse({"data": data}, origin="command line").data
    stored, was_there = corpus.ensure(config, needs=SPLITS)
    if as_json:
        place = {"folder": str(stored.folder), "was_there": was_there, "content_hash": stored.content_hash}
        print(json.dumps(place | stored.manifest.model_dump(mode="json")))
    else:
        print(summaries.corpus(stored, was_there=was_there))


@app.command()
def tokenize(
    config: options.Config = "demo.toml", overrides: options.Overrides = None, as_json: options.Json = False
) -> None:
    """Train the tokenizer, and encode every split.

    The tokenizer learns from training and unlabelled text.
    """
    from imdb_transformer import config_file
    from imdb_transformer.data import encoded
    from imdb_transformer.data.corpus import ensure, split_path
    from imdb_transformer.report import summaries

    resolved = config_file.load(config, overrides or ())
    stored, _ = ensure(resolved.data)
    names = [name for name in stored.manifest.splits if split_path(stored, name).exists()]
    if not resolved.data.validation and "validation" in names:
        names.remove("validation")  # it is part of train
    print(f"tokenizing {stored.folder} ...", file=sys.stderr)
    result = encoded.tokenize(resolved, names)
    if as_json:
        reports = {name: split.report.model_dump() for name, split in result.splits.items()}
        hashes = {"tokenizer_hash": result.tokenizer.content_hash, "corpus_hash": stored.content_hash}
        print(json.dumps({"vocab_size": result.tokenizer.vocab_size, **hashes, "splits": reports}))
    else:
        print(summaries.tokenized(result, resolved.tokenizer))
