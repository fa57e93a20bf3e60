import itertools
import json
import math
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import imdb_transformer
from imdb_transformer import hardware, load_config
from imdb_transformer.config import Config, TrainConfig
from imdb_transformer.data.encoded import EncodedSplit, SplitReport
from imdb_transformer.errors import (
    ConfigError,
    DataWarning,
    DivergedError,
    Interrupted,
    ResourceError,
    RunError,
)
from imdb_transformer.evaluation.evaluate import evaluate
from imdb_transformer.evaluation.scores import ClassScore, Score
from imdb_transformer.report import summaries
from imdb_transformer.report.pages import write_training
from imdb_transformer.store import checkpoint, metrics, run
from imdb_transformer.training import loop
from imdb_transformer.training import step as training_step
from imdb_transformer.training.checkpoints import Counters
from imdb_transformer.training.optimizers import learning_rate
from imdb_transformer.training.plan import Batch, resolved
from imdb_transformer.training.prepare import prepare
from imdb_transformer.training.start import check_unchanged
from imdb_transformer.training.step import Learner
from imdb_transformer.training.train import result_of
from tests.conftest import write_jsonl
from tests.in_process import CPU, Tiny, prepared, train, weights


def test_same_seed_gives_the_same_files_with_the_test_split_deleted_and_another_seed_others(
    tiny: Tiny, tmp_path: Path, source: Path
) -> None:
    """Deleted from the stored corpus, or from the source."""
    whole = train(tiny(), tmp_path / "whole").folder
    for path in (tmp_path / "data").rglob("test.parquet"):
        path.unlink()
    shutil.rmtree(tmp_path / "data" / "encoded")
    shutil.rmtree(tmp_path / "data" / "tokenizers")
    unopened = train(tiny(), tmp_path / "unopened").folder
    folder = tmp_path / "own"
    shutil.copytree(source, folder)
    (folder / "test.jsonl").unlink()
    elsewhere = tiny(f"data.source={folder}", f"data.data_dir={tmp_path / 'other'}")
    without = train(elsewhere, tmp_path / "without").folder
    assert weights(whole) == weights(unopened) == weights(without)
    assert (whole / "tokenizer.json").read_bytes() == (without / "tokenizer.json").read_bytes()
    assert weights(whole) != weights(train(tiny("train.seed=2"), tmp_path / "another").folder)


def test_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny()
    real, calls = loop.train_step, itertools.count()

    def poisoned(learner: Learner, batch: Batch, *steps: int, **options: object) -> object:
        if next(calls) == 12:
            with torch.no_grad():
                learner.model.head.weight.fill_(math.nan)  # type: ignore[union-attr,operator]
        return real(learner, batch, *steps, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "train_step", poisoned)
    with pytest.raises(DivergedError, match=r"step 13 has loss nan.*at rate .*checkpoints/last"):
        train(config, tmp_path / "run")
    opened = run.open_run(tmp_path / "run")
    assert opened.info.status == "diverged"
    assert all(
        tensor.isfinite().all()
        for tensor in load_file(opened.checkpoint("last") / "model.safetensors").values()
    )
    *_, before, told = metrics.read(opened.folder)
    assert (before["step"], told["step"]) == (12, 13)
    assert "loss nan" in told["diverged"]


