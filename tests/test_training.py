import itertools
import json
import math
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from imdb_transformer import checkpoint, hardware, metrics, run
from imdb_transformer.config import Config, TrainConfig
from imdb_transformer.data.tokenized import TokenizedCorpus, tokenize, training_splits
from imdb_transformer.errors import ConfigError, DivergedError, Interrupted, ResourceError, RunError
from imdb_transformer.evaluation.evaluate import Score
from imdb_transformer.files import locked
from imdb_transformer.inference.forward import Batch
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.training import initial, loop, saving
from imdb_transformer.training.classification import make_model
from imdb_transformer.training.interruption import SIGNALS, StopRequest, stop_request
from imdb_transformer.training.optimizers import make_optimizers, moments, num_moments
from imdb_transformer.training.plan import gather, make_plan
from imdb_transformer.training.preparation import prepare, prepare_again
from imdb_transformer.training.saving import Counters, judged
from imdb_transformer.training.schedule import learning_rate
from imdb_transformer.training.step import Learner, make_learner, train_step
from imdb_transformer.training.task import classification
from tests.conftest import imdb_tx

Tiny = Callable[..., Config]
CPU = hardware.Hardware(torch.device("cpu"), torch.float32)


def prepared(config: Config) -> TokenizedCorpus:
    return tokenize(config, training_splits(config.data))


def train(
    config: Config, folder: Path, stop_after: int | None = None,
    *, kind: run.Kind = "encoder", teachers: Sequence[Path] = (),
) -> run.Run:  # fmt: skip
    """Trains to the end, or asks to stop after a step; continues a run that is there."""
    chosen = hardware.choose(config.train)
    if folder.exists():
        opened = run.open_run(folder)
        task = prepare_again(opened, chosen)
    else:
        made = prepare(config, kind, chosen, teachers=teachers)
        initial.fit_ngrams(made.task.model, made.data.splits["train"], config)
        task, opened = made.task, loop.start(folder, made, chosen)
    stop = StopRequest()
    for update in loop.train(opened, task, chosen, stop):
        if update.step == stop_after:
            stop.signal = SIGNALS[1]
    return run.open_run(folder)


def weights(folder: Path) -> dict[str, dict[str, bytes]]:
    """The tensors' files of `best` and `last`."""
    return {
        name: {
            path.name: path.read_bytes() for path in sorted(folder.glob(f"checkpoints/{name}/*.safetensors"))
        }
        for name in ("best", "last")
    }


def test_rate_at_the_start_at_the_end_of_warm_up_and_at_the_end() -> None:
    for schedule, last in (("linear", 0.0), ("cosine", 0.0), ("constant", 1.0)):
        config = TrainConfig(lr=1.0, schedule=schedule, warmup_steps=10)  # type: ignore[arg-type]
        rates = [learning_rate(config, step, 110) for step in range(111)]
        assert rates[0] == pytest.approx(0.1)
        assert rates[10] == max(rates) == 1.0
        assert rates[110] == pytest.approx(last)
    assert learning_rate(TrainConfig(lr=1.0, warmup_fraction=0.5), 4, 20) == pytest.approx(0.5)


def test_inverse_square_root_is_the_papers_equation() -> None:
    width, warmup = 512, 4000
    peak = width**-0.5 * warmup**-0.5
    config = TrainConfig(lr=peak, schedule="inverse_sqrt", warmup_steps=warmup)
    for number in (1, 100, 3999, 4000, 4001, 100_000):  # the paper counts steps from 1
        expected = width**-0.5 * min(number**-0.5, number * warmup**-1.5)
        assert learning_rate(config, number - 1, 10**6) == pytest.approx(expected)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_parameter_is_in_one_group_of_its_optimizer_and_biases_and_norms_do_not_decay(
    optimizer: str,
) -> None:
    model = Classifier(Config().model, vocab_size=10, num_classes=2)
    config = TrainConfig(weight_decay=0.1, optimizer=optimizer, muon_lr_scale=0.5)
    names = {parameter: name for name, parameter in model.named_parameters()}
    optimizers = make_optimizers(model, config)
    assert num_moments(model, config) == sum(map(torch.numel, moments(optimizers, model).values()))
    groups = [group for made in optimizers for group in made.param_groups]
    for group in groups:
        for parameter in group["params"]:
            name = names[parameter]
            assert group["weight_decay"] == (0.0 if "bias" in name or "norm" in name else 0.1), name
            muons = optimizer == "muon" and "blocks" in name and parameter.ndim == 2
            assert group["lr_scale"] == (0.5 if muons else 1.0), name
    assert sorted(map(id, names)) == sorted(id(p) for group in groups for p in group["params"])


