"""Shapes: B batch, L length, H heads, K head width, D model width."""

import math

import pytest
import torch
from torch import Tensor, nn

from imdb_transformer.model import plain
from imdb_transformer.model.attention import attention_bias
from imdb_transformer.model.language import CrossAttention, Decoder, DecoderBlock
from imdb_transformer.model.layers import rotation_of
from tests.test_model import a_batch, copy_weights, small

BRANCHES = ["attention.project_out", "cross_attention.project_out", "feed_forward.contract"]


@torch.no_grad()
def copy_decoder_weights(block: DecoderBlock, other: nn.Module) -> None:
    """Random weights into ours and torch's alike."""
    cross, theirs = block.cross_attention, other.multihead_attn
    inner = cross.project_queries.out_features
    assert isinstance(theirs, nn.MultiheadAttention)
    pairs = [
        (cross.project_queries.weight, theirs.in_proj_weight[:inner]),
        (cross.project_queries.bias, theirs.in_proj_bias[:inner]),
        (cross.project_memory.weight, theirs.in_proj_weight[inner:]),
        (cross.project_memory.bias, theirs.in_proj_bias[inner:]),
        (cross.project_out.weight, theirs.out_proj.weight),
        (cross.project_out.bias, theirs.out_proj.bias),
        (block.cross_norm.weight, other.norm2.weight),
        (block.cross_norm.bias, other.norm2.bias),
    ]
    other.norm2, other.norm3 = (
        other.norm3,
        other.norm2,
    )  # torch's second norm of an encoder's block is its third
    copy_weights(block, other)  # type: ignore[arg-type]
    other.norm2, other.norm3 = other.norm3, other.norm2
    for mine, yours in pairs:
        yours.copy_(mine.normal_(std=0.3))


@pytest.mark.parametrize(("norm", "activation"), [("post", "relu"), ("pre", "gelu")])
def test_decoder_equals_torchs_with_the_same_weights(norm: str, activation: str) -> None:
    config = small(radius=0, positions="none", norm=norm, activation=activation)
    ours = Decoder(config).eval()
    layer = nn.TransformerDecoderLayer(
        config.width, config.num_heads, config.feedforward_width, dropout=0.0, activation=activation,
        batch_first=True, norm_first=norm == "pre",
    )  # fmt: skip
    final = nn.LayerNorm(config.width) if norm == "pre" else None
    theirs = nn.TransformerDecoder(layer, config.num_layers, norm=final).eval()
    for block, other in zip(ours.blocks, theirs.layers, strict=True):
        assert isinstance(block, DecoderBlock)
        copy_decoder_weights(block, other)
    _, mask = a_batch([10, 4], 10)
    x, memory = torch.randn(2, 10, config.width), torch.randn(2, 10, config.width)
    later = torch.ones(10, 10, dtype=torch.bool).triu(1)
    expected = theirs(x, memory, tgt_mask=later, tgt_key_padding_mask=~mask, memory_key_padding_mask=~mask)
    torch.testing.assert_close(ours(x, memory, mask)[mask], expected[mask], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_selected_positions_of_a_decoder_equal_those_computed_with_all(norm: str) -> None:
    decoder = Decoder(small(norm=norm))
    _, mask = a_batch([30, 7, 20], 32)
    x, memory = torch.randn(3, 32, 12), torch.randn(3, 32, 12)
    rows = torch.tensor([3, 40, 65, 3])
    torch.testing.assert_close(decoder(x, memory, mask, rows), decoder(x, memory, mask).flatten(0, 1)[rows])


@pytest.mark.parametrize("by", ["channel", "element"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("branch", BRANCHES)
def test_dropout_is_on_each_branch_of_a_decoders_block(norm: str, branch: str, by: str) -> None:
    """Where the other branches add nothing, a dropped channel is as it came in."""
    torch.manual_seed(0)
    config = small(norm=norm, radius=0, dropout=0.5, dropout_mask=by)
    block = DecoderBlock(config).train()
    for name in BRANCHES:
        nn.init.zeros_(block.get_submodule(name).weight)  # type: ignore[arg-type]
    nn.init.ones_(block.get_submodule(branch).bias)  # type: ignore[arg-type]
    if norm == "post":
        block.attention_norm = block.cross_norm = block.feed_forward_norm = nn.Identity()  # type: ignore[assignment]
    x, mask = torch.randn(50, 3, config.width), torch.ones(50, 3, dtype=torch.bool)
    bias, memory_bias = attention_bias(mask, 0, x.dtype, direction=1), attention_bias(mask, 0, x.dtype)
    added = block(x, torch.randn_like(x), bias, memory_bias, None) - x
    assert set(added.round(decimals=3).unique().tolist()) == {0.0, 2.0}
    drops = added > 1
    assert drops.float().mean().item() == pytest.approx(0.5, abs=0.1)
    assert torch.equal(drops, drops[:, :1].expand_as(drops)) == (by == "channel")


def test_cross_attention_with_rotary_positions_equals_a_loop_over_heads() -> None:
    config = small(head_width=6, positions="rotary")
    layer = CrossAttention(config)
    x, memory = torch.randn(9, config.width), torch.randn(9, config.width)
    rotation = rotation_of(config, 9, x.device, x.dtype)
    keys, values = layer.project_memory(memory).chunk(2, dim=1)
    parts = (part.split(6, dim=1) for part in (layer.project_queries(x), keys, values))
    heads = [attended(q, k, v) for q, k, v in zip(*parts, strict=True)]
    ours = layer(x[None], memory[None], torch.zeros(1, 1, 9), rotation)[0]
    torch.testing.assert_close(ours, layer.project_out(torch.cat(heads, dim=1)))


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = (torch.from_numpy(plain.rotated(part.detach().numpy())) for part in (q, k))
    return (q @ k.T / math.sqrt(q.shape[1])).softmax(1) @ v
