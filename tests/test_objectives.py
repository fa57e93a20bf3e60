"""What pretraining guesses: masked tokens, the next one, the one before, or all of a corrupted review."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from imdb_transformer import config_file
from imdb_transformer.config import Config, ModelConfig, PretrainConfig
from imdb_transformer.data.batches import length_batches
from imdb_transformer.data.tokenizer import MASK_ID, PAD_ID
from imdb_transformer.errors import ConfigError
from imdb_transformer.model import plain
from imdb_transformer.model.encoder import Block, Encoder
from imdb_transformer.model.language import LanguageModel
from imdb_transformer.training import objectives
from imdb_transformer.training.objectives import GUESSES, pretraining, random_tokens
from imdb_transformer.training.optimizers import make_optimizers
from imdb_transformer.training.plan import Batch, get_batch
from imdb_transformer.training.prepare import prepare
from imdb_transformer.training.step import VALIDATION_SHARE, token_score
from tests.in_process import CPU, Tiny
from tests.test_model import a_batch, copy_weights, small

VARIANTS = [
    {"radius": 0, "positions": "sinusoidal", "norm": "post"},
    {"radius": 0, "positions": "rotary", "norm": "pre"},
    {"positions": "rotary", "norm": "pre"},
    {"positions": "none", "norm": "post"},
]
ALL = list(GUESSES)


def a_model(objective: str, config: ModelConfig) -> LanguageModel:
    torch.manual_seed(0)
    options = PretrainConfig(objective=objective)  # type: ignore[arg-type]
    return LanguageModel(config, options, counts=torch.ones(30)).eval()


def batch_of(ids: Tensor) -> Batch:
    mask = ids != PAD_ID
    return Batch(ids, mask, torch.zeros(len(ids)), int(mask.sum()))


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("radius", [0, 4])
def test_a_causal_encoder_equals_torchs_under_a_mask(radius: int, direction: int) -> None:
    config = small(radius=radius, positions="none", norm="post")
    ours = Encoder(config, 30).eval()
    layer = nn.TransformerEncoderLayer(
        config.width, config.num_heads, config.feedforward_width, dropout=0.0, batch_first=True
    )
    theirs = nn.TransformerEncoder(layer, config.num_layers, enable_nested_tensor=False).eval()
    for block, other in zip(ours.blocks, theirs.layers, strict=True):
        assert isinstance(block, Block)
        copy_weights(block, other)
    ids, mask = a_batch([19, 19], 19)
    seen = torch.ones(19, 19, dtype=torch.bool).tril().triu(-(radius or 19))  # row i sees column j
    unseen = ~(seen if direction == 1 else seen.T)
    expected = theirs(ours.embedding(ids, torch.float32), mask=unseen)
    result = ours(ids, mask, torch.float32, direction=direction)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_a_causal_guess_uses_the_plain_twins_features_of_the_tokens_before_it(
    variant: dict[str, str],
) -> None:
    """The twin sees only the tokens before, so it needs no causal mask for the last position."""
    config = small(**variant, num_layers=1, bigram_buckets=50)
    model = a_model("causal", config)
    ids, _ = a_batch([11, 23, 1, 8], 24)
    features, targets, number = GUESSES["causal"](model, batch_of(ids), torch.float32, 1.0)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    before = [[MASK_ID, *row[:i]] for row in ids.tolist() for i in range(len(row)) if row[i] != PAD_ID]
    expected = np.stack([plain.encoder(np.array(read), weights, config)[-1] for read in before])
    torch.testing.assert_close(features[:number], torch.from_numpy(expected).float(), atol=1e-5, rtol=1e-5)
    assert targets[:number].tolist() == ids[ids != PAD_ID].tolist()


def changed_features(objective: str, config: ModelConfig, at: int) -> list[int]:
    """The positions of a review whose features change with the id at one position."""
    model = a_model(objective, config)
    ids, _ = a_batch([20, 9], 20)
    other = ids.clone()
    other[0, at] += 1
    before, after = (GUESSES[objective](model, batch_of(x), torch.float32, 1.0)[0][:20] for x in (ids, other))
    return ((before - after).abs().amax(1) > 1e-6).nonzero().squeeze(1).tolist()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
@pytest.mark.parametrize("objective", ["causal", "denoise"])
def test_no_guess_depends_on_the_token_itself_or_on_a_later_one(
    objective: str, variant: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all tokens hidden, the encoder of `denoise` tells nothing of them."""
    monkeypatch.setattr(objectives, "REWRITTEN", 1.0)
    changed = changed_features(objective, small(**variant, bigram_buckets=50), 7)
    assert changed[0] == 8
    assert changed == list(range(8, 8 + len(changed)))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_backward_no_guess_depends_on_the_token_itself_or_on_an_earlier_one(variant: dict[str, str]) -> None:
    changed = changed_features("causal_backward", small(**variant), 7)
    assert changed[-1] == 6
    assert changed == list(range(7 - len(changed), 7))


def test_bigrams_which_show_the_token_before_are_refused_backward() -> None:
    overrides = ["pretrain.objective=causal_backward", "model.bigram_buckets=64"]
    with pytest.raises(ConfigError, match="needs bigram_buckets = 0"):
        config_file.parse({}, overrides, origin="x")


def test_the_last_token_is_guessed_backward_from_a_mask() -> None:
    ids = torch.tensor([[5, 6, 7, PAD_ID]])
    read = objectives.shifted(batch_of(ids), -1)
    assert read[0, :3].tolist() == [6, 7, MASK_ID]


