import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from imdb_transformer import config_file
from imdb_transformer.config import Config, PretrainConfig, TrainConfig
from imdb_transformer.data.tokenized import tokenize
from imdb_transformer.data.tokenizer import CLS_ID, MASK_ID, PAD_ID
from imdb_transformer.errors import Interrupted, RunError
from imdb_transformer.inference.logits import Batch
from imdb_transformer.model import masked
from imdb_transformer.model.masked import PretrainingLosses, PretrainingModel, _sampled
from imdb_transformer.store import metrics, run
from imdb_transformer.training import loop, pretrain
from imdb_transformer.training.prepare import prepare
from imdb_transformer.training.step import Learner, train_step
from imdb_transformer.training.task import self_supervision
from tests.conftest import imdb_tx
from tests.in_process import CPU, train, weights

Tiny = Callable[..., Config]
BOTH = "pretrain.detection_weight=5.0"


def pretrained(config: Config, folder: Path, stop_after: int | None = None) -> run.Run:
    return train(config, folder, stop_after, kind="encoder")


def test_both_losses_fall_on_the_demo_corpus(tmp_path: Path) -> None:
    config = config_file.load(
        "demo.toml",
        [f"data.data_dir={tmp_path}", "train.epochs=2", "train.lr=5e-3", BOTH, "model.dropout=0.0"],
    )
    ended = pretrained(config, tmp_path / "run")
    lines = metrics.read(ended.folder)
    for figure in ("masked_loss", "detection_loss"):
        first, last = (np.mean([line[figure] for line in part]) for part in (lines[:5], lines[-5:]))
        assert last < 0.8 * first, figure
    told, replaced = (
        np.mean([line[name] for line in lines[-5:]]) for name in ("detection_accuracy", "replaced_share")
    )
    assert told > 1 - replaced  # what calling every token original would get


def test_resumed_pretraining_equals_the_uninterrupted_one_bit_for_bit(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny(BOTH, "train.ema_decay=0.9", "train.accumulate=2")
    whole = pretrained(config, tmp_path / "whole")
    with pytest.raises(Interrupted, match="imdb-tx pretrain --resume"):
        pretrained(config, tmp_path / "parts", 5)
    parts = pretrained(config, tmp_path / "parts")
    assert weights(whole.folder) == weights(parts.folder)
    assert metrics.read(whole.folder) == metrics.read(parts.folder)


def test_pretraining_and_its_tokenizer_read_neither_validation_nor_test(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny(BOTH)
    whole = pretrained(config, tmp_path / "whole").folder
    data = tmp_path / "data"
    held_out = [path for name in ("test", "validation") for path in data.rglob(f"{name}.parquet")]
    assert len(held_out) == 2
    for path in held_out:
        path.unlink()
    shutil.rmtree(data / "encoded")
    shutil.rmtree(data / "tokenizers")
    without = pretrained(config, tmp_path / "without").folder
    assert not any(path.exists() for path in held_out)
    assert weights(whole) == weights(without)
    assert (whole / "tokenizer.json").read_bytes() == (without / "tokenizer.json").read_bytes()


def test_what_is_held_out_does_not_stand_among_the_unlabelled(
    tiny: Tiny, source: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(source, tmp_path / "own"))
    shared = (own / "test.jsonl").read_text().splitlines()[:30]
    with (own / "unsupervised.jsonl").open("a") as file:
        file.writelines(line + "\n" for line in shared)
    data = tokenize(tiny(f"data.source={own}"), ["train", "unsupervised"])
    assert data.splits["unsupervised"].report.num_reviews == 100


def test_fine_tuning_starts_from_the_saved_weights(tiny: Tiny, tmp_path: Path) -> None:
    ended = pretrained(tiny(), tmp_path / "pretrained")
    config = tiny("model.dropout=0.5", "tokenizer.max_length=32")
    made = prepare(config, "classifier", CPU, init_from=ended.folder)
    started = loop.start(tmp_path / "run", made, CPU)
    saved = load_file(ended.checkpoint("best") / "model.safetensors")
    first = load_file(started.checkpoint("last") / "model.safetensors")
    names = [name for name in saved if name.startswith("encoder.")]
    assert names
    assert all(torch.equal(saved[name], first[name]) for name in names)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.feedforward_width=64", "model.feedforward_width is 32, here it is 64"),
        ("model.radius=4", "model.radius is 8, here it is 4"),
        ("tokenizer.vocab_size=500", "tokenizer.vocab_size is 400, here it is 500"),
    ],
)
def test_another_tokenizer_or_size_is_refused(
    tiny: Tiny, tmp_path: Path, override: str, message: str
) -> None:
    ended = pretrained(tiny("train.epochs=1"), tmp_path / "pretrained")
    with pytest.raises(RunError, match=message):
        prepare(tiny(override), "classifier", CPU, init_from=ended.folder)