def test_a_validation_loss_that_is_not_finite_stops_the_run(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = training_step.score
    monkeypatch.setattr(
        training_step, "score", lambda *arrays: real(*arrays).model_copy(update={"loss": math.inf})
    )
    with pytest.raises(DivergedError, match=r"step \d+, at rate .*, gives validation loss inf"):
        train(tiny(), tmp_path / "run")
    assert run.open_run(tmp_path / "run").info.status == "diverged"


def test_only_a_strictly_better_score_is_best() -> None:
    scores = [(0.7, 0.5, 0.9), (0.8, 0.6, 0.2), (0.8, 0.3, 0.9), (0.6, 0.4, 0.8)]
    for best_by, expected in (("accuracy", 2), ("f1", 1), ("loss", 3), ("last", 4)):
        counters = Counters()
        for step, (accuracy, loss, f1) in enumerate(scores, 1):
            counters = counters.model_copy(update={"step": step})
            counters = counters.after_validation(Score(accuracy=accuracy, loss=loss, f1=f1), best_by)
        assert counters.best_step == expected


def test_without_a_validation_split_the_last_step_is_best(tiny: Tiny, tmp_path: Path) -> None:
    ended = train(tiny("data.held_out_fraction=0"), tmp_path / "run")
    result = result_of(ended.folder)
    assert result.validation is None
    assert result.best_step == result.num_steps
    assert prepared(tiny("data.held_out_fraction=0")).splits["train"].report.num_reviews == 200


def test_metrics_have_one_line_a_step_and_the_validations(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == list(range(1, result_of(trained).num_steps + 1))
    assert sum("validation" in line for line in lines) == 2 * 25


def test_the_reported_speed_is_all_tokens_divided_by_the_seconds_of_all_steps(trained: Path) -> None:
    ended = run.open_run(trained)
    meta = checkpoint.read_meta(ended.checkpoint("last"), tokenizer_hash=ended.info.tokenizer_hash)
    num_tokens = sum(line["num_tokens"] for line in metrics.read(ended.folder) if "loss" in line)
    told = result_of(ended.folder)
    assert told.tokens_per_second == pytest.approx(num_tokens / meta.counters["step_seconds"], rel=1e-3)
    assert 0 < meta.counters["step_seconds"] < told.train_seconds


def test_validation_is_scored_with_the_moving_average(tiny: Tiny, tmp_path: Path) -> None:
    ended = train(tiny("train.ema_decay=0.9"), tmp_path / "run")
    last = ended.checkpoint("last")
    averaged = load_file(last / "model.safetensors")
    raw = load_file(last / "training.safetensors")
    assert not torch.equal(averaged["head.weight"], raw["weights.head.weight"])
    told = metrics.read(ended.folder)[-1]["validation"]
    evaluation = evaluate(last, "validation")
    assert told["loss"] == pytest.approx(evaluation.raw.loss, rel=1e-6)


def test_a_full_disk_is_reported_before_training_starts(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    with pytest.raises(ResourceError, match=r"run: its checkpoints need up to .* MiB"):
        train(tiny(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_hardware_is_what_the_config_asks_for() -> None:
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    for precision, dtype in types.items():
        config = TrainConfig(precision=precision, device="cpu")  # type: ignore[arg-type]
        assert hardware.choose(config) == (torch.device("cpu"), dtype)
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        hardware.choose(TrainConfig(device="cuda"))


@pytest.mark.parametrize(
    ("capabilities", "dtype"),
    [
        ({}, torch.float32),
        ({"avx512": True, "avx512_bf16": False}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
    ],
)
def test_auto_precision_is_bf16_where_the_processor_computes_in_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert hardware.choose(TrainConfig(device="cpu")).dtype == dtype


@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), torch.float32), ((8, 0), torch.bfloat16)])
def test_auto_precision_is_bf16_where_the_gpu_computes_in_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert hardware.choose(TrainConfig()) == (torch.device("cuda", 0), dtype)


def test_the_loop_steps_at_the_rate_of_the_schedule(tiny: Tiny, tmp_path: Path) -> None:
    """And says so: where only the schedule differs, so do the weights."""
    runs = {}
    for schedule in ("linear", "constant"):
        config = tiny("train.epochs=1", "train.warmup_fraction=0.3", f"train.schedule={schedule}")
        ended = train(config, tmp_path / schedule)
        lines = [line for line in metrics.read(ended.folder) if "loss" in line]
        assert [line["lr"] for line in lines] == [
            learning_rate(config.train, step, len(lines)) for step in range(len(lines))
        ]
        runs[schedule] = lines, weights(ended.folder)["last"]["model.safetensors"]
    (linear, one), (constant, other) = runs["linear"], runs["constant"]
    assert [line["loss"] for line in linear[:5]] == [line["loss"] for line in constant[:5]]
    assert linear[-1]["loss"] != constant[-1]["loss"]
    assert one != other


def test_more_processes_than_gpus_may_compute_on_cpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert hardware.choose(TrainConfig(device="cpu"), gpu=1).device.type == "cpu"
    with pytest.raises(ConfigError, match="this machine's 1 GPUs"):
        hardware.choose(TrainConfig(), gpu=1)


def test_python_trains_silently_and_resumes_only_the_same_recipe(
    config_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also outside the main thread, where signals cannot be handled."""
    config = load_config(str(config_path), ["train.epochs=1"])
    with ThreadPoolExecutor() as threads:
        result = threads.submit(imdb_transformer.train, config, tmp_path / "run").result()
    assert capfd.readouterr() == ("", "")
    assert result.num_steps == result_of(str(tmp_path / "run")).num_steps > 0
    state = torch.get_rng_state()
    assert imdb_transformer.train(config, tmp_path / "run", resume=True) == result  # finished before
    imdb_transformer.train(config, tmp_path / "again")
    assert torch.equal(torch.get_rng_state(), state)
    assert imdb_transformer.train(None, tmp_path / "run", resume=True) == result
    with pytest.raises(RunError, match="with another config"):
        imdb_transformer.train(load_config(str(config_path)), tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="made by another command"):
        imdb_transformer.pretrain(config, tmp_path / "run", resume=True)


def test_batch_size_and_epochs_depend_on_the_reviews_if_they_are_0() -> None:
    """A large set is read once or twice in batches of 8,192 tokens, and a small one more often."""

    def settled_for(
        num_reviews: int, length: int, *,
        dropout: float = 0.0, known: bool = False, num_classes: int = 2, **options: int | str,
    ) -> tuple[int, int]:  # fmt: skip
        offsets = np.arange(num_reviews + 1) * length
        empty = SplitReport(num_reviews=0, num_tokens=0, num_reviews_cut=0, num_tokens_cut=0)
        labels = np.arange(num_reviews) % num_classes
        split = EncodedSplit(np.zeros(0, np.uint16), offsets, labels, empty)
        values = {"batch_tokens": 0, "epochs": 0, **options}
        model = Config().model.model_copy(update={"dropout": dropout})
        config = Config(model=model, train=TrainConfig(**values))  # type: ignore[arg-type]
        train = resolved(config, split, knows_text=known).train
        return train.batch_tokens, train.epochs

    assert settled_for(22_500, 291) == (8192, 2)
    assert settled_for(8_000, 25, num_classes=3) == (800, 3)  # each padded to 32
    assert settled_for(8_000, 25, dropout=0.1, num_classes=3) == (800, 5)
    assert settled_for(3_000, 20, num_classes=3) == (640, 7)
    assert settled_for(3_000, 20, dropout=0.1, num_classes=3) == (640, 8)
    assert settled_for(1_200, 230) == (20 * 230, 8)
    assert settled_for(200, 230) == (16 * 230, 8)
    assert settled_for(200, 230, init_from="") == (16 * 230, 20)
    assert settled_for(22_500, 291, known=True) == (8192, 1)
    assert settled_for(9_300, 291, known=True) == (8192, 1)
    assert settled_for(8_900, 291, known=True) == (8192, 2)
    assert settled_for(200, 230, known=True) == (16 * 230, 2)
    assert settled_for(200, 230, known=True, dropout=0.1) == (16 * 230, 8)
    assert settled_for(200, 230, known=True, init_from="") == (16 * 230, 20)
    assert settled_for(200, 5, dropout=0.1, init_from="") == (512, 20)
    assert settled_for(8_000, 25, dropout=0.1) == (800, 2)
    assert settled_for(3_000, 20, dropout=0.1) == (640, 4)
    assert settled_for(200, 5, dropout=0.1) == (512, 8)
    assert settled_for(200, 5, known=True) == (512, 2)
    assert settled_for(3_000, 70, dropout=0.1) == (32 * 70, 8)
    assert settled_for(8_000, 25, dropout=0.1, init_from="") == (800, 5)
    assert settled_for(8_000, 25, batch_tokens=1600, num_classes=3) == (1600, 6)
    assert settled_for(8_000, 25, epochs=1) == (800, 1)


def test_a_run_records_the_batch_size_and_epochs_that_its_reviews_gave(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny("train.epochs=0", "train.batch_tokens=0", "train.evals_per_epoch=0", "train.lr=1e-3")
    made = prepare(config, "classifier", CPU)
    assert made.config.train.epochs == 20
    assert made.config.train.evals_per_epoch == 1
    assert made.config.train.batch_tokens == int(16 * made.train.lengths.mean())
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", 3)
    opened = run.open_run(tmp_path / "run")
    assert opened.config == made.config
    check_unchanged(opened, config, ())  # as --resume with the same config does
    with pytest.raises(RunError, match="another config"):
        check_unchanged(opened, tiny("train.epochs=0", "train.batch_tokens=700", "train.lr=1e-3"), ())


def test_a_training_with_a_rare_class_ends_with_the_scores_of_each_class(tiny: Tiny, tmp_path: Path) -> None:
    texts = [f"{('a good film', 'a fine cast', 'a bad film')[i % 3]} {i}" for i in range(120)]
    write_jsonl(tmp_path / "even.jsonl", texts[:60], ["neg", "pos"] * 30)
    write_jsonl(tmp_path / "uneven.jsonl", texts, ["pos" if i % 6 else "neg" for i in range(120)])
    sources = {name: f"data.source={tmp_path / name}.jsonl" for name in ("even", "uneven")}
    even, uneven = (train(tiny(each, "train.epochs=1"), tmp_path / name) for name, each in sources.items())
    assert "macro F1" not in summaries.result(result_of(even.folder))
    shown = summaries.result(result_of(uneven.folder))
    measured = evaluate(uneven.folder, "validation")
    assert result_of(uneven.folder).per_class == measured.per_class
    macro = sum(each.f1 for each in measured.per_class.values()) / 2
    assert f"macro F1 {macro:.4f}" in shown
    assert re.search(r"^class +precision +recall +F1 +support$", shown, re.MULTILINE)
    assert re.search(rf"^neg .* {measured.per_class['neg'].support}$", shown, re.MULTILINE)
    assert ">support</th>" in write_training(uneven.folder, 1).read_text()


def test_macro_f1_leaves_out_a_class_that_validation_lacks(tiny: Tiny, tmp_path: Path) -> None:
    texts = [f"{('a good film', 'a fine cast', 'a bad film')[i % 3]} {i}" for i in range(60)]
    source = tmp_path / "source"
    source.mkdir()
    write_jsonl(source / "train.jsonl", [*texts, "odd"], [*(["neg", "pos"] * 30), "rare"])
    write_jsonl(source / "validation.jsonl", [f"{text}!" for text in texts], ["neg", "pos"] * 30)
    with pytest.warns(
        DataWarning, match=r"validation has no text of 1 of 3 classes \('rare'\): scores on it"
    ):
        opened = train(tiny(f"data.source={source}", "train.epochs=1"), tmp_path / "run")
    measured = evaluate(opened.folder, "validation")
    assert measured.per_class["rare"].support == 0
    assert f"macro F1 {measured.f1:.4f}" in summaries.result(result_of(opened.folder))


def test_with_many_classes_the_worst_are_shown() -> None:
    scores = {f"c{i}": ClassScore(precision=1, recall=1, f1=i / 50, support=1) for i in range(50)}
    shown = summaries.classes(scores, 0.5)
    assert "(below: the 20 of 50 classes with the lowest F1)" in shown
    assert "\nc19 " in shown
    assert "\nc20 " not in shown


def test_classes_stand_in_their_order() -> None:
    scores = {f"{i}": ClassScore(precision=1, recall=1, f1=1 / i, support=1) for i in range(1, 6)}
    lines = summaries.classes(scores, 0.5).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["1", "2", "3", "4", "5"]
