"""Films of IMDB's reviews, and batches in which the reviews of a film come together."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imdb_transformer.config import Config
from imdb_transformer.data import imdb
from imdb_transformer.data.encoded import TokenizedCorpus, encode, pretraining_text, rows_of
from imdb_transformer.data.imdb import FILM_BITS, films_of, imdb_table, words_key
from imdb_transformer.errors import Interrupted
from imdb_transformer.training.plan import epoch_batches, make_plan, shares
from tests.in_process import Tiny, prepared, train, weights


def table_of(known: dict[str, int]) -> np.ndarray:  # type: ignore[type-arg]
    """The rows of `imdb_films.npy` for texts and the numbers of their films."""
    rows = [(words_key(text) >> 10 << FILM_BITS) + film for text, film in known.items()]
    return np.array(sorted(rows), np.uint64)


def encode_all(config: Config) -> TokenizedCorpus:
    """The splits that pretraining reads."""
    data = prepared(config)
    return encode(config.data, data.corpus, data.tokenizer, ("train", "unsupervised"))


def film_all_reviews(config: Config, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Puts the training reviews of the tiny corpus into a table, by turns as of five films."""
    texts = rows_of(config.data, prepared(config).corpus, "train").texts
    table = table_of({text: texts.index(text) % 5 for text in texts})
    monkeypatch.setattr(imdb, "imdb_table", lambda _: table)
    return texts


def test_the_table_has_the_films_of_nearly_all_reviews_of_imdb() -> None:
    table = imdb_table("films")
    assert (table.dtype, table.shape) == (np.uint64, (72_881,))  # 75,000 less copies, and texts of test
    assert (np.diff(table >> np.uint64(FILM_BITS)) > 0).all()  # sorted, one row a text
    numbers, counts = np.unique(table & np.uint64(2**FILM_BITS - 1), return_counts=True)
    assert numbers.tolist() == list(range(10_220))
    assert counts.max() <= 60  # at most 30 labelled reviews of a film, and as many others


def test_films_are_looked_up_by_text_and_unknown_for_other_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {f"text {i}": 2**FILM_BITS - 1 - i for i in range(5)}
    monkeypatch.setattr(imdb, "imdb_table", lambda _: table_of(known))
    assert films_of(["another", *known, "", "TEXT<br />3!"]).tolist() == [-1, *known.values(), -1, 2**14 - 4]


@given(
    st.lists(st.tuples(st.integers(1, 600), st.integers(-1, 5)), min_size=1, max_size=100),
    st.integers(1, 5000),
)
def test_batches_of_films_have_every_review_once_and_stay_below_the_limit(
    reviews: list[tuple[int, int]], batch_tokens: int
) -> None:
    lengths, numbers = (np.array(each) for each in zip(*reviews, strict=True))
    plan = epoch_batches(lengths, batch_tokens=batch_tokens, seed=0, epoch=1, films=numbers)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(lengths)))
    for batch in plan:
        assert len(batch) == 1 or -(-lengths[batch].max() // 16) * 16 * len(batch) <= batch_tokens


def test_the_reviews_of_a_film_come_together_and_unknown_ones_anywhere() -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(100, 300, 4000)
    numbers = generator.integers(0, 400, 4000)  # ten reviews a film
    numbers[:1000] = -1
    plan = epoch_batches(lengths, batch_tokens=6000, seed=0, epoch=0, films=numbers)
    known = [numbers[batch][numbers[batch] >= 0] for batch in plan]
    share = sum(len(each) - len(set(each.tolist())) for each in known) / 3000
    assert share > 0.5  # seven or eight known reviews a film fall into four groups
    without = epoch_batches(lengths, batch_tokens=6000, seed=0, epoch=0)
    known = [numbers[batch][numbers[batch] >= 0] for batch in without]
    assert sum(len(each) - len(set(each.tolist())) for each in known) / 3000 < 0.1
    unknown = [np.count_nonzero(numbers[batch] < 0) for batch in plan]
    assert np.std(unknown) < 4  # they are not one film
    options = {"batch_tokens": 6000, "seed": 0, "films": numbers}
    same, other = (epoch_batches(lengths, **options, epoch=epoch) for epoch in (0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(plan, same, strict=True))
    assert not np.array_equal(np.concatenate(plan), np.concatenate(other))


def test_the_reviews_of_a_film_stay_together_in_the_shares_of_several_processes(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("pretrain.objective=contrastive")
    plain = pretraining_text(config, encode_all(config))
    film_all_reviews(config, monkeypatch)
    text = pretraining_text(config, encode_all(config))
    indices = np.arange(11)
    assert [each.tolist() for each in shares(indices, 3, plain)] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]
    assert [each.tolist() for each in shares(indices, 3, text)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_only_the_objective_that_compares_halves_reads_films(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    masked, contrastive = tiny(), tiny("pretrain.objective=contrastive")
    assert pretraining_text(contrastive, encode_all(contrastive)).films is None  # no review is one of IMDB's
    texts = film_all_reviews(contrastive, monkeypatch)
    data = encode_all(contrastive)
    assert pretraining_text(masked, data).films is None
    text = pretraining_text(contrastive, data)
    assert text.films is not None
    assert text.films[: len(texts)].tolist() == [texts.index(each) % 5 for each in texts]
    assert len(text.films) == len(text.lengths)
    assert (text.films[len(texts) :] == -1).all()  # the unlabelled reviews
    with_films, without = make_plan(contrastive, text), make_plan(contrastive, text._replace(films=None))
    assert [each.tolist() for _, each in with_films.batches] != [each.tolist() for _, each in without.batches]


def test_pretraining_with_films_resumes_bit_for_bit(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("pretrain.objective=contrastive")
    plain = train(config, tmp_path / "plain", kind="encoder")
    film_all_reviews(config, monkeypatch)
    whole = train(config, tmp_path / "whole", kind="encoder")
    assert weights(whole.folder) != weights(plain.folder)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", 5, kind="encoder")
    assert weights(train(config, tmp_path / "parts", kind="encoder").folder) == weights(whole.folder)