def test_fine_tuning_on_all_labels_keeps_the_tokenizer_of_pretraining(tiny: Tiny, tmp_path: Path) -> None:
    ended = pretrained(tiny("train.epochs=1"), tmp_path / "pretrained")
    made = prepare(tiny("data.validation=false"), "classifier", CPU, init_from=ended.folder)
    started = loop.start(tmp_path / "run", made, CPU)
    assert (started.folder / "tokenizer.json").read_bytes() == (ended.folder / "tokenizer.json").read_bytes()
    assert len(made.data.splits["train"].labels) == 200


def test_an_encoder_that_has_seen_what_is_held_out_is_refused(
    tiny: Tiny, source: Path, tmp_path: Path
) -> None:
    ended = pretrained(tiny("train.epochs=1", "data.validation=false"), tmp_path / "pretrained")
    with pytest.raises(RunError, match="trained on the validation split"):
        prepare(tiny(), "classifier", CPU, init_from=ended.folder)
    own = Path(shutil.copytree(source, tmp_path / "own"))
    (own / "train.jsonl").write_text((own / "test.jsonl").read_text())
    with pytest.raises(RunError, match="may have seen what is held out"):
        prepare(tiny(f"data.source={own}"), "classifier", CPU, init_from=ended.folder)


def test_a_pretrained_run_does_not_predict_and_says_what_to_do(config_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "p"
    made = imdb_tx("pretrain", "--config", config_path, "--run-dir", folder)
    assert f"--init-from {folder}" in made.stdout
    refused = imdb_tx("predict", "--run", folder, "a film")
    assert isinstance(refused.exception, RunError)
    assert f"--init-from {folder}" in str(refused.exception)
    wrong = imdb_tx("train", "--resume", folder)
    assert f"imdb-tx pretrain --resume {folder}" in str(wrong.exception)


def a_model(**options: float) -> tuple[PretrainingModel, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    ids = torch.randint(4, 50, (6, 32))
    counts = torch.bincount(ids.flatten(), minlength=50).float()
    model = PretrainingModel(
        Config().model,
        PretrainConfig(**options),
        mask_id=MASK_ID,
        special_ids=(PAD_ID, CLS_ID, MASK_ID),
        counts=counts,  # type: ignore[arg-type]
    )
    return model, ids, ids != 0


def test_sampled_softmax_is_the_full_one_when_every_id_is_a_candidate() -> None:
    model, ids, _ = a_model()
    model.inclusion.fill_(1.0)
    features = torch.randn(20, Config().model.width)
    targets = ids.flatten()[:20]
    logits, candidates = model._named(features, targets)
    assert candidates[:50].tolist() == list(range(50))
    hidden = model.norm(torch.nn.functional.gelu(model.transform(features)))
    full = hidden @ model.encoder.embedding.tokens.weight.T + model.bias
    expected = torch.nn.functional.cross_entropy(full, targets, reduction="none")
    found = logits.logsumexp(1) - logits[:, 0]
    torch.testing.assert_close(found, expected)


def test_sampled_softmax_estimates_the_sum_over_the_vocabulary_without_bias() -> None:
    model, ids, _ = a_model(num_candidates=16)
    features, targets = torch.randn(4, Config().model.width), ids.flatten()[:4]
    torch.manual_seed(1)
    with torch.no_grad():
        model.encoder.embedding.tokens.weight.mul_(0.1)  # or a few huge terms are all of a sum
        sums = torch.stack([model._named(features, targets)[0].exp().sum(1) for _ in range(4000)])
        model.inclusion.copy_(model.inclusion > 0)  # all that are ever candidates
        exact = model._named(features, targets)[0].exp().sum(1)
    error = sums.std(0) / len(sums) ** 0.5
    assert ((sums.mean(0) - exact).abs() < 4 * error).all()


def test_rounding_the_sizes_of_products_up_changes_neither_losses_nor_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = []
    for multiple in (1, 128):
        monkeypatch.setattr(masked, "SIZE_MULTIPLE", multiple)
        model, ids, mask = a_model(num_candidates=16, detection_weight=1.0)
        torch.manual_seed(1)
        losses = model(ids, mask)
        (losses.masked + losses.detection).backward()
        figures.append((losses, [parameter.grad for parameter in model.parameters()]))
    (exact, gradients), (rounded, others) = figures
    assert exact.num_masked == rounded.num_masked
    torch.testing.assert_close(list(map(torch.as_tensor, exact)), list(map(torch.as_tensor, rounded)))
    torch.testing.assert_close(gradients, others)


def test_an_id_that_no_training_text_holds_has_an_embedding_too(tiny: Tiny) -> None:
    config = tiny()
    data = tokenize(config, ["train"])
    task = pretrain.make_task(config, data.splits, CPU, vocab_size=1000)
    assert task.model.get_parameter("encoder.embedding.tokens.weight").shape[0] == 1000


@pytest.mark.parametrize("answer", [-1.0, 1.0])
def test_detection_is_right_where_it_says_of_a_token_whether_it_was_replaced(answer: float) -> None:
    model, ids, mask = a_model(num_candidates=16, detection_weight=1.0)
    torch.nn.init.zeros_(model.detector[-1].weight)  # type: ignore[arg-type]
    torch.nn.init.constant_(model.detector[-1].bias, answer)  # type: ignore[arg-type]
    losses = model(ids, mask)
    num_replaced = int(losses.num_replaced)
    assert num_replaced > 0
    assert losses.num_detected == (num_replaced if answer > 0 else mask.sum() - num_replaced)


def test_special_ids_are_no_candidates() -> None:
    """Or the embedding of padding, which stands for dropped words, would not stay zero."""
    model, _, _ = a_model(num_candidates=16)
    assert not model.inclusion[[PAD_ID, CLS_ID, MASK_ID]].any()
    assert (model.inclusion > 0).sum() == len(model.inclusion) - 3


def test_what_is_counted_anew_is_not_kept_with_the_weights() -> None:
    model, _, _ = a_model()
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_guesses_follow_the_distribution() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.2, 0.3]])).repeat(20_000, 1)
    torch.manual_seed(0)
    drawn = _sampled(logits, torch.tensor([7, 9]), torch.full((20_000,), 5))
    shares = [(drawn == i).float().mean().item() for i in (5, 7, 9)]
    assert shares == pytest.approx([0.5, 0.2, 0.3], abs=0.02)


