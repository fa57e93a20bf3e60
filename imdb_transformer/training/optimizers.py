"""The optimisers, AdamW and Muon (for the matrices of the blocks), and the learning rate.

Muon makes each update of a matrix orthogonal (Jordan et al. 2024). The tests compare it with torch's Muon.
The latter always computes in bf16, which is far slower than fp32 on a processor without bf16 products.

Shapes: G matrices, M rows, N columns.
"""

import math
from collections import defaultdict

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from imdb_transformer.config import TrainConfig

BETA1 = 0.9  # AdamW's decay of the mean gradient
ADAM_EPS = 1e-8
MUON_MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024: steepest at 0
NUM_ITERATIONS = 5
EPS = 1e-7


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2)."""

    def __init__(
        self, decaying: list[Tensor], others: list[Tensor], *, weight_decay: float, beta2: float
    ) -> None:
        """`weight_decay` is that of the first parameters. The others do not decay."""
        groups = ((decaying, weight_decay), (others, 0.0))
        self.groups, self.beta2 = [group for group in groups if group[0]], beta2
        self.moments = {name: zeros_like([*decaying, *others]) for name in ("exp_avg", "exp_avg_sq")}

    @torch.no_grad()
    def step(self, lr: float, num_done: int, update_size: int = 1) -> None:
        """The update after `num_done` updates: of each parameter from its gradient, which it must have."""
        del update_size  # every step has an update
        for parameters, weight_decay in self.groups:
            gradients = [parameter.grad for parameter in parameters]
            means = [self.moments["exp_avg"][parameter] for parameter in parameters]
            squares = [self.moments["exp_avg_sq"][parameter] for parameter in parameters]
            steps = list(torch.full((len(parameters),), float(num_done), device=means[0].device).unbind())
            # What torch's class AdamW calls. The class would import torch's compiler, which takes a second.
            adamw(
                parameters, gradients, means, squares, [], steps,  # type: ignore[arg-type]
                lr=lr, beta1=BETA1, beta2=self.beta2, eps=ADAM_EPS, weight_decay=weight_decay,
                fused=True, amsgrad=False, maximize=False,
            )  # fmt: skip


class Muon:
    """For matrices only. Updates have the size that AdamW's would have (Liu et al. 2025, 2.2).

    Matrices of one shape are updated together, which needs fewer and larger products.
    """

    def __init__(
        self, matrices: list[Tensor], *, lr_scale: float, weight_decay: float, dtype: torch.dtype
    ) -> None:
        """`lr_scale` is a factor on the rate, and `dtype` is that of the products."""
        self.lr_scale, self.weight_decay, self.dtype = lr_scale, weight_decay, dtype
        self.moments = {"momentum_buffer": zeros_like(matrices)}
        self.by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for matrix in matrices:
            self.by_shape[matrix.shape].append(matrix)

    @torch.no_grad()
    def step(self, lr: float, num_done: int, update_size: int = 1) -> None:
        """Adds each matrix's gradient, which it must have, to its momentum.

        Then, unless `update_size` is 0, it moves the matrix with Nesterov's momentum, as far as that many
        updates would.
        """
        del num_done
        lr = lr * self.lr_scale * update_size
        for shape, matrices in self.by_shape.items():
            gradients = [matrix.grad for matrix in matrices]
            means = [self.moments["momentum_buffer"][matrix] for matrix in matrices]
            torch._foreach_lerp_(means, gradients, 1 - MUON_MOMENTUM)  # type: ignore[arg-type]
            if not update_size:
                continue
            updates = torch._foreach_lerp(gradients, means, MUON_MOMENTUM)  # type: ignore[arg-type]
            stacked = torch.stack([update.to(self.dtype) for update in updates])
            directions = orthogonal(stacked).to(matrices[0].dtype)
            torch._foreach_mul_(matrices, 1 - lr * self.weight_decay)
            torch._foreach_add_(matrices, directions.unbind(), alpha=-lr * 0.2 * math.sqrt(max(shape)))


def zeros_like(parameters: list[Tensor]) -> dict[Tensor, Tensor]:
    """Zeros in the shape of each parameter: a moment before the first step."""
    return {parameter: torch.zeros_like(parameter) for parameter in parameters}


def orthogonal(matrices: Tensor) -> Tensor:
    """(G, M, N) -> (G, M, N): each U S V^T becomes about U V^T, by Newton and Schulz's iteration.

    The coefficients trade exactness for speed: singular values end between 0.7 and 1.2, except the smallest.
    """
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonal(matrices.mT).mT
    a, b, c = COEFFICIENTS
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)  # no singular value is above 1
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def learning_rate(config: TrainConfig, num_done: int, num_steps: int) -> float:
    """The rate after `num_done` of `num_steps` steps: a linear rise to `lr`, then `schedule`.

    `inverse_sqrt` is Vaswani et al. 2017, equation 3, with its peak at `lr`.
    """
    warmup = round(config.warmup_fraction * num_steps)
    if num_done < warmup:
        return config.lr * (num_done + 1) / warmup
    progress = (num_done - warmup) / max(1, num_steps - warmup)
    factor = {
        "linear": 1 - progress,
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
        "inverse_sqrt": math.sqrt(max(1, warmup) / (num_done + 1)),
        "constant": 1.0,
    }
    return config.lr * factor[config.schedule]


def make_optimizers(
    model: nn.Module, config: TrainConfig, dtype: torch.dtype = torch.float32
) -> list[AdamW | Muon]:
    """The optimisers of a model before their first step.

    With `optimizer = "muon"`, Muon updates the matrices of the blocks, and computes in `dtype`.
    """
    for_muon: list[Tensor] = []
    matrices: list[Tensor] = []
    vectors: list[Tensor] = []  # biases and layer norms, which do not decay
    for name, parameter in model.named_parameters():
        is_for_muon = config.optimizer == "muon" and name.startswith(("encoder.blocks.", "decoder.blocks."))
        group = vectors if parameter.ndim < 2 else for_muon if is_for_muon else matrices
        group.append(parameter)
    decay = config.weight_decay
    optimizers: list[AdamW | Muon] = [AdamW(matrices, vectors, weight_decay=decay, beta2=config.beta2)]
    if for_muon:
        optimizers += [Muon(for_muon, lr_scale=config.muon_lr_scale, weight_decay=decay, dtype=dtype)]
    return optimizers


def moments(optimizers: list[AdamW | Muon], model: nn.Module) -> dict[str, Tensor]:
    """The optimisers' moments, named after the moment and the parameter."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{moment}.{names[parameter]}": tensor
        for optimizer in optimizers
        for moment, tensors in optimizer.moments.items()
        for parameter, tensor in tensors.items()
    }
