"""What each step of a training reads: a pure function of the config, the reviews' lengths and their films.

Shapes: B batch, L length, C classes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imdb_transformer.config import Config, TrainConfig
from imdb_transformer.data.batches import length_batches, pad, padded
from imdb_transformer.data.encoded import EncodedSplit
from imdb_transformer.data.imdb import UNKNOWN
from imdb_transformer.data.tokenizer import PAD_ID
from imdb_transformer.distributed import ALONE, World
from imdb_transformer.hardware import Hardware

Indices = NDArray[np.int64]

# For a set of any size (configs/EXPERIMENTS.md has the sets that it was chosen on).
MIN_REVIEWS, MAX_REVIEWS, BATCHES = 16, 32, 60  # a batch is a 60th of the reviews, within limits
MIN_TOKENS, MAX_TOKENS = 512, 8192
# Steps of a training, and its fewest and most epochs. Dropout keeps a set longer from being learnt by heart.
STEPS_WITHOUT_DROPOUT, STEPS_WITH_DROPOUT = 1000, 1700
MIN_EPOCHS, MAX_FROM_NOTHING, MAX_FROM_ENCODER = 2, 20, 8
SHORT_REVIEW = 60  # tokens, about 250 characters; reviews of fewer on average are short
# With at most so many tokens in a batch, an update of Muon takes a quarter of a step or more. Then an update
# after every eighth step trains as well (configs/EXPERIMENTS.md).
FEW_TOKENS, STEPS_PER_UPDATE = 2048, 8
LENGTH_QUANTILES = (0.4, 0.7, 0.88)  # between groups of reviews of similar length, where films come together


class Batch(NamedTuple):
    """Reviews of like length, ready for the model."""

    ids: Tensor  # (B, L)
    mask: Tensor  # (B, L), true on tokens
    labels: Tensor  # (B,), -1 for none; or (B, C) probabilities
    num_tokens: int  # padding not counted
    stars: Tensor | None = None  # (B,), -1 for unknown
    num_stars: int = 0  # that are known


class Plan(NamedTuple):
    """The batch of every step of every epoch, and what follows each step."""

    batches: list[tuple[int, Indices]]  # (epoch, indices of reviews)
    eval_steps: frozenset[int]  # a validation follows; the first step is 1
    update_sizes: list[int]
    """for each step, how many steps the update of Muon and of the weights' average after it stands for; 0 if
    no update follows"""

    @property
    def num_steps(self) -> int:
        """Optimiser steps of the whole training."""
        return len(self.batches)


def resolved(config: Config, train: EncodedSplit, *, knows_text: bool = False) -> Config:
    """The config with `batch_tokens`, `epochs` and `evals_per_epoch` computed from the data if they are 0.

    A batch has the tokens of a 60th of the reviews, within limits. The number of epochs follows from a number
    of steps, within limits: a small set is read more often than a large one. From an encoder, the model soon
    memorises it, and its probabilities become too sure. Short reviews of two classes need even fewer steps.
    `knows_text` says that the encoder was pretrained on these reviews. Then it learns their labels in one
    epoch or two.
    """
    options = config.train
    num_reviews = min(max(len(train.lengths) / BATCHES, MIN_REVIEWS), MAX_REVIEWS)
    tokens = options.batch_tokens or min(max(num_reviews * train.lengths.mean(), MIN_TOKENS), MAX_TOKENS)
    num_steps, fewest, most = _length_of_training(config, train, knows_text=knows_text)
    epochs = options.epochs or min(max(round(num_steps / steps_per_epoch(train, tokens)), fewest), most)
    num_evals = options.evals_per_epoch or (2 if epochs <= 2 else 1)
    return config.replaced("train", batch_tokens=int(tokens), epochs=epochs, evals_per_epoch=num_evals)


def _length_of_training(config: Config, train: EncodedSplit, *, knows_text: bool) -> tuple[int, int, int]:
    """Steps, and the fewest and most epochs."""
    has_encoder, has_dropout = bool(config.train.init_from), bool(config.model.dropout)
    if knows_text and has_encoder and not has_dropout:
        return 500, 1, 2  # it has to learn the labels only
    num_classes = train.labels.shape[1] if train.labels.ndim == 2 else len(np.unique(train.labels))
    if has_encoder and num_classes == 2 and are_short(train.lengths):
        return 600, 2, MAX_FROM_ENCODER
    num_steps = STEPS_WITH_DROPOUT if has_dropout else STEPS_WITHOUT_DROPOUT
    return num_steps, MIN_EPOCHS, MAX_FROM_ENCODER if has_encoder else MAX_FROM_NOTHING


def are_short(lengths: Sequence[int] | NDArray[np.int64]) -> bool:
    """Whether reviews of these lengths in tokens are short."""
    return bool(np.mean(lengths) < SHORT_REVIEW)


def steps_per_epoch(train: EncodedSplit, batch_tokens: float) -> float:
    """About how many batches an epoch has, one at least."""
    return max(1.0, float(padded(train.lengths).sum() / batch_tokens))


def make_plan(config: Config, train: EncodedSplit) -> Plan:
    """The plan of a training; it ends with a validation."""
    options = config.train
    batches = [
        (epoch, indices)
        for epoch in range(options.epochs)
        for indices in epoch_batches(
            train.lengths,
            batch_tokens=options.batch_tokens,
            seed=options.seed,
            epoch=epoch,
            films=train.films,
        )
    ]
    epochs = np.arange(options.epochs + 1)
    ends = np.searchsorted([epoch for epoch, _ in batches], epochs)  # epochs differ by a batch or two
    eval_epochs = np.arange(1, options.epochs * options.evals_per_epoch + 1) / options.evals_per_epoch
    steps = np.interp(eval_epochs, epochs, ends).round().astype(int).clip(1)
    eval_steps = frozenset(steps.tolist())
    return Plan(batches, eval_steps, update_sizes(options, len(batches), eval_steps))


def update_sizes(config: TrainConfig, num_steps: int, eval_steps: frozenset[int]) -> list[int]:
    """For each step, the number of steps that the update after it stands for, or 0 if none follows.

    With few tokens in a batch, an update follows `STEPS_PER_UPDATE` steps, or fewer before a validation.
    Otherwise it follows every step.
    """
    steps_per_update = STEPS_PER_UPDATE if 0 < config.batch_tokens <= FEW_TOKENS else 1
    sizes, num_waiting = [], 0
    for step in range(1, num_steps + 1):
        num_waiting += 1
        is_due = num_waiting == steps_per_update or step in eval_steps
        sizes.append(num_waiting if is_due else 0)
        num_waiting = 0 if is_due else num_waiting
    return sizes


def epoch_batches(
    lengths: NDArray[np.int64], *, batch_tokens: int, seed: int, epoch: int, films: Indices | None = None
) -> list[Indices]:
    """The batches of one epoch, in order: every review once, like lengths together.

    It is a pure function of its arguments, so a resumed run needs no generator. Before sorting, lengths are
    reduced at random by up to a sixteenth: batches differ between epochs, and padding stays small. With
    `films` (N,), -1 for unknown, the reviews of a film come together in batches of roughly equal lengths.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    if films is None:
        sort_by: NDArray[Any] = lengths * generator.uniform(15 / 16, 1.0, len(lengths))
    else:
        sort_by = _film_order(lengths, films, generator)
    batches = length_batches(lengths, batch_tokens=batch_tokens, sort_by=sort_by)
    return [batches[i] for i in generator.permutation(len(batches))]