def test_only_tokens_are_masked_and_padding_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing is left to chance: all is masked, every id a candidate, every guess the candidate 4.
    model, ids, _ = a_model(detection_weight=1.0, mask_fraction=1 - 1e-9)
    model.eval().inclusion.fill_(1)
    monkeypatch.setattr("imdb_transformer.model.masked._sampled", lambda _, ids, own: ids[own * 0 + 4])
    ids[:, 20:] = 0
    padded, cut = model(ids, ids != 0), model(ids[:, :20], ids[:, :20] != 0)
    assert padded.num_masked == cut.num_masked == 6 * 20
    assert padded.num_replaced == cut.num_replaced == int((ids[:, :20] != 4).sum())
    torch.testing.assert_close((padded.masked, padded.detection), (cut.masked, cut.detection))
    assert (padded.num_correct, padded.num_detected) == (cut.num_correct, cut.num_detected)


def masked_positions(model: PretrainingModel, ids: torch.Tensor) -> torch.Tensor:
    return model._chosen(ids, ids != PAD_ID)


def test_special_tokens_are_never_masked() -> None:
    model, ids, _ = a_model(mask_fraction=1 - 1e-9)
    ids[:, 0], ids[:, 5], ids[:, 20:] = CLS_ID, MASK_ID, PAD_ID
    torch.testing.assert_close(masked_positions(model, ids), ids > MASK_ID)


