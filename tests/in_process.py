"""A training of the tiny config in this process, to its end or to a step."""

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from imdb_transformer import hardware
from imdb_transformer.config import Config
from imdb_transformer.data.encoded import TokenizedCorpus, tokenize, training_splits
from imdb_transformer.store import run
from imdb_transformer.training.start import training_steps

Tiny = Callable[..., Config]
CPU = hardware.Hardware(torch.device("cpu"), torch.float32)


def prepared(config: Config) -> TokenizedCorpus:
    return tokenize(config, training_splits(config.data))


def train(
    config: Config, folder: Path, stop_after: int | None = None,
    *, kind: run.Kind = "classifier", teachers: Sequence[Path] = (),
) -> run.Run:  # fmt: skip
    """Trains to the end, or until SIGTERM comes after a step; continues a run that is in the folder."""
    resumed = folder.exists()
    steps = training_steps(None if resumed else config, folder, kind, teachers=teachers, resume=resumed)
    for update in steps:
        if update.step == stop_after:
            signal.raise_signal(signal.SIGTERM)
    return run.locate(folder)[0]


def weights(folder: Path) -> dict[str, dict[str, bytes]]:
    """The tensors' files of `best` and `last`."""
    return {
        name: {
            path.name: path.read_bytes() for path in sorted(folder.glob(f"checkpoints/{name}/*.safetensors"))
        }
        for name in ("best", "last")
    }
