"""A training of the tiny config in this process, to its end or to a step."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from imdb_transformer import hardware
from imdb_transformer.config import Config
from imdb_transformer.data.encoded import TokenizedCorpus, tokenize, training_splits
from imdb_transformer.store import run
from imdb_transformer.training import loop, starting_weights
from imdb_transformer.training.prepare import prepare, prepare_again
from imdb_transformer.training.stop import SIGNALS, StopRequest

Tiny = Callable[..., Config]
CPU = hardware.Hardware(torch.device("cpu"), torch.float32)


def prepared(config: Config) -> TokenizedCorpus:
    return tokenize(config, training_splits(config.data))


def train(
    config: Config, folder: Path, stop_after: int | None = None,
    *, kind: run.Kind = "classifier", teachers: Sequence[Path] = (),
) -> run.Run:  # fmt: skip
    """Trains to the end, or asks to stop after a step; continues a run that is there."""
    chosen = hardware.choose(config.train)
    if folder.exists():
        opened = run.open_run(folder)
        task = prepare_again(opened, chosen)
    else:
        made = prepare(config, kind, chosen, teachers=teachers)
        starting_weights.fit_ngrams(made.task.model, made.data.splits["train"])
        task, opened = made.task, loop.start(folder, made, chosen)
    stop = StopRequest()
    for update in loop.train(opened, task, chosen, stop):
        if update.step == stop_after:
            stop.signal = SIGNALS[1]
    return run.open_run(folder)


def weights(folder: Path) -> dict[str, dict[str, bytes]]:
    """The tensors' files of `best` and `last`."""
    return {
        name: {
            path.name: path.read_bytes() for path in sorted(folder.glob(f"checkpoints/{name}/*.safetensors"))
        }
        for name in ("best", "last")
    }
