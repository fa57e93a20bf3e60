import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from imdb_transformer.config import Config, ModelConfig
from imdb_transformer.evaluation.evaluate import answer, evaluate
from imdb_transformer.evaluation.scores import score
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.model.ngrams import NONE, Ngrams, hashed
from imdb_transformer.training import starting_weights
from imdb_transformer.training.plan import gather
from imdb_transformer.training.prepare import prepare
from tests.conftest import imdb_tx
from tests.in_process import CPU, train

Tiny = Callable[..., Config]
BUCKETS = 2**16


def held(ids: list[int], padding: int = 0) -> set[int]:
    """The buckets of one review."""
    row = torch.tensor([ids + [0] * padding])
    buckets = hashed(row, row != 0, BUCKETS)[0].tolist()
    found = [bucket for bucket in buckets if bucket != NONE]
    assert len(set(found)) == len(found)
    assert all(0 <= bucket < BUCKETS for bucket in found)
    return set(found)


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=30), st.integers(0, 5))
def test_a_reviews_ngrams_are_those_of_its_windows_of_three_whatever_its_padding(
    ids: list[int], padding: int
) -> None:
    windows = [ids[i : i + 3] for i in range(max(1, len(ids) - 2))]
    assert held(ids, padding) == set().union(*map(held, windows))


def test_repeating_an_ngram_changes_nothing_and_order_matters() -> None:
    assert held([5, 6, 5, 6, 5, 6, 5, 6]) == held([5, 6, 5, 6])
    assert len(held([5, 6, 7])) == 6
    assert held([5, 6]) != held([6, 5])


def test_ngram_buckets_follow_the_published_hash() -> None:
    def bucket(ngram: list[int]) -> int:
        """Multiplicative hashing (Knuth 6.4) in signed numbers of 64 bits."""
        state = 0
        for token in ngram:
            state = (state + token + 1) * -7046029254386353131 % 2**64
            state -= 2**64 if state >= 2**63 else 0
        return (state >> 31) % BUCKETS

    ids = [7, 1, 300, 7]
    ngrams = [ids[start : start + length] for length in (1, 2, 3) for start in range(len(ids) + 1 - length)]
    assert held(ids, padding=3) == {bucket(ngram) for ngram in ngrams}
    row = torch.tensor([[*ids, 0, 0, 0]])
    assert hashed(row, row != 0, BUCKETS).min() == NONE < 0  # no bucket, whatever the number of buckets


def test_few_ngrams_share_a_bucket() -> None:
    ids = torch.randint(4, 16_000, (1, 1000))
    num_buckets = 2**22
    kept = (hashed(ids, ids != 0, num_buckets) != NONE).sum()
    assert kept > 0.99 * 2950


def test_ngrams_vote_in_evaluation_only() -> None:
    config = ModelConfig(ngram_buckets=1024, ngram_weight=2.0, dropout=0.0, word_dropout=0.0)
    torch.manual_seed(0)
    model = Classifier(config, vocab_size=50, num_classes=2)
    assert isinstance(model.ngrams, Ngrams)
    ids = torch.randint(4, 50, (3, 32))
    mask = ids != 0
    alone = model.train()(ids, mask)
    torch.testing.assert_close(model.eval()(ids, mask), alone)
    model.ngrams.weights.normal_()
    torch.testing.assert_close(model.train()(ids, mask), alone)
    torch.testing.assert_close(model.eval()(ids, mask), alone + 2 * model.ngrams(ids, mask))


