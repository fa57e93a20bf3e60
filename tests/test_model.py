"""Shapes: B batch, L length, H heads, K head width, D model width."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdb_transformer.config import ModelConfig
from imdb_transformer.model import plain
from imdb_transformer.model.attention import windows
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.model.encoder import Block, Encoder, buckets

SMALL = ModelConfig(
    width=12,
    num_layers=2,
    num_heads=3,
    head_width=4,
    feedforward_width=20,
    radius=4,
    dropout=0.0,
)
VARIANTS = [
    {
        "radius": radius,
        "positions": positions,
        "norm": norm,
        "bigram_buckets": buckets,
    }
    for radius, positions, norm, buckets in [
        (0, "sinusoidal", "post", 0),
        (0, "rotary", "pre", 1),
        (4, "sinusoidal", "post", 50),
        (4, "rotary", "pre", 50),
        (4, "none", "pre", 0),
        (0, "none", "post", 3),
    ]
]


def small(**changes: object) -> ModelConfig:
    return ModelConfig.model_validate(SMALL.model_dump() | changes)


def classifier(config: ModelConfig) -> Classifier:
    torch.manual_seed(0)
    return Classifier(config, vocab_size=30, num_classes=2).eval()


def a_batch(lengths: list[int], length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 30, (len(lengths), length), generator=generator)
    mask = torch.arange(length) < torch.tensor(lengths)[:, None]
    return ids.masked_fill(~mask, 0), mask


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_padding_and_neighbours_do_not_change_logits(variant: dict[str, Any]) -> None:
    model = classifier(small(**variant))
    lengths = [1, 7, 13, 4]
    ids, mask = a_batch(lengths, 24)
    together = model(ids, mask)
    for i, length in enumerate(lengths):
        alone = model(ids[i : i + 1, :length], mask[i : i + 1, :length])
        torch.testing.assert_close(together[i : i + 1], alone)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_every_parameter_gets_a_gradient(variant: dict[str, Any]) -> None:
    model = classifier(small(**variant, embedding_norm=True)).train()
    ids, mask = a_batch([9, 12], 12)
    logits = model(ids, mask)
    (logits * torch.randn(logits.shape)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def plain_logits(weights: plain.Weights, config: ModelConfig, ids: Tensor, mask: Tensor) -> Tensor:
    """(B, C) of the plain twin, review by review, without padding."""
    reviews = [row[seen].numpy() for row, seen in zip(ids, mask, strict=True)]
    return torch.from_numpy(np.stack([plain.logits(review, weights, config) for review in reviews]))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_logits_and_gradients_equal_those_of_the_plain_twin(variant: dict[str, Any], activation: str) -> None:
    """The twin's gradient along a random direction in each parameter is a difference quotient."""
    config = small(**variant, activation=activation, head_width=6, embedding_norm=True, embedding_scale=True)
    model = with_random_vectors(classifier(config)).double()
    ids, mask = a_batch([11, 23, 1, 8], 24)
    weights = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    ours = model(ids, mask, torch.float64).double()
    torch.testing.assert_close(ours, plain_logits(weights, config, ids, mask), atol=1e-5, rtol=1e-5)
    towards = torch.randn(ours.shape, dtype=torch.float64)
    gradients = torch.autograd.grad((ours * towards).sum(), list(model.parameters()))
    generator, step = np.random.default_rng(0), 1e-6
    for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
        direction = generator.standard_normal(weight.shape)
        ahead, behind = (
            plain_logits(weights | {name: weight + sign * step * direction}, config, ids, mask)
            for sign in (1, -1)
        )
        expected = ((ahead - behind) * towards).sum() / (2 * step)
        assert (gradient.numpy() * direction).sum() == pytest.approx(expected.item(), rel=1e-3, abs=1e-3), (
            name
        )


@torch.no_grad()
def with_random_vectors(model: Classifier) -> Classifier:
    """The model with biases, norms and bigrams that are not zeros and ones."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 or "bigrams" in name:
            parameter.normal_(mean=0.5, std=0.3)
    return model


def test_a_bigram_is_hashed_with_its_order_and_padding_has_none() -> None:
    ids = torch.tensor([[5, 9, 5, 9, 9, 5, 0, 0], [9, 5, 9, 9, 0, 0, 0, 0]])
    hashes = buckets(ids, 65_536)
    assert hashes[0, 1] == hashes[0, 3] == hashes[1, 2]
    assert hashes[0, 2] == hashes[0, 5] == hashes[1, 1]
    assert hashes[0, 4] == hashes[1, 3]
    distinct = [hashes[0, 0], hashes[0, 1], hashes[0, 2], hashes[0, 4], hashes[1, 0]]
    assert len(set(map(int, distinct))) == 5
    assert torch.equal(hashes == 0, ids == 0)


def test_bigrams_of_a_large_vocabulary_fill_all_buckets_evenly() -> None:
    """In int64 nothing wraps: every product is that of Python's integers."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 1_000_000, (1, 100_000), generator=generator)
    ids[0, :2] = 999_999
    hashes = buckets(ids, 1000)[0]
    hashed = (1_640_531_527 * 999_999 + 1_013_904_223 * 999_999) % (2**31 - 1) % 1000
    assert hashes[1] == 1 + hashed
    counts = hashes.bincount(minlength=1001)[1:]
    assert counts.min() > 50
    assert counts.max() < 150


