"""Checkpoints: arrays and counters on disk, whole or absent, verified when loaded. No pickle, and no torch.

A checkpoint is a folder of
model.safetensors      the weights to predict with
training.safetensors   in `last` and `previous`: moments of the optimiser, raw weights if there are averages
checkpoint.json        counters, hashes of the two files, hash of the tokenizer

Matrices in the package have 8 bits (`dequantized`).
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from imdb_transformer.errors import RunError, reason_of
from imdb_transformer.store.files import read_json, sha256_of, whole_folder, write_json

if TYPE_CHECKING:  # a run's files can be read without torch
    from torch import Tensor, nn

Arrays = Mapping[str, NDArray[Any]]

META, MODEL, TRAINING = "checkpoint.json", "model.safetensors", "training.safetensors"
FACTORS = ".factors"  # the ending of the tensor that marks a matrix in 8 bits


class Checkpoint(BaseModel, extra="forbid", frozen=True):
    """`checkpoint.json`."""

    step: int
    counters: dict[str, Any]
    tokenizer_hash: str
    file_hashes: dict[str, str]


def save(
    folder: Path, *, step: int, counters: Mapping[str, Any], tokenizer_hash: str,
    model: Arrays, training: Arrays | None = None, former: Path | None = None,
) -> None:  # fmt: skip
    """Writes a checkpoint to `folder`. Then the old one is renamed to `former`, or deleted."""
    with whole_folder(folder, former=former) as temporary:
        contents = {MODEL: model} if training is None else {MODEL: model, TRAINING: training}
        for name, arrays in contents.items():
            _write(temporary / name, arrays)
        hashes = {name: sha256_of(temporary / name) for name in contents}
        meta = Checkpoint(
            step=step, counters=dict(counters), tokenizer_hash=tokenizer_hash, file_hashes=hashes
        )
        write_json(temporary / META, meta)


def arrays_of(tensors: "Mapping[str, Tensor]") -> Arrays:
    """Tensors of any device as arrays."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def _write(path: Path, arrays: Arrays) -> None:
    path.touch()
    mode = path.stat().st_mode  # by the umask; safetensors gives its files to their owner only
    try:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
        path.chmod(mode)
    except SafetensorError as error:  # its text holds the system's error
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None


def read_meta(folder: Path, *, tokenizer_hash: str) -> Checkpoint:
    """`checkpoint.json` of a folder. Raises RunError if it is missing, damaged or of another tokenizer.

    Raises PermissionError if it may not be read.
    """
    path = folder / META
    try:
        meta = read_json(path, Checkpoint)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise RunError(f"{folder} holds no checkpoint ({META} is missing).") from None
    except ValueError:
        raise RunError(f"{path} is damaged.") from None
    if meta.tokenizer_hash != tokenizer_hash:
        raise RunError(
            f"{folder} was made with a different vocabulary: the run's tokenizer.json, or a linear run's "
            "ngrams.txt, has changed."
        )
    return meta


def read_model(folder: Path, *, tokenizer_hash: str) -> tuple[int, Arrays]:
    """A checkpoint's step, and the weights to predict with. Raises as `read_meta` and `load_arrays` do."""
    while True:
        meta = read_meta(folder, tokenizer_hash=tokenizer_hash)
        try:
            return meta.step, load_arrays(folder, MODEL, meta)
        except RunError:
            if read_meta(folder, tokenizer_hash=tokenizer_hash) == meta:
                raise
        # A training has replaced the checkpoint in the meantime.


def load_arrays(folder: Path, name: str, meta: Checkpoint) -> Arrays:
    """The arrays of one file of a checkpoint, its hash verified. Raises RunError and PermissionError."""
    path = folder / name
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != meta.file_hashes.get(name):
            raise RunError(f"{path} is damaged: its checksum is not the one in {META}.")
        return dequantized(load(content))
    except PermissionError:  # no damage: another user may read it
        raise
    except (OSError, SafetensorError, ValueError) as error:
        reason = getattr(error, "strerror", None) or reason_of(error)
        raise RunError(f"{path} cannot be read: {reason}.") from None


def check_shapes(expected: "Mapping[str, Tensor]", arrays: Arrays, *, origin: Path) -> None:
    """Raises RunError if arrays of a file differ in name or shape from the tensors of the run's model."""
    for name in expected.keys() | arrays.keys():
        in_model = tuple(expected[name].shape) if name in expected else "absent"
        in_file = arrays[name].shape if name in arrays else "absent"
        if in_model != in_file:
            raise RunError(
                f"{origin} belongs to another model than the run's config: {name} is {in_file} in the file "
                f"and {in_model} in the model."
            )


def load_weights(model: "nn.Module", arrays: Arrays, *, origin: Path) -> None:
    """Copies arrays into a model's parameters. Raises RunError if names or shapes differ."""
    import torch

    check_shapes(model.state_dict(), arrays, origin=origin)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})


def dequantized(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays, matrices of 8 bits in fp32, others as they are. Raises ValueError if shapes differ.

    Such a matrix has integers (int8), and factors (fp32) for equal groups of a row (`scripts/ship.py`).
    """
    result = {}
    for name, array in arrays.items():
        if (factors := arrays.get(name + FACTORS)) is not None:
            factors = factors.reshape(len(array), -1)
            width = array.shape[1] // factors.shape[1]
            result[name] = array.astype(np.float32) * factors.repeat(width, axis=1)
        elif not name.endswith(FACTORS):
            result[name] = array
    return result
