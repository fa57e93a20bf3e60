import itertools
import json
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from imdb_transformer.errors import SIGNALS, DataWarning, Interrupted, RunError
from imdb_transformer.evaluation.scores import Score
from imdb_transformer.store import checkpoint, metrics, run
from imdb_transformer.store.locks import locked
from imdb_transformer.store.upkeep import verify
from imdb_transformer.training import checkpoints, loop
from imdb_transformer.training.checkpoints import Counters
from imdb_transformer.training.finish import finish
from imdb_transformer.training.loop import stop_requests
from imdb_transformer.training.start import training_steps
from imdb_transformer.training.step import Learner
from imdb_transformer.training.train import result_of
from tests.conftest import imdb_tx
from tests.in_process import Tiny, train, weights

RESUMED = ["model.word_dropout=0.2", "model.dropout=0.3", "train.ema_decay=0.9"]


@pytest.mark.parametrize("settings", [
    ("train.precision=fp32", "model.dropout_mask=channel", "train.optimizer=adamw"),
    ("train.precision=bf16", "model.dropout_mask=element", "train.optimizer=adamw"),
    ("train.precision=fp32", "model.dropout_mask=element", "train.optimizer=muon"),
    ("train.precision=bf16", "model.dropout_mask=channel", "train.optimizer=muon"),
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
    assert result_of(whole.folder).validation == result_of(parts.folder).validation


def test_a_resumed_run_keeps_its_reviews_after_its_source_has_changed(
    tiny: Tiny, source: Path, tmp_path: Path
) -> None:
    whole = train(tiny(), tmp_path / "whole")
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    config = tiny(f"data.source={folder}")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", stop_after=1)
    with (folder / "train.jsonl").open("a") as file:
        file.write('{"text": "one more", "label": "pos"}\n')
    assert weights(train(config, tmp_path / "parts").folder) == weights(whole.folder)


def test_tensorboard_reads_the_numbers_of_the_metrics_of_a_resumed_run(tiny: Tiny, tmp_path: Path) -> None:
    config, file = tiny(), tmp_path / "run" / metrics.EVENTS
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", stop_after=5)
    file.write_bytes(file.read_bytes()[:-1])  # as a crash leaves it
    logged = metrics.read(train(config, tmp_path / "run").folder)
    shown = EventAccumulator(str(file.parent)).Reload()
    for name in ("loss", "lr", "gradient_norm"):
        expected = [(line["step"], pytest.approx(line[name])) for line in logged if name in line]
        assert [(each.step, each.value) for each in shown.Scalars(name)] == expected
    validations = [(line["step"], line["validation"]) for line in logged if "validation" in line]
    assert [(each.step, each.value) for each in shown.Scalars("validation/accuracy")] == [
        (step, pytest.approx(validation["accuracy"])) for step, validation in validations
    ]


@pytest.mark.parametrize("error", [ImportError, TypeError, RuntimeError])
def test_with_a_missing_or_broken_tensorboard_a_run_writes_its_metrics_alone(
    tiny: Tiny, tmp_path: Path, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A protobuf that does not fit raises TypeError or an error of its own."""
    broken = ModuleType("broken")
    monkeypatch.setattr(broken, "__getattr__", Mock(side_effect=error), raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", broken)
    folder = train(tiny("train.epochs=1"), tmp_path / "run").folder
    assert metrics.read(folder)
    assert not (folder / metrics.EVENTS).parent.exists()
    (folder / "tensorboard").mkdir()
    (folder / metrics.EVENTS).write_bytes(b"of another machine")
    metrics.drop_after(folder, 3)
    assert (folder / metrics.EVENTS).read_bytes() == b"of another machine"


def test_a_damaged_line_of_the_metrics_is_dropped_alone(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": 0.5} for step in range(1, 7)]
    metrics.append(tmp_path, lines)
    path = tmp_path / metrics.FILE_NAME
    path.write_bytes(path.read_bytes().replace(b'"step": 3', b'"step": #'))
    metrics.drop_after(tmp_path, 5)
    assert metrics.read(tmp_path) == [lines[0], lines[1], lines[3], lines[4]]


def test_the_recorded_score_of_best_is_right_after_a_kill_before_last_was_written(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where training then takes another course, as it does by another number of processes."""
    config = tiny("train.best_by='loss'")
    whole = train(config, tmp_path / "whole")

    save_checkpoint, calls = checkpoints.save_checkpoint, itertools.count()

    def killed(opened: run.Run, name: run.CheckpointName, learner: Learner, counters: Counters) -> None:
        if name == "last" and next(calls):
            raise KeyboardInterrupt
        save_checkpoint(opened, name, learner, counters)

    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", stop_after=1)
    killed_run = run.open_run(tmp_path / "run")
    monkeypatch.setattr(checkpoints, "save_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        train(config, killed_run.folder)
    monkeypatch.undo()
    ahead = checkpoint.read_meta(killed_run.checkpoint("best"), tokenizer_hash=killed_run.info.tokenizer_hash)
    assert ahead.step > result_of(killed_run.folder).num_steps > 0
    shutil.copytree(killed_run.folder, tmp_path / "other")

    assert weights(train(config, killed_run.folder).folder) == weights(whole.folder)

    monkeypatch.setattr(loop, "validate", lambda *_: Score(accuracy=0.0, loss=9.0))
    other = train(config, tmp_path / "other")
    told = result_of(other.folder)
    best = checkpoint.read_meta(other.checkpoint("best"), tokenizer_hash=other.info.tokenizer_hash)
    assert told.best_step == best.step
    assert told.validation == checkpoints.counters_of(best.counters).best


def test_a_finished_run_that_is_resumed_stays_as_it_is(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    told = imdb_tx("train", "--resume", folder, "--json")
    assert told.exit_code == 0, told.output
    assert f"{folder} is finished: no step was left" in told.stderr
    assert json.loads(told.stdout)["num_steps"] > 0
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.fixture
def restored_signals() -> Iterator[None]:
    import signal

    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


@pytest.mark.usefixtures("restored_signals")
def test_the_first_signal_requests_a_stop_and_the_second_stops_at_once() -> None:
    import signal

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with stop_requests() as stops:
            assert not stops
            signal.raise_signal(signal.SIGINT)
            assert stops == [signal.SIGINT]
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def damage(folder: Path, name: str) -> None:
    path = folder / "checkpoints" / name / "training.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def test_a_damaged_last_is_reported_and_previous_can_be_resumed(tiny: Tiny, tmp_path: Path) -> None:
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


def test_previous_can_be_resumed_if_a_damaged_last_was_deleted(tiny: Tiny, tmp_path: Path) -> None:
    whole = train(tiny("model.dropout=0.3"), tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(whole.config, tmp_path / "run", stop_after=7)
    checkpoints = tmp_path / "run" / "checkpoints"
    shutil.rmtree(checkpoints / "last")
    resumed = imdb_tx("train", "--resume", checkpoints / "previous")
    assert resumed.exit_code == 0, resumed.output
    assert weights(tmp_path / "run")["last"] == weights(whole.folder)["last"]


def test_a_training_continues_from_last_by_its_name_and_not_from_best(tiny: Tiny, tmp_path: Path) -> None:
    whole = train(tiny("model.dropout=0.3"), tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(whole.config, tmp_path / "run", stop_after=7)
    checkpoints = tmp_path / "run" / "checkpoints"
    refused = imdb_tx("train", "--resume", checkpoints / "best")
    assert "To continue, name the run." in str(refused.exception)
    assert imdb_tx("train", "--resume", checkpoints / "last").exit_code == 0
    assert weights(tmp_path / "run")["last"] == weights(whole.folder)["last"]
    imdb_tx("runs", tmp_path, "--prune")
    for name in ("last", "previous"):
        refused = imdb_tx("train", "--resume", checkpoints / name)
        assert "was deleted to free space" in str(refused.exception)


def steps(folder: Path) -> tuple[int, int]:
    """Of `previous` and `last`, each of which is whole."""
    opened = run.open_run(folder)
    assert not any(verify(folder).values())
    metas = [
        checkpoint.read_meta(folder / "checkpoints" / name, tokenizer_hash=opened.info.tokenizer_hash)
        for name in ("previous", "last")
    ]
    return metas[0].step, metas[1].step


def test_previous_is_an_earlier_state_whenever_a_run_stops(tiny: Tiny, tmp_path: Path) -> None:
    """A validation, which saves, may fall on the step after which one stops."""
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "run", stop_after=5)
    assert metrics.read(tmp_path / "run")[-1].keys() == {"step", "validation"}
    assert steps(tmp_path / "run") == (0, 5)
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "run", stop_after=7)
    assert steps(tmp_path / "run") == (5, 7)


def test_a_damaged_last_never_becomes_previous(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "run", stop_after=7)
    damage(tmp_path / "run", "last")
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "run" / "checkpoints" / "previous", stop_after=6)
    assert steps(tmp_path / "run") == (5, 6)


def test_no_checkpoint_is_offered_if_both_are_damaged(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "run", stop_after=7)
    for name in ("last", "previous"):
        damage(tmp_path / "run", name)
    with pytest.raises(RunError) as refused:
        train(tiny(), tmp_path / "run")
    assert "whole" not in str(refused.value)


def test_a_run_killed_between_the_renames_of_last_resumes_from_previous(tiny: Tiny, tmp_path: Path) -> None:
    whole = train(tiny(), tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "run", stop_after=7)
    checkpoints = tmp_path / "run" / "checkpoints"
    shutil.rmtree(checkpoints / "previous")
    (checkpoints / "last").rename(checkpoints / "previous")
    (checkpoints / f".last.{platform.node()}.0badcafe.tmp").mkdir()
    (tmp_path / "run" / f".run.json.{platform.node()}.0badcafe.tmp").write_text("{")
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


def test_a_training_that_continues_leaves_no_evaluation_of_an_earlier_checkpoint(
    tmp_path: Path, tiny: Tiny
) -> None:
    steps = [
        update.step
        for update in training_steps(tiny("train.epochs=4"), tmp_path / "whole", "classifier")
        if update.saved
    ]
    with pytest.raises(Interrupted):
        train(tiny("train.epochs=4"), tmp_path / "run", stop_after=steps[0])
    with pytest.warns(DataWarning, match="is not finished: it is not calibrated, and gets no model card"):
        assert imdb_tx("eval", tmp_path / "run").exit_code == 0
    assert len([*(tmp_path / "run").glob("evaluation/*")]) == 1
    (tmp_path / "run" / "README.md").write_bytes(run.CARD_MARK)  # as if a card were there
    train(tiny("train.epochs=4"), tmp_path / "run")
    assert not [*(tmp_path / "run").glob("evaluation/*"), *(tmp_path / "run").glob("README.md")]


def test_a_training_whose_reviews_change_before_its_end_is_not_measured_on_others(
    tmp_path: Path, tiny: Tiny, source: Path
) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "own"))
    config = tiny(f"data.source={folder}", "train.yardstick=true")
    steps = training_steps(config, tmp_path / "run", "classifier")
    next(steps)
    shutil.rmtree(tmp_path / "data")
    with (folder / "train.jsonl").open("a") as file:
        file.write('{"text": "one more", "label": "pos"}\n')
    with pytest.raises(RunError, match="differ from those"):
        list(steps)
    assert not (tmp_path / "run" / "yardstick.json").exists()


def test_the_end_of_a_training_deletes_what_was_made_of_earlier_checkpoints(
    trained: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    (folder / "evaluation").mkdir(exist_ok=True)
    stale = ["evaluation/best-test.json", "evaluation/last-test.html", "model.onnx", "model-last.onnx"]
    mine = folder / "model-of-mine.onnx"
    for path in (*(folder / name for name in stale), mine):
        path.write_bytes(b"")
    finish(run.open_run(folder))
    assert not [name for name in stale if (folder / name).exists()]
    assert mine.exists()


def test_the_card_leaves_out_scores_of_an_earlier_checkpoint(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    assert imdb_tx("eval", folder).exit_code == 0
    file = folder / "evaluation" / "best-test.json"
    file.write_text(re.sub(r"\(step \d+\)", "(step 1)", file.read_text()))
    (folder / "README.md").unlink()
    assert imdb_tx("eval", folder, "--split", "validation").exit_code == 0
    assert not (folder / "README.md").exists()
