"""The optimisers and the learning rate."""

import itertools

import pytest
import torch
from torch import nn

from imdb_transformer.config import Config, TrainConfig
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.training import optimizers as optimizers_module
from imdb_transformer.training.optimizers import (
    ADAM_EPS,
    BETA1,
    MUON_MOMENTUM,
    AdamW,
    Muon,
    learning_rate,
    make_optimizers,
    orthogonal,
)
from imdb_transformer.training.plan import update_sizes
from imdb_transformer.training.prepare import make_classifier
from imdb_transformer.training.step import make_learner
from tests.in_process import Tiny

SHARES = {  # of the peak rate, after these shares of the steps that follow the warm-up
    "linear": {0.0: 1.0, 0.25: 0.75, 0.5: 0.5, 0.9: 0.1, 1.0: 0.0},
    "cosine": {0.0: 1.0, 1 / 6: 0.9330127, 0.25: 0.8535534, 0.5: 0.5, 2 / 3: 0.25, 1.0: 0.0},
    "constant": {0.0: 1.0, 0.25: 1.0, 0.5: 1.0, 1.0: 1.0},
}


@pytest.mark.parametrize("schedule", SHARES)
def test_the_rate_rises_linearly_to_its_peak_and_then_follows_the_schedule(schedule: str) -> None:
    config = TrainConfig(lr=0.2, schedule=schedule, warmup_fraction=10 / 130)  # type: ignore[arg-type]
    rates = [learning_rate(config, step, 130) for step in range(131)]
    assert rates[:10] == pytest.approx([0.02 * (step + 1) for step in range(10)])
    for done, share in SHARES[schedule].items():
        assert rates[10 + round(120 * done)] == pytest.approx(0.2 * share, abs=1e-7), done


