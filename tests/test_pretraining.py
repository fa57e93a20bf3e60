import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from imdb_transformer import config_file
from imdb_transformer.config import Config, PretrainConfig, TrainConfig
from imdb_transformer.data import corpus
from imdb_transformer.data.batches import length_batches
from imdb_transformer.data.encoded import tokenize
from imdb_transformer.data.tokenizer import MASK_ID, PAD_ID
from imdb_transformer.errors import ConfigError, Interrupted, RunError
from imdb_transformer.evaluation.scores import Score
from imdb_transformer.model import language
from imdb_transformer.model.language import HEAD, LanguageModel
from imdb_transformer.store import metrics, run
from imdb_transformer.training import objectives, step
from imdb_transformer.training.objectives import masked_tokens, pretraining, random_tokens
from imdb_transformer.training.plan import Batch, get_batch
from imdb_transformer.training.prepare import make_language_model, prepare
from imdb_transformer.training.step import Learner, token_score, train_step
from imdb_transformer.training.train import begin
from tests.conftest import imdb_tx
from tests.in_process import CPU, train, weights

Tiny = Callable[..., Config]


def pretrained(config: Config, folder: Path, stop_after: int | None = None) -> run.Run:
    return train(config, folder, stop_after, kind="encoder")


def test_the_masked_loss_falls_on_the_demo_corpus(tmp_path: Path, source: Path) -> None:
    data = [f"data.source={source}", f"data.data_dir={tmp_path}"]
    options = ["train.epochs=10", "train.lr=5e-3", "model.dropout=0.0"]
    config = config_file.load("demo.toml", [*data, *options])
    lines = metrics.read(pretrained(config, tmp_path / "run").folder)
    learnt = [line["masked_loss"] for line in lines if "masked_loss" in line]
    assert np.mean(learnt[-5:]) < 0.8 * np.mean(learnt[:5])
    held_out = [line["validation"]["loss"] for line in lines if "validation" in line]
    assert held_out[-1] < 0.8 * held_out[0]


@pytest.mark.parametrize("objective", ["masked", "causal", "denoise"])
def test_resumed_pretraining_equals_the_uninterrupted_one_bit_for_bit(
    tiny: Tiny, tmp_path: Path, objective: str
) -> None:
    config = tiny("train.ema_decay=0.9", f"pretrain.objective={objective}")
    whole = pretrained(config, tmp_path / "whole")
    with pytest.raises(Interrupted, match="imdb-tx pretrain --resume"):
        pretrained(config, tmp_path / "parts", 5)
    parts = pretrained(config, tmp_path / "parts")
    assert weights(whole.folder) == weights(parts.folder)
    assert metrics.read(whole.folder) == metrics.read(parts.folder)


def test_pretraining_and_its_tokenizer_do_not_read_test(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny()
    whole = pretrained(config, tmp_path / "whole").folder
    data = tmp_path / "data"
    (test,) = data.rglob("test.parquet")
    test.unlink()
    shutil.rmtree(data / "encoded")
    shutil.rmtree(data / "tokenizers")
    without = pretrained(config, tmp_path / "without").folder
    assert not test.exists()
    assert weights(whole) == weights(without)
    assert (whole / "tokenizer.json").read_bytes() == (without / "tokenizer.json").read_bytes()


def test_held_out_reviews_are_not_among_the_unlabelled(tiny: Tiny, source: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "folder"))
    shared = (folder / "test.jsonl").read_text().splitlines()[:30]
    with (folder / "unsupervised.jsonl").open("a") as file:
        file.writelines(line + "\n" for line in shared)
    data = tokenize(tiny(f"data.source={folder}"), ["train", "unsupervised"])
    assert data.splits["unsupervised"].report.num_reviews == 100


def test_fine_tuning_starts_from_the_saved_weights(tiny: Tiny, encoder: Path, tmp_path: Path) -> None:
    config = tiny("model.dropout=0.5", "tokenizer.max_length=32", f"train.init_from={encoder}")
    begin(config, tmp_path / "run", "classifier", (), None, gpu=0)
    started = run.open_run(tmp_path / "run")
    saved = load_file(run.open_run(encoder).checkpoint("best") / "model.safetensors")
    first = load_file(started.checkpoint("last") / "model.safetensors")
    names = [name for name in saved if name.startswith("encoder.")]
    assert names
    assert all(torch.equal(saved[name], first[name]) for name in names)


