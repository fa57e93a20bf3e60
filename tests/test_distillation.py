"""An encoder learns the features of another one: `imdb-tx pretrain --teacher RUN`."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from imdb_transformer import pretrain
from imdb_transformer.config import Config, PretrainConfig, TrainConfig
from imdb_transformer.data.tokenizer import MASK_ID, PAD_ID
from imdb_transformer.errors import ConfigError, DataError, Interrupted, RunError
from imdb_transformer.model.encoder import Encoder
from imdb_transformer.model.language import LanguageModel, teacher_features
from imdb_transformer.store import metrics, run
from imdb_transformer.training import estimate, objectives
from imdb_transformer.training.objectives import pretraining
from imdb_transformer.training.prepare import prepare
from imdb_transformer.training.step import make_learner
from tests.conftest import imdb_tx, write_jsonl
from tests.in_process import CPU, Tiny, train, weights
from tests.test_model import a_batch, small
from tests.test_objectives import batch_of


def a_student(teacher: Encoder) -> LanguageModel:
    torch.manual_seed(0)
    options = PretrainConfig()
    return LanguageModel(small(), options, counts=torch.ones(30), teacher=teacher)


def a_teacher() -> Encoder:
    return Encoder(small(width=24, num_layers=3), 30).eval().requires_grad_(False)


def test_the_features_to_learn_are_the_mean_of_the_upper_layers_of_one_text_at_a_time() -> None:
    teacher = a_teacher()
    ids, mask = a_batch([13, 7, 20], 20)
    features = teacher_features(teacher, ids, mask, torch.float32)
    assert features.shape == (3, 20, 24)
    for row, expected in zip(ids, features, strict=True):
        outputs: list[torch.Tensor] = []
        hooks = [
            block.register_forward_hook(lambda *values, into=outputs: into.append(values[-1]))
            for block in teacher.blocks
        ]
        alone = row[row != PAD_ID][None]
        teacher(alone, alone != PAD_ID, torch.float32)
        for hook in hooks:
            hook.remove()
        norm = nn.LayerNorm(24, elementwise_affine=False)
        mean = (norm(outputs[1][0]) + norm(outputs[2][0])) / 2
        torch.testing.assert_close(norm(mean), expected[: alone.shape[1]])


def test_the_loss_is_that_of_the_masked_tokens_and_ten_times_the_error_of_the_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = a_student(a_teacher())
    assert model.teacher is not None
    assert model.to_teacher is not None
    ids, mask = a_batch([13, 7], 16)
    hidden = mask & (torch.arange(16) % 3 == 0)
    monkeypatch.setattr(objectives, "random_tokens", lambda *_: hidden)
    metrics_of_batch = pretraining(model, batch_of(ids), Config(), torch.float32, 1.0)
    total, count = metrics_of_batch["feature_loss"]
    assert count == 20
    features = model.encoder(ids.masked_fill(hidden, MASK_ID), mask, torch.float32)
    errors = model.to_teacher(features) - teacher_features(model.teacher, ids, mask, torch.float32)
    torch.testing.assert_close(total / count, errors[mask].square().mean())
    share = Config().pretrain.mask_fractions[1]
    masked_loss, number = metrics_of_batch["masked_loss"]
    assert number == int(hidden.sum())
    torch.testing.assert_close(metrics_of_batch["loss"][0], masked_loss / share + 10 * total)


def test_the_teacher_is_neither_trained_nor_saved() -> None:
    teacher = a_teacher()
    model = a_student(teacher).train()
    assert "teacher" not in dict(model.named_children())
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    ids, _ = a_batch([13, 7], 16)
    pretraining(model, batch_of(ids), Config(), torch.float32, 0.0)["loss"][0].backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert not teacher.training
    assert not any(name.startswith("teacher") for name in model.state_dict())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


def test_the_average_of_the_weights_shares_the_teacher() -> None:
    model = a_student(a_teacher())
    averaged = make_learner(
        model, Config(train=TrainConfig(ema_decay=0.9)), "encoder", torch.float32
    ).averaged
    assert averaged is not model
    assert averaged.encoder is not model.encoder
    assert averaged.teacher is model.teacher


def test_the_time_of_a_validation_is_estimated_without_the_teacher(
    tiny: Tiny, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(tiny(), "encoder", CPU, teachers=(encoder,))
    calls: list[str] = []
    for parameter in prepared.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    monkeypatch.setattr(estimate, "_learn", lambda *_: None)
    monkeypatch.setattr(objectives, "teacher_features", lambda *_: calls.append("teacher"))
    estimate.estimate(prepared)
    assert not calls


def test_the_error_of_the_features_falls_and_the_run_names_its_teacher(
    tiny: Tiny, encoder: Path, tmp_path: Path
) -> None:
    config = tiny("train.epochs=6", "train.lr=5e-3", "model.width=8")
    pretrain(config, tmp_path / "run", teacher=encoder)
    opened = run.open_run(tmp_path / "run")
    assert opened.info.teachers == (str(encoder.resolve()),)
    errors = [line["feature_loss"] for line in metrics.read(opened.folder) if "feature_loss" in line]
    assert np.mean(errors[-5:]) < 0.8 * np.mean(errors[:5])
    model = prepare(tiny("model.width=8", f"train.init_from={opened.folder}"), "classifier", CPU).model
    saved = load_file(opened.checkpoint("best") / "model.safetensors")
    for name, tensor in model.get_submodule("encoder").state_dict().items():
        assert torch.equal(saved[f"encoder.{name}"], tensor)


def test_resuming_needs_the_same_teacher_and_gives_the_same_weights(
    tiny: Tiny, encoder: Path, tmp_path: Path
) -> None:
    teacher, parts = Path(shutil.copytree(encoder, tmp_path / "teacher")), tmp_path / "parts"
    config = tiny("train.epochs=2", "train.evals_per_epoch=1")
    whole = train(config, tmp_path / "whole", kind="encoder", teachers=(teacher,))
    with pytest.raises(Interrupted, match="imdb-tx pretrain --resume"):
        train(config, parts, 5, kind="encoder", teachers=(teacher,))
    other = train(tiny("train.seed=1", "train.epochs=1"), tmp_path / "other", kind="encoder")
    teacher.rename(tmp_path / "moved")
    with pytest.raises(RunError, match=r"parts learns from .*teacher, which is missing or has changed"):
        train(config, parts, kind="encoder")
    shutil.copytree(other.folder, teacher)
    with pytest.raises(RunError, match="which is missing or has changed"):
        train(config, parts, kind="encoder")
    shutil.rmtree(teacher)
    (tmp_path / "moved").rename(teacher)
    assert weights(train(config, parts, kind="encoder").folder) == weights(whole.folder)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (["pretrain.objective=causal"], ConfigError, 'needs pretrain.objective = "masked", not "causal"'),
        (
            ["tokenizer.vocab_size=300"],
            RunError,
            "tokenizer.vocab_size is 400, here it is 300. Use its value.$",
        ),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(
    tiny: Tiny, encoder: Path, options: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        prepare(tiny(*options), "encoder", CPU, teachers=(encoder,))


def test_unfit_teachers_are_refused(tiny: Tiny, encoder: Path, tmp_path: Path) -> None:
    twice = imdb_tx("pretrain", "--teacher", encoder, "--teacher", encoder, "--run-dir", tmp_path / "run")
    assert isinstance(twice.exception, ConfigError)
    assert "learns from one --teacher; 2 were named" in str(twice.exception)
    with pytest.raises(
        RunError, match="imdb is a classifier run; an encoder learns from a run of `pretrain`"
    ):
        prepare(tiny(), "encoder", CPU, teachers=(run.of_package("imdb"),))
    options = ("train.epochs=1", "train.evals_per_epoch=1", "pretrain.objective=causal")
    causal = train(tiny(*options), tmp_path / "causal", kind="encoder").folder
    with pytest.raises(RunError, match="it reads in one direction and cannot teach here"):
        prepare(tiny(), "encoder", CPU, teachers=(causal,))
    of_demo = tiny("data.source=demo", "train.epochs=1", "train.batch_tokens=8192")
    other = train(of_demo, tmp_path / "other", kind="encoder").folder
    with pytest.raises(RunError, match=r"run cannot teach here: .*other has another tokenizer"):
        prepare(tiny(f"train.init_from={other}"), "encoder", CPU, teachers=(encoder,))


def test_a_teacher_is_refused_if_each_unlabelled_review_is_held_out(tiny: Tiny, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", [f"t{i}" for i in range(100)], ["neg", "pos"] * 50)
    write_jsonl(tmp_path / "test.jsonl", ["one", "two"], ["neg", "pos"])
    (tmp_path / "unsupervised.txt").write_text("One\ntwo\n")
    config = tiny(f"data.source={tmp_path}")
    with pytest.raises(DataError, match="has no unlabelled review for a teacher, except held-out ones"):
        prepare(config, "classifier", CPU, teachers=(run.of_package("imdb"),))


def test_a_teacher_has_the_weights_of_its_run_and_no_dropout(tiny: Tiny, encoder: Path) -> None:
    model = prepare(tiny("model.width=8"), "encoder", CPU, teachers=(encoder,)).model.train()
    teacher = model.teacher
    assert isinstance(teacher, Encoder)
    assert not any(module.training for module in teacher.modules())
    saved = load_file(run.open_run(encoder).checkpoint("best") / "model.safetensors")
    for name, parameter in teacher.named_parameters():
        assert torch.equal(saved[f"encoder.{name}"], parameter)
        assert not parameter.requires_grad


def test_the_command_takes_a_teacher(encoder: Path, config_path: Path, tmp_path: Path) -> None:
    command = ("pretrain", "--config", config_path, "--teacher", encoder, "--run-dir", tmp_path / "run")
    shown = imdb_tx(*command, "--dry-run")
    assert "nothing was trained" in shown.stdout
    imdb_tx(*command, "--set", "train.epochs=1")
    assert run.open_run(tmp_path / "run").info.teachers == (str(encoder.resolve()),)
