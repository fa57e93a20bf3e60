"""One optimiser step, and the state that steps change."""

import copy
import math
from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from imdb_transformer.config import TrainConfig
from imdb_transformer.distributed import ALONE, World
from imdb_transformer.errors import DivergedError
from imdb_transformer.hardware import Hardware
from imdb_transformer.training.optimizers import make_optimizers, moments
from imdb_transformer.training.plan import Batch
from imdb_transformer.training.task import BatchLoss, Objective


class Learner(NamedTuple):
    """A model in training, its optimisers, and the model to predict with (itself, or its moving average)."""

    model: nn.Module
    averaged: nn.Module
    optimizers: list[torch.optim.Optimizer]


class StepResult(NamedTuple):
    """What a step saw, before its update."""

    loss: float
    figures: dict[str, float]
    gradient_norm: float
    num_tokens: int


class Seen(NamedTuple):
    """Sums over the batches of a step: of the loss, of tokens, and of each figure with what divides it."""

    loss: float
    num_tokens: int
    figures: dict[str, tuple[float, float]]

    def plus(self, other: "Seen") -> "Seen":
        """The sums over both."""
        figures = dict(self.figures)
        for name, (total, count) in other.figures.items():
            before = figures.get(name, (0.0, 0.0))
            figures[name] = (before[0] + total, before[1] + count)
        return Seen(self.loss + other.loss, self.num_tokens + other.num_tokens, figures)


def make_learner(model: nn.Module, config: TrainConfig) -> Learner:
    """A learner that has taken no step."""
    averaged = copy.deepcopy(model) if config.ema_decay else model
    return Learner(model, averaged, make_optimizers(model, config))


def train_step(
    learner: Learner, batches: list[Batch], objective: Objective, config: TrainConfig, hardware: Hardware,
    *, step: int, lr: float, world: World = ALONE,
) -> StepResult:  # fmt: skip
    """One step on the mean loss over all units of `batches`, which are this process's share of the step.

    Dropout and masking depend on (seed, step, batch, rank) only, so a resumed run draws the same numbers.
    Raises DivergedError, with nothing updated, where the loss or the gradient is not finite.
    """
    model, averaged, optimizers = learner
    num_units = sum(world.gathered(sum(map(objective.num_units, batches))))
    losses = []
    for i, batch in enumerate(batches):
        if not len(batch.ids):
            continue  # fewer reviews than processes
        torch.manual_seed(_noise_seed(config.seed, step, i, world.rank))
        loss = objective.loss(model, batch, hardware.dtype)
        (loss.total / num_units).backward()
        losses.append(BatchLoss(loss.total.detach(), loss.figures))
    world.sum_gradients(model)
    clipped = nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm or math.inf)
    # A GPU has all its work by now: the first of these values waits for it, once a step.
    own = reduce(Seen.plus, map(_read, losses), Seen(0.0, sum(batch.num_tokens for batch in batches), {}))
    loss_sum, num_tokens, sums = reduce(Seen.plus, world.gathered(own))
    norm = clipped.item()
    if not math.isfinite(loss_sum + norm):
        model.zero_grad()
        raise DivergedError(
            f"step {step + 1} has loss {loss_sum / num_units:g}, gradient norm {norm:g}, at rate {lr:.3g}"
        )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        optimizer.step()
    model.zero_grad()
    if averaged is not model:
        _move_average(model, averaged, config.ema_decay, step)
    figures = {name: total / max(count, 1) for name, (total, count) in sums.items()}
    return StepResult(loss_sum / num_units, figures, norm, num_tokens)


def _read(loss: BatchLoss) -> Seen:
    figures: dict[str, tuple[float, float]] = {
        name: (total.item(), count) for name, (total, count) in loss.figures.items()
    }
    return Seen(loss.total.item(), 0, figures)


def all_finite(model: nn.Module) -> bool:
    """Whether no weight is NaN or infinite."""
    return all(bool(parameter.isfinite().all()) for parameter in model.parameters())


@torch.no_grad()
def _move_average(model: nn.Module, averaged: nn.Module, decay: float, step: int) -> None:
    """averaged ← decay · averaged + (1 - decay) · model; early on it forgets the random start sooner."""
    weight = 1 - min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), weight)


def _noise_seed(seed: int, step: int, batch: int, rank: int) -> int:
    entropy = [seed, step, batch, *([rank] if rank else [])]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)


def training_state(learner: Learner) -> dict[str, Tensor]:
    """Everything beside the weights to predict with that the next step depends on, by name."""
    state = moments(learner.optimizers, learner.model)
    if learner.averaged is not learner.model:
        state |= {f"weights.{name}": parameter for name, parameter in learner.model.named_parameters()}
    return state


@torch.no_grad()
def load_state(
    learner: Learner, weights: Mapping[str, Tensor], state: Mapping[str, Tensor], *, step: int
) -> None:
    """Puts a learner where its weights and `training_state` were taken, after `step` steps."""
    learner.averaged.load_state_dict(weights)
    for name, parameter in learner.model.named_parameters():
        parameter.copy_(state.get(f"weights.{name}", weights[name]))
    for name, tensor in moments(learner.optimizers, learner.model).items():
        tensor.copy_(state[name])
    for optimizer in learner.optimizers:
        for kept in optimizer.state.values():
            if "step" in kept:  # AdamW corrects its moments' bias by it; Muon does not count
                kept["step"].fill_(step)
