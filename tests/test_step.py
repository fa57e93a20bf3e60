import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from imdb_transformer import config_file
from imdb_transformer.config import Config
from imdb_transformer.distributed import ALONE, World
from imdb_transformer.training.objectives import classification
from imdb_transformer.training.optimizers import (
    BETA1,
    moments,
)
from imdb_transformer.training.plan import Batch, get_batch, make_plan
from imdb_transformer.training.prepare import make_classifier
from imdb_transformer.training.step import (
    Learner,
    StepResult,
    _decay_of,
    _noise_seed,
    make_learner,
    train_step,
)
from tests.in_process import CPU, Tiny, prepared


class Stepped(NamedTuple):
    """One step on all its training reviews: the learner after it, the weights before, and what it told."""

    learner: Learner
    before: dict[str, torch.Tensor]
    batch: Batch
    result: StepResult

    @property
    def model(self) -> nn.Module:
        return self.learner.model


def new_learner(config: Config) -> Learner:
    model = make_classifier(config, vocab_size=400, num_classes=2).train()
    return make_learner(model, config, "classifier", torch.float32)


def step_at(rate: float, learner: Learner, batch: Batch, step: int = 0, **options: Any) -> StepResult:
    """A training step at a rate, whatever the schedule."""
    changes = {"lr": rate, "schedule": "constant", "warmup_fraction": 0.0}
    config = learner.config.replaced("train", **changes)
    return train_step(learner._replace(config=config), batch, step, 1000, **options)


def a_step(config: Config, *, rate: float | None = None, **changes: float) -> Stepped:
    split = prepared(config).splits["train"]
    config = config.replaced("train", **changes)
    learner = new_learner(config)
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    batch = get_batch(split, make_plan(config, split).batches[0][1], CPU)
    result = step_at(config.train.lr if rate is None else rate, learner, batch)
    return Stepped(learner, before, batch, result)


def moved(stepped: Stepped) -> dict[str, torch.Tensor]:
    return {name: (p - stepped.before[name]).detach() for name, p in stepped.model.named_parameters()}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_moves_each_parameter_at_its_share_of_the_rate(tiny: Tiny, optimizer: str) -> None:
    options = {"optimizer": optimizer, "muon_lr_scale": 1.0}
    config = tiny("train.batch_tokens=100000", "train.weight_decay=0.0", "model.dropout=0.0")
    plain = moved(a_step(config, **options))  # type: ignore[arg-type]
    scaled = moved(a_step(config, **options | {"muon_lr_scale": 3.0}))  # type: ignore[arg-type]
    for name, step in plain.items():
        share = 3.0 if optimizer == "muon" and "blocks" in name and step.ndim == 2 else 1.0
        torch.testing.assert_close(scaled[name], share * step, rtol=1e-3, atol=1e-6, msg=name)


@pytest.mark.parametrize("lr", [0.0, 0.02])
def test_a_step_uses_the_rate_that_is_passed(tiny: Tiny, lr: float) -> None:
    """Not the peak of the config."""
    config = tiny("train.batch_tokens=100000", "train.weight_decay=0.0", "model.dropout=0.0")
    at_peak, other = moved(a_step(config)), moved(a_step(config, rate=lr))
    for name, step in at_peak.items():
        torch.testing.assert_close(other[name], step * lr / config.train.lr, rtol=1e-3, atol=1e-6, msg=name)


def test_one_step_changes_every_parameter(tiny: Tiny) -> None:
    stepped = a_step(tiny("train.batch_tokens=100000"))
    for name, parameter in stepped.model.named_parameters():
        assert not torch.equal(parameter, stepped.before[name]), name


def test_muon_moves_blocks_by_orthogonal_matrices_as_far_as_adamw(tiny: Tiny) -> None:
    """In every direction about as far: AdamW's first step is far along a few of them only."""
    config = tiny("train.batch_tokens=100000", "train.weight_decay=0.0", "train.seed=2")
    moved = {}
    for optimizer in ("adamw", "muon"):
        stepped = a_step(config, optimizer=optimizer)
        moved[optimizer] = {
            name: (parameter - stepped.before[name]).detach()
            for name, parameter in stepped.model.named_parameters()
            if parameter.ndim == 2 and "blocks" in name
        }
    assert len(moved["muon"]) == 4 * config.model.num_layers
    for name, step in moved["muon"].items():
        flat, steep = (torch.linalg.svdvals(matrix) for matrix in (step, moved["adamw"][name]))
        # Newton and Schulz's iteration is rough, and leaves the smallest behind.
        assert flat.median() > 0.5 * flat.max(), name
        assert steep.median() < 0.5 * steep.max(), name
        size = step.norm() / moved["adamw"][name].norm()
        assert 0.1 < size < 0.5, name  # 0.2 of a step by sign is what AdamW's usually are (Liu et al. 2025)