def test_inverse_square_root_is_the_papers_equation() -> None:
    width, warmup = 512, 4000
    peak = width**-0.5 * warmup**-0.5
    config = TrainConfig(lr=peak, schedule="inverse_sqrt", warmup_fraction=warmup / 10**6)
    for number in (1, 100, 3999, 4000, 4001, 100_000):  # the paper counts steps from 1
        expected = width**-0.5 * min(number**-0.5, number * warmup**-1.5)
        assert learning_rate(config, number - 1, 10**6) == pytest.approx(expected)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_parameter_has_one_optimizer_and_biases_and_norms_do_not_decay(optimizer: str) -> None:
    model = Classifier(Config().model, vocab_size=10, num_classes=2)
    config = TrainConfig(lr=0.1, weight_decay=0.1, optimizer=optimizer, muon_lr_scale=0.5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1  # biases start at 0, where no decay shows
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizers = make_optimizers(model, config)
    updated = [each for made in optimizers for each in next(iter(made.moments.values()))]
    assert sorted(map(id, updated)) == sorted(map(id, model.parameters()))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # only the decay is left
    for made in optimizers:
        made.step(0.1, 0)
    for name, parameter in model.named_parameters():
        is_muons = optimizer == "muon" and "blocks" in name and parameter.ndim == 2
        factor = 1 if "bias" in name or "norm" in name else 1 - 0.1 * 0.1 * (0.5 if is_muons else 1)
        torch.testing.assert_close(parameter, before[name] * factor, rtol=0, atol=1e-7, msg=name)


def optimized(config: TrainConfig, name: str, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """A parameter of a model before and after each step on given gradients."""
    sizes = Config().model.model_copy(update={"width": 24, "num_heads": 2})
    model = Classifier(sizes, vocab_size=10, num_classes=2)
    optimizers, parameter = make_optimizers(model, config), model.get_parameter(name)
    values = [parameter.detach().clone()]
    updates = update_sizes(config, len(gradients), frozenset([len(gradients)]))
    for step, gradient in enumerate(gradients):
        for other in model.parameters():
            other.grad = torch.zeros_like(other)
        parameter.grad = gradient.clone()
        for optimizer in optimizers:
            optimizer.step(config.lr, step, updates[step])
        values.append(parameter.detach().clone())
    return values


def test_adamw_is_the_papers_algorithm_with_the_configs_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loshchilov and Hutter 2019, algorithm 2."""
    monkeypatch.setattr(optimizers_module, "ADAM_EPS", 0.1)  # large enough to be seen
    config = TrainConfig(lr=0.01, beta2=0.95, weight_decay=0.3)
    torch.manual_seed(0)
    gradients = [torch.randn(2, 24) for _ in range(4)]
    x, *values = optimized(config, "head.weight", gradients)
    mean, square = torch.zeros_like(x), torch.zeros_like(x)
    for number, (gradient, value) in enumerate(zip(gradients, values, strict=True), 1):
        mean, square = BETA1 * mean + (1 - BETA1) * gradient, 0.95 * square + 0.05 * gradient**2
        x = x - 0.01 * 0.3 * x
        x = x - 0.01 * (mean / (1 - BETA1**number)) / ((square / (1 - 0.95**number)).sqrt() + 0.1)
        torch.testing.assert_close(value, x)


def twice(*shapes: tuple[int, ...]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Random parameters, and copies of them."""
    torch.manual_seed(0)
    starts = [torch.randn(shape) for shape in shapes]
    ours, torchs = ([nn.Parameter(start.clone()) for start in starts] for _ in range(2))
    return ours, torchs


def make_the_same_gradients(ours: list[nn.Parameter], torchs: list[nn.Parameter]) -> None:
    for our, its in zip(ours, torchs, strict=True):
        our.grad = torch.randn_like(our)
        its.grad = our.grad.clone()


def test_adamw_makes_torchs_steps_to_the_bit() -> None:
    ours, torchs = twice((30, 20), (7,))
    mine = AdamW([ours[0]], [ours[1]], weight_decay=0.1, beta2=0.95)
    groups = [
        {"params": [each], "weight_decay": decay} for each, decay in zip(torchs, (0.1, 0.0), strict=True)
    ]
    referee = torch.optim.AdamW(groups, lr=0.01, betas=(BETA1, 0.95), eps=ADAM_EPS, fused=True)
    for step in range(5):
        make_the_same_gradients(ours, torchs)
        mine.step(0.01, step)
        referee.step()
        for our, its in zip(ours, torchs, strict=True):
            assert torch.equal(our, its)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_muon_steps_along_its_orthogonalised_momentum(
    momentum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nesterov's momentum (Jordan et al. 2024), in the size of AdamW's steps (Liu et al. 2025, 2.2)."""
    monkeypatch.setattr(optimizers_module, "MUON_MOMENTUM", momentum)
    config = TrainConfig(lr=0.01, optimizer="muon", muon_lr_scale=1.0, weight_decay=0.0)
    torch.manual_seed(0)
    name = "encoder.blocks.0.attention.project_out.weight"
    gradients = [torch.linalg.qr(torch.randn(128, 24)).Q.T for _ in range(3)]  # each orthogonal as it is
    values = optimized(config, name, gradients)
    mean = torch.zeros(24, 128)
    for gradient, before, after in zip(gradients, values, values[1:], strict=False):
        mean = momentum * mean + (1 - momentum) * gradient
        left, _, right = torch.linalg.svd(momentum * mean + (1 - momentum) * gradient, full_matrices=False)
        direction = left @ right
        step = before - after
        assert (step * direction).sum() / (step.norm() * direction.norm()) > 0.98
        # Newton and Schulz's iteration leaves singular values of 0.7 to 1.2.
        assert 0.65 < step.norm() / (0.01 * 0.2 * 128**0.5 * direction.norm()) < 1.25


@pytest.mark.parametrize("shapes", [[(24, 24)], [(24, 96)], [(96, 24)], [(24, 96), (24, 24), (24, 96)]])
def test_muon_in_bf16_makes_torchs_steps(shapes: list[tuple[int, int]]) -> None:
    ours, torchs = twice(*shapes)
    mine = Muon(list(ours), lr_scale=0.5, weight_decay=0.1, dtype=torch.bfloat16)
    referee = torch.optim.Muon(torchs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for step in range(3):
        make_the_same_gradients(ours, torchs)
        mine.step(0.04, step)
        referee.step()
        torch.testing.assert_close(ours, torchs, rtol=0, atol=1e-6)


def test_muon_has_the_momentum_that_torchs_has_by_default() -> None:
    assert torch.optim.Muon([torch.ones(2, 2)]).defaults["momentum"] == MUON_MOMENTUM


def test_muon_updates_in_every_eighth_step_with_few_tokens_in_a_batch() -> None:
    numbers = {"lr": 0.01, "muon_lr_scale": 1.0, "weight_decay": 0.1}
    torch.manual_seed(0)
    gradients = [torch.randn(24, 128) for _ in range(16)]
    name = "encoder.blocks.0.attention.project_out.weight"
    few, many = (
        optimized(TrainConfig.model_validate({"optimizer": "muon", **numbers, **batches}), name, gradients)
        for batches in ({"batch_tokens": 2048}, {"batch_tokens": 2049})
    )
    assert [torch.equal(*pair) for pair in itertools.pairwise(few)] == [*[True] * 7, False] * 2
    assert not any(torch.equal(*pair) for pair in itertools.pairwise(many))
    (of_few, of_many) = (
        (values[7] * (1 - 0.1 * 0.01 * rate) - values[8]) for values, rate in ((few, 8), (many, 1))
    )
    # The same direction, eight times as far.
    torch.testing.assert_close(of_few, 8 * of_many, rtol=0, atol=1e-6)


def test_muon_updates_in_the_last_step_as_far_as_in_the_steps_since_the_update_before() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(24, 128)
    config = TrainConfig(optimizer="muon", batch_tokens=512, weight_decay=0.0)
    name = "encoder.blocks.0.attention.project_out.weight"
    values = optimized(config, name, [gradient] * 11)  # eight steps and three have joined
    of_eight, of_three = values[8] - values[7], values[11] - values[10]
    torch.testing.assert_close(3 * of_eight, 8 * of_three)
    assert of_three.any()


def test_muons_products_have_the_precision_of_the_activations(tiny: Tiny) -> None:
    config = tiny("train.optimizer=muon")
    model = make_classifier(config, vocab_size=400, num_classes=2)
    for dtype in (torch.float32, torch.bfloat16):
        _, muon = make_learner(model, config, "classifier", dtype).optimizers
        assert isinstance(muon, Muon)
        assert muon.dtype == dtype
    matrix = torch.randn(1, 24, 96)
    exact, rough = orthogonal(matrix), orthogonal(matrix.bfloat16())
    assert rough.dtype == torch.bfloat16
    assert 0 < (exact - rough.float()).norm() / exact.norm() < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(24, 96), (96, 24)])
def test_a_gradient_of_zeros_has_no_direction(shape: tuple[int, int], dtype: torch.dtype) -> None:
    zeros = torch.zeros(1, *shape, dtype=dtype)
    assert torch.equal(orthogonal(zeros), zeros)
