"""Star ratings of IMDB's training reviews, and the second loss that learns them."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from imdb_transformer.data import imdb
from imdb_transformer.data.encoded import rows_of
from imdb_transformer.data.imdb import STARS, UNKNOWN, imdb_table, load_table, stars_of, words_key
from imdb_transformer.errors import DataError, DataWarning, Interrupted, RunError
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.store import metrics
from imdb_transformer.training.objectives import classification
from imdb_transformer.training.plan import get_batch
from imdb_transformer.training.prepare import make_classifier, prepare
from imdb_transformer.training.start import check_unchanged
from tests.conftest import imdb_tx
from tests.in_process import CPU, Tiny, prepared, train, weights


def table_of(rated: dict[str, int]) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(sorted((words_key(text) << 4) + star for text, star in rated.items()), np.uint64)


def rate(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Gives all training reviews of the tiny corpus but the first three 1 star (class 0) or 10 (class 1)."""
    config = tiny()
    texts, labels = rows_of(config.data, prepared(config).corpus, "train")
    rated = {text: 10 if label else 1 for text, label in zip(texts[3:], labels[3:], strict=True)}
    for text in texts[:3]:
        rated.pop(text, None)
    monkeypatch.setattr(imdb, "imdb_table", lambda _: table_of(rated))
    return rated


def test_the_table_has_the_stars_of_nearly_all_training_reviews_of_imdb() -> None:
    table = imdb_table("stars")
    assert (table.dtype, table.shape) == (np.uint64, (24_777,))  # 25,000 less copies, and texts of test
    assert (np.diff(table >> np.uint64(4)) > 0).all()  # sorted, one row a text
    values, counts = np.unique(table & np.uint64(15), return_counts=True)
    assert tuple(values.tolist()) == STARS
    assert counts.min() > 2000
    assert counts[:4].sum() + 200 > 12_500 > counts[:4].sum()  # 1 to 4 stars are neg
    assert counts[4:].sum() + 200 > 12_500 > counts[4:].sum()  # 7 to 10 are pos


@pytest.mark.parametrize("num_bytes", [0, 50, 1000])
def test_a_table_that_was_cut_short_is_refused_by_name(tmp_path: Path, num_bytes: int) -> None:
    np.save(tmp_path / "whole.npy", imdb_table("stars"))
    assert np.array_equal(load_table(tmp_path / "whole.npy"), imdb_table("stars"))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:num_bytes])
    with pytest.raises(DataError, match=r"cut\.npy is damaged\. Install imdb-tx again"):
        load_table(tmp_path / "cut.npy")


def test_stars_are_found_by_text_and_unknown_for_other_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    rated = {f"film {i}": star for i, star in enumerate(STARS)}
    monkeypatch.setattr(imdb, "imdb_table", lambda _: table_of(rated))
    texts = ["another", *rated, "", "film 00", "film 3"]
    assert stars_of(texts).tolist() == [UNKNOWN, *range(len(STARS)), UNKNOWN, UNKNOWN, 3]
    assert stars_of([]).tolist() == []


def test_a_copy_with_other_tags_punctuation_spaces_or_capitals_has_the_same_key() -> None:
    text = "A fine film.<br /><br />I'd see it twice"
    copies = [
        "a fine film i'd see it twice",
        "A  FINE film -- I'd\nsee it, twice!",
        "<p>A fine_film</p> I d see it twice",
    ]
    assert {words_key(copy) for copy in copies} == {words_key(text)}
    assert words_key("A fine film I'd see it once") != words_key(text)


def test_a_text_of_many_opening_brackets_has_a_key_at_once() -> None:
    assert words_key("<b>good</b> " + "<3 " * 300_000) == words_key("good " + "3 " * 300_000)


