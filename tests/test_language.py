"""The model of pretraining: its softmax over a sample of ids, and which tokens it guesses."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from imdb_transformer.config import Config, PretrainConfig, TrainConfig
from imdb_transformer.data import encoded
from imdb_transformer.data.batches import length_batches
from imdb_transformer.data.encoded import tokenize
from imdb_transformer.data.tokenizer import MASK_ID, PAD_ID, SPECIAL_PIECES
from imdb_transformer.model import language, sampled_softmax
from imdb_transformer.model.language import LanguageModel
from imdb_transformer.model.layers import NUM_SPECIAL
from imdb_transformer.model.sampled_softmax import candidate_logits, sampled_cross_entropy
from imdb_transformer.training import objectives
from imdb_transformer.training.objectives import masked_tokens, pretraining, random_tokens
from imdb_transformer.training.optimizers import make_optimizers
from imdb_transformer.training.plan import Batch, get_batch
from imdb_transformer.training.prepare import prepare
from imdb_transformer.training.step import Learner, token_score, train_step
from tests.in_process import CPU, Tiny


def a_model(**options: float) -> tuple[LanguageModel, Batch]:
    torch.manual_seed(0)
    ids = torch.randint(4, 50, (6, 32))
    counts = torch.bincount(ids.flatten(), minlength=50).float()
    pretrain = PretrainConfig(**options)  # type: ignore[arg-type]
    # As in pretrain.toml. With base.toml's 1.0, logits are so large that fp32 rounds them by more than 1e-5.
    config = Config().model.model_copy(update={"embedding_std": 0.02})
    model = LanguageModel(config, pretrain, counts=counts)
    return model, batch_of(ids)


def batch_of(ids: torch.Tensor) -> Batch:
    mask = ids != PAD_ID
    return Batch(ids, mask, torch.zeros(len(ids)), int(mask.sum()))


def test_sampled_softmax_is_the_full_one_when_every_id_is_a_candidate() -> None:
    model, batch = a_model()
    model.inclusion.fill_(1.0)
    features = torch.randn(20, Config().model.width)
    targets = batch.ids.flatten()[:20]
    logits = candidate_logits(*model.softmax_inputs(features, targets))
    hidden = model.norm(torch.nn.functional.gelu(model.transform(features)))
    full = hidden @ model.encoder.embedding.tokens.weight.T + model.bias
    expected = torch.nn.functional.cross_entropy(full, targets, reduction="none")
    loss = logits.logsumexp(1) - logits[:, 0]
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("chunk", [1, 200, 2**18])
def test_sampled_softmax_in_chunks_is_the_plain_one_with_its_gradients(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_softmax, "CHUNK", chunk)
    model, batch = a_model(num_candidates=16)
    # The true ids get large logits, so that some guesses are right.
    features, targets = 5 * torch.randn(60, Config().model.width), batch.ids.flatten()[:60]
    inputs = [each.detach() for each in model.double().softmax_inputs(features.double(), targets)]
    inputs[3] = inputs[3].double() + 20 * torch.rand(60)
    assert inputs[2].isinf().any()  # padding
    assert torch.isin(inputs[4], inputs[5]).any()  # a true id is a candidate
    parts = [each.requires_grad_() for each in inputs[:4]]
    for num_guessed in (60, 47):
        logits = candidate_logits(*inputs)[:num_guessed]
        true = torch.zeros(num_guessed, dtype=torch.long)
        expected = torch.nn.functional.cross_entropy(logits, true, reduction="sum")
        loss, num_correct = sampled_cross_entropy(*inputs, num_guessed=num_guessed)
        torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-6)  # a plain logit is in fp32
        assert 0 < num_correct < num_guessed
        assert num_correct == (logits.argmax(1) == 0).sum()
        gradients = [torch.autograd.grad(3 * each, parts) for each in (loss, expected)]
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-6)


def test_a_batch_for_which_no_candidate_is_drawn_has_zero_loss() -> None:
    model, batch = a_model()
    model.inclusion.zero_()
    features = torch.randn(20, Config().model.width)
    loss, num_correct = model.sampled_loss(features, batch.ids.flatten()[:20], 20)
    assert loss == 0
    assert num_correct == 20
    loss.backward()
    assert all(each.grad is None or each.grad.isfinite().all() for each in model.parameters())


def test_gradients_of_repeated_ids_are_the_same_bits_each_time_with_several_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Indexing a table adds the gradients of equal ids in an order that changes, in most of 20 passes."""
    model, _ = a_model()
    features = torch.randn(8000, Config().model.width)
    targets = (torch.rand(8000) ** 4 * 46).long() + 4  # some ids occur often, as in a text
    monkeypatch.setattr(model, "hidden", lambda features: features)
    table, gradients = model.encoder.embedding.tokens.weight, []
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(20):
            torch.manual_seed(0)
            model.zero_grad()
            _, _, _, true, *_ = model.softmax_inputs(features, targets)
            true.square().sum().backward()
            assert table.grad is not None
            gradients.append(table.grad.clone())
    finally:
        torch.set_num_threads(num_threads)
    assert all(torch.equal(gradients[0], each) for each in gradients)


