"""One optimiser step, the score on validation, and the state that steps change.

Validation never changes the model: nothing is learnt from that split's text or labels.
"""

import copy
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from imdb_transformer.config import Config, TrainConfig
from imdb_transformer.data.batches import BATCH_TOKENS, length_batches
from imdb_transformer.data.encoded import EncodedSplit
from imdb_transformer.distributed import ALONE, World
from imdb_transformer.errors import DivergedError
from imdb_transformer.evaluation.scores import Score, score
from imdb_transformer.hardware import Hardware
from imdb_transformer.inference.generate import generated_words
from imdb_transformer.inference.transformer import outputs_of
from imdb_transformer.model.language import LanguageModel
from imdb_transformer.store.checkpoint import Arrays
from imdb_transformer.store.run import Kind
from imdb_transformer.training.objectives import GUESSES, OBJECTIVES, Metrics
from imdb_transformer.training.optimizers import AdamW, Muon, learning_rate, make_optimizers, moments
from imdb_transformer.training.plan import Batch, get_batch
from imdb_transformer.training.prepare import Prepared

SAMPLE_TOKENS = 40
# Of the held-out tokens, masked or guessed. It is the same for all configs, to compare their losses.
VALIDATION_SHARE = 0.15


class Learner(NamedTuple):
    """A model in training, its optimisers, and the model to predict with (itself, or its moving average)."""

    model: nn.Module
    averaged: nn.Module
    optimizers: list[AdamW | Muon]
    config: Config
    kind: Kind
    dtype: torch.dtype  # of activations, and of Muon's products


class StepResult(NamedTuple):
    """Results on the batch of all processes, before the update."""

    loss: float
    metrics: dict[str, float]
    gradient_norm: float
    lr: float  # learning rate of the update
    num_tokens: int
    stop: bool  # whether a process was asked to stop

    def line(self, step: int, epoch: int) -> dict[str, Any]:
        """What `metrics.jsonl` says of a step."""
        return {
            "step": step, "epoch": epoch, "lr": self.lr, "loss": self.loss, **self.metrics,
            "gradient_norm": self.gradient_norm, "num_tokens": self.num_tokens,
        }  # fmt: skip


def make_learner(model: nn.Module, config: Config, kind: Kind, dtype: torch.dtype) -> Learner:
    """A learner before its first step."""
    teacher = getattr(model, "teacher", None)  # it does not change, so the average needs no copy of it
    averaged = copy.deepcopy(model, {id(teacher): teacher}) if config.train.ema_decay else model
    return Learner(model, averaged, make_optimizers(model, config.train, dtype), config, kind, dtype)


def train_step(
    learner: Learner, batch: Batch, num_done: int, num_steps: int, *,
    update_size: int = 1, world: World = ALONE, stop: bool = False,
) -> StepResult:  # fmt: skip
    """Takes the step after `num_done` of `num_steps`: it lowers the mean loss of the step's reviews.

    `batch` is this process's share of these reviews, and `update_size` is from the plan's `update_sizes`.
    Dropout and masking depend on (seed, num_done, rank) only, so a resumed run draws the same numbers.
    Raises DivergedError, with nothing updated, if the loss or the gradient is not finite.
    """
    model, averaged, config = learner.model, learner.averaged, learner.config.train
    lr = learning_rate(config, num_done, num_steps)
    torch.manual_seed(_noise_seed(config.seed, num_done, world.rank))
    progress = num_done / num_steps
    metrics = OBJECTIVES[learner.kind](model.train(), batch, learner.config, learner.dtype, progress)
    loss, _ = metrics["loss"]
    loss.backward()
    gradients = []
    for parameter in model.parameters():
        if parameter.grad is None:  # all processes sum the same tensors
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    result, loss_count = _summed(metrics, gradients, batch, world, lr, stop=stop)
    if not math.isfinite(result.loss + result.gradient_norm):
        model.zero_grad()
        raise DivergedError(
            f"step {num_done + 1} has loss {result.loss:g}, gradient norm {result.gradient_norm:g}, "
            f"at rate {lr:.3g}"
        )
    clipping = min(1.0, (config.clip_norm or math.inf) / (result.gradient_norm + 1e-6))
    torch._foreach_mul_(gradients, clipping / loss_count)  # from a sum to the mean loss
    for optimizer in learner.optimizers:
        optimizer.step(lr, num_done, update_size)
    model.zero_grad()
    if averaged is not model and update_size:
        since_update = range(num_done + 1 - update_size, num_done + 1)
        decays = (_decay_of(config, each, num_steps) for each in since_update)
        _move_average(model, averaged, math.prod(decays))
    return result


