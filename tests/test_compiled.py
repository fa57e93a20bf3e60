"""Shapes: B batch, L length, D model width."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from imdb_transformer import hardware
from imdb_transformer.errors import DataWarning
from imdb_transformer.model.compiled import CompiledForward, can_be_compiled
from imdb_transformer.model.encoder import Encoder
from imdb_transformer.store.run import Kind
from imdb_transformer.training import start
from imdb_transformer.training.objectives import in_halves
from imdb_transformer.training.plan import get_batch, make_plan
from imdb_transformer.training.prepare import Prepared, prepare
from tests.in_process import CPU, Tiny
from tests.test_model import a_batch, small

NUM_TOKENS = 100  # at most, of a batch of compiled blocks


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the blocks as they are, but lays the reviews end to end."""
    monkeypatch.setattr(torch, "compile", lambda block, **_: block)


def an_encoder(**changes: object) -> Encoder:
    torch.manual_seed(0)
    return Encoder(small(**changes), 30).train()


def compile_forward(encoder: Encoder, num_tokens: int) -> None:
    encoder.forward = CompiledForward(encoder, num_tokens)  # type: ignore[method-assign]


def is_compiled(encoder: Encoder, ids: Tensor) -> bool:
    """Whether a batch goes through the compiled blocks."""
    return isinstance(encoder.forward, CompiledForward) and encoder.forward.takes(ids)


def features_and_gradients(
    encoder: Encoder, batch: tuple[Tensor, Tensor], **options: Any
) -> tuple[Tensor, list[Tensor]]:
    """The features of tokens or of selected positions, and the gradients of the sum of their squares."""
    features = encoder(*batch, torch.float32, **options)
    features = features[batch[1]] if features.ndim == 3 else features
    return features.detach(), list(torch.autograd.grad(features.square().sum(), list(encoder.parameters())))


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("lengths", [[16, 9, 1], [3, 2], [25, 25, 25, 25], [13]], ids=str)
@pytest.mark.parametrize("options", [{}, {"direction": 1}, {"rows": torch.tensor([0, 2, 1])}], ids=str)
@pytest.mark.parametrize(("norm", "positions"), [("pre", "rotary"), ("post", "sinusoidal")])
def test_reviews_end_to_end_have_the_same_features_and_gradients(
    lengths: list[int], options: dict[str, Any], norm: str, positions: str
) -> None:
    encoder = an_encoder(norm=norm, positions=positions)
    batch = a_batch(lengths, max(lengths))
    expected = features_and_gradients(encoder, batch, **options)
    compile_forward(encoder, NUM_TOKENS)
    assert is_compiled(encoder, batch[0])
    torch.testing.assert_close(features_and_gradients(encoder, batch, **options), expected)


@pytest.mark.filterwarnings("ignore")  # torch gives itself warnings, and hides them
def test_all_blocks_and_batches_share_one_compiled_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter, fullgraph=True))
    encoder = an_encoder(num_layers=3)
    compile_forward(encoder, NUM_TOKENS)
    for lengths in ([16, 9, 1], [3, 2], [25, 25, 25, 25]):
        features_and_gradients(encoder, a_batch(lengths, max(lengths)))
    assert counter.frame_count == 1


@pytest.mark.usefixtures("uncompiled")
def test_only_training_with_batches_that_fit_uses_compiled_blocks() -> None:
    encoder, (ids, _) = an_encoder(), a_batch([20, 5], 20)
    assert not is_compiled(encoder, ids)
    compile_forward(encoder, ids.numel())
    assert is_compiled(encoder, ids)
    assert not is_compiled(encoder, a_batch([100], 100)[0])
    assert not is_compiled(encoder.eval(), ids)


@pytest.mark.parametrize("changes", [{"radius": 0}, {"dropout": 0.1, "dropout_mask": "channel"}], ids=str)
def test_full_attention_and_dropout_by_channel_cannot_be_compiled(changes: dict[str, object]) -> None:
    assert can_be_compiled(small())
    assert can_be_compiled(small(dropout=0.1, dropout_mask="element"))
    assert not can_be_compiled(small(**changes))


def on_a_gpu(config: Tiny, *overrides: str, kind: Kind = "classifier") -> tuple[Prepared, Encoder]:
    prepared = prepare(config("train.epochs=1", "model.dropout=0", *overrides), kind, CPU)
    encoder = prepared.model.encoder
    assert isinstance(encoder, Encoder)
    return prepared._replace(hardware=hardware.Hardware(torch.device("cuda"), torch.float32)), encoder


@pytest.mark.usefixtures("uncompiled")
def test_a_long_training_on_a_gpu_is_compiled(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, encoder = on_a_gpu(tiny)
    monkeypatch.setattr(hardware, "compiling_problem", lambda _: "")
    start.compile_if_long(prepared, 1)
    assert not isinstance(encoder.forward, CompiledForward)  # it is short
    monkeypatch.setattr(start, "TOKENS_TO_COMPILE", prepared.train.lengths.sum())
    start.compile_if_long(prepared._replace(hardware=CPU), 1)
    assert not isinstance(encoder.forward, CompiledForward)
    start.compile_if_long(prepared, 1)
    assert isinstance(encoder.forward, CompiledForward)
    assert encoder.forward.num_positions >= prepared.config.train.batch_tokens


@pytest.mark.usefixtures("uncompiled")
def test_the_halves_of_reviews_fit(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, encoder = on_a_gpu(tiny, "pretrain.objective=contrastive", kind="encoder")
    monkeypatch.setattr(hardware, "compiling_problem", lambda _: "")
    monkeypatch.setattr(start, "TOKENS_TO_COMPILE", 1)
    start.compile_if_long(prepared, 1)
    for _, indices in make_plan(prepared.config, prepared.train).batches:
        assert is_compiled(encoder, in_halves(get_batch(prepared.train, indices, CPU)))


def test_what_cannot_be_compiled_is_not_tried(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, encoder = on_a_gpu(tiny, "model.radius=0")
    monkeypatch.setattr(hardware, "compiling_problem", lambda _: "no compiler")
    monkeypatch.setattr(start, "TOKENS_TO_COMPILE", 1)
    start.compile_if_long(prepared, 1)  # a warning would be an error
    assert not isinstance(encoder.forward, CompiledForward)


@pytest.mark.usefixtures("uncompiled")
def test_the_share_of_each_process_fits(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, encoder = on_a_gpu(tiny)
    monkeypatch.setattr(hardware, "compiling_problem", lambda _: "")
    monkeypatch.setattr(start, "TOKENS_TO_COMPILE", 1)
    start.compile_if_long(prepared, 3)
    for _, indices in make_plan(prepared.config, prepared.train).batches:
        assert is_compiled(encoder, get_batch(prepared.train, indices[::3], CPU).ids)
    assert isinstance(encoder.forward, CompiledForward)
    assert encoder.forward.num_positions < prepared.config.train.batch_tokens


def test_without_a_compiler_a_training_warns_and_goes_on(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, encoder = on_a_gpu(tiny)

    def fails(*_: object) -> None:
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(torch, "compile", lambda *_: fails)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.ones(1))
    monkeypatch.setattr(start, "TOKENS_TO_COMPILE", 1)
    with pytest.warns(DataWarning, match=r"torch.compile does not work here \(no compiler\)"):
        start.compile_if_long(prepared, 1)
    assert not isinstance(encoder.forward, CompiledForward)
