"""What updates the parameters: AdamW, or Muon for the matrices of the blocks; and the learning rate."""

import math

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from imdb_transformer.config import TrainConfig
from imdb_transformer.training.muon import Muon

MOMENTS: dict[type[Optimizer], tuple[str, ...]] = {
    AdamW: ("exp_avg", "exp_avg_sq"),
    Muon: ("momentum_buffer",),
}
"""What an optimiser keeps for each parameter, in the parameter's shape"""
BETA1 = 0.9  # AdamW's decay of the mean gradient
ADAM_EPS = 1e-8
MUON_MOMENTUM = 0.95


def learning_rate(config: TrainConfig, step: int, num_steps: int) -> float:
    """The rate of step `step` (from 0) of `num_steps`: up in a line to `lr`, then as `schedule` says.

    `inverse_sqrt` is Vaswani et al. 2017, equation 3, with its peak at `lr`.
    """
    warmup = round(config.warmup_fraction * num_steps)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    done = (step - warmup) / max(1, num_steps - warmup)
    factor = {
        "linear": 1 - done,
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "inverse_sqrt": math.sqrt(max(1, warmup) / (step + 1)),
        "constant": 1.0,
    }
    return config.lr * factor[config.schedule]


def make_optimizers(
    model: nn.Module, config: TrainConfig, dtype: torch.dtype = torch.float32
) -> list[Optimizer]:
    """The optimisers of a model before their first step. Their moments exist already, as zeros.

    With `optimizer = "muon"` the matrices of the blocks are Muon's, which computes in `dtype`.
    """
    muons = [p for name, p in model.named_parameters() if _is_muons(name, p, config)]
    others = [p for name, p in model.named_parameters() if not _is_muons(name, p, config)]
    decay = config.weight_decay
    vectors = [p for p in others if p.ndim < 2]  # biases and layer norms, which do not decay
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "lr_scale": 1.0, "weight_decay": decay},
        {"params": vectors, "lr_scale": 1.0, "weight_decay": 0.0},
    ]
    adamw = AdamW(groups, lr=config.lr, betas=(BETA1, config.beta2), eps=ADAM_EPS, fused=True)
    optimizers: list[Optimizer] = [adamw]
    if muons:
        groups = [{"params": muons, "lr_scale": config.muon_lr_scale, "weight_decay": decay}]
        optimizers.append(Muon(groups, lr=config.lr, momentum=MUON_MOMENTUM, dtype=dtype))
    for optimizer in optimizers:  # torch does it in the first step, but step 0 is saved, too
        for parameter in _parameters(optimizer):
            optimizer.state[parameter] = {
                moment: torch.zeros_like(parameter) for moment in MOMENTS[type(optimizer)]
            }
            if isinstance(optimizer, AdamW):
                optimizer.state[parameter]["step"] = torch.tensor(0.0, device=parameter.device)
    return optimizers


def moments(optimizers: list[Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """The optimisers' moments, named after the moment and the parameter."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{moment}.{names[parameter]}": optimizer.state[parameter][moment]
        for optimizer in optimizers
        for parameter in _parameters(optimizer)
        for moment in MOMENTS[type(optimizer)]
    }


def num_moments(model: nn.Module, config: TrainConfig) -> int:
    """How many numbers the optimisers of a model keep as moments."""
    return sum(
        parameter.numel() * len(MOMENTS[Muon if _is_muons(name, parameter, config) else AdamW])
        for name, parameter in model.named_parameters()
    )


def _is_muons(name: str, parameter: Tensor, config: TrainConfig) -> bool:
    return (
        config.optimizer == "muon"
        and name.startswith(("encoder.blocks.", "decoder.blocks."))
        and parameter.ndim == 2
    )


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