@pytest.mark.parametrize("objective", ALL)
def test_padding_and_neighbours_do_not_change_guesses(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objectives, "REWRITTEN", 1.0)
    model = a_model(objective, small())
    ids, _ = a_batch([13, 7, 1], 24)
    together, _, _ = GUESSES[objective](model, batch_of(ids), torch.float32, 1.0)
    alone, _, number = GUESSES[objective](model, batch_of(ids[1:2, :7]), torch.float32, 1.0)
    assert number == 7
    torch.testing.assert_close(together[13:20], alone[:7])


@pytest.mark.parametrize("objective", ALL)
def test_every_parameter_gets_a_gradient(objective: str) -> None:
    model = a_model(objective, small()).train()
    ids, _ = a_batch([9, 12], 12)
    config = Config(pretrain=PretrainConfig(objective=objective))  # type: ignore[arg-type]
    pretraining(model, batch_of(ids), config, torch.float32, 0.5)["loss"][0].backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize(("objective", "part"), [("denoise", "decoder."), ("contrastive", "projection.")])
def test_only_some_objectives_have_further_weights_and_the_first_weights_are_the_same(
    objective: str, part: str
) -> None:
    weights = a_model(objective, small()).state_dict()
    extra = {name for name in weights if name.startswith(part)}
    assert extra
    for name in ("masked", "causal", "causal_backward"):
        others = a_model(name, small()).state_dict()
        assert set(weights) - extra == set(others)
        for key, tensor in others.items():
            assert torch.equal(tensor, weights[key])


def test_halves_of_reviews_are_read_from_the_first_token_to_the_last() -> None:
    ids = torch.zeros(3, 48, dtype=torch.long)
    reviews = [list(range(2, 43)), list(range(2, 6)), [9]]
    for row, review in zip(ids, reviews, strict=True):
        row[: len(review)] = torch.tensor(review)
    halves = objectives.in_halves(batch_of(ids))
    assert halves.shape == (6, 24)
    read = [[int(each) for each in row if each != PAD_ID] for row in halves]
    assert [a + b for a, b in zip(read[:2], read[3:5], strict=True)] == reviews[:2]
    assert [len(half) for half in read] == [21, 2, 1, 20, 2, 1]
    assert read[2] == read[5] == [9]


def test_the_contrastive_loss_equals_that_of_one_pair_of_halves_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(objectives, "random_tokens", lambda batch, _: batch.mask & False)
    model = a_model("contrastive", small())
    assert model.projection is not None
    ids, _ = a_batch([13, 7, 20], 20)
    halves = objectives.in_halves(batch_of(ids))
    vectors = []
    for half in halves:
        alone = half[half != PAD_ID][None]
        features = model.encoder(alone, alone != PAD_ID, torch.float32)
        vectors.append(model.projection(features.amax(1))[0])
    losses = []
    for i, vector in enumerate(vectors):
        alike = torch.stack([torch.cosine_similarity(vector, other, dim=0) for other in vectors]) / 0.1
        candidates = [j for j in range(6) if j != i]
        losses.append(-alike[candidates].log_softmax(0)[candidates.index((i + 3) % 6)])
    metrics = objectives.contrast(model, batch_of(ids), torch.float32, 0.3)
    total, count = metrics["contrastive_loss"]
    torch.testing.assert_close(total / count, torch.stack(losses).mean())


def test_muon_updates_the_matrices_of_a_decoder() -> None:
    model = a_model("denoise", small())
    _, muon = make_optimizers(model, Config().train)
    updated = set(map(id, muon.moments["momentum_buffer"]))
    of_blocks = {id(p) for name, p in model.named_parameters() if ".blocks." in name and p.ndim == 2}
    assert updated == of_blocks


def test_the_held_out_loss_of_a_causal_model_equals_that_of_one_prefix_at_a_time(tiny: Tiny) -> None:
    made = prepare(tiny("pretrain.objective=causal", "model.dropout=0.5"), "encoder", CPU)
    model, split = made.model, made.validation
    assert isinstance(model, LanguageModel)
    assert split is not None
    score = token_score(model, "causal", split, CPU)
    generator = torch.Generator().manual_seed(0)
    model.eval()
    losses = []
    for indices in length_batches(split.lengths, batch_tokens=16_384):
        batch = get_batch(split, indices, CPU)
        for row, i in random_tokens(batch, VALIDATION_SHARE, generator).nonzero().tolist():
            read = torch.cat([torch.tensor([MASK_ID]), batch.ids[row, :i]])[None]
            features = model.encoder(read, read != PAD_ID, torch.float32, direction=1)[0, -1:]
            losses.append(-model.logits(features).log_softmax(1)[0, batch.ids[row, i]])
    assert score.loss == pytest.approx(torch.stack(losses).mean().item(), rel=1e-4)


@pytest.mark.parametrize("objective", ALL)
def test_the_noise_of_the_held_out_loss_never_changes(tiny: Tiny, objective: str) -> None:
    made = prepare(tiny(f"pretrain.objective={objective}", "model.dropout=0.5"), "encoder", CPU)
    assert isinstance(made.model, LanguageModel)
    assert made.validation is not None
    torch.manual_seed(1)
    first = token_score(made.model, objective, made.validation, CPU)
    assert token_score(made.model, objective, made.validation, CPU) == first
