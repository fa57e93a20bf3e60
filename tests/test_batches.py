import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imdb_transformer.config import Config, TrainConfig
from imdb_transformer.data.batches import BATCH_TOKENS, PADDING_MULTIPLE, in_order, length_batches, pad
from imdb_transformer.data.encoded import EncodedSplit, SplitReport
from imdb_transformer.training.plan import epoch_batches, make_plan, resolved, update_sizes

LENGTHS = st.lists(st.integers(1, 600), min_size=1, max_size=200).map(np.array)


@given(LENGTHS, st.integers(1, 5000), st.integers(0, 2**40), st.integers(0, 50))
def test_a_plan_has_every_review_once_and_no_batch_above_the_limit(
    lengths: np.ndarray, batch_tokens: int, seed: int, epoch: int
) -> None:
    plan = epoch_batches(lengths, batch_tokens=batch_tokens, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(lengths)))
    for batch in plan:
        padded = -(-lengths[batch].max() // PADDING_MULTIPLE) * PADDING_MULTIPLE
        assert len(batch) == 1 or padded * len(batch) <= batch_tokens


def test_a_plan_follows_seed_and_epoch() -> None:
    lengths = np.arange(1, 300)
    options = {"batch_tokens": 1000, "seed": 3}
    first, same, other = (epoch_batches(lengths, **options, epoch=epoch) for epoch in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not np.array_equal(np.concatenate(first), np.concatenate(other))


@given(LENGTHS)
def test_length_batches_go_from_long_to_short(lengths: np.ndarray) -> None:
    order = np.concatenate(length_batches(lengths, batch_tokens=2000, multiple=8))
    assert np.all(np.diff(lengths[order]) <= 0)
    assert sorted(order.tolist()) == list(range(len(lengths)))


def test_reviews_of_one_length_keep_their_order_in_length_batches() -> None:
    lengths = np.array([7, 9] * 500)
    order = np.concatenate(length_batches(lengths, batch_tokens=100))
    assert order.tolist() == [*range(1, 1000, 2), *range(0, 1000, 2)]


@given(
    st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=20), min_size=1, max_size=6), st.integers(1, 8)
)
def test_pad_equals_a_plain_loop(reviews: list[list[int]], multiple: int) -> None:
    length = max(map(len, reviews))
    while length % multiple:
        length += 1
    expected = [[*review, *[0] * (length - len(review))] for review in reviews]
    assert pad([np.array(review, np.uint16) for review in reviews], multiple=multiple).tolist() == expected


@pytest.mark.parametrize(("longest", "length"), [(1, 4), (4, 4), (5, 8), (64, 64), (65, 80), (96, 96)])
def test_pad_rounds_short_lengths_up_to_multiples_of_4_and_others_of_16(longest: int, length: int) -> None:
    assert pad([np.ones(longest, np.uint16), np.ones(1, np.uint16)]).shape == (2, length)


def test_a_gpu_predicts_in_larger_batches() -> None:
    lengths = np.full(100, 1024)
    for device, num_reviews in (("cpu", 4), ("cuda", 64)):
        assert len(length_batches(lengths, batch_tokens=BATCH_TOKENS[device])[0]) == num_reviews


@given(LENGTHS, st.integers(1, 3000))
def test_rows_come_back_in_the_order_of_the_reviews(lengths: np.ndarray, batch_tokens: int) -> None:
    batches = length_batches(lengths, batch_tokens=batch_tokens)
    assert np.array_equal(in_order([lengths[batch] for batch in batches], batches), lengths)


def a_split() -> EncodedSplit:
    """Of 500 reviews; what they say does not matter."""
    lengths = np.random.default_rng(0).integers(5, 400, 500)
    report = SplitReport(num_reviews=500, num_tokens=0, num_reviews_cut=0, num_tokens_cut=0)
    return EncodedSplit(np.zeros(0, np.uint16), np.append(0, np.cumsum(lengths)), np.zeros(500), report)


