"""The command that comes after a training, and the name and folder of a new run."""

import json
from contextlib import suppress
from itertools import chain, count
from pathlib import Path

from imdb_transformer.errors import RunError, command_line

RECIPE = "base.toml"  # for a pretrained encoder


def run_name(usual: str, config: str, source: str, *, ending: str = "") -> str:
    """A new run's name: `usual`, or that of the reviews and `ending` if a shipped config trains on a table.

    A folder with `train.csv` or the like counts as a table.
    """
    path = Path(source)
    is_table = path.is_file() and not path.name.endswith((".tar.gz", ".tgz", ".tar"))
    if Path(config).is_file() or not (is_table or any(path.glob("train.*"))):
        return usual
    name = path.name.split(".")[0] if is_table else path.resolve().name
    return ("-".join(name.split()) or usual) + ending  # it needs no quotes


def unused(folder: Path) -> Path:
    """The folder, or else the first of FOLDER-2, FOLDER-3 and so on that does not exist yet."""
    others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(path for path in chain([folder], others) if not path.exists())


def evaluation(folder: str) -> str:
    """The command that evaluates a run, on validation or other reviews if its own have no test split."""
    from imdb_transformer.data import corpus
    from imdb_transformer.store import run

    with suppress(RunError):
        opened = run.open_run(Path(folder))
        config = opened.config.data
        stored = corpus.find_stored(config, opened.info.corpus_hash)
        if stored and "test" not in stored.manifest.splits:
            other = ("--split", "validation") if config.held_out_fraction else ("--source", "labelled.csv")
            return command_line("eval", folder, *other)
    return command_line("eval", folder)


def finetuning(folder: str) -> str:
    """The command that fine-tunes an encoder: the shipped recipe, with the run's sizes and reviews."""
    from imdb_transformer import config_file
    from imdb_transformer.store import run
    from imdb_transformer.training.starting_weights import FREE

    config, recipe, sets = run.open_run(Path(folder)).config, config_file.load(RECIPE), []
    is_labelled = bool(config.data.label_column)
    data = set() if is_labelled else {"source", "label_column"}
    free = {"data": data, "tokenizer": {"max_length", "tail_length"}, "model": FREE}
    for section in free:
        usual = getattr(recipe, section).model_dump()
        for key, value in getattr(config, section).model_dump(exclude=free[section]).items():
            if value != usual[key]:
                is_plain = isinstance(value, str) and config_file.toml_value(value) == value
                written = value if is_plain else json.dumps(value, ensure_ascii=False)
                sets += ["--set", f"{section}.{key}={written}"]
    reviews = [] if is_labelled else ["labelled.csv"]
    return command_line("train", *reviews, "--config", RECIPE, *sets, "--init-from", folder)