def _summed(
    metrics: Metrics, gradients: list[Tensor], batch: Batch, world: World, lr: float, *, stop: bool
) -> tuple[StepResult, float]:
    """Sums the gradients over all processes, in place. Returns the step's result and the count of its loss.

    Everything goes in one exchange, and the CPU reads it once.
    """
    sums = torch.stack([value.detach().float() for value, _ in metrics.values()])
    counts = sums.new_tensor([*(count for _, count in metrics.values()), batch.num_tokens, stop])
    if not batch.num_tokens:  # fewer reviews than processes: this one has none
        torch._foreach_zero_([*gradients, sums, counts[:-1]])
    world.all_reduce_([*gradients, sums, counts])
    norm = nn.utils.get_total_norm(gradients)
    # Waits for a GPU, which has all its work queued by now.
    numbers, num_metrics = torch.cat([sums, counts, norm[None]]).tolist(), len(metrics)
    totals = dict(zip(metrics, numbers[:num_metrics], strict=True))
    divisors = dict(zip(metrics, numbers[num_metrics : 2 * num_metrics], strict=True))
    num_tokens, stops, norm_of_sum = numbers[2 * num_metrics :]
    means = {name: totals[name] / max(divisors[name], 1) for name in metrics}
    loss, loss_count = means.pop("loss"), divisors["loss"]
    return StepResult(loss, means, norm_of_sum / loss_count, lr, int(num_tokens), bool(stops)), loss_count


@torch.no_grad()
def _move_average(model: nn.Module, averaged: nn.Module, decay: float) -> None:
    """averaged ← decay · averaged + (1 - decay) · model."""
    torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1 - decay)


def _decay_of(config: TrainConfig, num_done: int, num_steps: int) -> float:
    """The decay of the average after `num_done` steps. Early on it is smaller: first weights are usually bad.

    With `first_share` they are good, and keep exactly this share at the end, as in Wortsman et al. 2022
    ("Robust fine-tuning of zero-shot models").
    """
    if config.first_share:
        return float(config.first_share ** (1 / num_steps))
    return min(config.ema_decay, (1 + num_done) / (10 + num_done))


def _noise_seed(seed: int, num_done: int, rank: int) -> int:
    """A number that torch takes as a seed, of 63 bits."""
    return int(np.random.SeedSequence([seed, num_done, rank]).generate_state(1, np.uint64)[0] >> 1)


def validate(learner: Learner, prepared: Prepared, step: int, lr: float) -> Score | None:
    """The score on validation, if it is held out. Raises DivergedError if it or a weight is not finite.

    A classifier is scored on labels, and an encoder on the tokens that it guesses. `step` counts from 1.
    """
    model, split, validation = learner.averaged, prepared.validation, None
    if split is not None:
        if isinstance(model, LanguageModel):
            validation = token_score(model, prepared.config.pretrain.objective, split, prepared.hardware)
        else:
            reviews = [split.review(i) for i in range(len(split.labels))]
            logits = outputs_of(model.eval(), reviews, prepared.hardware)
            validation = score(logits, split.labels.astype(np.int64))
        if not math.isfinite(validation.loss):
            raise DivergedError(f"step {step}, at rate {lr:.3g}, gives validation loss {validation.loss:g}")
    if not all_finite(learner.model):  # then its average is finite, too
        raise DivergedError(f"step {step}, at rate {lr:.3g}, gives weights that are not finite")
    return validation


def sample(learner: Learner, prepared: Prepared) -> str:
    """Text that a causal model writes, with noise that never changes. Empty for other models."""
    model = learner.averaged
    if not isinstance(model, LanguageModel) or model.spacing is None:
        return ""
    model.eval()
    return "".join(generated_words(model, prepared.tokenizer, prepared.hardware, num_tokens=SAMPLE_TOKENS))


@torch.inference_mode()
def token_score(model: LanguageModel, objective: str, split: EncodedSplit, hardware: Hardware) -> Score:
    """Accuracy and loss on guessed tokens of a split, over the whole vocabulary. The noise never changes."""
    generator = torch.Generator(hardware.device).manual_seed(0)
    loss, num_correct, num_guessed = 0.0, 0, 0
    model.eval()
    for indices in length_batches(split.lengths, batch_tokens=BATCH_TOKENS[hardware.device.type]):
        batch = get_batch(split, indices, hardware)
        guesses = GUESSES[objective](model, batch, hardware.dtype, VALIDATION_SHARE, generator)
        batch_loss, batch_correct = model.full_loss(*guesses)
        loss, num_correct = loss + batch_loss.item(), num_correct + int(batch_correct)
        num_guessed += guesses.num_guessed
    return Score(accuracy=num_correct / max(num_guessed, 1), loss=loss / max(num_guessed, 1))


def all_finite(model: nn.Module) -> bool:
    """Whether no weight is NaN or infinite."""
    return all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def training_state(learner: Learner) -> dict[str, Tensor]:
    """By name, the tensors that the next step depends on, except the weights to predict with."""
    state = moments(learner.optimizers, learner.model)
    if learner.averaged is not learner.model:
        state |= {f"weights.{name}": parameter for name, parameter in learner.model.named_parameters()}
    return state


@torch.no_grad()
def load_state(learner: Learner, weights: Arrays, state: Arrays) -> None:
    """Restores a learner from its weights and its `training_state`."""
    learner.averaged.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    for name, parameter in learner.model.named_parameters():
        parameter.copy_(torch.from_numpy(state.get(f"weights.{name}", weights[name])))
    for name, tensor in moments(learner.optimizers, learner.model).items():
        tensor.copy_(torch.from_numpy(state[name]))