def test_a_step_follows_the_clipped_gradient_of_the_mean_loss(tiny: Tiny) -> None:
    """Adam would take the same first step for any multiple of the gradient: its moment shows which it saw."""
    config = tiny("model.dropout=0.0", "train.batch_tokens=1000000", "train.clip_norm=0.01")
    stepped = a_step(config)
    model = make_classifier(config, vocab_size=400, num_classes=2).train()
    model.load_state_dict(stepped.before, strict=False)
    batch = stepped.batch
    loss = F.cross_entropy(model(batch.ids, batch.mask), batch.labels)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm().item()
    assert norm > 0.02
    assert stepped.result.loss == pytest.approx(loss.item(), rel=1e-5)
    assert stepped.result.gradient_norm == pytest.approx(norm, rel=1e-4)
    state = moments(stepped.learner.optimizers, stepped.model)
    for name, gradient in gradients.items():
        seen = state[f"exp_avg.{name}"] / (1 - BETA1)
        torch.testing.assert_close(seen, gradient * 0.01 / norm, rtol=1e-3, atol=1e-7)
        squared = state[f"exp_avg_sq.{name}"] / (1 - config.train.beta2)
        torch.testing.assert_close(squared, (gradient * 0.01 / norm) ** 2, rtol=1e-2, atol=1e-10)


def test_label_smoothing_moves_probability_to_all_classes_evenly() -> None:
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    batch = Batch(torch.zeros(5, 1, dtype=torch.long), torch.ones(5, 1, dtype=torch.bool), labels, 5)
    config = config_file.parse({"train": {"label_smoothing": 0.1}}, origin="x")
    model = make_classifier(config, vocab_size=400, num_classes=3)
    model.features = lambda *_: logits  # type: ignore[method-assign]
    model.head = nn.Identity()  # type: ignore[assignment]
    loss, count = classification(model, batch, config, torch.float32, 0.0)["loss"]
    nats = -logits.log_softmax(1)
    expected = (0.9 * nats[torch.arange(5), labels] + 0.1 * nats.mean(1)).sum()
    torch.testing.assert_close(loss, expected)
    assert count == 5


def test_the_loss_is_computed_in_the_precision_asked_for(tiny: Tiny) -> None:
    config = tiny("model.dropout=0.0")
    batch = get_batch(prepared(config).splits["train"], torch.arange(8).numpy(), CPU)
    model = make_classifier(config, vocab_size=400, num_classes=2)
    exact, rough = (
        classification(model, batch, config, dtype, 0.0)["loss"][0].item()
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert exact != rough
    assert exact == pytest.approx(rough, rel=0.02)


def test_the_moving_average_is_that_of_the_weights(tiny: Tiny) -> None:
    """It moves by 1 - min(decay, (1 + step) / (10 + step))."""
    config = tiny("train.ema_decay=0.15", "train.batch_tokens=1000000")
    learner, before, batch, _ = a_step(config)
    first = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    step_at(config.train.lr, learner, batch, 1)
    second = dict(learner.model.named_parameters())
    for name, parameter in learner.averaged.named_parameters():
        expected = 0.15 * (0.1 * before[name] + 0.9 * first[name]) + 0.85 * second[name]
        torch.testing.assert_close(parameter, expected)


@pytest.mark.parametrize(
    "options", [{"ema_decay": 0.2}, {"ema_decay": 0.998}, {"ema_decay": 0.9, "first_share": 0.3}]
)
def test_an_update_of_the_average_for_several_steps_has_the_decays_of_all_of_them(
    tiny: Tiny, options: dict[str, float]
) -> None:
    config = tiny("train.batch_tokens=512").replaced("train", **options)
    learner, split = new_learner(config), prepared(config).splits["train"]
    batch = get_batch(split, make_plan(config, split).batches[0][1], CPU)
    before = {name: parameter.detach().clone() for name, parameter in learner.model.named_parameters()}
    for step in range(7):
        train_step(learner, batch, step, 8, update_size=0)
        for name, parameter in learner.averaged.named_parameters():
            torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)
    train_step(learner, batch, 7, 8, update_size=8)
    share = math.prod(_decay_of(config.train, step, 8) for step in range(8))
    for name, parameter in learner.averaged.named_parameters():
        after = learner.model.get_parameter(name)
        torch.testing.assert_close(parameter, share * before[name] + (1 - share) * after)


@pytest.mark.parametrize(
    ("share", "decay", "expected"),
    [(0.25, 0.5, 0.25), (0.25, 0.9, 0.25), (0.0, 0.9, 1 * 2 * 3 * 4 / (10 * 11 * 12 * 13))],
)
def test_the_first_weights_keep_their_share_of_the_average_after_all_steps(
    tiny: Tiny, share: float, decay: float, expected: float
) -> None:
    config = tiny(f"train.first_share={share}", f"train.ema_decay={decay}").train
    assert math.prod(_decay_of(config, step, 4) for step in range(4)) == pytest.approx(expected)


