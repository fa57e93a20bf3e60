"""Shapes: B batch, L length, H heads, K head width, D model width."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdb_transformer.config import ModelConfig
from imdb_transformer.model import plain
from imdb_transformer.model.attention import attention_bias, windows
from imdb_transformer.model.classifier import Classifier, drop_words, pool
from imdb_transformer.model.encoder import Block, Encoder, bigrams
from imdb_transformer.model.layers import Dropout, rotary_table, rotate, sinusoids

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
    buckets = bigrams(ids, 65_536)
    assert buckets[0, 1] == buckets[0, 3] == buckets[1, 2]
    assert buckets[0, 2] == buckets[0, 5] == buckets[1, 1]
    assert buckets[0, 4] == buckets[1, 3]
    distinct = [buckets[0, 0], buckets[0, 1], buckets[0, 2], buckets[0, 4], buckets[1, 0]]
    assert len(set(map(int, distinct))) == 5
    assert torch.equal(buckets == 0, ids == 0)


def test_bigrams_of_a_large_vocabulary_fill_all_buckets_evenly() -> None:
    """In int64 nothing wraps: every product is that of Python's integers."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 1_000_000, (1, 100_000), generator=generator)
    ids[0, :2] = 999_999
    buckets = bigrams(ids, 1000)[0]
    hashed = (1_640_531_527 * 999_999 + 1_013_904_223 * 999_999) % (2**31 - 1) % 1000
    assert buckets[1] == 1 + hashed
    counts = buckets.bincount(minlength=1001)[1:]
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


@pytest.mark.parametrize("width", [1, 2, 7, 8])
def test_sinusoids_are_the_papers_for_even_and_odd_widths(width: int) -> None:
    expected = torch.from_numpy(plain.sinusoids(6, width)).float()
    torch.testing.assert_close(sinusoids(6, width, torch.device("cpu")), expected)


def test_rotary_products_depend_on_the_distance_only() -> None:
    rotation = rotary_table(20, 8, torch.device("cpu"), torch.float32)
    q, k = torch.randn(8), torch.randn(8)
    turned_q, turned_k = (rotate(x.expand(20, 8), rotation) for x in (q, k))
    products = turned_q @ turned_k.T
    for distance in range(-5, 6):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=1e-5)


def test_max_of_an_all_negative_review_is_not_beaten_by_padding() -> None:
    features = -torch.rand(2, 5, 3) - 1
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    features[1, 2:] = 0
    pooled = pool(features, mask)
    torch.testing.assert_close(pooled, torch.stack([features[0].amax(0), features[1, :2].amax(0)]))


def test_the_number_of_parameters_follows_the_formula() -> None:
    c = small(positions="none", norm="pre")
    inner = c.num_heads * c.head_width
    attention = c.width * 3 * inner + 3 * inner + inner * c.width + c.width
    feed_forward = 2 * c.width * c.feedforward_width + c.feedforward_width + c.width
    block = attention + feed_forward + 4 * c.width
    expected = 30 * c.width + c.num_layers * block + 2 * c.width + 2 * c.width + 2
    assert sum(p.numel() for p in classifier(c).parameters()) == expected


def test_channel_dropout_drops_whole_channels_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    dropout = Dropout(0.25, by_channel=True).train()
    ones = torch.ones(64, 5, 256)
    out = dropout(ones)
    assert torch.equal(out, out[:, :1].expand_as(out))
    torch.testing.assert_close(out.unique(), torch.tensor([0.0, 4 / 3]))
    assert out.mean().item() == pytest.approx(1, abs=0.02)
    assert torch.equal(dropout.eval()(out), out)


@pytest.mark.parametrize("by_channel", [True, False])
@pytest.mark.parametrize("p", [0.1, 0.6])
def test_dropout_drops_its_share_and_keeps_mean_and_type(p: float, by_channel: bool) -> None:
    torch.manual_seed(0)
    dropout = Dropout(p, by_channel=by_channel).train()
    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((128, 4, 256), (512, 256)):  # reviews, or selected positions
            out = dropout(torch.ones(shape, dtype=dtype))
            assert out.dtype == dtype
            assert (out == 0).float().mean().item() == pytest.approx(p, abs=0.01)
            assert out.float().mean().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("by", ["channel", "element"])
