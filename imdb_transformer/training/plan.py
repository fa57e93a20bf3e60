"""What each step of a training reads: a pure function of the config and the reviews' lengths."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.config import Config
from imdb_transformer.data.batches import batch_plan
from imdb_transformer.data.encoded import EncodedSplit
from imdb_transformer.distributed import ALONE, World
from imdb_transformer.errors import ConfigError
from imdb_transformer.hardware import Hardware
from imdb_transformer.inference.logits import Batch, length_multiple, make_batch

Indices = NDArray[np.int64]


class Plan(NamedTuple):
    """Every batch of every epoch, and the steps after which to validate."""

    batches: list[tuple[int, Indices]]  # (epoch, indices of reviews)
    accumulate: int
    eval_steps: frozenset[int]

    @property
    def num_steps(self) -> int:
        """Optimiser steps of the whole training."""
        return math.ceil(len(self.batches) / self.accumulate)

    def of_step(self, step: int) -> list[tuple[int, Indices]]:
        """The batches of one step."""
        return self.batches[step * self.accumulate : (step + 1) * self.accumulate]


def make_plan(config: Config, train: EncodedSplit) -> Plan:
    """The plan of a training; it ends with a validation. Raises ConfigError for too long a warm-up."""
    options = config.train
    batches = [
        (epoch, indices)
        for epoch in range(options.epochs)
        for indices in batch_plan(
            train.lengths,
            batch_tokens=options.batch_tokens,
            multiple=length_multiple(config.model),
            seed=options.seed,
            epoch=epoch,
        )
    ]
    plan = Plan(batches, options.accumulate, frozenset())
    if options.warmup_steps > plan.num_steps:
        raise ConfigError(
            f"train.warmup_steps ({options.warmup_steps:,}) exceeds the training's {plan.num_steps:,} steps; "
            "lower it, or give train.warmup_fraction instead."
        )
    num_evals = options.epochs * options.evals_per_epoch
    eval_steps = {max(1, round(plan.num_steps * i / num_evals)) for i in range(1, num_evals + 1)}
    return plan._replace(eval_steps=frozenset(eval_steps))


def gather(
    config: Config, split: EncodedSplit, indices: Indices, hardware: Hardware, world: World = ALONE
) -> Batch:
    """The reviews with these indices, or of several processes this one's share, as a batch on the device.

    They are dealt out in turns, so that every process has like lengths; the last may have none.
    """
    own = indices[world.rank :: world.size]
    reviews = [split.review(i) for i in own]
    multiple = length_multiple(config.model)
    return make_batch(reviews, split.labels[own], multiple=multiple, device=hardware.device)