def test_sampled_softmax_estimates_the_sum_over_the_vocabulary_without_bias() -> None:
    model, batch = a_model(num_candidates=16)
    features, targets = torch.randn(4, Config().model.width), batch.ids.flatten()[:4]
    torch.manual_seed(1)
    with torch.no_grad():
        model.encoder.embedding.tokens.weight.mul_(0.1)  # or a few huge terms are all of a sum

        def sum_of_exponentials() -> torch.Tensor:
            return candidate_logits(*model.softmax_inputs(features, targets)).exp().sum(1)

        sums = torch.stack([sum_of_exponentials() for _ in range(4000)])
        model.inclusion.copy_(model.inclusion > 0)  # all that are ever candidates
        exact = sum_of_exponentials()
    error = sums.std(0) / len(sums) ** 0.5
    assert ((sums.mean(0) - exact).abs() < 4 * error).all()


def test_rounding_the_sizes_of_products_up_changes_neither_losses_nor_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = []
    for multiple in (1, 128):
        monkeypatch.setattr(language, "SIZE_MULTIPLE", multiple)
        model, batch = a_model(num_candidates=16)
        torch.manual_seed(1)
        taken = pretraining(
            model.eval(), batch, Config(), torch.float32, 1.0
        )  # no dropout, which draws by size
        taken["loss"][0].backward()
        figures.append((taken, [p.grad for p in model.parameters()]))
    exact, rounded = figures
    torch.testing.assert_close(rounded, exact)