@pytest.mark.parametrize("objective", ["contrastive", "causal", "causal_backward", "denoise"])
def test_fine_tuning_takes_the_encoder_of_any_objective(tiny: Tiny, tmp_path: Path, objective: str) -> None:
    options = ("train.epochs=1", "train.evals_per_epoch=1", "train.batch_tokens=4096")
    origin = pretrained(tiny(*options, f"pretrain.objective={objective}"), tmp_path / "origin")
    metric = "contrastive_loss" if objective == "contrastive" else "token_accuracy"
    assert all(metric in line for line in metrics.read(origin.folder) if "loss" in line)
    model = prepare(tiny(f"train.init_from={origin.folder}"), "classifier", CPU).model
    saved = load_file(origin.checkpoint("best") / "model.safetensors")
    for name, tensor in model.get_submodule("encoder").state_dict().items():
        assert torch.equal(saved[f"encoder.{name}"], tensor)


def test_a_deeper_encoder_starts_with_its_origins_blocks_repeated_and_its_head(
    tiny: Tiny, tmp_path: Path
) -> None:
    options = ("train.epochs=1", "train.evals_per_epoch=1", "train.batch_tokens=4096")
    origin = pretrained(tiny(*options, "model.num_layers=2"), tmp_path / "origin")
    saved = load_file(origin.checkpoint("best") / "model.safetensors")
    start = f"train.init_from={origin.folder}"
    model = prepare(tiny(start, "model.num_layers=4"), "encoder", CPU).model
    for name, tensor in model.get_submodule("encoder").state_dict().items():
        repeated = name.replace("blocks.2.", "blocks.0.").replace("blocks.3.", "blocks.1.")
        assert torch.equal(saved[f"encoder.{repeated}"], tensor)
    for name in HEAD:
        assert torch.equal(saved[name], model.get_parameter(name))
    with pytest.raises(RunError, match=r"model\.num_layers is 2, here it is 3"):
        prepare(tiny(start, "model.num_layers=3"), "encoder", CPU)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.feedforward_width=64", "model.feedforward_width is 32, here it is 64"),
        ("model.radius=4", "model.radius is 8, here it is 4"),
        ("tokenizer.vocab_size=500", "tokenizer.vocab_size is 400, here it is 500"),
    ],
)
def test_another_tokenizer_or_size_is_refused(tiny: Tiny, encoder: Path, override: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        prepare(tiny(override, f"train.init_from={encoder}"), "classifier", CPU)


def test_fine_tuning_on_all_labels_keeps_the_tokenizer_of_pretraining(
    tiny: Tiny, encoder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    config = tiny("data.held_out_fraction=0", f"train.init_from={encoder}")
    made = begin(config, folder, "classifier", (), None, gpu=0)
    assert (folder / "tokenizer.json").read_bytes() == (encoder / "tokenizer.json").read_bytes()
    assert len(made.train.labels) == 200


def test_an_encoder_that_was_trained_on_held_out_reviews_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    ended = pretrained(tiny("train.epochs=1", "data.held_out_fraction=0"), tmp_path / "pretrained")
    with pytest.raises(RunError, match="trained on the validation split"):
        prepare(tiny(f"train.init_from={ended.folder}"), "classifier", CPU)


def test_an_encoder_may_come_from_other_reviews_and_a_classifier_may_not(
    tiny: Tiny, trained: Path, encoder: Path, source: Path, tmp_path: Path
) -> None:
    """A classifier may have learnt the labels of what is held out here."""
    folder = Path(shutil.copytree(source, tmp_path / "folder"))
    (folder / "train.jsonl").write_text((folder / "test.jsonl").read_text())
    config = tiny(f"data.source={folder}", f"train.init_from={encoder}")
    made = prepare(config, "classifier", CPU)
    assert made.corpus.content_hash != run.open_info(encoder).corpus_hash
    with pytest.raises(RunError, match="may have seen what is held out"):
        prepare(tiny(f"data.source={folder}", f"train.init_from={trained}"), "classifier", CPU)


def test_prediction_with_a_pretrained_run_is_refused_with_a_hint(config_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "p"
    made = imdb_tx("pretrain", "--config", config_path, "--run-dir", folder)
    assert f"--init-from {folder}" in made.stdout
    refused = imdb_tx("predict", "--run", folder, "a film")
    assert isinstance(refused.exception, RunError)
    assert f"--init-from {folder}" in str(refused.exception)
    wrong = imdb_tx("train", "--resume", folder)
    assert f"imdb-tx pretrain --resume {folder}" in str(wrong.exception)


def test_text_without_labels_is_learnt_by_pretraining_and_by_nothing_else(
    config_path: Path, tmp_path: Path
) -> None:
    table, folder = tmp_path / "pile.csv", tmp_path / "runs" / "p"
    table.write_text("body\n" + "".join(f"the plot of film {i} is a joy to follow\n" for i in range(40)))
    options = [table, "--text-column", "body", "--config", config_path]
    refused = imdb_tx("pretrain", *options)
    assert str(refused.exception).endswith(
        'Without labels, `imdb-tx pretrain --label-column ""` can learn the text.'
    )
    options += ["--label-column", ""]
    made = imdb_tx("pretrain", *options, "--run-dir", folder)
    assert made.exit_code == 0
    stored = corpus.ensure(run.open_run(folder).config.data)
    assert set(stored.manifest.splits) == {"train", "validation"}
    assert "imdb-tx train labelled.csv --config base.toml --set data." in made.stdout
    assert imdb_tx("pretrain", "--resume", folder).exit_code == 0
    for command in ("train", "baseline"):
        refused = imdb_tx(command, *options)
        assert isinstance(refused.exception, ConfigError)
        assert "name their column" in str(refused.exception)


def a_model(**options: float) -> tuple[LanguageModel, Batch]:
    torch.manual_seed(0)
    ids = torch.randint(4, 50, (6, 32))
    counts = torch.bincount(ids.flatten(), minlength=50).float()
    pretrain = PretrainConfig(**options)  # type: ignore[arg-type]
    model = LanguageModel(Config().model, pretrain, special_ids=(PAD_ID, MASK_ID), counts=counts)
    return model, batch_of(ids)


def batch_of(ids: torch.Tensor) -> Batch:
    mask = ids != PAD_ID
    return Batch(ids, mask, torch.zeros(len(ids)), int(mask.sum()))


def test_sampled_softmax_is_the_full_one_when_every_id_is_a_candidate() -> None:
    model, batch = a_model()
    model.inclusion.fill_(1.0)
    features = torch.randn(20, Config().model.width)
    targets = batch.ids.flatten()[:20]
    logits = model.candidate_logits(features, targets)
    hidden = model.norm(torch.nn.functional.gelu(model.transform(features)))
    full = hidden @ model.encoder.embedding.tokens.weight.T + model.bias
    expected = torch.nn.functional.cross_entropy(full, targets, reduction="none")
    loss = logits.logsumexp(1) - logits[:, 0]
    torch.testing.assert_close(loss, expected)


def test_sampled_softmax_estimates_the_sum_over_the_vocabulary_without_bias() -> None:
    model, batch = a_model(num_candidates=16)
    features, targets = torch.randn(4, Config().model.width), batch.ids.flatten()[:4]
    torch.manual_seed(1)
    with torch.no_grad():
        model.encoder.embedding.tokens.weight.mul_(0.1)  # or a few huge terms are all of a sum
        sums = torch.stack([model.candidate_logits(features, targets).exp().sum(1) for _ in range(4000)])
        model.inclusion.copy_(model.inclusion > 0)  # all that are ever candidates
        exact = model.candidate_logits(features, targets).exp().sum(1)
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


def test_an_id_absent_from_training_texts_has_an_embedding(tiny: Tiny) -> None:
    config = tiny()
    data = tokenize(config, ["train"])
    model = make_language_model(config, data.splits["train"], vocab_size=1000)
    assert model.get_parameter("encoder.embedding.tokens.weight").shape[0] == 1000


def test_special_ids_are_no_candidates() -> None:
    """Or the embedding of padding, which stands for dropped words, would not stay zero."""
    model, _ = a_model(num_candidates=16)
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
    optimizer = torch.optim.SGD([{"params": model.parameters(), "lr_scale": 1.0}])
    learner = Learner(model, model, [optimizer], config, "encoder", torch.float32)
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


def test_validation_has_no_effect_on_the_weights_of_pretraining(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("train.epochs=1")
    whole = pretrained(config, tmp_path / "whole").folder
    monkeypatch.setattr(step, "token_score", lambda *_: Score(accuracy=0.0, loss=1e9))
    other = pretrained(config, tmp_path / "other").folder
    assert [line["validation"]["loss"] for line in metrics.read(other) if "validation" in line] == [1e9] * 2
    last = "checkpoints/last/model.safetensors"
    assert (whole / last).read_bytes() == (other / last).read_bytes()


@pytest.mark.parametrize("objective", ["masked", "causal", "denoise"])
def test_dry_run_of_pretraining_shows_its_cost(config_path: Path, tmp_path: Path, objective: str) -> None:
    command = ("pretrain", "--config", config_path, "--set", f"pretrain.objective={objective}")
    shown = imdb_tx(*command, "--dry-run", "--run-dir", tmp_path / "run")
    assert "nothing was trained" in shown.stdout
    assert not (tmp_path / "run").exists()
