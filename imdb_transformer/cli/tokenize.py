"""`imdb-tx tokenize`: trains the tokenizer of a corpus, and encodes it."""

import json
from pathlib import Path

from imdb_transformer.cli import options, screen


@options.for_reviews("""imdb-tx tokenize --config scratch.toml
imdb-tx tokenize reviews.csv --text-column body --label-column stars""")
def tokenize(
    source: options.Source = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = None,
    bad_rows: options.OnBadRows = None,
    config: options.OptionalConfigName = None,
    overrides: options.Overrides = None,
    as_json: options.Json = False,
) -> None:
    """Train the tokenizer, and encode every split.

    The tokenizer learns from training and unlabelled text. With `train.init_from`, it is that of the encoder
    to start from, as in training.
    """
    name = options.config_for(config, source, overrides)
    resolved = options.load(name, overrides, source, text_column, label_column, encoding, bad_rows)
    screen.note(f"tokenizing {resolved.data.source} ...")  # the next imports take seconds
    from imdb_transformer.data import encoded
    from imdb_transformer.data.corpus import ensure, split_path
    from imdb_transformer.data.tokenizer import tokenizer_of_origin
    from imdb_transformer.report import summaries
    from imdb_transformer.store import run

    tokenizer = None
    if init_from := resolved.train.init_from:
        origin = run.of_package(run.SHIPPED_ENCODER) if init_from == run.AUTO else Path(init_from)
        tokenizer = tokenizer_of_origin(origin, resolved)
        screen.note(f"the tokenizer is that of {origin}, as in training")
    stored = ensure(resolved.data)
    names = [name for name in stored.manifest.splits if split_path(stored, name).exists()]
    if not resolved.data.held_out_fraction and "validation" in names:
        names.remove("validation")  # it is part of train
    result = encoded.tokenize(resolved, names, tokenizer)
    if as_json:
        reports = {name: split.report.model_dump() for name, split in result.splits.items()}
        hashes = {"tokenizer_hash": result.tokenizer.content_hash, "corpus_hash": stored.content_hash}
        print(json.dumps({"vocab_size": result.tokenizer.vocab_size, **hashes, "splits": reports}))
    else:
        print(summaries.tokenized(result, resolved.tokenizer))