def test_no_position_is_masked_more_often_than_others() -> None:
    model, ids, _ = a_model(mask_fraction=0.15)
    shares = torch.stack([masked_positions(model, ids) for _ in range(2000)]).float().mean(0)
    assert shares[0, 0] == pytest.approx(0.15, abs=0.04)
    assert shares.mean() == pytest.approx(0.15, abs=0.01)


def test_one_token_at_least_is_masked_whichever_it_is() -> None:
    model, ids, _ = a_model(mask_fraction=1e-9)
    draws = torch.stack([masked_positions(model, ids[:1, :8]) for _ in range(2000)])
    assert (draws.sum((1, 2)) == 1).all()
    assert draws.float().mean(0).flatten().tolist() == pytest.approx([1 / 8] * 8, abs=0.04)
    torch.manual_seed(3)
    first = masked_positions(model, ids)
    torch.manual_seed(3)
    assert torch.equal(masked_positions(model, ids), first)


def test_a_batch_without_a_token_to_mask_costs_nothing() -> None:
    model, ids, _ = a_model(detection_weight=1.0)
    losses = model(torch.full_like(ids[:2, :1], CLS_ID), ids[:2, :1] >= 0)
    assert losses.num_masked == 0
    assert losses.masked.item() == 0
    (losses.masked + losses.detection).backward()
    objective = self_supervision(0.15, 1.0)
    learner = Learner(model, model, [torch.optim.SGD([{"params": model.parameters(), "lr_scale": 1.0}])])
    batch = Batch(torch.full((2, 1), CLS_ID), torch.ones(2, 1, dtype=torch.bool), torch.zeros(2), 2)
    taken = train_step(learner, [batch], objective, TrainConfig(), CPU, step=0, lr=1e-3)
    assert taken.figures["masked_loss"] == 0
    assert taken.loss > 0  # of the detection


def test_the_masked_loss_is_divided_by_the_masked_share() -> None:
    """Or it would weigh less beside the other than in ELECTRA's equation 5."""
    six, zero = torch.tensor(6.0), torch.tensor(0)

    def model(*_: object) -> PretrainingLosses:
        return PretrainingLosses(six, 3, zero, torch.tensor(5.0), zero, zero)

    batch = Batch(torch.ones(2, 10), torch.ones(2, 10), torch.zeros(2), 20)
    loss = self_supervision(0.2, 7.0).loss(model, batch, torch.float32)  # type: ignore[arg-type]
    assert loss.total.item() == pytest.approx(6 / 0.2 + 7 * 5)


def test_dry_run_of_pretraining_shows_its_cost(config_path: Path, tmp_path: Path) -> None:
    shown = imdb_tx("pretrain", "--config", config_path, "--dry-run", "--run-dir", tmp_path / "run")
    assert "nothing was trained" in shown.stdout
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("weight", [0.0, 5.0])
def test_both_losses_come_to_the_total_by_their_weights_and_every_figure_is_told(weight: float) -> None:
    model, ids, mask = a_model(detection_weight=weight, mask_fraction=0.2)
    model.eval()
    batch = Batch(ids, mask, torch.zeros(len(ids), dtype=torch.long), int(mask.sum()))
    torch.manual_seed(7)
    losses = model(ids, mask)
    torch.manual_seed(7)
    told = self_supervision(0.2, weight).loss(model, batch, torch.float32)
    torch.testing.assert_close(told.total, losses.masked / 0.2 + weight * losses.detection)
    names = ["masked_loss", "masked_accuracy"]
    names += ["detection_loss", "detection_accuracy", "replaced_share"] if weight else []
    assert list(told.figures) == names
    assert told.figures["masked_loss"][0] == losses.masked
