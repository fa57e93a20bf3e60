"""The learning rate as a function of the step, and which parameters decay."""

import math

from torch import nn

from imdb_transformer.config import TrainConfig


def num_warmup_steps(config: TrainConfig, num_steps: int) -> int:
    """Steps of warm-up, from whichever of the two keys was given."""
    return config.warmup_steps or round(config.warmup_fraction * num_steps)


def learning_rate(config: TrainConfig, step: int, num_steps: int) -> float:
    """The rate of step `step` (from 0) of `num_steps`: up in a line to `lr`, then as `schedule` says.

    `inverse_sqrt` is Vaswani et al. 2017, equation 3, with its peak at `lr`.
    """
    warmup = num_warmup_steps(config, num_steps)
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


def parameter_groups(model: nn.Module, config: TrainConfig) -> list[dict[str, object]]:
    """Every parameter in one group: matrices decay; biases and layer norms, which are vectors, do not.

    `lr_scale` is what the group's rate is multiplied by: `layer_decay` once for each layer below the head
    (ULMFiT: Howard and Ruder 2018, 3.2; ELECTRA: Clark et al. 2020, appendix A.2).
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        scale = config.layer_decay ** _layers_above(name, len(model.encoder.blocks))  # type: ignore[union-attr,arg-type]
        decay = config.weight_decay if parameter.ndim >= 2 else 0.0
        groups.setdefault((scale, decay), []).append(parameter)
    return [
        {"params": parameters, "lr_scale": scale, "weight_decay": decay}
        for (scale, decay), parameters in groups.items()
    ]


def _layers_above(name: str, num_blocks: int) -> int:
    """How many layers stand between a parameter and the head's output: 0 for the head's own."""
    parts = name.split(".")
    if parts[:2] == ["encoder", "embedding"]:
        return num_blocks + 1
    return num_blocks - int(parts[2]) if parts[:2] == ["encoder", "blocks"] else 0
