"""The optimisers, AdamW and Muon (for the matrices of the blocks), and the learning rate.

Muon makes each update of a matrix orthogonal (Jordan et al. 2024). The tests compare it with torch's Muon.
The latter always computes in bf16, which is far slower than fp32 on a processor without bf16 products.

Shapes: G matrices, M rows, N columns.
"""

import math
from collections import defaultdict
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from imdb_transformer.config import TrainConfig

BETA1 = 0.9  # AdamW's decay of the mean gradient
ADAM_EPS = 1e-8
MUON_MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024: steepest at 0
NUM_ITERATIONS = 5
# With few tokens in a batch, 5 iterations take a third of a step or more. 3 from a closer start learn as well
# there (configs/EXPERIMENTS.md).
FEW_TOKENS, FEW_ITERATIONS = 2048, 3
EPS = 1e-7


class Group(NamedTuple):
    """Parameters with the same learning rate and weight decay, which is decoupled from the gradient."""

    parameters: list[Tensor]
    lr_scale: float  # a factor on the learning rate of the step
    weight_decay: float


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2)."""

    def __init__(self, groups: list[Group], *, beta2: float) -> None:
        self.groups, self.beta2 = groups, beta2
        self.moments = {moment: zeros_of(groups) for moment in ("exp_avg", "exp_avg_sq")}

    @torch.no_grad()
    def step(self, lr: float, step: int) -> None:
        """Update number `step`, from 0, of each parameter from its gradient."""
        for group in self.groups:
            parameters, gradients = with_gradients(group)
            if not parameters:
                continue
            means, squares = ([moment[each] for each in parameters] for moment in self.moments.values())
            steps = list(torch.full((len(parameters),), float(step), device=parameters[0].device).unbind())
            # The function below torch's AdamW. The class would import torch's compiler, which takes a second.
            adamw(
                parameters, gradients, means, squares, [], steps,
                lr=lr * group.lr_scale, beta1=BETA1, beta2=self.beta2, eps=ADAM_EPS,
                weight_decay=group.weight_decay, fused=True, amsgrad=False, maximize=False,
            )  # fmt: skip


class Muon:
    """For matrices only. Updates have the size that AdamW's would have (Liu et al. 2025, 2.2).

    Matrices of one shape are updated together, which needs fewer and larger products.
    """

    def __init__(self, groups: list[Group], *, dtype: torch.dtype, num_iterations: int) -> None:
        """`dtype` is that of the matrix products."""
        self.groups, self.dtype, self.num_iterations = groups, dtype, num_iterations
        self.moments = {"momentum_buffer": zeros_of(groups)}

    @torch.no_grad()
    def step(self, lr: float, step: int) -> None:  # noqa: ARG002  (AdamW's has it, too)
        """One update of each matrix from its gradient, with Nesterov's momentum."""
        for group in self.groups:
            rate = lr * group.lr_scale
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for matrix, gradient in zip(*with_gradients(group), strict=True):
                by_shape[matrix.shape].append((matrix, gradient))
            for shape, pairs in by_shape.items():
                matrices, gradients = (list(tensors) for tensors in zip(*pairs, strict=True))
                means = [self.moments["momentum_buffer"][matrix] for matrix in matrices]
                torch._foreach_lerp_(means, gradients, 1 - MUON_MOMENTUM)
                updates = torch.stack(torch._foreach_lerp(gradients, means, MUON_MOMENTUM))
                directions = orthogonal(updates, self.dtype, self.num_iterations).to(updates.dtype)
                torch._foreach_mul_(matrices, 1 - rate * group.weight_decay)
                torch._foreach_add_(matrices, directions.unbind(), alpha=-rate * 0.2 * math.sqrt(max(shape)))


def zeros_of(groups: list[Group]) -> dict[Tensor, Tensor]:
    """Zeros in the shape of each parameter: a moment before the first step."""
    return {each: torch.zeros_like(each) for group in groups for each in group.parameters}


def with_gradients(group: Group) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters of a group that have a gradient, and these gradients."""
    pairs = [(each, each.grad) for each in group.parameters if each.grad is not None]
    return [parameter for parameter, _ in pairs], [gradient for _, gradient in pairs]


def orthogonal(
    matrices: Tensor, dtype: torch.dtype = torch.float32, num_iterations: int = NUM_ITERATIONS
) -> Tensor:
    """(G, M, N) -> (G, M, N): each U S V^T becomes about U V^T, by Newton and Schulz's iteration.

    The coefficients trade exactness for speed: singular values end between 0.7 and 1.2, except the smallest.
    With fewer than 5 iterations, the first product X X^T gives a closer start (as in Boissin et al. 2025,
    "Turbo-Muon"): the root of its norm bounds the largest singular value more tightly than the norm of X.
    """
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonal(matrices.mT, dtype, num_iterations).mT
    a, b, c = COEFFICIENTS
    x = matrices.to(dtype)
    x = x / norms(x)  # no singular value is above 1
    for iteration in range(num_iterations):
        gram = x @ x.mT
        if iteration == 0 and num_iterations < NUM_ITERATIONS:
            square = norms(gram)  # at least the square of the largest singular value
            x, gram = x / square.sqrt(), gram / square
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def norms(matrices: Tensor) -> Tensor:
    """(G, M, N) -> (G, 1, 1): the Frobenius norm of each matrix, never zero."""
    return matrices.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)


def learning_rate(config: TrainConfig, step: int, num_steps: int) -> float:
    """The rate of step `step` (from 0) of `num_steps`: a linear rise to `lr`, then `schedule`.

    `inverse_sqrt` is Vaswani et al. 2017, equation 3, with its peak at `lr`.
    """
    warmup = round(config.warmup_fraction * num_steps)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, num_steps - warmup)
    factor = {
        "linear": 1 - progress,
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
        "inverse_sqrt": math.sqrt(max(1, warmup) / (step + 1)),
        "constant": 1.0,
    }
    return config.lr * factor[config.schedule]


def make_optimizers(
    model: nn.Module, config: TrainConfig, dtype: torch.dtype = torch.float32
) -> list[AdamW | Muon]:
    """The optimisers of a model before their first step.

    With `optimizer = "muon"`, Muon updates the matrices of the blocks. It computes in `dtype`, with fewer
    iterations if a batch has few tokens.
    """
    for_muon: list[Tensor] = []
    matrices: list[Tensor] = []
    vectors: list[Tensor] = []  # biases and layer norms, which do not decay
    for name, parameter in model.named_parameters():
        is_for_muon = config.optimizer == "muon" and name.startswith(("encoder.blocks.", "decoder.blocks."))
        chosen = vectors if parameter.ndim < 2 else for_muon if is_for_muon else matrices
        chosen.append(parameter)
    decay = config.weight_decay
    optimizer = AdamW([Group(matrices, 1.0, decay), Group(vectors, 1.0, 0.0)], beta2=config.beta2)
    if not for_muon:
        return [optimizer]
    number = FEW_ITERATIONS if 0 < config.batch_tokens < FEW_TOKENS else NUM_ITERATIONS
    group = Group(for_muon, config.muon_lr_scale, decay)
    return [optimizer, Muon([group], dtype=dtype, num_iterations=number)]


def moments(optimizers: list[AdamW | Muon], model: nn.Module) -> dict[str, Tensor]:
    """The optimisers' moments, named after the moment and the parameter."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{moment}.{names[parameter]}": tensor
        for optimizer in optimizers
        for moment, tensors in optimizer.moments.items()
        for parameter, tensor in tensors.items()
    }
