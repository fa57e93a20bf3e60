"""What the benchmarks of scripts/ count."""

import itertools
import multiprocessing
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from imdb_transformer.config import Config
from imdb_transformer.hardware import Hardware
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.store import run
from imdb_transformer.training.prepare import make_classifier
from tests.conftest import imdb_tx

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import bench_length
import bench_predict
import bench_train
import contest
import peers

VOCAB_SIZE = 400
TEXTS = ["a good film", "bad", "a very long and very dull film that never ends", "so so", "fine"]


def part_of(*lengths: int) -> bench_train.Part:
    reviews = [np.full(length, 5, np.uint32) for length in lengths]
    return bench_train.Part(reviews, np.arange(len(lengths)) % 2)


def times_of(**seconds: list[float]) -> contest.Turns:
    return contest.Turns({name: f"variant of {name}" for name in seconds}, seconds)


# ---- turns


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Contestants run in threads of this process; returned: a mark for each that set the allocator."""
    marks: list[str] = []
    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=threading.Thread)
    monkeypatch.setattr(contest.multiprocessing, "get_context", lambda _: context)
    monkeypatch.setattr(contest.hardware, "keep_freed_memory", lambda: marks.append("set"))
    return marks


def test_contestants_do_the_same_parts_in_turns_and_warm_up_is_not_counted(threads: list[str]) -> None:
    calls: list[tuple[str, int]] = []

    def make(name: str) -> contest.Variants:
        return {"only": lambda part: calls.append((name, part))}

    turns = contest.take_turns(
        {"a": lambda: make("a"), "b": lambda: make("b")}, [1, 2, 3], seconds=0, least_rounds=2
    )
    one_round = [(name, part) for name in "ab" for part in (1, 2, 3)]
    assert calls == one_round * 3  # one of warm-up, two that count
    assert {name: len(times) for name, times in turns.seconds.items()} == {"a": 6, "b": 6}
    assert turns.chosen == {"a": "only", "b": "only"}
    assert threads == ["set", "set"]  # the package's allocator settings in each


@pytest.mark.usefixtures("threads")
def test_a_contestant_that_fails_ends_the_benchmark_with_its_sentence() -> None:
    def make() -> contest.Variants:
        raise RuntimeError("its attention is slow")

    with pytest.raises(SystemExit, match="torch failed: its attention is slow"):
        contest.take_turns({"torch": make}, [1], seconds=0)


def test_the_sweep_picks_the_variant_that_is_fastest_when_warm() -> None:
    clocks = {"slow": iter([1.0, 9.0, 8.0]), "fast": iter([99.0, 7.0, 9.0])}
    variants: contest.Variants = {name: lambda _: None for name in clocks}
    names = {id(work): name for name, work in variants.items()}
    assert contest.fastest(variants, None, lambda work, _: next(clocks[names[id(work)]])) == "fast"


def test_a_ratio_is_the_median_over_pairs_not_of_medians() -> None:
    assert contest.ratio([1.0, 2.0, 10.0], [3.0, 2.0, 20.0]) == 2.0  # the medians' would be 1.5


# ---- training: the work


@pytest.mark.parametrize("batch_tokens", [1, 40, 64, 10_000])
def test_a_part_cut_into_batches_has_all_its_tokens_and_labels(batch_tokens: int) -> None:
    part = part_of(9, 16, 3, 12, 16, 10)
    batches = bench_train.batches_of(part, batch_tokens, 8)
    assert sum(batch.num_tokens for batch in batches) == part.num_tokens == 66
    assert sum(int(batch.mask.sum()) for batch in batches) == 66
    assert sorted(torch.cat([batch.labels for batch in batches]).tolist()) == [0, 0, 0, 1, 1, 1]
    assert [batch.ids.shape[1] for batch in batches] == sorted(
        (batch.ids.shape[1] for batch in batches), reverse=True
    )


def test_batches_are_of_the_size_that_is_asked_for() -> None:
    part = part_of(*[16] * 64)
    for size in (128, 256, 1024):
        assert {batch.ids.numel() for batch in bench_train.batches_of(part, size, 8)} == {size}


def test_parts_reach_evenly_from_the_longest_reviews_to_the_shortest() -> None:
    lengths = np.arange(8, 808, 8)
    split: Any = SimpleNamespace(
        lengths=lengths, labels=np.zeros(100, np.int64), review=lambda i: np.full(lengths[i], 5, np.uint32)
    )
    parts = bench_train.parts_of(split, 4096, num_parts=3)
    longest = [max(map(len, part.reviews)) for part in parts]
    assert longest == sorted(longest, reverse=True)
    assert longest[0] > 600 > longest[1] > 400 > longest[2] > 100
    assert all(max(map(len, part.reviews)) * len(part.reviews) <= 4096 for part in parts)


# ---- training: the peers


class Drawn(TorchDispatchMode):
    """Counts the random numbers that dropout draws."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func.overloadpacket is torch.ops.aten.bernoulli_:
            self.count += args[0].numel()
        return func(*args, **(kwargs or {}))


