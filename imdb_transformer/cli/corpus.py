"""`download` and `tokenize`: reviews become a stored corpus and encoded splits."""

import json
import sys
from typing import Annotated

import typer

from imdb_transformer.cli.options import DEFAULT_CONFIG, ConfigOption, JsonOption, SetOption, app
from imdb_transformer.report import trainings


@app.command()
def download(
    source: Annotated[str, typer.Option(help="hub, demo, or a path or URL.")] = "hub",
    data_dir: Annotated[str, typer.Option(help="Folder that keeps stored corpora.")] = "data",
    text_column: Annotated[str, typer.Option(help="Column with the review, in tables.")] = "text",
    label_column: Annotated[str, typer.Option(help="Column with the class, in tables.")] = "label",
    as_json: JsonOption = False,
) -> None:
    """Import a corpus, check it, and show what is in it."""
    from imdb_transformer import config_file
    from imdb_transformer.data import corpus
    from imdb_transformer.data.reviews import SPLITS

    data = {"source": source, "data_dir": data_dir, "text_column": text_column, "label_column": label_column}
    config = config_file.parse({"data": data}, origin="command line").data
    stored, was_there = corpus.ensure(config, needs=SPLITS)
    if as_json:
        place = {"folder": str(stored.folder), "was_there": was_there, "content_hash": stored.content_hash}
        print(json.dumps(place | stored.manifest.model_dump(mode="json")))
    else:
        print(trainings.corpus(stored, was_there=was_there))


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
        print(trainings.tokenized(result, resolved.tokenizer))
