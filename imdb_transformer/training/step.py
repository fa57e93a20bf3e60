"""One optimiser step, and the state that steps change."""

import copy
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from imdb_transformer.config import TrainConfig
from imdb_transformer.errors import DivergedError
from imdb_transformer.hardware import Hardware
from imdb_transformer.inference.forward import Batch
from imdb_transformer.training.schedule import parameter_groups
from imdb_transformer.training.task import Objective

MOMENTS = ("exp_avg", "exp_avg_sq")


class Learner(NamedTuple):
    """A model in training, its optimiser, and the model to predict with (itself, or its moving average)."""

    model: nn.Module
    averaged: nn.Module
    optimizer: torch.optim.AdamW


class StepResult(NamedTuple):
    """What a step saw, before its update."""

    loss: float
    figures: dict[str, float]
    gradient_norm: float
    num_tokens: int


def make_learner(model: nn.Module, config: TrainConfig) -> Learner:
    """A learner that has taken no step."""
    optimizer = torch.optim.AdamW(
        parameter_groups(model, config),
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.adam_eps,
        fused=True,
    )
    for parameter in model.parameters():  # as AdamW's first step would, so that step 0 can be saved
        zeros = {moment: torch.zeros_like(parameter) for moment in MOMENTS}
        optimizer.state[parameter] = {"step": torch.tensor(0.0, device=parameter.device), **zeros}
    averaged = copy.deepcopy(model) if config.ema_decay else model
    return Learner(model, averaged, optimizer)


def train_step(
    learner: Learner, batches: list[Batch], objective: Objective, config: TrainConfig, hardware: Hardware,
    *, step: int, lr: float,
) -> StepResult:  # fmt: skip
    """One step on the mean loss over all units of `batches`.

    Dropout and masking depend on (seed, step, batch) only, so a resumed run draws the same numbers. Raises
    DivergedError, with nothing updated, where the loss or the gradient is not finite.
    """
    model, averaged, optimizer = learner
    num_units = sum(map(objective.num_units, batches))
    loss_sum = 0.0
    sums: dict[str, list[tuple[float, float]]] = {}
    for i, batch in enumerate(batches):
        torch.manual_seed(_noise_seed(config.seed, step, i))
        loss = objective.loss(model, batch, hardware.dtype)
        (loss.total / num_units).backward()
        loss_sum += loss.total.item()
        for name, pair in loss.figures.items():
            sums.setdefault(name, []).append(pair)
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm or math.inf).item()
    if not math.isfinite(loss_sum + norm):
        optimizer.zero_grad()
        raise DivergedError(
            f"step {step + 1} has loss {loss_sum / num_units:g}, gradient norm {norm:g}, at rate {lr:.3g}"
        )
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]
    optimizer.step()
    optimizer.zero_grad()
    if averaged is not model:
        _move_average(model, averaged, config.ema_decay, step)
    num_tokens = sum(int(batch.mask.sum()) for batch in batches)
    figures = {name: sum(s for s, _ in pairs) / sum(n for _, n in pairs) for name, pairs in sums.items()}
    return StepResult(loss_sum / num_units, figures, norm, num_tokens)


def all_finite(model: nn.Module) -> bool:
    """Whether no weight is NaN or infinite."""
    return all(bool(parameter.isfinite().all()) for parameter in model.parameters())


@torch.no_grad()
def _move_average(model: nn.Module, averaged: nn.Module, decay: float, step: int) -> None:
    """averaged ← decay · averaged + (1 - decay) · model; early on it forgets the random start sooner."""
    weight = 1 - min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), weight)


def _noise_seed(seed: int, step: int, batch: int) -> int:
    return int(np.random.SeedSequence([seed, step, batch]).generate_state(1, np.uint64)[0] >> 1)


def training_state(learner: Learner) -> dict[str, Tensor]:
    """Everything beside the weights to predict with that the next step depends on, by name."""
    state: dict[str, Tensor] = {}
    for name, parameter in learner.model.named_parameters():
        if learner.averaged is not learner.model:
            state[f"weights.{name}"] = parameter
        for moment in MOMENTS:
            state[f"{moment}.{name}"] = learner.optimizer.state[parameter][moment]
    return state


@torch.no_grad()
def restore(
    learner: Learner, weights: Mapping[str, Tensor], state: Mapping[str, Tensor], *, step: int
) -> None:
    """Puts a learner where its weights and `training_state` were taken, after `step` steps."""
    learner.averaged.load_state_dict(weights)
    for name, parameter in learner.model.named_parameters():
        parameter.copy_(state.get(f"weights.{name}", weights[name]))
        moments = learner.optimizer.state[parameter]
        moments["step"].fill_(step)
        for moment in MOMENTS:
            moments[moment].copy_(state[f"{moment}.{name}"])
