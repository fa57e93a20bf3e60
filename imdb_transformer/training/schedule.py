"""The learning rate as a function of the step."""

import math

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