def test_the_loss_of_stars_is_added_with_its_weight_where_stars_are_known(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    rated = rate(tiny, monkeypatch)
    config = tiny("train.star_weight=0.3", "model.dropout=0.0", "train.precision=fp32")
    ready = prepare(config, "classifier", CPU)
    texts = rows_of(config.data, ready.corpus, "train").texts
    indices = np.arange(8)
    batch = get_batch(ready.train, indices, CPU)
    result = classification(ready.model, batch, config, torch.float32, 0.0)
    features = ready.model.features(batch.ids, batch.mask)  # type: ignore[operator]
    guesses = ready.model.star_head(features).log_softmax(1)  # type: ignore[operator]
    stars_nats = -sum(guesses[i, STARS.index(rated[texts[i]])] for i in indices if texts[i] in rated)
    num_rated = sum(texts[i] in rated for i in indices)
    assert 0 < num_rated < 8
    binary = F.cross_entropy(ready.model(batch.ids, batch.mask), batch.labels, reduction="sum")
    torch.testing.assert_close(result["loss"][0], binary + 0.3 * stars_nats)
    assert result["loss"][1] == 8
    torch.testing.assert_close(result["star_loss"][0], stars_nats)
    assert result["star_loss"][1] == num_rated


def test_the_star_head_leaves_the_other_initial_weights_as_they_are(tiny: Tiny) -> None:
    with_stars, without = (
        make_classifier(tiny(f"train.star_weight={weight}"), vocab_size=400, num_classes=2).state_dict()
        for weight in (0.3, 0.0)
    )
    assert with_stars.keys() - without.keys() == {"star_head.weight", "star_head.bias"}
    assert all(torch.equal(with_stars[name], tensor) for name, tensor in without.items())


def test_a_run_that_learnt_stars_resumes_predicts_and_starts_others(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate(tiny, monkeypatch)
    config = tiny("train.star_weight=0.3", "train.ema_decay=0.9", "model.bigram_buckets=300")
    whole = train(config, tmp_path / "whole")
    losses = [line["star_loss"] for line in metrics.read(whole.folder) if "star_loss" in line]
    assert losses[-1] < losses[0]
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", 5)
    assert weights(train(config, tmp_path / "parts").folder) == weights(whole.folder)
    assert Predictor.load(whole.folder)("a good film").label in ("neg", "pos")
    assert imdb_tx("eval", whole.folder, "--split", "validation").exit_code == 0
    plain = tiny("model.bigram_buckets=300", f"train.init_from={whole.folder}")
    prepare(plain, "classifier", CPU)


def test_a_corpus_without_known_stars_learns_none_and_says_so(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny("train.star_weight=0.3")
    with pytest.warns(DataWarning, match=r"none of these reviews has a star.*train\.star_weight is 0"):
        trained = train(config, tmp_path / "run")
    assert trained.config == train(tiny(), tmp_path / "plain").config
    assert weights(trained.folder) == weights(tmp_path / "plain")
    check_unchanged(trained, config, ())
    with pytest.raises(RunError, match="another config"):
        check_unchanged(trained, tiny("train.star_weight=0.3", "train.lr=1e-3"), ())


def test_a_run_without_stars_is_not_the_same_as_one_that_learns_them(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate(tiny, monkeypatch)
    plain = train(tiny(), tmp_path / "run")
    with pytest.raises(RunError, match="another config"):
        check_unchanged(plain, tiny("train.star_weight=0.3"), ())


def test_stars_of_unlabelled_reviews_are_unknown(
    tiny: Tiny, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate(tiny, monkeypatch)
    soft = np.full((100, 2), 0.5, np.float32)
    config = tiny("train.star_weight=0.3")
    ready = prepare(config, "classifier", CPU, teachers=[trained], soft_labels=soft)
    num_labelled = len(rows_of(config.data, ready.corpus, "train").texts)
    assert ready.train.stars is not None
    assert (ready.train.stars[:num_labelled] != UNKNOWN).sum() > num_labelled - 10
    assert ready.train.stars[num_labelled:].tolist() == [UNKNOWN] * (len(ready.train.labels) - num_labelled)