@pytest.mark.parametrize("length", [1, 5, 16])
def test_windowed_attention_with_a_radius_of_the_length_equals_full_attention(length: int) -> None:
    layer_config = small(radius=length)
    windowed, full = classifier(layer_config), classifier(small(radius=0))
    ids, mask = a_batch([length, max(1, length - 3)], length)
    torch.testing.assert_close(windowed(ids, mask), full(ids, mask))


def test_windows_may_be_wider_than_the_review() -> None:
    ids, mask = a_batch([5, 3], 5)
    wide, full = classifier(small(radius=1000)), classifier(small(radius=0))
    torch.testing.assert_close(wide(ids, mask), full(ids, mask))


@pytest.mark.parametrize("size", [2, 6])
def test_windows_and_their_gradient_equal_those_of_unfold(size: int) -> None:
    """At the outer edges stands something that the bias masks: only the inner positions are compared."""
    x = torch.randn(3, 4 * size, 5, requires_grad=True)
    radius = size // 2
    plain = F.pad(x, (0, 0, radius, radius)).unfold(1, 2 * size, size).transpose(-1, -2)
    inside = torch.ones(4, 2 * size, 1)
    inside[0, :radius] = inside[-1, -radius:] = 0
    ours, plain = windows(x, size) * inside, plain * inside
    torch.testing.assert_close(ours, plain)
    towards = torch.randn(ours.shape)
    gradients = [torch.autograd.grad((cut * towards).sum(), x) for cut in (ours, plain)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("norm", "activation"), [("post", "relu"), ("pre", "gelu")])
def test_encoder_equals_torchs_with_the_same_weights(norm: str, activation: str) -> None:
    config = small(radius=0, positions="none", norm=norm, activation=activation, num_heads=3, head_width=4)
    ours = Encoder(config, 30).eval()
    layer = nn.TransformerEncoderLayer(
        config.width, config.num_heads, config.feedforward_width, dropout=0.0, activation=activation,
        batch_first=True, norm_first=norm == "pre",
    )  # fmt: skip
    final = nn.LayerNorm(config.width) if norm == "pre" else None
    theirs = nn.TransformerEncoder(layer, config.num_layers, norm=final, enable_nested_tensor=False).eval()
    for block, other in zip(ours.blocks, theirs.layers, strict=True):
        assert isinstance(block, Block)
        copy_weights(block, other)
    ids, mask = a_batch([10, 4], 10)
    expected = theirs(ours.embedding(ids, torch.float32), src_key_padding_mask=~mask)
    torch.testing.assert_close(ours(ids, mask, torch.float32)[mask], expected[mask], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def copy_weights(block: Block, other: nn.Module) -> None:
    """Random weights into ours and torch's alike."""
    pairs = [
        (block.attention.project_in.weight, other.self_attn.in_proj_weight),
        (block.attention.project_in.bias, other.self_attn.in_proj_bias),
        (block.attention.project_out.weight, other.self_attn.out_proj.weight),
        (block.attention.project_out.bias, other.self_attn.out_proj.bias),
        (block.feed_forward.expand.weight, other.linear1.weight),
        (block.feed_forward.expand.bias, other.linear1.bias),
        (block.feed_forward.contract.weight, other.linear2.weight),
        (block.feed_forward.contract.bias, other.linear2.bias),
        (block.attention_norm.weight, other.norm1.weight),
        (block.attention_norm.bias, other.norm1.bias),
        (block.feed_forward_norm.weight, other.norm2.weight),
        (block.feed_forward_norm.bias, other.norm2.bias),
    ]
    for mine, yours in pairs:
        yours.copy_(mine.normal_(std=0.3))


def test_the_number_of_parameters_follows_the_formula() -> None:
    c = small(positions="none", norm="pre")
    inner = c.num_heads * c.head_width
    attention = c.width * 3 * inner + 3 * inner + inner * c.width + c.width
    feed_forward = 2 * c.width * c.feedforward_width + c.feedforward_width + c.width
    block = attention + feed_forward + 4 * c.width
    expected = 30 * c.width + c.num_layers * block + 2 * c.width + 2 * c.width + 2
    assert sum(p.numel() for p in classifier(c).parameters()) == expected


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_each_block_is_used_once(num_layers: int) -> None:
    model = classifier(small(num_layers=num_layers)).eval()
    used = []
    for name, part in model.named_modules():
        if "blocks." in name and isinstance(part, nn.Linear | nn.LayerNorm):
            part.register_forward_hook(lambda *_, name=name: used.append(name))
    model(*a_batch([12, 7], 12))
    assert used
    assert len(used) == len(set(used))
    assert {name.split(".")[2] for name in used} == set(map(str, range(num_layers)))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_features_of_selected_positions_equal_those_computed_with_all(norm: str) -> None:
    encoder = Encoder(small(norm=norm), 30)
    ids, mask = a_batch([30, 7, 20], 32)
    rows = torch.tensor([3, 40, 65, 3])
    some, all_positions = (encoder(ids, mask, torch.float32, which) for which in (rows, None))
    torch.testing.assert_close(some, all_positions.flatten(0, 1)[rows])


def test_bf16_is_near_fp32() -> None:
    model = classifier(small(num_heads=4, head_width=8, width=32))
    ids, mask = a_batch([30, 20], 32)
    difference = model(ids, mask, torch.bfloat16) - model(ids, mask)
    assert difference.abs().max() < 0.05