def a_step(config: Config, **changes: float) -> tuple[Classifier, dict[str, torch.Tensor]]:
    """A model before and after one step on all its training reviews."""
    splits = prepared(config).splits
    options = config.train.model_copy(update=changes)
    model = make_model(config, vocab_size=400, num_classes=2).train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batches = [
        gather(config, splits["train"], indices, CPU)
        for _, indices in make_plan(config, splits["train"]).of_step(0)
    ]
    train_step(make_learner(model, options), batches, classification(), options, CPU, step=0, lr=options.lr)
    return model, before


def test_one_step_changes_every_parameter(tiny: Tiny) -> None:
    model, before = a_step(tiny("train.batch_tokens=100000"))
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name]), name


def test_muon_moves_the_matrices_of_blocks_by_orthogonal_ones_as_far_as_adamw(tiny: Tiny) -> None:
    """In every direction about as far: AdamW's first step is far along a few of them only."""
    config = tiny("train.batch_tokens=100000", "train.weight_decay=0.0")
    moved = {}
    for optimizer in ("adamw", "muon"):
        model, before = a_step(config, optimizer=optimizer)
        moved[optimizer] = {
            name: (parameter - before[name]).detach()
            for name, parameter in model.named_parameters()
            if parameter.ndim == 2 and "blocks" in name
        }
    assert len(moved["muon"]) == 4 * config.model.num_layers
    for name, step in moved["muon"].items():
        flat, steep = (torch.linalg.svdvals(matrix) for matrix in (step, moved["adamw"][name]))
        # Newton and Schulz's iteration is rough, and leaves the smallest behind.
        assert flat.median() > 0.5 * flat.max(), name
        assert steep.median() < 0.5 * steep.max(), name
        size = step.norm() / moved["adamw"][name].norm()
        assert 0.1 < size < 0.5, name  # 0.2 of a step by sign is what AdamW's usually are (Liu et al. 2025)


def test_accumulated_batches_step_as_one_large_batch(tiny: Tiny) -> None:
    plain = ["model.dropout=0.0", "model.attention='full'", "train.clip_norm=0.0"]
    many, _ = a_step(tiny("train.batch_tokens=2000", "train.accumulate=1000", *plain))
    one, _ = a_step(tiny("train.batch_tokens=1000000", *plain))
    for (name, a), b in zip(many.named_parameters(), one.parameters(), strict=True):
        # Adam's first step is the sign of the gradient: where that is noise, so is the step.
        assert torch.isclose(a, b, atol=1e-4).float().mean() > 0.99, name


def test_eight_reviews_are_learnt_by_heart(tiny: Tiny) -> None:
    config = tiny("model.dropout=0.0")
    split = prepared(config).splits["train"]
    batch = gather(config, split, torch.arange(8).numpy(), CPU)
    model = make_model(config, vocab_size=400, num_classes=2).train()
    learner = make_learner(model, config.train)
    results = [
        train_step(learner, [batch], classification(), config.train, CPU, step=i, lr=1e-2) for i in range(60)
    ]
    assert results[-1].figures["accuracy"] == 1.0
    assert results[-1].loss < 0.05


def test_same_seed_gives_the_same_files_and_another_seed_others(tiny: Tiny, tmp_path: Path) -> None:
    first, same, other = (
        weights(train(tiny(f"train.seed={seed}"), tmp_path / name).folder)
        for seed, name in ((1, "a"), (1, "b"), (2, "c"))
    )
    assert first == same != other


RESUMED = ["model.word_dropout=0.2", "model.dropout=0.3", "train.ema_decay=0.9", "train.accumulate=2"]


