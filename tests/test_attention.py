import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from imdb_transformer.config import ModelConfig
from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.inference.explanation import all_heads, attention_weights_of, choose_head
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.model.attention import SelfAttention
from imdb_transformer.model.encoder import Encoder
from imdb_transformer.report.layout import display_width
from imdb_transformer.store import run
from tests.conftest import imdb_tx

TEXT = "An awful, boring film.<br />I left <b>early</b>!"


@pytest.mark.parametrize("length", [1, 7, 21])
@pytest.mark.parametrize("radius", [0, 4])
def test_shown_attention_weights_give_the_output_of_the_layer(radius: int, length: int) -> None:
    torch.manual_seed(0)
    config = ModelConfig(width=16, num_layers=2, num_heads=2, head_width=8, radius=radius)
    encoder = Encoder(config, 30).eval()
    inputs: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []
    layer = encoder.blocks[1].get_submodule("attention")
    assert isinstance(layer, SelfAttention)
    layer.register_forward_hook(lambda *call: (inputs.append(call[1][0]), outputs.append(call[2]))[0])
    weights = attention_weights_of(encoder, torch.arange(1, length + 1))[1]
    values = layer.project_in(inputs[0][0]).unflatten(-1, (3, 2, 8))[:, 2].transpose(0, 1)  # (H, L, K)
    by_hand = layer.project_out((weights @ values).transpose(0, 1).flatten(1))
    torch.testing.assert_close(by_hand, outputs[0][0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("radius", [0, 4])
def test_the_call_of_the_fused_kernel_gives_the_same_features_and_gradients(
    radius: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    config = ModelConfig(width=16, num_layers=2, num_heads=2, head_width=8, radius=radius)
    encoder = Encoder(config, 30).train()
    ids = torch.randint(1, 30, (3, 21))
    mask = torch.arange(21) < torch.tensor([[21], [9], [1]])

    def features_and_gradients() -> tuple[torch.Tensor, ...]:
        encoder.zero_grad()
        features = encoder(ids, mask, torch.float32)[mask]
        features.square().sum().backward()  # type: ignore[no-untyped-call]
        return features, *(parameter.grad for parameter in encoder.blocks.parameters())

    plain = features_and_gradients()
    calls: list[int] = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *q, **k: calls.append(1) or fused(*q, **k))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    torch.testing.assert_close(features_and_gradients(), plain, atol=1e-4, rtol=1e-4)
    assert len(calls) == 2


def test_the_weights_of_each_word_add_up_to_one(trained: Path) -> None:
    shown = choose_head(all_heads(Predictor.load(trained), TEXT))
    assert shown.words == TEXT.replace("<br />", " ").split()
    np.testing.assert_allclose(shown.weights.sum(1), 1, atol=1e-5)
    assert (shown.weights >= 0).all()


@pytest.mark.parametrize("text", ["", " ", "\0", "word " * 500, "x" * 3000, "good " * 200_000])
def test_attention_of_odd_texts_is_finite(trained: Path, text: str) -> None:
    shown = choose_head(all_heads(Predictor.load(trained), text))
    assert shown.weights.shape == (len(shown.words),) * 2
    assert np.isfinite(shown.weights).all()


def test_attention_as_text_json_and_html(trained: Path, tmp_path: Path) -> None:
    printed = imdb_tx("predict", "--run", trained, "--attention", "--head", 2, TEXT).stdout
    num_layers = run.open_run(trained).config.model.num_layers
    assert f"layer {num_layers}, head 2" in printed
    assert "█" in printed
    wide = imdb_tx("predict", "--run", trained, "--attention", "한국영화는재미있다 good").stdout.splitlines()
    one, two = wide[-2:]
    assert display_width(one[: one.index(" 1 ")]) == display_width(two[: two.index(" 2 ")])
    page = tmp_path / "map.html"
    answer = imdb_tx("predict", "--run", trained, "--attention", "--explain", "--json", "--html", page, TEXT)
    record = json.loads(answer.stdout)
    assert np.allclose(np.sum(record["attention"]["weights"], axis=1), 1, atol=1e-3)
    assert record["explanation"]["words"]
    assert "<b>early" not in page.read_text()
    assert "&lt;b&gt;early" in page.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--head", 1), "--layer and --head need --attention."),
        (("--layer", 1, "--explain"), "--layer and --head need --attention."),
        (("--method", "gradients"), "--method needs --explain."),
        (("--method", "gradients", "--force"), "--force needs --output. --method needs --explain."),
    ],
)
def test_options_without_their_view_are_refused(options: tuple[object, ...], message: str) -> None:
    refused = imdb_tx("predict", *options, TEXT)
    assert isinstance(refused.exception, ConfigError)
    assert str(refused.exception) == message


def test_absent_layers_and_heads_are_refused(trained: Path, linear: Path, tmp_path: Path) -> None:
    for option in ("--layer", "--head"):
        refused = imdb_tx("predict", "--run", trained, "--attention", option, 9, TEXT)
        assert isinstance(refused.exception, ConfigError)
        assert f"no {option[2:]} 9" in str(refused.exception)
    shutil.copytree(linear, tmp_path / "nb")
    refused = imdb_tx("predict", "--run", tmp_path / "nb", "--attention", TEXT)
    assert isinstance(refused.exception, RunError)
