"""Turns a few texts into logits without torch, whose import would take longer.

Shapes: N texts, C classes.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from imdb_transformer import config_file
from imdb_transformer.data.tokenizer import LENGTH_KEYS, tokenizer_of
from imdb_transformer.errors import RunError, command_line
from imdb_transformer.model import plain
from imdb_transformer.store import checkpoint, run

RECIPE = "base.toml"  # to fine-tune an encoder


def check_predicts(opened: run.Run, folder: Path) -> None:
    """Raises RunError for an encoder, which has no classes, and for a run before its first validation."""
    if opened.info.kind == "encoder":
        advice = f"To train a classifier from it: {finetuning_command(opened)}"
        raise RunError(f"{_name_of(opened)} is an encoder and has no classes. {advice}")
    if not folder.exists() and opened.info.status != "finished":
        raise RunError(f"{opened.folder} cannot predict yet: its training has not reached a validation.")


def _name_of(opened: run.Run) -> str | Path:
    """How a command names a run: one of the package by its name alone."""
    return opened.folder.name if opened.is_shipped else opened.folder


def finetuning_command(opened: run.Run) -> str:
    """The command that fine-tunes an encoder: the shipped recipe, with the run's sizes and reviews."""
    is_labelled = bool(opened.config.data.label_column)
    data = set() if is_labelled else {"source", "label_column"}
    excluded = {"data": data, "tokenizer": LENGTH_KEYS, "model": run.FREE_MODEL_KEYS}
    sets = config_file.set_options(opened.config, config_file.load(RECIPE), excluded)
    reviews = [] if is_labelled else ["labelled.csv", "--label-column", "COLUMN"]
    return command_line("train", *reviews, "--config", RECIPE, *sets, "--init-from", _name_of(opened))


class PlainModel:
    """The classifier of a checkpoint, computed a text at a time by `model/plain.py`, without torch."""

    precision = "fp32"

    def __init__(self, opened: run.Run, folder: Path) -> None:
        """From a run and the folder of one of its checkpoints. Raises RunError if they do not fit."""
        check_predicts(opened, folder)
        self.origin, self.checkpoint = opened, folder
        self.config, self.tokenizer = opened.config.model, tokenizer_of(opened)
        self.classes, self.temperature = opened.info.classes, opened.temperature_of(folder)
        tokenizer_hash = opened.info.tokenizer_hash
        self.step, self.weights = checkpoint.read_model(folder, tokenizer_hash=tokenizer_hash)
        blocks = {name.split(".")[2] for name in self.weights if name.startswith("encoder.blocks.")}
        if len(blocks) != self.config.num_layers:
            depths = f"{len(blocks)}, and in the run's config {self.config.num_layers}"
            raise RunError(f"{folder} does not fit its run: the number of blocks is {depths}.")

    def logits(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, C) logits of one or more texts."""
        reviews = self.tokenizer.encode(texts)
        rows = [plain.logits(ids.astype(np.int64), self.weights, self.config) for ids in reviews]
        return np.stack(rows).astype(np.float32)
