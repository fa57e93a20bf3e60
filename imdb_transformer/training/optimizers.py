"""The optimisers, AdamW and Muon (for the matrices of the blocks), and the learning rate.

Muon makes each update of a matrix orthogonal (Jordan et al. 2024). The tests compare it with torch's Muon.
The latter always computes in bf16, which is far slower than fp32 on a processor without bf16 products.

Shapes: G matrices, M rows, N columns.
"""

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

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


class Muon(Optimizer):
    """For matrices only. Updates have the size that AdamW's would have (Liu et al. 2025, 2.2).

    Matrices of one shape are updated together, which needs fewer and larger products.
    """

    def __init__(
        self, groups: list[dict[str, Any]], *, lr: float, dtype: torch.dtype, num_iterations: int
    ) -> None:
        """`dtype` is that of the matrix products. Weight decay is the group's, decoupled as in AdamW."""
        super().__init__(groups, {"lr": lr})
        self.dtype, self.num_iterations = dtype, num_iterations
        for matrix in (each for group in groups for each in group["params"]):
            self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """One update of each matrix from its gradient, with Nesterov's momentum."""
        for group in self.param_groups:
            lr = group["lr"]
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append((matrix, matrix.grad))
            for shape, pairs in by_shape.items():
                matrices, gradients = (list(tensors) for tensors in zip(*pairs, strict=True))
                means = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
                torch._foreach_lerp_(means, gradients, 1 - MUON_MOMENTUM)
                updates = torch.stack(torch._foreach_lerp(gradients, means, MUON_MOMENTUM))
                directions = orthogonal(updates, self.dtype, self.num_iterations).to(updates.dtype)
                torch._foreach_mul_(matrices, 1 - lr * group["weight_decay"])
                torch._foreach_add_(matrices, directions.unbind(), alpha=-lr * 0.2 * math.sqrt(max(shape)))


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
) -> list[Optimizer]:
    """The optimisers of a model before their first step. Their moments exist already, as zeros.

    With `optimizer = "muon"`, Muon updates the matrices of the blocks. It computes in `dtype`, with fewer
    iterations if a batch has few tokens.
    """
    for_muon: list[nn.Parameter] = []
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []  # biases and layer norms, which do not decay
    for name, parameter in model.named_parameters():
        is_for_muon = config.optimizer == "muon" and name.startswith(("encoder.blocks.", "decoder.blocks."))
        chosen = vectors if parameter.ndim < 2 else for_muon if is_for_muon else matrices
        chosen.append(parameter)
    decay = config.weight_decay
    groups = [
        {"params": matrices, "lr_scale": 1.0, "weight_decay": decay},
        {"params": vectors, "lr_scale": 1.0, "weight_decay": 0.0},
    ]
    adamw = AdamW(groups, lr=config.lr, betas=(BETA1, config.beta2), eps=ADAM_EPS, fused=True)
    for parameter in (*matrices, *vectors):  # torch does it in the first step, but step 0 is saved, too
        zeros = {moment: torch.zeros_like(parameter) for moment in ("exp_avg", "exp_avg_sq")}
        adamw.state[parameter] = {"step": torch.tensor(0.0, device=parameter.device), **zeros}
    if not for_muon:
        return [adamw]
    groups = [{"params": for_muon, "lr_scale": config.muon_lr_scale, "weight_decay": decay}]
    number = FEW_ITERATIONS if 0 < config.batch_tokens < FEW_TOKENS else NUM_ITERATIONS
    return [adamw, Muon(groups, lr=config.lr, dtype=dtype, num_iterations=number)]


def moments(optimizers: list[Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """The optimisers' moments, named after the moment and the parameter."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{moment}.{names[parameter]}": tensor
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for moment, tensor in state.items()
        if moment != "step"
    }
