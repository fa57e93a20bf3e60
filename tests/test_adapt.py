"""An encoder that reads the training reviews before it learns their labels."""

from pathlib import Path

import pytest
import torch

import imdb_transformer
from imdb_transformer.errors import ConfigError, DivergedError, Interrupted
from imdb_transformer.store import checkpoint, run
from imdb_transformer.training import estimate
from imdb_transformer.training.adapt import adapt_encoder, pretraining_config
from imdb_transformer.training.prepare import prepare
from tests.conftest import imdb_tx
from tests.in_process import CPU, Tiny, train, weights


def test_adaptation_is_pretraining_on_the_training_reviews(
    tiny: Tiny, encoder: Path, source: Path, tmp_path: Path
) -> None:
    """A run of `pretrain` on the same reviews ends with the same encoder, bit for bit."""
    alone = tmp_path / "alone"  # without the unlabelled reviews, which `pretrain` would read, too
    alone.mkdir()
    (alone / "train.jsonl").write_bytes((source / "train.jsonl").read_bytes())
    values = ("train.epochs=4", "train.adapt_share=0.5", "train.precision=fp32")
    config = tiny(f"data.source={alone}", f"train.init_from={encoder}", *values)
    prepared = prepare(config, "classifier", CPU)
    before = {name: each.clone() for name, each in prepared.model.state_dict().items()}
    adapt_encoder(prepared)
    after = prepared.model.state_dict()

    recipe = pretraining_config(prepared.config)
    assert (recipe.train.epochs, recipe.train.init_from) == (2, str(encoder))
    imdb_transformer.pretrain(recipe, tmp_path / "pretrained")
    opened, folder = run.locate(tmp_path / "pretrained")
    _, expected = checkpoint.read_model(folder, tokenizer_hash=opened.info.tokenizer_hash)
    names = [name for name in after if name.startswith("encoder.")]
    assert names
    for name in names:
        assert torch.equal(after[name], torch.from_numpy(expected[name])), name
    assert not torch.equal(
        after["encoder.embedding.tokens.weight"], before["encoder.embedding.tokens.weight"]
    )
    assert not torch.equal(after["head.weight"], before["head.weight"])  # fitted to the new features


def test_a_resumed_run_equals_the_uninterrupted_one_and_does_not_adapt_again(
    tiny: Tiny, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(f"train.init_from={encoder}", "train.adapt_share=1")
    whole = train(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", stop_after=3)
    monkeypatch.delattr("imdb_transformer.training.train.adapt_encoder")
    parts = train(config, tmp_path / "parts")
    assert weights(whole.folder) == weights(parts.folder)


def test_adaptation_without_an_encoder_is_refused(config_path: Path) -> None:
    refused = imdb_tx("train", "--config", config_path, "--set", "train.adapt_share=0.3")
    assert isinstance(refused.exception, ConfigError)
    assert "train.init_from is empty" in str(refused.exception)


def test_an_estimate_includes_the_adaptation(
    tiny: Tiny, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "_seconds", lambda *_: 1.0)
    seconds = []
    for share in (0, 1, 2):
        config = tiny(f"train.init_from={encoder}", f"train.adapt_share={share}", "train.epochs=3")
        seconds.append(estimate.estimate(prepare(config, "classifier", CPU)).seconds)
    assert seconds[0] < seconds[1] < seconds[2]


@pytest.mark.parametrize(("share", "shown"), [(1, "3 epochs"), (0.1, "1 epoch")])
def test_a_dry_run_shows_the_adaptation(config_path: Path, encoder: Path, share: float, shown: str) -> None:
    values = (f"train.init_from={encoder}", f"train.adapt_share={share}", "train.epochs=3")
    sets = [part for value in values for part in ("--set", value)]
    lines = imdb_tx("train", "--config", config_path, *sets, "--dry-run").stdout.splitlines()
    assert f"adaptation        {shown} of guessing masked tokens, before training" in lines


def test_an_adaptation_that_diverges_says_how_to_train_without_it(
    tiny: Tiny, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: object) -> None:
        raise DivergedError("step 1 has loss nan")

    monkeypatch.setattr("imdb_transformer.training.adapt.train_step", diverge)
    config = tiny(f"train.init_from={encoder}", "train.adapt_share=1")
    with pytest.raises(
        DivergedError, match=f"step 1 has loss nan. To train without it: --init-from {encoder}"
    ):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_adaptation_follows_the_package_and_not_a_file_of_that_name(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("train.init_from=x", "train.adapt_share=1")
    expected = pretraining_config(config)
    monkeypatch.chdir(tmp_path)
    Path("adapt.toml").write_text("[train]\nlr = 1.0\n")
    assert pretraining_config(config) == expected