class Products(TorchDispatchMode):
    """Notes the types of batched matrix products, which attention consists of."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func.overloadpacket in (torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            self.dtypes.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


def numbers_drawn(step: Callable[[Any], object], batch: Any) -> int:
    with Drawn() as drawn:
        step(batch)
    return drawn.count


@pytest.fixture
def model_config(tiny: Callable[..., Config]) -> Config:
    return tiny("model.dropout=0.2", "model.activation=relu")


@pytest.mark.parametrize("name", peers.PEERS)
def test_a_peer_draws_the_random_numbers_of_ours_with_element_dropout(
    name: str, model_config: Config
) -> None:
    if name != "torch":
        pytest.importorskip("transformers")
    batch = bench_train.batches_of(part_of(40, 40, 37), 10_000, 8)[0]
    like = bench_train.with_factors(model_config, bench_train.OURS[bench_train.LIKES[name]])
    ours = bench_train.our_step(like, Hardware(torch.device("cpu"), torch.float32), VOCAB_SIZE)
    peer = bench_train.peer_step(peers.make_peer(name, model_config, VOCAB_SIZE), model_config, "fp32")
    expected = numbers_drawn(ours, batch)
    inner = model_config.model.feedforward_width
    if name == "modernbert":
        expected += batch.ids.numel() * (peers.gated_width(model_config.model) - inner)
    assert numbers_drawn(peer, batch) == expected > batch.ids.numel() * inner


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_torchs_encoder_has_as_many_parameters_as_ours(model_config: Config) -> None:
    ours = make_classifier(model_config, vocab_size=VOCAB_SIZE, num_classes=2)
    assert num_parameters(peers.make_peer("torch", model_config, VOCAB_SIZE)) == num_parameters(ours)


def test_bert_has_ours_and_positions_token_types_and_a_pooler(model_config: Config) -> None:
    pytest.importorskip("transformers")
    ours = make_classifier(model_config, vocab_size=VOCAB_SIZE, num_classes=2)
    width, length = model_config.model.width, model_config.tokenizer.max_length
    extra = length * width + 2 * width + width * (width + 1)
    assert num_parameters(peers.make_peer("transformers", model_config, VOCAB_SIZE)) == (
        num_parameters(ours) + extra
    )


def test_modernberts_blocks_have_as_many_weights_as_ours_and_windows_in_all_of_them() -> None:
    pytest.importorskip("transformers")
    model = {"width": 128, "num_heads": 2, "feedforward_width": 512, "num_layers": 2, "radius": 16}
    config = Config.model_validate({"model": model})
    theirs = peers.modernbert(config, VOCAB_SIZE)
    ours = make_classifier(config, vocab_size=VOCAB_SIZE, num_classes=2)
    layers: Any = theirs.model.layers
    assert num_parameters(layers) == pytest.approx(num_parameters(ours.encoder.blocks), rel=0.03)
    assert [layer.attn.sliding_window for layer in layers] == [17, 17]  # counted as in FlashAttention


def test_modernberts_windows_reach_as_far_as_ours() -> None:
    pytest.importorskip("transformers")
    sizes = {"width": 16, "num_layers": 1, "num_heads": 2, "head_width": 8, "feedforward_width": 32}
    config = Config.model_validate({"model": sizes | {"radius": 4}})
    theirs = peers.modernbert(config, VOCAB_SIZE).eval()
    ids = torch.arange(5, 45)[None]
    mask = torch.ones_like(ids, dtype=torch.bool)

    def features(ids: Tensor) -> Tensor:
        return theirs.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state[0]

    changed = ids.clone()
    changed[0, 20] = 300
    differs = (features(ids) != features(changed)).any(1).nonzero().flatten().tolist()
    assert differs == list(range(16, 25))


@pytest.mark.parametrize("name", peers.PEERS)
@pytest.mark.parametrize("precision", ["fp32", "autocast", "cast"])
def test_a_peers_step_uses_the_fused_kernel_and_changes_its_fp32_weights(
    name: str, precision: str, model_config: Config
) -> None:
    if name != "torch":
        pytest.importorskip("transformers")
    batch = bench_train.batches_of(part_of(40, 40, 37), 10_000, 8)[0]
    model = peers.make_peer(name, model_config, VOCAB_SIZE)
    before = {key: weight.detach().clone() for key, weight in model.named_parameters()}
    step = bench_train.peer_step(model, model_config, precision)
    contest.confirm_fused(lambda: step(batch), backward=True)
    for key, weight in model.named_parameters():
        assert weight.dtype == torch.float32
        assert not torch.equal(weight, before[key]), key


@pytest.mark.parametrize("name", peers.PEERS)
def test_attention_by_plain_products_computes_the_same_in_the_inputs_precision(
    name: str, model_config: Config
) -> None:
    if name != "torch":
        pytest.importorskip("transformers")
    batch = bench_train.batches_of(part_of(40, 40, 37), 10_000, 8)[0]
    model = peers.make_peer(name, model_config, VOCAB_SIZE).eval()
    logits = {}
    for attention in contest.ATTENTION:
        with contest.attention_by(attention):
            logits[attention] = model(batch.ids, batch.mask)
    torch.testing.assert_close(logits["unfused"], logits["fused"])
    with pytest.raises(RuntimeError, match="fused kernel"), contest.attention_by("unfused"):
        contest.confirm_fused(lambda: model(batch.ids, batch.mask), backward=False)
    with Products() as seen, contest.attention_by("unfused"):
        model.bfloat16()(batch.ids, batch.mask)
    assert torch.bfloat16 in seen.dtypes


def test_a_peer_chooses_among_sizes_precisions_and_ways_to_compute_attention(
    model_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = part_of(*[16] * 8)
    for dtype, precisions in ((torch.bfloat16, ("autocast", "cast")), (torch.float32, ("fp32",))):
        chosen = Hardware(torch.device("cpu"), dtype)
        monkeypatch.setattr(bench_train.hardware, "choose", lambda _, chosen=chosen: chosen)
        variants = bench_train.make_peers("torch", model_config, VOCAB_SIZE, (64, 128), part)
        assert set(variants) == {
            f"{size} {precision}, {attention}"
            for size in (64, 128) for precision in precisions for attention in ("fused", "unfused")
        }  # fmt: skip
        for work in variants.values():
            work(part)


@pytest.mark.parametrize(("dropout", "attention"), [(0.1, "sdpa"), (0.0, "eager")])
def test_a_peer_off_the_fused_kernel_is_refused(
    dropout: float, attention: str, tiny: Callable[..., Config]
) -> None:
    pytest.importorskip("transformers")
    model_config = tiny()
    bert = peers.bert(model_config, VOCAB_SIZE, attention=attention, attention_dropout=dropout)
    model = peers.TransformersClassifier(bert).train()
    batch = bench_train.batches_of(part_of(40, 40, 37), 10_000, 8)[0]
    step = bench_train.peer_step(model, model_config, "fp32")
    with pytest.raises(RuntimeError, match="did not take torch's fused kernel"):
        contest.confirm_fused(lambda: step(batch), backward=True)


# ---- training: what is printed


def test_rows_change_one_factor_at_a_time_and_name_what_ours_skips(tiny: Callable[..., Config]) -> None:
    config = tiny("model.word_dropout=0.5")
    factors = list(bench_train.OURS.values())
    for before, after in itertools.pairwise(factors):
        assert before.items() < after.items()
        assert len(after) == len(before) + 1
    skipped = "50% of the words; a random number for each element; attention beyond 8 positions"
    assert [bench_train.lacks(name, config) for name in bench_train.OURS] == [
        skipped,
        skipped,
        "a random number for each element; attention beyond 8 positions",
        "attention beyond 8 positions",
        "",
    ]


@pytest.mark.parametrize(("num_buckets", "more"), [(0, ""), (500, "bigrams")])
def test_rows_of_peers_say_what_they_lack(tiny: Callable[..., Config], num_buckets: int, more: str) -> None:
    config = tiny(f"model.bigram_buckets={num_buckets}")
    assert bench_train.lacks("transformers", config) == more
    assert bench_train.lacks("torch", config) == ("positions; bigrams" if more else "positions")
    made = bench_train.contestants(config, VOCAB_SIZE, (64,), part_of(16))
    assert ("ours_no_bigrams" in made) == (num_buckets > 0)


def test_the_models_of_the_peers_likes_have_no_bigrams(tiny: Callable[..., Config]) -> None:
    config = tiny("model.bigram_buckets=500")
    for like in bench_train.LIKES.values():
        assert bench_train.with_factors(config, bench_train.OURS[like]).model.bigram_buckets == 0


def test_the_json_of_training_has_its_keys_and_each_peer_its_like(tiny: Callable[..., Config]) -> None:
    turns = times_of(
        ours=[1.0, 1.0], ours_all_words=[2.0, 2.0], ours_element_dropout=[3.0, 3.0],
        ours_full_attention=[4.0, 4.0], torch=[8.0, 8.0], transformers=[12.0, 12.0], modernbert=[6.0, 6.0],
    )  # fmt: skip
    result = bench_train.result_of(turns, [part_of(10, 20), part_of(30)])
    expected = {
        "like_for_like_torch": 2.0, "like_for_like_transformers": 3.0, "like_for_like_modernbert": 2.0,
        "as_configured_torch": 8.0, "as_configured_transformers": 12.0, "as_configured_modernbert": 6.0,
        "tokens_per_second_ours": 30, "tokens_per_second_ours_all_words": 15, "n": 2,
        "batch_tokens": turns.chosen,
    }  # fmt: skip
    assert {key: result[key] for key in expected} == expected
    assert {"hardware", "versions", "date"} <= result.keys()
    lines = bench_train.table(result, tiny()).splitlines()
    assert len(lines) == 2 + len(turns.seconds)
    assert lines[-1] == (
        "| `transformers`' ModernBERT | attention beyond its window | variant of modernbert "
        "| 5 (5 to 5) | 2.0 | 6.0 |"
    )


def test_a_share_of_the_peak_above_one_is_refused() -> None:
    assert bench_train.share_of_peak([10, 20, 30], [1.0, 1.0, 1.0], 40.0) == 0.5
    with pytest.raises(SystemExit, match=r"1\.25 of the peak, so the peak is wrong"):
        bench_train.share_of_peak([10, 50], [1.0, 1.0], 40.0)


def test_the_peak_is_that_of_the_best_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([1.0, 0.5, 4.0, 1.0])
    monkeypatch.setattr(contest, "seconds_of", lambda *_: next(seconds))
    peak = bench_train.peak_flops(torch.float32, ((2, 3, 4), (4, 5, 6)), repeats=2)
    assert peak == 2 * 4 * 5 * 6 / 1.0


# ---- length


def test_only_the_fused_layer_uses_the_fused_kernel() -> None:
    x = torch.randn(2, 64, 128, requires_grad=True)
    for kind in ("fused", "unfused", "windowed"):
        layer = bench_length.make_layer(kind, 128, 16, torch.float32)
        assert layer(x).shape == x.shape
        if kind == "fused":
            contest.confirm_fused(lambda layer=layer: layer(x).sum().backward(), backward=True)
        else:
            with pytest.raises(RuntimeError, match="fused"):
                contest.confirm_fused(lambda layer=layer: layer(x).sum().backward(), backward=True)


def test_the_lstm_is_named_and_computed_in_fp32() -> None:
    layer = bench_length.make_layer("lstm_fp32", 64, 16, torch.float32)
    assert layer(torch.randn(2, 16, 64)).dtype == torch.float32
    row = {"length": 16, **{f"{kind}_{unit}": 1.0 for kind in bench_length.KINDS for unit in ("ms", "mib")}}
    assert "lstm fp32 ms" in bench_length.table([row]).splitlines()[0]


# ---- prediction


def test_the_peers_of_prediction_give_results_in_the_order_of_the_texts(trained: Path) -> None:
    pytest.importorskip("transformers")
    loops = bench_predict.make_loop(trained, [32])
    expected = [loops["32 tokens, fused"]([text])[0] for text in TEXTS]
    for attention in contest.ATTENTION:
        assert loops[f"32 tokens, {attention}"](TEXTS) == expected
        pipeline = bench_predict.make_pipeline(trained, [2])[f"2 texts, {attention}"]
        labels = [int(answer["label"].removeprefix("LABEL_")) for answer in pipeline(TEXTS)]
        assert labels == expected


def test_onnxruntime_runs_the_peer_itself_plain_and_fused(trained: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("onnxruntime")
    variants = bench_predict.make_onnxruntime(trained, [32])
    loop = bench_predict.make_loop(trained, [32])["32 tokens, fused"]
    for name in ("32 tokens, plain", "32 tokens, fused"):
        assert variants[name](TEXTS) == loop(TEXTS)


def test_full_attention_in_prediction_is_that_of_a_model_made_so(trained: Path) -> None:
    opened = run.open_run(trained)
    predictor = Predictor.load(trained)
    weights = predictor.models[0].classifier.state_dict()
    config = opened.config.model.model_copy(update={"radius": 0})
    expected = Classifier(config, vocab_size=opened.info.vocab_size, num_classes=2).eval()
    expected.load_state_dict(weights)
    bench_predict.attend_fully(predictor)
    ids = torch.randint(4, opened.info.vocab_size, (2, 60))
    mask = torch.ones_like(ids, dtype=torch.bool)
    assert torch.equal(predictor.models[0].classifier(ids, mask), expected(ids, mask))
    assert not torch.equal(Predictor.load(trained).models[0].classifier(ids, mask), expected(ids, mask))


def test_the_json_of_prediction_has_its_keys_and_quotes_like_for_like() -> None:
    turns = times_of(
        ours=[1.0, 1.0], ours_full_attention=[2.0, 2.0], pipeline=[6.0, 6.0],
        loop=[5.0, 5.0], onnxruntime=[4.0, 4.0], scikit_learn=[0.5, 0.5],
    )  # fmt: skip
    result = bench_predict.result_of(turns, [TEXTS, TEXTS])
    expected = {
        "ratio_pipeline": 3.0, "ratio_onnxruntime": 2.0, "ratio_loop": 2.5, "as_configured_pipeline": 6.0,
        "as_configured_onnxruntime": 4.0, "reviews_per_second": 5, "n": 2, "batches": turns.chosen,
    }  # fmt: skip
    assert {key: result[key] for key in expected} == expected
    assert "ratio_scikit_learn" not in result  # another kind of model
    assert len(bench_predict.table(result).splitlines()) == 2 + len(turns.seconds)


def test_all_of_a_benchmarks_keys_are_measured(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [5.0, 5.0, 5.0]
    monkeypatch.setattr(
        contest,
        "take_turns",
        lambda *_, **__: times_of(ours=texts, ours_full_attention=texts, pipeline=texts),
    )
    monkeypatch.setattr(bench_predict, "medians_in_turns", lambda commands: dict.fromkeys(commands, 1.0))
    source = run.open_run(trained).config.data.source
    result = bench_predict.measure(trained, 0, source)
    assert {"ratio_pipeline", "reviews_per_second", "tokenize_seconds", "cold_seconds"} <= result.keys()


def test_the_cold_command_is_one_that_answers(trained: Path) -> None:
    _, _, _, *arguments = bench_predict.cold_start(trained)
    assert imdb_tx(*arguments).exit_code == 0


def test_a_peer_is_measured_only_if_the_fused_kernel_is_confirmed(
    model_config: Config, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("off the kernel")

    monkeypatch.setattr(contest, "confirm_fused", refuse)
    for make in (
        lambda: bench_train.make_peers("torch", model_config, VOCAB_SIZE, (64,), part_of(16)),
        lambda: bench_predict.make_loop(trained, [32]),
        lambda: bench_predict.make_pipeline(trained, [2]),
    ):
        with pytest.raises(RuntimeError, match="off the kernel"):
            make()


def test_a_run_of_the_package_is_measured_on_other_reviews(source: Path) -> None:
    """Its own are on the hub."""
    pytest.importorskip("transformers")
    shipped = Path("imdb")
    assert bench_predict.reviews_of(shipped, None).source == "hub"
    assert bench_predict.reviews_of(shipped, str(source)).source == str(source)
    for attend in (False, True):
        (ours,) = bench_predict.make_ours(shipped, full_attention=attend).values()
        assert [answer.text for answer in ours(TEXTS)] == TEXTS
    (pipeline, *_) = bench_predict.make_pipeline(shipped, [2]).values()
    assert len(pipeline(TEXTS)) == len(TEXTS)
