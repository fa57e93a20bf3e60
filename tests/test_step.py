import itertools
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import Muon

from imdb_transformer.config import Config, TrainConfig
from imdb_transformer.inference.forward import Batch
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.training.classification import make_model
from imdb_transformer.training.optimizers import make_optimizers, moments, num_moments
from imdb_transformer.training.plan import gather, make_plan
from imdb_transformer.training.schedule import learning_rate
from imdb_transformer.training.step import Learner, StepResult, _noise_seed, make_learner, train_step
from imdb_transformer.training.task import classification
from tests.in_process import CPU, Tiny, prepared


def test_rate_at_the_start_at_the_end_of_warm_up_and_at_the_end() -> None:
    for schedule, last in (("linear", 0.0), ("cosine", 0.0), ("constant", 1.0)):
        config = TrainConfig(lr=1.0, schedule=schedule, warmup_steps=10)  # type: ignore[arg-type]
        rates = [learning_rate(config, step, 110) for step in range(111)]
        assert rates[0] == pytest.approx(0.1)
        assert rates[10] == max(rates) == 1.0
        assert rates[110] == pytest.approx(last)
    assert learning_rate(TrainConfig(lr=1.0, warmup_fraction=0.5), 4, 20) == pytest.approx(0.5)


def test_inverse_square_root_is_the_papers_equation() -> None:
    width, warmup = 512, 4000
    peak = width**-0.5 * warmup**-0.5
    config = TrainConfig(lr=peak, schedule="inverse_sqrt", warmup_steps=warmup)
    for number in (1, 100, 3999, 4000, 4001, 100_000):  # the paper counts steps from 1
        expected = width**-0.5 * min(number**-0.5, number * warmup**-1.5)
        assert learning_rate(config, number - 1, 10**6) == pytest.approx(expected)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_parameter_is_in_one_group_of_its_optimizer_and_biases_and_norms_do_not_decay(
    optimizer: str,
) -> None:
    model = Classifier(Config().model, vocab_size=10, num_classes=2)
    config = TrainConfig(weight_decay=0.1, optimizer=optimizer, muon_lr_scale=0.5)
    names = {parameter: name for name, parameter in model.named_parameters()}
    optimizers = make_optimizers(model, config)
    assert num_moments(model, config) == sum(map(torch.numel, moments(optimizers, model).values()))
    groups = [group for made in optimizers for group in made.param_groups]
    for group in groups:
        for parameter in group["params"]:
            name = names[parameter]
            assert group["weight_decay"] == (0.0 if "bias" in name or "norm" in name else 0.1), name
            muons = optimizer == "muon" and "blocks" in name and parameter.ndim == 2
            assert group["lr_scale"] == (0.5 if muons else 1.0), name
    assert sorted(map(id, names)) == sorted(id(p) for group in groups for p in group["params"])


def test_layer_decay_lowers_the_rate_of_each_layer_below_the_head() -> None:
    model = Classifier(Config().model.model_copy(update={"num_layers": 2}), vocab_size=10, num_classes=2)
    config = TrainConfig(layer_decay=0.5, optimizer="muon", muon_lr_scale=3.0)
    names = {parameter: name for name, parameter in model.named_parameters()}
    shares = {"head.": 1.0, "encoder.final_norm.": 1.0, "encoder.blocks.1.": 0.5, "encoder.blocks.0.": 0.25,
              "encoder.embedding.": 0.125}  # fmt: skip
    for optimizer in make_optimizers(model, config):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                (share,) = [value for start, value in shares.items() if names[parameter].startswith(start)]
                scale = 3.0 if isinstance(optimizer, Muon) else 1.0
                assert group["lr_scale"] == share * scale, names[parameter]


class Stepped(NamedTuple):
    """One step on all its training reviews: the learner after it, the weights before, and what it told."""

    learner: Learner
    before: dict[str, torch.Tensor]
    batches: list[Batch]
    result: StepResult

    @property
    def model(self) -> nn.Module:
        return self.learner.model


def a_step(config: Config, **changes: float) -> Stepped:
    splits = prepared(config).splits
    options = config.train.model_copy(update=changes)
    model = make_model(config, vocab_size=400, num_classes=2).train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batches = [
        gather(config, splits["train"], indices, CPU)
        for _, indices in make_plan(config, splits["train"]).of_step(0)
    ]
    learner = make_learner(model, options)
    result = train_step(learner, batches, classification(), options, CPU, step=0, lr=options.lr)
    return Stepped(learner, before, batches, result)


