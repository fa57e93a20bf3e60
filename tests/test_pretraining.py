import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from imdb_transformer import config_file
from imdb_transformer.config import Config
from imdb_transformer.data import corpus
from imdb_transformer.data.encoded import tokenize
from imdb_transformer.errors import ConfigError, Interrupted, RunError
from imdb_transformer.evaluation.scores import Score
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.model.language import HEAD
from imdb_transformer.store import metrics, run
from imdb_transformer.training import step
from imdb_transformer.training.prepare import prepare
from imdb_transformer.training.start import create_run
from tests.conftest import imdb_tx
from tests.in_process import CPU, Tiny, train, weights


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


def test_an_encoder_cannot_predict_and_the_error_names_the_command_that_fine_tunes_it(encoder: Path) -> None:
    command = rf"imdb-tx train --config base\.toml --set data\.source=.* --set model\.width=\d+ .*{encoder}"
    for few in (True, False):
        with pytest.raises(RunError, match=f"is an encoder and has no classes.*{command}"):
            Predictor.load(encoder, few=few)


def test_fine_tuning_starts_from_the_saved_weights(tiny: Tiny, encoder: Path, tmp_path: Path) -> None:
    config = tiny("model.dropout=0.5", "tokenizer.max_length=32", f"train.init_from={encoder}")
    create_run(config, tmp_path / "run", "classifier")
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
    made = create_run(config, folder, "classifier")
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
    with pytest.raises(RunError, match="has learnt labels"):  # which an encoder would hide
        prepare(tiny(f"train.init_from={trained}"), "encoder", CPU)


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
    assert str(refused.exception).endswith('and `imdb-tx pretrain --label-column ""` can learn them.')
    options += ["--label-column", ""]
    made = imdb_tx("pretrain", *options, "--run-dir", folder)
    assert made.exit_code == 0
    stored = corpus.ensure(run.open_run(folder).config.data)
    assert set(stored.manifest.splits) == {"train", "validation"}
    assert "imdb-tx train labelled.csv --label-column COLUMN --config base.toml --set data." in made.stdout
    assert imdb_tx("pretrain", "--resume", folder).exit_code == 0
    for command in ("train", "baseline"):
        refused = imdb_tx(command, *options)
        assert isinstance(refused.exception, ConfigError)
        assert "name their column" in str(refused.exception)


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
