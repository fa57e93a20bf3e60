"""One optimiser step, and the state that steps change."""

import copy
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from imdb_transformer.config import Config
from imdb_transformer.distributed import ALONE, World
from imdb_transformer.errors import DivergedError
from imdb_transformer.store.checkpoint import Arrays
from imdb_transformer.store.run import Kind
from imdb_transformer.training.objectives import Metrics, objective_of
from imdb_transformer.training.optimizers import learning_rate, make_optimizers, moments
from imdb_transformer.training.plan import Batch


class Learner(NamedTuple):
    """A model in training, its optimisers, and the model to predict with (itself, or its moving average)."""

    model: nn.Module
    averaged: nn.Module
    optimizers: list[torch.optim.Optimizer]
    config: Config
    kind: Kind
    dtype: torch.dtype  # of activations, and of Muon's products


class StepResult(NamedTuple):
    """Results on the batch of all processes, before the update."""

    loss: float
    metrics: dict[str, float]
    gradient_norm: float
    lr: float
    """learning rate of the update"""
    num_tokens: int
    stop: bool
    """whether a process was asked to stop"""


def make_learner(model: nn.Module, config: Config, kind: Kind, dtype: torch.dtype) -> Learner:
    """A learner before its first step."""
    averaged = copy.deepcopy(model) if config.train.ema_decay else model
    return Learner(model, averaged, make_optimizers(model, config.train, dtype), config, kind, dtype)


def train_step(
    learner: Learner, batch: Batch, step: int, num_steps: int, *, world: World = ALONE, stop: bool = False
) -> StepResult:
    """Step `step` of `num_steps` on the mean loss; `batch` is this process's share of the step's reviews.

    Dropout and masking depend on (seed, step, rank) only, so a resumed run draws the same numbers.
    Raises DivergedError, with nothing updated, if the loss or the gradient is not finite.
    """
    model, averaged, config = learner.model, learner.averaged, learner.config.train
    lr = learning_rate(config, step, num_steps)
    torch.manual_seed(_noise_seed(config.seed, step, world.rank))
    metrics = objective_of(learner.kind)(model, batch, learner.config, learner.dtype, step / num_steps)
    metrics["loss"][0].backward()
    gradients = _gradients(model)
    result, num_units = _summed(metrics, gradients, batch, world, lr, stop=stop)
    if not math.isfinite(result.loss + result.gradient_norm):
        model.zero_grad()
        raise DivergedError(
            f"step {step + 1} has loss {result.loss:g}, gradient norm {result.gradient_norm:g}, "
            f"at rate {lr:.3g}"
        )
    clipping = min(1.0, (config.clip_norm or math.inf) / (result.gradient_norm + 1e-6))
    torch._foreach_mul_(gradients, clipping / num_units)  # from a sum to the mean loss
    for optimizer in learner.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        optimizer.step()
    model.zero_grad()
    if averaged is not model:
        _move_average(model, averaged, config.ema_decay, step)
    return result


def _gradients(model: nn.Module) -> list[Tensor]:
    """The gradients of all parameters. A missing one becomes zeros: all processes sum the same tensors."""
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _summed(
    metrics: Metrics, gradients: list[Tensor], batch: Batch, world: World, lr: float, *, stop: bool
) -> tuple[StepResult, float]:
    """Sums the gradients over all processes, in place. Returns the step's result and the count of its loss.

    Everything goes in one exchange, and the CPU reads it once.
    """
    sums = torch.stack([value.detach().float() for value, _ in metrics.values()])
    counts = sums.new_tensor([*(count for _, count in metrics.values()), batch.num_tokens, stop])
    if not batch.num_tokens:  # fewer reviews than processes: this one has none
        torch._foreach_zero_([*gradients, sums, counts[:-1]])
    world.all_reduce_([*gradients, sums, counts])
    norm = nn.utils.get_total_norm(gradients)
    # Waits for a GPU, which has all its work queued by now.
    *numbers, num_tokens, stops, norm_of_sum = torch.cat([sums, counts, norm[None]]).tolist()
    halves = numbers[: len(metrics)], numbers[len(metrics) :]
    totals, divisors = (dict(zip(metrics, half, strict=True)) for half in halves)
    means = {name: totals[name] / max(divisors[name], 1) for name in metrics}
    loss, num_units = means.pop("loss"), divisors["loss"]
    return StepResult(loss, means, norm_of_sum / num_units, lr, int(num_tokens), bool(stops)), num_units


def all_finite(model: nn.Module) -> bool:
    """Whether no weight is NaN or infinite."""
    return all(bool(parameter.isfinite().all()) for parameter in model.parameters())


@torch.no_grad()
def _move_average(model: nn.Module, averaged: nn.Module, decay: float, step: int) -> None:
    """averaged ← decay · averaged + (1 - decay) · model, with less decay early on."""
    weight = 1 - min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), weight)


def _noise_seed(seed: int, step: int, rank: int) -> int:
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)


def training_state(learner: Learner) -> dict[str, Tensor]:
    """By name, the tensors that the next step depends on, except the weights to predict with."""
    state = moments(learner.optimizers, learner.model)
    if learner.averaged is not learner.model:
        state |= {f"weights.{name}": parameter for name, parameter in learner.model.named_parameters()}
    return state


@torch.no_grad()
def load_state(learner: Learner, weights: Arrays, state: Arrays, *, step: int) -> None:
    """Restores a learner to its state after `step` steps, from its weights and its `training_state`."""
    learner.averaged.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    for name, parameter in learner.model.named_parameters():
        parameter.copy_(torch.from_numpy(state.get(f"weights.{name}", weights[name])))
    for name, tensor in moments(learner.optimizers, learner.model).items():
        tensor.copy_(torch.from_numpy(state[name]))
    for optimizer in learner.optimizers:
        for values in optimizer.state.values():
            if "step" in values:  # AdamW corrects its moments' bias by it; Muon does not count
                values["step"].fill_(step)