def test_one_step_changes_every_parameter(tiny: Tiny) -> None:
    stepped = a_step(tiny("train.batch_tokens=100000"))
    for name, parameter in stepped.model.named_parameters():
        assert not torch.equal(parameter, stepped.before[name]), name


def test_muon_moves_the_matrices_of_blocks_by_orthogonal_ones_as_far_as_adamw(tiny: Tiny) -> None:
    """In every direction about as far: AdamW's first step is far along a few of them only."""
    config = tiny("train.batch_tokens=100000", "train.weight_decay=0.0")
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


def test_accumulated_batches_step_as_one_large_batch(tiny: Tiny) -> None:
    plain = ["model.dropout=0.0", "model.attention='full'", "train.clip_norm=0.0", "train.epochs=1"]
    many = a_step(tiny("train.batch_tokens=2000", "train.accumulate=1000", *plain))
    one = a_step(tiny("train.batch_tokens=1000000", *plain))
    assert len(many.batches) > len(one.batches) == 1
    assert many.result.loss == pytest.approx(one.result.loss, rel=1e-5)
    assert many.result.gradient_norm == pytest.approx(one.result.gradient_norm, rel=1e-4)
    assert many.result.num_tokens == one.result.num_tokens
    for (name, a), b in zip(many.model.named_parameters(), one.model.parameters(), strict=True):
        # Adam's first step is the sign of the gradient: where that is noise, so is the step.
        assert torch.isclose(a, b, atol=1e-4).float().mean() > 0.99, name


def test_a_step_follows_the_clipped_gradient_of_the_mean_loss(tiny: Tiny) -> None:
    """Adam would take the same first step for any multiple of the gradient: its moment shows which it saw."""
    config = tiny("model.dropout=0.0", "train.batch_tokens=1000000", "train.clip_norm=0.01")
    stepped = a_step(config)
    model = make_model(config, vocab_size=400, num_classes=2).train()
    model.load_state_dict(stepped.before, strict=False)
    (batch,) = stepped.batches
    loss = functional.cross_entropy(model(batch.ids, batch.mask), batch.labels)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm().item()
    assert norm > 0.02
    assert stepped.result.loss == pytest.approx(loss.item(), rel=1e-5)
    assert stepped.result.gradient_norm == pytest.approx(norm, rel=1e-4)
    state = moments(stepped.learner.optimizers, stepped.model)
    for name, gradient in gradients.items():
        seen = state[f"exp_avg.{name}"] / (1 - config.train.beta1)
        torch.testing.assert_close(seen, gradient * 0.01 / norm, rtol=1e-3, atol=1e-7)


def test_label_smoothing_moves_probability_to_all_classes_evenly() -> None:
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    batch = Batch(torch.zeros(5, 1, dtype=torch.long), torch.ones(5, 1, dtype=torch.bool), labels, 5)
    model = nn.Module()
    model.forward = lambda *_: logits  # type: ignore[method-assign]
    found = classification(0.1).loss(model, batch, torch.float32).total
    nats = -logits.log_softmax(1)
    expected = (0.9 * nats[torch.arange(5), labels] + 0.1 * nats.mean(1)).sum()
    torch.testing.assert_close(found, expected)


def test_the_moving_average_is_that_of_the_weights(tiny: Tiny) -> None:
    """It moves by 1 - min(decay, (1 + step) / (10 + step))."""
    config = tiny("train.ema_decay=0.15", "train.batch_tokens=1000000")
    learner, before, batches, _ = a_step(config)
    first = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    train_step(learner, batches, classification(), config.train, CPU, step=1, lr=config.train.lr)
    second = dict(learner.model.named_parameters())
    for name, parameter in learner.averaged.named_parameters():
        expected = 0.15 * (0.1 * before[name] + 0.9 * first[name]) + 0.85 * second[name]
        torch.testing.assert_close(parameter, expected)


def test_noise_is_other_noise_in_every_step_batch_and_process() -> None:
    drawn = {_noise_seed(*key) for key in itertools.product(range(3), repeat=4)}
    assert len(drawn) == 3**4


def test_eight_reviews_are_learnt_by_heart(tiny: Tiny) -> None:
    config = tiny("model.dropout=0.0")
    split = prepared(config).splits["train"]
    batch = gather(config, split, torch.arange(8).numpy(), CPU)
    model = make_model(config, vocab_size=400, num_classes=2).train()
    learner = make_learner(model, config.train)
    results = [
        train_step(learner, [batch], classification(), config.train, CPU, step=i, lr=1e-2) for i in range(60)
    ]
    assert results[-1].figures["accuracy"] == 1.0
    assert results[-1].loss < 0.05