@pytest.mark.parametrize("ema", ["train.ema_decay=0.0", "train.ema_decay=0.9"])
def test_fitted_ngrams_are_in_the_checkpoint_and_know_the_classes(
    tiny: Tiny, tmp_path: Path, ema: str
) -> None:
    ended = train(tiny("model.ngram_buckets=4096", "train.epochs=1", ema), tmp_path / "run")
    tensors = load_file(ended.checkpoint("best") / "model.safetensors")
    assert tensors["ngrams.weights"].count_nonzero() > 100
    ngrams = Ngrams(4096, 2)
    ngrams.load_state_dict({"weights": tensors["ngrams.weights"], "intercept": tensors["ngrams.intercept"]})
    split = prepare(tiny(), "classifier", CPU).train
    batch = gather(split, np.arange(50), CPU)
    votes = ngrams(batch.ids, batch.mask).argmax(1)
    assert (votes == batch.labels).float().mean() > 0.95
    Predictor.load(ended.folder)


def test_ngrams_are_fitted_for_each_of_three_classes(tiny: Tiny) -> None:
    made = prepare(tiny("model.ngram_buckets=4096"), "classifier", CPU)
    split = made.train
    model = Classifier(ModelConfig(ngram_buckets=4096), vocab_size=400, num_classes=3)
    three = split._replace(labels=np.arange(len(split.labels)) % 3)
    starting_weights.fit_ngrams(model, three)
    assert model.ngrams is not None
    assert model.ngrams.weights.shape == (4096, 3)
    assert (model.ngrams.weights.count_nonzero(0) > 100).all()


def test_an_ngram_in_fewer_than_ten_reviews_has_no_vote(tiny: Tiny) -> None:
    made = prepare(tiny("model.ngram_buckets=65536"), "classifier", CPU)
    split = made.train
    starting_weights.fit_ngrams(made.model, split)
    weights = made.model.get_buffer("ngrams.weights").flatten()
    present = torch.zeros(len(split.lengths), 65536)
    for i in range(len(present)):
        row = torch.from_numpy(split.review(i).astype(np.int64))[None]
        present[i, hashed(row, row != 0, 65536)[0].clamp(min=0)] = 1
    counts = present.sum(0)
    assert (weights[counts < 10] == 0).all()
    assert (weights[counts >= 10] != 0).sum() > 100


def test_eval_shows_the_encoder_alone_for_a_model_with_ngrams(tiny: Tiny, tmp_path: Path) -> None:
    ended = train(
        tiny("model.ngram_buckets=4096", "model.ngram_weight=5.0", "train.epochs=1"), tmp_path / "run"
    )
    result = imdb_tx("eval", ended.folder, "--split", "validation", "--json")
    alone = json.loads(result.stdout)["encoder_alone"]
    answered = answer([ended.folder], "validation")
    classifier = answered.predictor.models[0].classifier  # type: ignore[attr-defined]
    classifier.ngrams.weights.zero_()
    classifier.ngrams.intercept.zero_()
    logits = answered.predictor.models[0].logits(answered.texts)
    assert alone == pytest.approx(score(logits, answered.labels).model_dump())
    assert alone["loss"] != answered.evaluation.loss
    printed = imdb_tx("eval", ended.folder, "--split", "validation").stdout
    assert re.search(rf"encoder alone +{100 * alone['accuracy']:.2f}% \(loss {alone['loss']:.4f}\)", printed)


def test_eval_omits_the_encoder_alone_for_a_model_without_ngrams(trained: Path) -> None:
    result = imdb_tx("eval", trained, "--split", "validation", "--json")
    assert json.loads(result.stdout)["encoder_alone"] is None


def test_seeds_print_the_encoder_alone_beside_the_model_with_ngrams(
    config_path: Path, tmp_path: Path
) -> None:
    result = imdb_tx(
        "train", "--config", config_path, "--seeds", 2, "--run-dir", tmp_path / "r", "--test", "--json",
        *("--set", "model.ngram_buckets=4096", "--set", "train.epochs=1"),
    )  # fmt: skip
    summary = json.loads(result.stdout)
    for split in ("validation", "test"):
        each = [evaluate([Path(folder)], split).encoder_alone for folder in summary["runs"]]
        assert summary[f"encoder_{split}_accuracy"]["each"] == [score.accuracy for score in each if score]
        assert len(summary[f"encoder_{split}_accuracy"]["each"]) == 2
