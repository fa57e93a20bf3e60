"""The cost of a training before it starts: parameters, FLOPs, memory and time.

FLOPs and time are measured on forward and backward passes over one batch of the plan, or a part of it, and
scaled to the whole plan by tokens. The optimisers are timed with and without an update of Muon.
"""

import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from imdb_transformer.data.batches import batch_length
from imdb_transformer.hardware import Hardware
from imdb_transformer.model.language import LanguageModel
from imdb_transformer.training.objectives import GUESSES, OBJECTIVES
from imdb_transformer.training.optimizers import AdamW, Muon, make_optimizers, moments
from imdb_transformer.training.plan import Batch, Indices, get_batch, make_plan
from imdb_transformer.training.prepare import Prepared
from imdb_transformer.training.step import VALIDATION_SHARE

NUM_TIMED = 3
MAX_TRIED_TOKENS = 8192  # of a batch on a CPU: a batch for a GPU could take all memory of a laptop
# For each token of a batch: gaps left by batches of other sizes, and code compiled for those sizes.
# Measured as the largest resident size less one batch's share (demo and scratch.toml 33 KiB, pretrain 46).
GAP_BYTES = 36 << 10
PARTS = {
    "norm": "layer norms",
    "embedding": "embedding",
    "attention": "attention",
    "feed_forward": "feed-forward",
}  # By a word of a parameter's name, the part of the model that it belongs to


class Estimate(BaseModel):
    """The cost of a training."""

    hardware: str
    parameters: dict[str, int]
    num_reviews: dict[str, int]  # of each split, those held out included
    tokens_per_epoch: int  # of train, padding not counted
    steps_per_epoch: float
    num_steps: int
    flops: float  # of all forward and backward passes of training
    memory_bytes: int  # weights, gradients, moments and the largest batch's activations
    resident_bytes: int | None
    """of the whole process on a CPU, with Python, torch and the reviews; None on a GPU"""
    seconds: float  # steps and validations
    adapt_epochs: int = 0
    """of an encoder's run before (`adapt.py`), which is in `flops`, the two memories and `seconds`"""

    def after(self, other: "Estimate", epochs: int) -> "Estimate":
        """The cost including an encoder's run before, which has `epochs` epochs."""
        return self.model_copy(update={
            "adapt_epochs": epochs, "flops": self.flops + other.flops,
            "seconds": self.seconds + other.seconds,
            "memory_bytes": max(self.memory_bytes, other.memory_bytes),
            "resident_bytes": self.resident_bytes and max(self.resident_bytes, other.resident_bytes or 0),
        })  # fmt: skip


