"""What updates the parameters: AdamW, and Muon for the encoder's matrices where the config asks for it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from imdb_transformer.config import TrainConfig

MOMENTS: dict[type[Optimizer], tuple[str, ...]] = {
    AdamW: ("exp_avg", "exp_avg_sq"),
    Muon: ("momentum_buffer",),
}
"""What an optimiser keeps of each parameter, in its shape"""


def make_optimizers(model: nn.Module, config: TrainConfig) -> list[Optimizer]:
    """Optimisers that share out the parameters and have taken no step; their moments are there already.

    With `optimizer = "muon"` the matrices of the encoder's blocks are Muon's: each update is their
    momentum made orthogonal (Jordan et al. 2024), scaled to the size that AdamW's would have (Liu et al.
    2025, "Muon is scalable for LLM training", 2.2).
    """
    matrices = {name for name, parameter in model.named_parameters() if _is_muons(name, parameter, config)}
    rest = {name for name, _ in model.named_parameters()} - matrices
    optimizers: list[Optimizer] = [AdamW(
        parameter_groups(model, config, rest), lr=config.lr, betas=(config.beta1, config.beta2),
        eps=config.adam_eps, fused=True,
    )]  # fmt: skip
    if matrices:
        groups = parameter_groups(model, config, matrices, lr_scale=config.muon_lr_scale)
        optimizers.append(Muon(groups, lr=config.lr, momentum=config.muon_momentum,
                               adjust_lr_fn="match_rms_adamw"))  # fmt: skip
    for optimizer in optimizers:  # as the first step would, so that step 0 can be saved
        for parameter in _parameters(optimizer):
            optimizer.state[parameter] = {
                moment: torch.zeros_like(parameter) for moment in MOMENTS[type(optimizer)]
            }
            if isinstance(optimizer, AdamW):
                optimizer.state[parameter]["step"] = torch.tensor(0.0, device=parameter.device)
    return optimizers


def parameter_groups(
    model: nn.Module, config: TrainConfig, names: set[str], *, lr_scale: float = 1.0
) -> list[dict[str, Any]]:
    """Each of the named parameters in one group: matrices decay; biases and layer norms, vectors, do not.

    `lr_scale` is what the group's rate is multiplied by: that of the call, and `layer_decay` once for each
    layer below the head (ULMFiT: Howard and Ruder 2018, 3.2; ELECTRA: Clark et al. 2020, appendix A.2).
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if name in names:
            scale = lr_scale * config.layer_decay ** _layers_above(name, len(model.encoder.blocks))  # type: ignore[union-attr,arg-type]
            decay = config.weight_decay if parameter.ndim >= 2 else 0.0
            groups.setdefault((scale, decay), []).append(parameter)
    return [
        {"params": parameters, "lr_scale": scale, "weight_decay": decay}
        for (scale, decay), parameters in groups.items()
    ]


def moments(optimizers: list[Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """What the optimisers keep of each parameter, by the moment's and the parameter's names."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{moment}.{names[parameter]}": optimizer.state[parameter][moment]
        for optimizer in optimizers
        for parameter in _parameters(optimizer)
        for moment in MOMENTS[type(optimizer)]
    }


def num_moments(model: nn.Module, config: TrainConfig) -> int:
    """Numbers that the optimisers of a model keep."""
    return sum(
        parameter.numel() * len(MOMENTS[Muon if _is_muons(name, parameter, config) else AdamW])
        for name, parameter in model.named_parameters()
    )


def _is_muons(name: str, parameter: Tensor, config: TrainConfig) -> bool:
    return config.optimizer == "muon" and name.startswith("encoder.blocks.") and parameter.ndim == 2


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _layers_above(name: str, num_blocks: int) -> int:
    """How many layers stand between a parameter and the output: 0 for the head and the final norm."""
    parts = name.split(".")
    if parts[:2] == ["encoder", "embedding"]:
        return num_blocks + 1
    return num_blocks - int(parts[2]) if parts[:2] == ["encoder", "blocks"] else 0