def _film_order(lengths: NDArray[np.int64], films: Indices, generator: np.random.Generator) -> Indices:
    """(N,): numbers that sort reviews into groups of similar length, and each group by film.

    The films are in random order.
    """
    blurred = lengths * generator.uniform(0.8, 1.0, len(lengths))
    groups = np.searchsorted(np.quantile(blurred, LENGTH_QUANTILES), blurred)
    unknown = films < 0
    numbers = films.copy()
    numbers[unknown] = films.max(initial=-1) + 1 + np.arange(unknown.sum())  # each its own
    ranks = generator.permutation(numbers.max(initial=0) + 1)
    return groups * len(ranks) + ranks[numbers]


def shares(indices: Indices, num_processes: int, train: EncodedSplit) -> list[Indices]:
    """The reviews of a batch for each process: every n-th one, so that their lengths are similar.

    If films come together in the batch, each process gets neighbours, so that a film stays together.
    """
    if train.films is not None:
        return np.array_split(indices, num_processes)
    return [indices[rank::num_processes] for rank in range(num_processes)]


def get_batch(split: EncodedSplit, indices: Indices, hardware: Hardware, world: World = ALONE) -> Batch:
    """The reviews with these indices as a batch on the device; with several processes, this one's share.

    A process may have no review in a step. Its batch is then the first review, with `num_tokens` 0, and it
    adds zeros to the sums.
    """
    indices = shares(indices, world.size, split)[world.rank]
    rows = indices if len(indices) else np.zeros(1, np.int64)
    reviews = [split.review(i) for i in rows]
    ids = _to_device(pad(reviews), hardware.device)
    labels = _to_device(split.labels[rows], hardware.device)
    num_tokens = sum(map(len, reviews)) if len(indices) else 0
    batch = Batch(ids, ids != PAD_ID, labels, num_tokens)
    if split.stars is None:
        return batch
    stars = split.stars[rows]
    num_stars = int((stars != UNKNOWN).sum())
    return batch._replace(stars=_to_device(stars, hardware.device), num_stars=num_stars)


def _to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array on a device. A GPU copies from pinned memory while the CPU continues."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
