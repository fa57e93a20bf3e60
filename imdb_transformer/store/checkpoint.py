"""Tensors and counters on disk: safetensors and JSON, whole or absent, verified when loaded. No pickle.

A checkpoint is a folder: `model.safetensors` (the weights to predict with), `training.safetensors`
(in `last` and `previous`: the optimiser's moments, and the raw weights where those to predict with are
averaged),
and `checkpoint.json` (counters, hashes of the two files, hash of the tokenizer).
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from imdb_transformer.errors import RunError
from imdb_transformer.store.files import sha256_of, whole_folder
from imdb_transformer.store.sealed import read_sealed, write_sealed

META, MODEL, TRAINING = "checkpoint.json", "model.safetensors", "training.safetensors"


class Checkpoint(BaseModel):
    """`checkpoint.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int
    counters: dict[str, Any]
    tokenizer_hash: str
    file_hashes: dict[str, str]


def save(
    folder: Path, *, step: int, counters: Mapping[str, Any], tokenizer_hash: str,
    model: Mapping[str, Tensor], training: Mapping[str, Tensor] | None = None, former: Path | None = None,
) -> None:  # fmt: skip
    """Writes a checkpoint in the place of the one in `folder`, which goes only when the new one is there.

    It goes to the folder `former`, if one is named.
    """
    with whole_folder(folder, former=former) as temporary:
        contents = {MODEL: model} if training is None else {MODEL: model, TRAINING: training}
        for name, tensors in contents.items():
            _write(temporary / name, tensors)
        meta = Checkpoint(
            step=step,
            counters=dict(counters),
            tokenizer_hash=tokenizer_hash,
            file_hashes={name: sha256_of(temporary / name) for name in contents},
        )
        write_sealed(temporary / META, meta)


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:
        save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, path)
    except SafetensorError as error:  # which holds the system's error as text
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None


def read_meta(folder: Path, *, tokenizer_hash: str) -> Checkpoint:
    """`checkpoint.json` of a folder. Raises RunError where it is missing, damaged or of another tokenizer."""
    path = folder / META
    try:
        meta = read_sealed(path, Checkpoint)
    except OSError:
        raise RunError(f"{folder} holds no checkpoint ({META} is missing).") from None
    except ValueError:
        raise RunError(f"{path} is damaged.") from None
    if meta.tokenizer_hash != tokenizer_hash:
        raise RunError(
            f"{folder} belongs to another tokenizer than the run's tokenizer.json: its ids mean other words."
        )
    return meta


def load_tensors(folder: Path, name: str, meta: Checkpoint) -> dict[str, Tensor]:
    """The tensors of one file of a checkpoint, its hash verified. Raises RunError."""
    path = folder / name
    if name not in meta.file_hashes:
        raise RunError(f"{folder} has no {name}: training continues from a run's checkpoints/last.")
    try:
        if sha256_of(path) != meta.file_hashes[name]:
            raise RunError(f"{path} is damaged: its checksum is not the one in {META}.")
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read: {' '.join(str(error).split())}.") from None


def check_same(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], *, origin: Path) -> None:
    """Raises RunError where names or shapes differ from those of the run's own model."""
    for name in own.keys() | tensors.keys():
        here = tuple(own[name].shape) if name in own else "absent"
        there = tuple(tensors[name].shape) if name in tensors else "absent"
        if here != there:
            raise RunError(
                f"{origin} is of another model than the run's config: {name} is {there} in the file and "
                f"{here} in the model."
            )


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], *, origin: Path) -> None:
    """Copies tensors into a model's parameters. Raises RunError where names or shapes differ."""
    own = model.state_dict()
    check_same(own, tensors, origin=origin)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
