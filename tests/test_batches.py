import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from imdb_transformer.data.batches import batch_plan, by_length, length_batches, pad

LENGTHS = st.lists(st.integers(1, 600), min_size=1, max_size=200).map(np.array)


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


@given(LENGTHS, st.integers(1, 3000))
def test_rows_come_back_in_the_order_of_the_reviews(lengths: np.ndarray, batch_tokens: int) -> None:
    reviews = [np.full(length, i % 7, np.uint16) for i, length in enumerate(lengths)]
    sums = by_length(
        lambda part: np.array([review.sum() for review in part]), reviews,
        batch_tokens=batch_tokens, multiple=8,
    )  # fmt: skip
    assert sums.tolist() == [int(review.sum()) for review in reviews]
