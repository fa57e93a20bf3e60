"""Muon: each update of a matrix is its momentum made orthogonal (Jordan et al. 2024).

torch's Muon is the referee of the tests. It always computes in bf16, which is far slower than fp32 on a
processor without bf16 products.

Shapes: M rows, N columns.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024: steepest at 0
NUM_ITERATIONS = 5
EPS = 1e-7


class Muon(Optimizer):
    """For matrices only. Updates have the size that AdamW's would have (Liu et al. 2025, 2.2)."""

    def __init__(
        self, params: list[dict[str, Any]], *, lr: float, momentum: float, dtype: torch.dtype = torch.float32
    ) -> None:
        """`dtype` is that of the matrix products. Weight decay is the group's, decoupled as in AdamW."""
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """One update of each matrix from its gradient, with Nesterov's momentum."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for matrix in (each for each in group["params"] if each.grad is not None):
                mean = self.state[matrix]["momentum_buffer"]
                mean.lerp_(matrix.grad, 1 - momentum)
                direction = orthogonal(matrix.grad.lerp(mean, momentum), self.dtype)
                matrix.mul_(1 - lr * group["weight_decay"])
                matrix.add_(direction, alpha=-lr * 0.2 * math.sqrt(max(matrix.shape)))


def orthogonal(matrix: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(M, N) -> (M, N): U S V^T becomes about U V^T, by Newton and Schulz's iteration.

    The coefficients trade exactness for speed: singular values end between 0.7 and 1.2.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.T, dtype).T
    a, b, c = COEFFICIENTS
    x = matrix.to(dtype)
    x = x / x.norm().clamp(min=EPS)  # no singular value is above 1
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
