"""Positions, pooling and dropout. Shapes as in `test_model`."""

import pytest
import torch
from torch import Tensor, nn

from imdb_transformer.model import plain
from imdb_transformer.model.attention import attention_bias
from imdb_transformer.model.classifier import pool
from imdb_transformer.model.encoder import Block, Encoder
from imdb_transformer.model.layers import Dropout, LayerNorm, drop_words, rotate, rotation_of, sinusoids
from tests.test_model import SMALL, a_batch, classifier, small


@pytest.mark.parametrize("width", [1, 2, 7, 8])
def test_sinusoids_are_the_papers_for_even_and_odd_widths(width: int) -> None:
    expected = torch.from_numpy(plain.sinusoids(6, width)).float()
    torch.testing.assert_close(sinusoids(6, width, torch.device("cpu")), expected)


def test_rotary_products_depend_on_the_distance_only() -> None:
    rotation = rotation_of(small(positions="rotary", head_width=8), 20, torch.device("cpu"), torch.float32)
    assert rotation is not None
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


def test_the_gradients_of_a_layer_norm_in_bf16_lose_nothing_over_many_tokens() -> None:
    torch.manual_seed(0)
    x, output_gradient = torch.randn(8, 1024, 32).bfloat16(), (torch.randn(8, 1024, 32) + 0.2).bfloat16()
    gradients = []
    for dtype in (torch.bfloat16, torch.float32):
        norm, inputs = LayerNorm(32).train(), x.to(dtype, copy=True).requires_grad_()
        outputs = norm(inputs)
        gradients.append(
            torch.autograd.grad(outputs, [norm.weight, norm.bias, inputs], output_gradient.to(dtype))
        )
    for rough, exact in zip(*gradients, strict=True):
        assert (rough.float() - exact).norm() < 0.01 * exact.norm()


def test_a_layer_norm_in_bf16_gives_the_same_in_training_as_in_prediction() -> None:
    torch.manual_seed(0)
    norm, x = LayerNorm(32), torch.randn(8, 64, 32).bfloat16()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    exact = torch.nn.functional.layer_norm(x.float(), (32,), norm.weight, norm.bias)
    for is_training in (True, False):
        out = norm.train(is_training)(x)
        assert out.dtype == torch.bfloat16
        assert (out.float() - exact).norm() < 0.01 * exact.norm()


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
    torch.manual_seed(0)
    embedding = Encoder(small(dropout=0.5, dropout_mask=by), 30).embedding.train()
    drops = embedding(a_batch([20] * 40, 20)[0], torch.float32) == 0
    assert drops.float().mean().item() == pytest.approx(0.5, abs=0.1)
    assert torch.equal(drops, drops[:, :1].expand_as(drops)) == (by == "channel")


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


def test_word_dropout_leaves_a_token_of_each_review() -> None:
    ids = torch.tensor([[1, 2, 3], [4, 0, 0]])
    fewer, mask = drop_words(ids, ids != 0, 1 - 1e-9)  # 3 of 3 tokens, after rounding
    assert mask.sum(1).tolist() == [1, 1]
    assert fewer[1].tolist() == [4]


def test_word_dropout_shortens_reviews_in_training_only() -> None:
    model = classifier(small(word_dropout=0.5))
    ids, mask = a_batch([20, 9], 20)
    seen: list[int] = []
    model.encoder.embedding.register_forward_hook(lambda *call: seen.append(call[2].shape[1]))
    model(ids, mask)
    model.train()(ids, mask)
    assert seen == [20, 10]