def test_noise_differs_between_steps_and_processes() -> None:
    seeds = {_noise_seed(*key) for key in itertools.product(range(4), repeat=3)}
    assert len(seeds) == 4**3


class Share(World):
    """A process among several, whose partners have nothing to do."""

    def all_reduce_(self, tensors: Sequence[torch.Tensor]) -> None:
        del tensors


def test_dropout_is_a_function_of_seed_step_and_process_alone(tiny: Tiny) -> None:
    """Or a resumed run would draw others; or each step would drop the same channels."""
    config = tiny("model.dropout=0.5", "train.precision=fp32")
    split = prepared(config).splits["train"]
    batch = get_batch(split, torch.arange(8).numpy(), CPU)
    learner = new_learner(config)

    def loss(seed: int, step: int, rank: int) -> float:
        seeded = config.replaced("train", seed=seed)
        return step_at(0.0, learner._replace(config=seeded), batch, step, world=Share(rank, 3)).loss

    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 2, 0), (0, 0, 1), (0, 0, 2)]
    losses = [loss(*key) for key in keys]
    assert len(set(losses)) == len(keys)
    assert [loss(*key) for key in reversed(keys)] == losses[::-1]


def test_a_process_without_a_review_adds_zeros(tiny: Tiny) -> None:
    """Also where the review that stands in gives a loss that is not finite."""
    config = tiny("model.dropout=0.0")
    split = prepared(config).splits["train"]
    batch = get_batch(split, np.arange(0), CPU)
    assert len(batch.ids) == 1
    learner = new_learner(config)
    with torch.no_grad():
        learner.model.head.weight.fill_(torch.nan)  # type: ignore[union-attr,operator]
    summed: list[torch.Tensor] = []

    class Recording(World):
        def all_reduce_(self, tensors: Sequence[torch.Tensor]) -> None:
            summed.extend(tensor.clone() for tensor in tensors)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        step_at(0.0, learner, batch, world=Recording(1, 2), stop=True)
    *zeros, counts = summed
    assert not any(tensor.any() for tensor in zeros)
    assert counts.tolist() == [0.0] * (len(counts) - 1) + [1.0]  # and says that it was asked to stop


def test_two_processes_step_as_one_with_the_whole_batch(tiny: Tiny) -> None:
    """Their gradients and metrics are added up."""
    config = tiny("model.dropout=0.0", "model.radius=0", "train.batch_tokens=1000000")
    split = prepared(config).splits["train"]
    indices = make_plan(config, split).batches[0][1]
    first: list[torch.Tensor] = []

    class Pair(World):
        def all_reduce_(self, tensors: Sequence[torch.Tensor]) -> None:
            if self.is_first:
                first.extend(tensor.clone() for tensor in tensors)
            else:
                for tensor, other in zip(tensors, first, strict=True):
                    tensor.add_(other)

    def step(learner: Learner, share: np.ndarray, world: World) -> StepResult:  # type: ignore[type-arg]
        return step_at(1e-3, learner, get_batch(split, share, CPU), world=world)

    one, two = new_learner(config), new_learner(config)
    alone = step(one, indices, ALONE)
    step(new_learner(config), indices[0::2], Pair(0, 2))
    together = step(two, indices[1::2], Pair(1, 2))
    assert together.loss == pytest.approx(alone.loss, rel=1e-5)
    assert together.gradient_norm == pytest.approx(alone.gradient_norm, rel=1e-4)
    assert together.metrics == pytest.approx(alone.metrics)
    assert together.num_tokens == alone.num_tokens
    for (name, a), b in zip(one.model.named_parameters(), two.model.parameters(), strict=True):
        # Adam's first step is the sign of the gradient: where that is noise, so is the step.
        assert torch.isclose(a, b, atol=1e-4).float().mean() > 0.99, name


def test_eight_reviews_can_be_memorised(tiny: Tiny) -> None:
    config = tiny("model.dropout=0.0")
    split = prepared(config).splits["train"]
    batch = get_batch(split, torch.arange(8).numpy(), CPU)
    learner = new_learner(config)
    results = [step_at(1e-2, learner, batch, i) for i in range(60)]
    assert results[-1].metrics["accuracy"] == 1.0
    assert results[-1].loss < 0.05


def test_a_step_reports_the_loss_the_figures_and_the_tokens_of_its_batch(tiny: Tiny) -> None:
    config = tiny("model.dropout=0.0")
    split = prepared(config).splits["train"]
    learner = new_learner(config)
    batch = get_batch(split, make_plan(config, split).batches[0][1], CPU)
    logits = learner.model(batch.ids, batch.mask)
    result = step_at(1e-3, learner, batch)
    assert result.num_tokens == batch.num_tokens
    num_correct = int((logits.argmax(1) == batch.labels).sum())
    assert result.metrics["accuracy"] == pytest.approx(num_correct / len(batch.labels))
    assert result.loss == pytest.approx(F.cross_entropy(logits, batch.labels).item(), rel=1e-5)
