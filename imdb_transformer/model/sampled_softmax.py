"""Cross-entropy over the true id and a sample of the vocabulary, a few rows at a time.

The logits of all guesses and candidates are the largest tensor of pretraining. In plain torch
(`candidate_logits`), a dozen operations read and write all of it. Here, only the matrix products do. The
steps between them work on as many rows at a time as fit in the processor's cache, and write the gradient over
the logits.

Shapes: M guesses, C candidates, D model width.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK = 2**18  # logits that are processed together on a CPU: 1 MiB


def sampled_cross_entropy(
    hidden: Tensor, vectors: Tensor, offsets: Tensor, true: Tensor, targets: Tensor, candidates: Tensor,
    *, num_guessed: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Summed cross-entropy in nats, and the number of correct guesses, of the first `num_guessed` rows.

    `candidates` has C ids, at least one. Their `vectors` are (C, D), and their `offsets` (C,). Padding has
    the offset minus infinity. A candidate's logit is the product of its vector and `hidden` (M, D), plus its
    offset. `true` (M,) has the logits of the true ids, `targets` (M,), in fp32. A true id does not count as a
    candidate. A guess is correct if no candidate has a larger logit.
    """
    loss, num_correct = _SampledCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, vectors, offsets, true, targets, candidates, num_guessed
    )
    return loss, num_correct


def candidate_logits(
    hidden: Tensor, vectors: Tensor, offsets: Tensor, true: Tensor, targets: Tensor, candidates: Tensor
) -> Tensor:
    """(M, 1 + C) logits of the true id and of the candidates; arguments as in `sampled_cross_entropy`.

    The plain form: its cross-entropy with class 0 is the same loss.
    """
    logits = (hidden @ vectors.T).float() + offsets
    logits = logits.masked_fill(targets[:, None] == candidates, -torch.inf)
    return torch.cat([true[:, None], logits], 1)


class _SampledCrossEntropy(torch.autograd.Function):
    """The gradient of the loss by a logit is its softmax, minus 1 for the true id. `forward` computes it."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, vectors: Tensor, offsets: Tensor, true: Tensor, targets: Tensor,
        candidates: Tensor, num_guessed: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        logits = hidden @ vectors.T  # (M, C)
        loss, num_correct = true.new_zeros(()), targets.new_zeros(())
        offsets_grad, true_grad = torch.zeros_like(offsets), torch.zeros_like(true)
        num_rows = max(1, num_guessed if true.is_cuda else CHUNK // len(candidates))
        for start in range(0, num_guessed, num_rows):
            rows = slice(start, min(start + num_rows, num_guessed))
            x = logits[rows].float().add_(offsets)
            x.masked_fill_(targets[rows, None] == candidates, -torch.inf)
            highest = x.amax(1)
            num_correct += (highest <= true[rows]).sum()
            highest = highest.maximum(true[rows])
            x.sub_(highest[:, None]).exp_()
            share = (true[rows] - highest).exp()
            total = x.sum(1) + share
            loss += (total.log() + highest - true[rows]).sum()
            x.div_(total[:, None])  # the softmax
            offsets_grad += x.sum(0)
            true_grad[rows] = share / total - 1
            logits[rows] = x
        logits[num_guessed:] = 0
        ctx.save_for_backward(logits, hidden, vectors, offsets_grad, true_grad)
        ctx.mark_non_differentiable(num_correct)
        return loss, num_correct

    @staticmethod
    def backward(ctx: Any, loss_grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        logits_grad, hidden, vectors, offsets_grad, true_grad = ctx.saved_tensors
        hidden_grad, vectors_grad = logits_grad @ vectors, logits_grad.T @ hidden
        grads = (hidden_grad, vectors_grad, offsets_grad, true_grad)
        return *(loss_grad * grad for grad in grads), None, None, None