class Products(TorchDispatchMode):
    """Notes the sizes of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[tuple[torch.Size, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.sizes.add(tuple(tensor.shape for tensor in args))
        return func(*args, **(kwargs or {}))


def test_the_sizes_of_products_do_not_differ_between_steps() -> None:
    """oneDNN keeps code for each size: with new sizes in each step, memory would grow by gigabytes."""
    model, batch = a_model(num_candidates=16)
    sizes, counts = [], set()
    for _ in range(8):
        with Products() as seen:
            metrics = pretraining(model, batch, Config(), torch.float32, 1.0)
            metrics["loss"][0].backward()
        sizes.append(seen.sizes)
        counts.add(metrics["masked_loss"][1])
    assert len(counts) > 1
    assert all(other == sizes[0] for other in sizes)


def test_an_id_absent_from_training_texts_has_an_embedding(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tokenize(tiny(), ["train"])
    last, text = data.tokenizer.vocab_size - 1, data.splits["train"]
    without_last = text._replace(ids=np.minimum(text.ids, last - 1))
    monkeypatch.setattr(encoded, "pretraining_text", lambda *_: without_last)
    model = prepare(tiny(), "encoder", CPU).model
    assert model.get_parameter("encoder.embedding.tokens.weight").shape[0] == last + 1


def test_special_ids_are_no_candidates() -> None:
    """Or the embedding of padding, which stands for dropped words, would not stay zero."""
    model, _ = a_model(num_candidates=16)
    assert sorted((PAD_ID, MASK_ID)) == list(range(NUM_SPECIAL))
    assert len(SPECIAL_PIECES) == NUM_SPECIAL
    assert not model.inclusion[[PAD_ID, MASK_ID]].any()
    assert (model.inclusion > 0).sum() == len(model.inclusion) - 2


def test_buffers_that_are_recomputed_are_not_saved_with_the_weights() -> None:
    model, _ = a_model()
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_only_tokens_are_masked_and_padding_changes_nothing() -> None:
    # Nothing is left to chance: all is masked, and every id is a candidate.
    model, batch = a_model()
    model.eval().inclusion.fill_(1)
    batch.ids[:, 20:] = PAD_ID
    sums = []
    for ids in (batch.ids, batch.ids[:, :20]):
        guesses = masked_tokens(model, batch_of(ids), torch.float32, 1.0)
        assert guesses[2] == 6 * 20
        sums.append(model.sampled_loss(*guesses))
    torch.testing.assert_close(*sums)


def test_special_tokens_are_never_masked() -> None:
    _, batch = a_model()
    batch.ids[:, 5], batch.ids[:, 20:] = MASK_ID, PAD_ID
    torch.testing.assert_close(random_tokens(batch_of(batch.ids), 1.0), batch.ids > MASK_ID)


def test_no_position_is_masked_more_often_than_others() -> None:
    _, batch = a_model()
    shares = torch.stack([random_tokens(batch, 0.15) for _ in range(2000)]).float().mean(0)
    assert shares[0, 0] == pytest.approx(0.15, abs=0.04)
    assert shares.mean() == pytest.approx(0.15, abs=0.01)


def test_at_least_one_token_is_masked_and_each_is_as_likely() -> None:
    _, batch = a_model()
    small = batch_of(batch.ids[:1, :8])
    draws = torch.stack([random_tokens(small, 1e-9) for _ in range(2000)])
    assert (draws.sum((1, 2)) == 1).all()
    assert draws.float().mean(0).flatten().tolist() == pytest.approx([1 / 8] * 8, abs=0.04)
    torch.manual_seed(3)
    first = random_tokens(batch, 1e-9)
    torch.manual_seed(3)
    assert torch.equal(random_tokens(batch, 1e-9), first)


def test_a_batch_without_maskable_tokens_has_zero_loss() -> None:
    model, _ = a_model()
    config = Config(train=TrainConfig(ema_decay=0.0))
    batch = batch_of(torch.full((2, 1), MASK_ID))
    loss, _ = pretraining(model, batch, config, torch.float32, 0.0)["loss"]
    assert loss.item() == 0
    loss.backward()
    learner = Learner(model, model, make_optimizers(model, config.train), config, "encoder", torch.float32)
    taken = train_step(learner, batch, 0, 100)
    assert taken.metrics["masked_loss"] == 0


def test_the_masked_share_changes_linearly_and_divides_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []

    def guesses(*arguments: object) -> tuple[torch.Tensor, torch.Tensor, int]:
        shares.append(arguments[3])  # type: ignore[arg-type]
        return torch.zeros(3, 1), torch.zeros(3), 3

    model, batch = a_model()
    monkeypatch.setitem(objectives.GUESSES, "masked", guesses)
    monkeypatch.setattr(model, "sampled_loss", lambda *_: (torch.tensor(6.0), torch.tensor(2)))
    config = Config(pretrain=PretrainConfig(mask_fractions=(0.4, 0.2)))
    for progress, expected in ((0.0, 0.4), (0.25, 0.35), (1.0, 0.2)):
        metrics = pretraining(model, batch, config, torch.float32, progress)
        assert shares[-1] == pytest.approx(expected)
        loss, count = metrics.pop("loss")
        assert loss.item() == pytest.approx(6 / expected)
        assert count == 6 * 32
        assert metrics == {"masked_loss": (torch.tensor(6.0), 3), "masked_accuracy": (torch.tensor(2), 3)}


def test_the_held_out_loss_is_that_of_the_whole_vocabulary_at_fixed_masks(tiny: Tiny) -> None:
    config = tiny("model.dropout=0.5")
    made = prepare(config, "encoder", CPU)
    model, split = made.model, made.validation
    assert isinstance(model, LanguageModel)
    assert split is not None
    torch.manual_seed(1)
    first = token_score(model, "masked", split, CPU)
    assert token_score(model, "masked", split, CPU) == first  # neither dropout nor other masks
    generator = torch.Generator().manual_seed(0)
    model.eval()
    losses = []
    for indices in length_batches(split.lengths, batch_tokens=16_384):
        batch = get_batch(split, indices, CPU)
        hidden = random_tokens(batch, 0.15, generator)
        features = model.encoder(batch.ids.masked_fill(hidden, MASK_ID), batch.mask, torch.float32)[hidden]
        logits = model.hidden(features) @ model.encoder.embedding.tokens.weight.T + model.bias
        logits[:, [PAD_ID, MASK_ID]] = -torch.inf
        losses.append(logits.log_softmax(1).gather(1, batch.ids[hidden][:, None]))
    expected = -torch.cat(losses).mean()
    assert first.loss == pytest.approx(expected.item(), rel=1e-4)
