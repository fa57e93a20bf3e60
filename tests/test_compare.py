import json
from pathlib import Path

import numpy as np
import pytest

from imdb_transformer.config import Config, DataConfig
from imdb_transformer.errors import ConfigError, DataError
from imdb_transformer.evaluation.baseline import make_baseline
from imdb_transformer.evaluation.compare import pair_of
from imdb_transformer.store import run
from tests.conftest import imdb_tx


def test_mcnemar_is_the_binomial_test_of_the_disagreements() -> None:
    right = np.array([True] * 90 + [False] * 10)
    also = np.array([True] * 88 + [False] * 2 + [True] * 8 + [False] * 2)
    pair = pair_of("a", "b", right, also)
    assert (pair.only_first_right, pair.only_second_right) == (2, 8)
    # 2 P(X <= 2) of 10 fair coins: 2 (1 + 10 + 45) / 1024
    assert pair.p_value == pytest.approx(112 / 1024)
    assert pair.difference == pytest.approx(0.06)
    assert pair.low < 0.06 < pair.high


def test_interval_is_near_the_normal_one_for_many_reviews() -> None:
    rng = np.random.default_rng(0)
    right, also = rng.random(20_000) < 0.9, rng.random(20_000) < 0.91
    pair = pair_of("a", "b", right, also)
    spread = (also.astype(float) - right).std() / 20_000**0.5
    assert (pair.high - pair.low) / 2 == pytest.approx(1.96 * spread, rel=0.05)


def test_a_run_does_not_differ_from_itself() -> None:
    right = np.random.default_rng(0).random(100) < 0.5
    pair = pair_of("a", "a", right, right)
    assert (pair.p_value, pair.difference) == (1.0, 0.0)
    assert pair.low == -pair.high
    assert 0 < pair.high < 0.02  # few reviews could still tell them apart


@pytest.mark.parametrize("num_reviews", [20, 100, 1000])
def test_four_disagreements_show_no_difference(num_reviews: int) -> None:
    right, also = np.ones(num_reviews, bool), np.ones(num_reviews, bool)
    also[:4] = False
    pair = pair_of("a", "b", right, also)
    assert pair.p_value > 0.05
    assert pair.low < pair.difference < 0 < pair.high


def test_no_interval_goes_beyond_100_points() -> None:
    for num_reviews in (1, 3, 10):
        pair = pair_of("a", "b", np.zeros(num_reviews, bool), np.ones(num_reviews, bool))
        assert (pair.difference, pair.high) == (1, 1)
        assert -1 <= pair.low < 1


def test_the_interval_has_the_true_difference_in_95_of_100_draws() -> None:
    rng, shares, num_draws = np.random.default_rng(0), [0.06, 0.03, 0.91], 2000
    counts = rng.multinomial(100, shares, num_draws)
    pairs = [
        pair_of("a", "b", np.repeat([True, False, True], each), np.repeat([False, True, True], each))
        for each in counts
    ]
    covered = sum(pair.low <= shares[1] - shares[0] <= pair.high for pair in pairs)
    assert 0.94 < covered / num_draws < 0.99


def test_runs_on_other_reviews_are_not_compared(trained: Path, tmp_path: Path) -> None:
    config = run.open_run(trained).config
    make_baseline(tmp_path / "nb", config.replaced("data", held_out_fraction=0.0), "nb")
    refused = imdb_tx("compare", trained, tmp_path / "nb", "--split", "train")
    assert isinstance(refused.exception, DataError)
    assert "different reviews in train" in str(refused.exception)


def test_runs_on_other_labels_of_the_same_reviews_are_not_compared(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    for path in source.iterdir():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        length = [{**row, "long": "long" if len(row["text"]) > 200 else "short"} for row in rows]
        (folder / path.name).write_text("".join(json.dumps(row) + "\n" for row in length))
    (folder / "unsupervised.jsonl").unlink()
    for column in ("label", "long"):
        data = DataConfig(source=str(folder), data_dir=str(tmp_path / "data"), label_column=column)
        make_baseline(tmp_path / column, Config(data=data), "tfidf")
    refused = imdb_tx("compare", tmp_path / "label", tmp_path / "long")
    assert isinstance(refused.exception, DataError)
    assert "have different" in str(refused.exception)


def test_compare_shows_configs_scores_and_pairs(trained: Path, tmp_path: Path) -> None:
    config = run.open_run(trained).config
    other = config.replaced("train", lr=0.5)
    make_baseline(tmp_path / "nb", other, "nb")
    shown = imdb_tx("compare", trained, tmp_path / "nb").stdout
    assert "train.lr" in shown
    assert "McNemar" in shown
    comparison = json.loads(imdb_tx("compare", trained, tmp_path / "nb", trained, "--json").stdout)
    kinds, rates = ["classifier", "nb", "classifier"], [0.01, 0.5, 0.01]
    assert comparison["differences"] == {"kind": kinds, "train.lr": rates}
    assert len(comparison["pairs"]) == 3
    sizes = [(each["split"], each["num_examples"]) for each in comparison["evaluations"]]
    assert sizes == [("validation", 20)] * 3  # choices are made on validation
    assert isinstance(imdb_tx("compare", trained).exception, ConfigError)