def test_epochs_follow_each_other_and_validations_are_spread_evenly_to_the_end() -> None:
    options = {"batch_tokens": 4000, "epochs": 3, "evals_per_epoch": 2}
    plan = make_plan(Config(train=TrainConfig(**options)), a_split())  # type: ignore[arg-type]
    assert [epoch for epoch, _ in plan.batches] == sorted(epoch for epoch, _ in plan.batches)
    evals = sorted(plan.eval_steps)
    assert len(evals) == 6
    assert evals[-1] == plan.num_steps
    assert np.diff([0, *evals]).tolist() == pytest.approx([plan.num_steps / 6] * 6, abs=1)


@pytest.mark.parametrize(("reviews", "epochs", "num_evals"), [(25_000, 2, 2), (10_000, 3, 1), (500, 20, 1)])
def test_a_training_of_one_or_two_epochs_has_two_validations_in_each(
    reviews: int, epochs: int, num_evals: int
) -> None:
    lengths = np.full(reviews, 100)
    split = a_split()._replace(offsets=np.append(0, np.cumsum(lengths)))
    made = resolved(Config(train=TrainConfig(init_from="")), split).train
    assert (made.epochs, made.evals_per_epoch) == (epochs, num_evals)


def test_a_number_of_validations_that_was_asked_for_stays() -> None:
    for asked, used in ((0, 1), (1, 1), (2, 2), (4, 4)):
        config = Config(train=TrainConfig(init_from="", evals_per_epoch=asked))
        assert resolved(config, a_split()).train.evals_per_epoch == used


def test_a_validation_follows_the_last_batch_of_each_epoch() -> None:
    counts = set()
    for seed in range(20):
        options = {"batch_tokens": 2000, "epochs": 4, "evals_per_epoch": 3, "seed": seed}
        plan = make_plan(Config(train=TrainConfig(**options)), a_split())  # type: ignore[arg-type]
        epochs = [epoch for epoch, _ in plan.batches]
        assert {step for step in range(1, len(epochs)) if epochs[step] != epochs[step - 1]} < plan.eval_steps
        counts.add(tuple(map(epochs.count, range(4))))
    assert any(len(set(count)) > 1 for count in counts)  # epochs differ in length


def test_each_epoch_has_every_review_once_in_different_batches() -> None:
    split = a_split()
    options = {"batch_tokens": 4000, "epochs": 3, "seed": 5}
    config = Config().model_copy(update={"train": TrainConfig(**options)})  # type: ignore[arg-type]
    plan = make_plan(config, split)
    batches = [
        [frozenset(indices) for epoch, indices in plan.batches if epoch == number] for number in range(3)
    ]
    for epoch in batches:
        assert sorted(index for batch in epoch for index in batch) == list(range(500))
    for one, other in itertools.combinations(batches, 2):
        assert len(set(one) & set(other)) < 0.1 * len(one)
        assert one[0] != other[0]
    other_seed = make_plan(config.model_copy(update={"train": TrainConfig(**options | {"seed": 6})}), split)
    assert not {frozenset(indices) for _, indices in other_seed.batches} & set(batches[0])


def test_batches_hold_similar_lengths_in_random_order() -> None:
    lengths = np.random.default_rng(0).integers(10, 600, 2000)
    plan = epoch_batches(lengths, batch_tokens=4000, seed=0, epoch=0)
    padding = sum(len(batch) * lengths[batch].max() for batch in plan) / lengths.sum() - 1
    assert padding < 0.06
    longest = [lengths[batch].max() for batch in plan]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.3


@pytest.mark.parametrize(
    ("batch_tokens", "eval_steps", "expected"),
    [
        (512, {20}, [*[0] * 7, 8, *[0] * 7, 8, 0, 0, 0, 4]),
        (512, {10, 20}, [*[0] * 7, 8, 0, 2, *[0] * 7, 8, 0, 2]),
        (2048, {3, 6}, [0, 0, 3, 0, 0, 3]),
        (2049, {3, 6}, [1] * 6),
    ],
)
def test_with_few_tokens_an_update_follows_eight_steps_or_comes_before_a_validation(
    batch_tokens: int, eval_steps: set[int], expected: list[int]
) -> None:
    config = TrainConfig(batch_tokens=batch_tokens)
    assert update_sizes(config, max(eval_steps), frozenset(eval_steps)) == expected