@pytest.mark.parametrize("settings", [
    ("train.precision=fp32", "model.dropout_mask=channel"),
    ("train.precision=fp32", "model.dropout_mask=element"),
    ("train.precision=bf16", "model.dropout_mask=channel"),
    ("train.precision=bf16", "model.dropout_mask=element"),
    ("train.precision=fp32", "train.optimizer=muon"),
    ("train.precision=bf16", "train.optimizer=muon"),
], ids="-".join)  # fmt: skip
def test_resumed_run_equals_the_uninterrupted_one_bit_for_bit(
    tiny: Tiny, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    config = tiny(*RESUMED, *settings)
    whole = train(config, tmp_path / "whole")
    for stop_after in (1, 5, 8):  # mid-epoch, twice between validations
        with pytest.raises(Interrupted, match="--resume"):
            train(config, tmp_path / "parts", stop_after)
        assert run.open_run(tmp_path / "parts").info.status == "interrupted"
    parts = train(config, tmp_path / "parts")
    assert weights(whole.folder) == weights(parts.folder)
    assert metrics.read(whole.folder) == metrics.read(parts.folder)
    assert loop.result_of(whole).validation == loop.result_of(parts).validation


def test_best_is_what_it_is_said_to_be_after_a_kill_before_last_was_written(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where training then takes another course, as it does by another number of processes."""
    config = tiny("train.best_by='loss'")
    whole = train(config, tmp_path / "whole")

    save_last, calls = saving.save_last, itertools.count()

    def killed(current: run.Run, learner: Learner, counters: Counters) -> None:
        if next(calls):
            raise KeyboardInterrupt
        save_last(current, learner, counters)

    chosen = hardware.choose(config.train)
    made = prepare(config, "encoder", chosen)
    killed_run = loop.start(tmp_path / "run", made, chosen)
    monkeypatch.setattr(saving, "save_last", killed)
    with pytest.raises(KeyboardInterrupt):
        list(loop.train(killed_run, made.task, chosen, StopRequest()))
    monkeypatch.undo()
    ahead = checkpoint.read_meta(killed_run.checkpoint("best"), tokenizer_hash=killed_run.info.tokenizer_hash)
    assert ahead.step > loop.result_of(killed_run).num_steps > 0
    shutil.copytree(killed_run.folder, tmp_path / "other")

    assert weights(train(config, killed_run.folder).folder) == weights(whole.folder)

    other = run.open_run(tmp_path / "other")
    task = prepare_again(other, chosen)._replace(validate=lambda _: Score(accuracy=0.0, loss=9.0))
    list(loop.train(other, task, chosen, StopRequest()))
    told = loop.result_of(other)
    best = checkpoint.read_meta(other.checkpoint("best"), tokenizer_hash=other.info.tokenizer_hash)
    assert told.best_step == best.step
    assert told.validation == saving.counters_of(best).best


def test_training_passes_with_the_test_split_deleted_and_gives_the_same_bytes(
    tiny: Tiny, tmp_path: Path, source: Path
) -> None:
    whole = train(tiny(), tmp_path / "whole").folder
    own = tmp_path / "own"
    shutil.copytree(source, own)
    (own / "test.jsonl").unlink()
    without = train(
        tiny(f"data.source={own}", f"data.data_dir={tmp_path / 'other'}"), tmp_path / "without"
    ).folder
    assert weights(whole) == weights(without)
    assert (whole / "tokenizer.json").read_bytes() == (without / "tokenizer.json").read_bytes()


def test_stored_test_split_is_not_opened_by_training(tiny: Tiny, tmp_path: Path) -> None:
    prepared(tiny())
    for path in (tmp_path / "data").rglob("test.parquet"):
        path.unlink()
    shutil.rmtree(tmp_path / "data" / "encoded")
    shutil.rmtree(tmp_path / "data" / "tokenizers")
    assert train(tiny(), tmp_path / "run").info.status == "finished"


def test_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny()
    real, calls = loop.train_step, itertools.count()

    def poisoned(learner: Learner, batches: list[Batch], *args: object, **kwargs: object) -> object:
        if next(calls) == 12:
            with torch.no_grad():
                learner.model.head.weight.fill_(math.nan)  # type: ignore[union-attr,operator]
        return real(learner, batches, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "train_step", poisoned)
    with pytest.raises(
        DivergedError, match=r"step 13 has loss nan.*at rate .*in batch 13 of .*checkpoints/last"
    ):
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


def test_only_a_strictly_better_score_is_best() -> None:
    scores = [(0.7, 0.5), (0.8, 0.6), (0.8, 0.3), (0.6, 0.4)]
    for best_by, expected in (("accuracy", 2), ("loss", 3), ("last", 4)):
        counters = Counters()
        for step, (accuracy, loss) in enumerate(scores, 1):
            counters = counters.model_copy(update={"step": step})
            counters = judged(best_by, counters, Score(accuracy=accuracy, loss=loss))
        assert counters.best_step == expected


def test_patience_ends_a_run_early(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny("train.epochs=30", "train.patience=2", "train.lr=1e-9")
    ended = train(config, tmp_path / "run")
    evals = [line for line in metrics.read(ended.folder) if "validation" in line]
    assert ended.info.status == "finished"
    assert len(evals) == 3


def test_a_warm_up_longer_than_the_training_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"warmup_steps = 10,000, and the training has \d+ steps"):
        train(tiny("train.warmup_steps=10_000"), tmp_path / "run")


def test_a_finished_run_that_is_resumed_stays_as_it_is(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    told = imdb_tx("train", "--resume", folder, "--json")
    assert told.exit_code == 0, told.output
    assert f"{folder} is finished already" in told.stderr
    assert json.loads(told.stdout)["num_steps"] > 0
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_without_a_validation_split_the_last_step_is_best(tiny: Tiny, tmp_path: Path) -> None:
    ended = train(tiny("data.validation=false"), tmp_path / "run")
    result = loop.result_of(ended)
    assert result.validation is None
    assert result.best_step == result.num_steps
    assert prepared(tiny("data.validation=false")).splits["train"].report.num_reviews == 200


def test_metrics_have_one_line_a_step_and_the_validations(tiny: Tiny, tmp_path: Path) -> None:
    ended = train(tiny(), tmp_path / "run")
    lines = [json.loads(line) for line in (ended.folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == list(range(1, loop.result_of(ended).num_steps + 1))
    assert sum("validation" in line for line in lines) == 4


def test_validation_is_scored_with_the_moving_average(tiny: Tiny, tmp_path: Path) -> None:
    ended = train(tiny("train.ema_decay=0.9"), tmp_path / "run")
    last = ended.checkpoint("last")
    averaged = load_file(last / "model.safetensors")
    raw = load_file(last / "training.safetensors")
    assert not torch.equal(averaged["head.weight"], raw["weights.head.weight"])


@pytest.fixture
def restored_signals() -> Iterator[None]:
    import signal

    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


@pytest.mark.usefixtures("restored_signals")
def test_first_signal_asks_and_the_second_acts() -> None:
    import signal

    with stop_request() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.signal is signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def damage(folder: Path, name: str) -> None:
    path = folder / "checkpoints" / name / "training.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def test_a_damaged_last_is_told_and_the_checkpoint_before_it_goes_on(tiny: Tiny, tmp_path: Path) -> None:
    whole = train(tiny("model.dropout=0.3"), tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(whole.config, tmp_path / "run", stop_after=7)
    previous = tmp_path / "run" / "checkpoints" / "previous"
    damage(tmp_path / "run", "last")
    with pytest.raises(RunError, match=r"last/training.safetensors is damaged.*of step 5, is whole"):
        train(whole.config, tmp_path / "run")
    assert previous.exists()
    resumed = imdb_tx("train", "--resume", previous)
    assert resumed.exit_code == 0, resumed.output
    assert weights(tmp_path / "run")["last"] == weights(whole.folder)["last"]


def test_nothing_is_offered_where_both_are_damaged(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "run", stop_after=7)
    for name in ("last", "previous"):
        damage(tmp_path / "run", name)
    with pytest.raises(RunError) as refused:
        train(tiny(), tmp_path / "run")
    assert "whole" not in str(refused.value)


def test_a_kill_between_the_renames_of_last_goes_on_from_the_one_before(tiny: Tiny, tmp_path: Path) -> None:
    whole = train(tiny(), tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "run", stop_after=7)
    checkpoints = tmp_path / "run" / "checkpoints"
    shutil.rmtree(checkpoints / "previous")
    (checkpoints / "last").rename(checkpoints / "previous")
    gone = subprocess.Popen(["true"])
    gone.wait()
    (checkpoints / f".last.{platform.node()}.{gone.pid}.tmp").mkdir()
    (tmp_path / "run" / f".run.json.{platform.node()}.{gone.pid}.tmp").write_text("{")
    assert weights(train(tiny(), tmp_path / "run").folder) == weights(whole.folder)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["best", "last", "previous"]
    assert not list((tmp_path / "run").glob(".*"))


def test_two_processes_do_not_train_in_one_run(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "run", stop_after=3)
    with locked(tmp_path / "run"):
        refused = imdb_tx("train", "--resume", tmp_path / "run")
    assert isinstance(refused.exception, RunError)
    assert "Another process" in str(refused.exception)
    assert imdb_tx("train", "--resume", tmp_path / "run").exit_code == 0


def test_a_full_disk_is_told_before_training_starts(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    with pytest.raises(ResourceError, match=r"run: its checkpoints take up to .* MiB"):
        train(tiny(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
