from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imdb_transformer.config import TokenizerConfig
from imdb_transformer.data.encoded import batch_plan, encode_split, length_batches, load_split, pad
from imdb_transformer.data.reviews import Rows
from imdb_transformer.data.tokenizer import Tokenizer
from imdb_transformer.errors import DataError

CONFIG = TokenizerConfig(vocab_size=300, max_length=8, tail_length=2)
ROWS = Rows(["a good film", "bad", "", "a good film, a very good film, a good and long film"], [1, 0, -1, 1])
LENGTHS = st.lists(st.integers(1, 600), min_size=1, max_size=200).map(np.array)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(ROWS.texts, CONFIG)


def must_not_run() -> Rows:
    raise AssertionError("the cache was not used")


def test_encode_then_load_is_what_the_tokenizer_gives(tmp_path: Path, tokenizer: Tokenizer) -> None:
    split = encode_split(lambda: ROWS, "a" * 64, tokenizer, tmp_path)
    for i, ids in enumerate(tokenizer.encode(ROWS.texts)):
        assert np.array_equal(split.review(i), ids)
    assert split.labels.tolist() == ROWS.labels
    whole = [len(ids) for ids in tokenizer.encode_whole(ROWS.texts)]
    cut = [max(0, length - 8) for length in whole]
    report = (split.report.num_tokens, split.report.num_reviews_cut, split.report.num_tokens_cut)
    assert report == (sum(whole), sum(c > 0 for c in cut), sum(cut))


def test_cache_is_used_for_the_same_content_only(tmp_path: Path, tokenizer: Tokenizer) -> None:
    encode_split(lambda: ROWS, "a" * 64, tokenizer, tmp_path)
    encode_split(must_not_run, "a" * 64, tokenizer, tmp_path)
    with pytest.raises(AssertionError):
        encode_split(must_not_run, "b" * 64, tokenizer, tmp_path)
    longer = Tokenizer(tokenizer._json, CONFIG.model_copy(update={"max_length": 9}))
    with pytest.raises(AssertionError):
        encode_split(must_not_run, "a" * 64, longer, tmp_path)


@pytest.mark.parametrize("name", ["ids.npy", "offsets.npy", "labels.npy", "split.json"])
def test_damaged_file_is_refused(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    encode_split(lambda: ROWS, "a" * 64, tokenizer, tmp_path)
    path = next(tmp_path.rglob(name))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match="damaged"):
        load_split(path.parent)


def test_arrays_are_never_pickles(tmp_path: Path, tokenizer: Tokenizer) -> None:
    split = encode_split(lambda: ROWS, "a" * 64, tokenizer, tmp_path)
    assert {array.dtype.kind for array in split[:3]} <= {"u", "i"}
    assert all(np.load(path, allow_pickle=False) is not None for path in tmp_path.rglob("*.npy"))


@given(LENGTHS, st.integers(1, 5000), st.sampled_from([1, 8, 32]), st.integers(0, 2**40), st.integers(0, 50))
def test_plan_has_every_review_once_within_the_bound(
    lengths: np.ndarray, batch_tokens: int, multiple: int, seed: int, epoch: int
) -> None:
    plan = batch_plan(lengths, batch_tokens=batch_tokens, multiple=multiple, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(lengths)))
    for batch in plan:
        padded = -(-lengths[batch].max() // multiple) * multiple
        assert len(batch) == 1 or padded * len(batch) <= batch_tokens


def test_plan_is_the_same_for_a_seed_and_epoch_and_differs_between_epochs() -> None:
    lengths = np.arange(1, 300)
    options = {"batch_tokens": 1000, "multiple": 8, "seed": 3}
    first, same, other = (batch_plan(lengths, **options, epoch=epoch) for epoch in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not np.array_equal(np.concatenate(first), np.concatenate(other))


@given(LENGTHS)
def test_length_batches_go_from_long_to_short(lengths: np.ndarray) -> None:
    order = np.concatenate(length_batches(lengths, batch_tokens=2000, multiple=8))
    assert np.all(np.diff(lengths[order]) <= 0)
    assert sorted(order.tolist()) == list(range(len(lengths)))


@given(
    st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=20), min_size=1, max_size=6), st.integers(1, 8)
)
def test_pad_equals_a_plain_loop(reviews: list[list[int]], multiple: int) -> None:
    length = max(map(len, reviews))
    while length % multiple:
        length += 1
    expected = [[*review, *[0] * (length - len(review))] for review in reviews]
    assert pad([np.array(review, np.uint16) for review in reviews], multiple=multiple).tolist() == expected