def estimate(prepared: Prepared) -> Estimate:
    """The cost of a training on this machine. It changes the model's weights: do not train it afterwards."""
    config, hardware, model = prepared.config, prepared.hardware, prepared.model
    train, validation = prepared.train, prepared.validation
    plan = make_plan(config, train)
    sizes = [len(indices) * batch_length(int(train.lengths[indices].max())) for _, indices in plan.batches]
    typical, largest = int(np.argsort(sizes, kind="stable")[len(sizes) // 2]), int(np.argmax(sizes))
    batch, peak_before = _tried_batch(prepared, plan.batches[typical][1]), _peak_resident_bytes()
    with FlopCounterMode(display=False) as counter:
        _learn(prepared, batch)  # also warms up
    seconds = _seconds(partial(_learn, prepared, batch), hardware)
    answer_seconds = _seconds(partial(_predict, prepared, batch), hardware) if validation else 0.0
    tried = _tried_batch(prepared, plan.batches[largest][1])
    scale = sizes[largest] / tried.ids.numel()
    activations = int(scale * _activation_bytes(prepared, tried))
    num_batches = sum(sizes) / batch.ids.numel()  # of the size that was tried
    num_validated = len(plan.eval_steps) * int(validation.lengths.sum()) if validation else 0
    parameters = parameters_by_part(model)
    peak_bytes = _peak_resident_bytes()
    optimizers = make_optimizers(model, config.train, hardware.dtype)
    # What training adds to this process: moments, and the moving average of the weights. All are fp32.
    num_added = sum(moment.numel() for moment in moments(optimizers, model).values())
    num_added += parameters["total"] * bool(config.train.ema_decay)
    resident = peak_before + scale * (peak_bytes - peak_before)
    resident += 4 * num_added + GAP_BYTES * config.train.batch_tokens
    return Estimate(
        hardware=hardware.describe(),
        parameters=parameters,
        num_reviews=_num_reviews(prepared),
        tokens_per_epoch=int(train.lengths.sum()),
        steps_per_epoch=round(plan.num_steps / config.train.epochs, 1),
        num_steps=plan.num_steps,
        flops=counter.get_total_flops() * num_batches,
        memory_bytes=4 * (2 * parameters["total"] + num_added) + activations,  # with weights and gradients
        resident_bytes=None if hardware.device.type == "cuda" else int(resident),
        seconds=seconds * num_batches
        + _seconds_of_updates(optimizers, config.train.lr, plan.update_sizes, hardware)
        + answer_seconds * num_validated / batch.num_tokens,
    )


def _seconds_of_updates(
    optimizers: list[AdamW | Muon], lr: float, update_sizes: list[int], hardware: Hardware
) -> float:
    """The time of the optimisers in all steps. Some steps may have no update of Muon."""

    def update(update_size: int) -> None:
        for optimizer in optimizers:
            optimizer.step(lr, 0, update_size)

    num_without = update_sizes.count(0)
    seconds_with, seconds_without = (_seconds(partial(update, size), hardware) for size in (1, 0))
    return (len(update_sizes) - num_without) * seconds_with + num_without * seconds_without


def _tried_batch(prepared: Prepared, indices: Indices) -> Batch:
    """A batch of the plan, or on a CPU as many of its reviews as have `MAX_TRIED_TOKENS`, at least one."""
    train, hardware = prepared.train, prepared.hardware
    num_tried = len(indices)
    if hardware.device.type == "cpu":
        num_tried = max(1, MAX_TRIED_TOKENS // batch_length(int(train.lengths[indices].max())))
    return get_batch(train, indices[:num_tried], hardware)


def _num_reviews(prepared: Prepared) -> dict[str, int]:
    """By split. Without validation, its reviews are in train."""
    numbers = {name: split.num_rows for name, split in prepared.corpus.manifest.splits.items()}
    if not prepared.config.data.held_out_fraction:
        numbers["train"] += numbers.pop("validation")
    return numbers


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """Number of parameters of embedding, attention, feed-forward, layer norms and head, and in total."""
    parts = dict.fromkeys(("embedding", "attention", "feed-forward", "layer norms", "head"), 0)
    for name, parameter in model.named_parameters():
        part = next((part for word, part in PARTS.items() if word in name), "head")
        parts[part] += parameter.numel()
    return {**parts, "total": sum(parts.values())}


def _learn(prepared: Prepared, batch: Batch) -> None:
    """A forward and a backward pass in training."""
    objective, model = OBJECTIVES[prepared.kind], prepared.model.train()
    loss, count = objective(model, batch, prepared.config, prepared.hardware.dtype, 0.0)["loss"]
    (loss / count).backward()


@torch.inference_mode()
def _predict(prepared: Prepared, batch: Batch) -> None:
    """A forward pass as in validation."""
    model, dtype = prepared.model.eval(), prepared.hardware.dtype
    if isinstance(model, LanguageModel):
        guess = GUESSES[prepared.config.pretrain.objective]
        model.full_loss(*guess(model, batch, dtype, VALIDATION_SHARE))
    else:
        model(batch.ids, batch.mask, dtype)


def _seconds(work: Callable[[], object], hardware: Hardware) -> float:
    """Median time of some work."""
    timings = []
    for _ in range(NUM_TIMED):
        began = time.perf_counter()
        work()
        if hardware.device.type == "cuda":
            torch.cuda.synchronize()
        timings.append(time.perf_counter() - began)
    return float(np.median(timings))


def _peak_resident_bytes() -> int:
    """The largest resident size of this process so far.

    On Linux, `ru_maxrss` includes the parent process from before the start, so VmHWM is read instead.
    """
    if sys.platform.startswith("linux"):
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _activation_bytes(prepared: Prepared, batch: Batch) -> int:
    """Bytes that a forward pass keeps for the backward pass, each storage counted once."""
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        _learn(prepared, batch)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in prepared.model.parameters()}
    return sum(size for pointer, size in storages.items() if pointer not in parameters)