@pytest.mark.parametrize(
    ("key", "part"),
    [("dropout", "encoder.embedding"), ("dropout", "encoder.blocks"), ("word_dropout", "")],
)
def test_each_dropout_follows_the_seed_and_acts_in_training_only(key: str, part: str, by: str) -> None:
    model = classifier(small(**{key: 0.5}, dropout_mask=by))
    ids, mask = a_batch([20, 9], 20)

    def seeded(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return model(ids, mask)

    assert torch.equal(seeded(0), seeded(1))
    model.get_submodule(part).train()
    assert torch.equal(seeded(0), seeded(0))
    assert not torch.equal(seeded(0), seeded(1))


@pytest.mark.parametrize("by", ["channel", "element"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("branch", ["attention.project_out", "feed_forward.contract"])
def test_dropout_is_on_each_branch_of_a_block(norm: str, branch: str, by: str) -> None:
    """Where the other branch adds nothing, a dropped channel is as it came in."""
    block = Block(small(norm=norm, radius=0, dropout=0.5, dropout_mask=by)).train()
    for name in ("attention.project_out", "feed_forward.contract"):
        nn.init.zeros_(block.get_submodule(name).weight)  # type: ignore[arg-type]
    nn.init.ones_(block.get_submodule(branch).bias)  # type: ignore[arg-type]
    if norm == "post":
        block.attention_norm = block.feed_forward_norm = nn.Identity()  # type: ignore[assignment]
    x, mask = torch.randn(50, 3, SMALL.width), torch.ones(50, 3, dtype=torch.bool)
    added = block(x, attention_bias(mask, 0, x.dtype), None) - x
    assert set(added.round(decimals=3).unique().tolist()) == {0.0, 2.0}
    assert (added > 1).float().mean().item() == pytest.approx(0.5, abs=0.1)
    drops = added > 1
    assert torch.equal(drops, drops[:, :1].expand_as(drops)) == (by == "channel")


@pytest.mark.parametrize("by", ["channel", "element"])
def test_dropout_of_the_embedding_is_by_channel_or_by_element(by: str) -> None:
    embedding = Encoder(small(dropout=0.5, dropout_mask=by), 30).embedding.train()
    drops = embedding(a_batch([20, 20], 20)[0], torch.float32) == 0
    assert drops.float().mean().item() == pytest.approx(0.5, abs=0.25)
    assert torch.equal(drops, drops[:, :1].expand_as(drops)) == (by == "channel")


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


def test_word_dropout_drops_its_share_of_each_review_and_keeps_the_order() -> None:
    lengths = [40, 9, 1, 20]
    ids = torch.zeros((4, 40), dtype=torch.long)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = torch.arange(1, length + 1)
    left = torch.zeros(41)
    torch.manual_seed(0)
    for _ in range(400):
        fewer, mask = drop_words(ids, ids != 0, 0.25)
        assert fewer.shape == (4, 30)
        assert mask.sum(1).tolist() == [30, 7, 1, 15]
        assert torch.equal(mask, fewer != 0)
        for row, tokens in zip(fewer, mask, strict=True):
            assert (row[tokens].diff() > 0).all()
        left[fewer[0]] += 1 / 400
    torch.testing.assert_close(left[1:], torch.full((40,), 30 / 40), rtol=0, atol=0.1)


def test_word_dropout_shortens_reviews_in_training_only() -> None:
    model = classifier(small(word_dropout=0.5))
    ids, mask = a_batch([20, 9], 20)
    seen: list[int] = []
    model.encoder.embedding.register_forward_hook(lambda *call: seen.append(call[2].shape[1]))
    model(ids, mask)
    model.train()(ids, mask)
    assert seen == [20, 10]


def test_bf16_is_near_fp32() -> None:
    model = classifier(small(num_heads=4, head_width=8, width=32))
    ids, mask = a_batch([30, 20], 32)
    difference = model(ids, mask, torch.bfloat16) - model(ids, mask)
    assert difference.abs().max() < 0.05
