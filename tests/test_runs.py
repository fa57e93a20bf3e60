"""Runs in a list, what is pruned of them, what they are called, and the command that is shown after them."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from imdb_transformer.errors import DataWarning, Interrupted
from imdb_transformer.report import summaries
from imdb_transformer.store import run
from imdb_transformer.store.locks import locked
from imdb_transformer.store.upkeep import run_name, runs_in, verify
from imdb_transformer.training.train import result_of
from tests.conftest import imdb_tx, write_jsonl
from tests.in_process import Tiny, train
from tests.tiny import TINY_MODEL


@pytest.fixture
def runs(trained: Path, encoder: Path, linear: Path, tmp_path: Path) -> Path:
    """A folder with a finished run of each kind."""
    for name, path in (("classifier", trained), ("encoder", encoder), ("linear", linear)):
        shutil.copytree(path, tmp_path / "runs" / name)
    return tmp_path / "runs"


def test_runs_are_listed_with_what_they_are(runs: Path, tiny: Tiny) -> None:
    with pytest.raises(Interrupted):
        train(tiny(), runs / "my half", 5)
    shutil.copytree(runs / "my half", runs / "killed")
    run.open_run(runs / "killed").write_status("running")
    (runs / "damaged").mkdir()
    (runs / "damaged" / "run.json").write_text("{")
    listed = {Path(each["run"]).name: each for each in json.loads(imdb_tx("runs", runs, "--json").stdout)}
    assert {name: each["status"] for name, each in listed.items()} == {
        "classifier": "finished", "encoder": "finished", "linear": "finished", "my half": "interrupted",
        "killed": "killed",
    }  # fmt: skip
    validated = {name for name, each in listed.items() if each["validation_accuracy"]}
    assert validated == {"classifier", "linear", "my half", "killed"}
    size = sum(path.stat().st_size for path in (runs / "linear").rglob("*") if path.is_file())
    assert listed["linear"]["num_bytes"] == size
    assert listed["my half"]["step"] == 5
    result = imdb_tx("runs", runs)
    assert f"runs that cannot be read: {runs}/damaged. `imdb-tx verify RUN` says why" in result.stderr
    shown = result.stdout
    assert f"{runs}/my half stopped at step 5\nnext: imdb-tx train --resume '{runs}/my half'\n" in shown
    assert f"--resume {runs}/killed" in shown
    assert shown.count("next:") == 2
    with locked(runs / "killed"):
        assert {each["status"] for each in runs_in(runs)} == {"finished", "interrupted", "running"}


def test_a_pruned_run_is_smaller_and_whole_and_predicts(runs: Path) -> None:
    folder = runs / "classifier"
    before, ended = {each["run"]: each["num_bytes"] for each in runs_in(runs)}, result_of(folder)
    assert imdb_tx("runs", runs, "--prune").exit_code == 0
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["best"]
    assert {each["run"] for each in runs_in(runs) if each["num_bytes"] < before[each["run"]] * 0.8} == {
        str(folder), str(runs / "encoder"),
    }  # fmt: skip
    assert not any(verify(folder).values())
    assert imdb_tx("predict", "--run", folder, "a good film").exit_code == 0
    assert result_of(folder).validation == ended.validation
    assert "is finished: no step was left" in imdb_tx("train", "--resume", folder).stderr
    assert "freed" not in imdb_tx("runs", runs, "--prune").stderr


def test_pruning_leaves_unfinished_runs_alone(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "half", 5)
    imdb_tx("runs", tmp_path, "--prune")
    assert (tmp_path / "half" / "checkpoints" / "last").exists()


def test_a_run_on_the_users_table_is_named_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, archive, config = tmp_path / "reviews.csv", tmp_path / "aclImdb_v1.tar.gz", tmp_path / "mine.toml"
    for path in (table, archive, config):
        path.touch()
    assert run_name("scratch", "scratch.toml", str(table)) == "reviews"
    assert run_name("baseline-nb", "base.toml", str(table), ending="-nb") == "reviews-nb"
    for source in ("hub", "demo", str(archive), str(tmp_path)):
        assert run_name("scratch", "scratch.toml", source) == "scratch"
    assert run_name("mine", str(config), str(table)) == "mine"
    split = tmp_path / "split.set"
    split.mkdir()
    assert run_name("base", "base.toml", str(split)) == "base"
    (split / "Train.CSV").touch()
    assert run_name("base", "base.toml", f"{split}/") == "split.set"
    monkeypatch.chdir(split)
    assert run_name("base", "base.toml", ".", ending="-nb") == "split.set-nb"
    (tmp_path / ".hidden.csv").touch()
    assert run_name("base", "base.toml", str(tmp_path / ".hidden.csv")) == "base"
    export = tmp_path / "my reviews  (May).csv.gz"
    export.touch()
    assert run_name("scratch", "scratch.toml", str(export)) == "my-reviews-(May)"
    for letter, num_letters in (("x", 60), ("Ж", 30), ("字", 20), ("\udce9", 60)):
        long = tmp_path / f"{letter * 80}.csv"
        long.touch()
        assert run_name("base", "base.toml", str(long), ending="-nb") == letter * num_letters + "-nb"


def test_a_file_whose_name_is_not_utf_8_is_refused_by_its_name(tmp_path: Path) -> None:
    table = os.fsencode(tmp_path) + b"/caf\xe9.csv"
    write_jsonl(Path(os.fsdecode(table)), ["good", "bad"], ["1", "2"])
    for arguments in ((os.fsdecode(table),), ("--init-from", os.fsdecode(table))):
        message = str(imdb_tx("train", *arguments, "--dry-run").exception)
        assert f'="{tmp_path}/caf' in message
        assert "is not UTF-8" in message


def test_the_command_after_pretraining_starts_a_training(encoder: Path, tmp_path: Path) -> None:
    result = result_of(encoder)
    command = shlex.split(summaries.result(result).splitlines()[-1].removeprefix("next: imdb-tx "))
    assert imdb_tx(*command, "--run-dir", tmp_path / "run", "--set", "train.epochs=1").exit_code == 0


def test_a_command_that_is_shown_is_quoted(trained: Path) -> None:
    result = result_of(trained).model_copy(update={"run": "runs/it's mine"})
    command = summaries.result(result).splitlines()[-1].removeprefix("next: ")
    assert shlex.split(command) == ["imdb-tx", "eval", "runs/it's mine"]


def test_a_linear_run_that_was_killed_is_listed(runs: Path) -> None:
    run.open_run(runs / "linear").write_status("running")
    shown = imdb_tx("runs", runs)
    assert shown.exit_code == 0
    assert "killed" in shown.stdout
    assert "next:" not in shown.stdout


def test_the_command_after_pretraining_quotes_columns_that_look_like_numbers(
    encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = run.open_run(encoder)
    other = opened._replace(config=opened.config.replaced("data", text_column="0", label_column="true"))
    monkeypatch.setattr(run, "open_run", lambda _: other)
    words = shlex.split(summaries.result(result_of(encoder)).splitlines()[-1])
    assert {'data.text_column="0"', 'data.label_column="true"'} <= {*words}


def test_the_command_after_training_works_without_a_test_split(tmp_path: Path) -> None:
    for name in ("train", "unsupervised"):
        write_jsonl(tmp_path / f"{name}.jsonl", [f"{name} {i}" for i in range(60)], ["a", "b"] * 30)
    (tmp_path / "tiny.toml").write_text(TINY_MODEL)
    sets = ("--set", f"data.data_dir={tmp_path / 'data'}", "--run-dir", tmp_path / "run")
    result = imdb_tx("train", tmp_path, "--config", tmp_path / "tiny.toml", *sets)
    command = shlex.split(result.stdout.splitlines()[-1].removeprefix("next: imdb-tx "))
    assert imdb_tx(*command).exit_code == 0
    assert "--split validation" in str(imdb_tx("eval", tmp_path / "run").exception)


def test_a_run_with_a_damaged_best_checkpoint_is_not_pruned(runs: Path) -> None:
    weights = runs / "classifier" / "checkpoints" / "best" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.warns(DataWarning, match="keeps all checkpoints, because of the best one: .* is damaged"):
        imdb_tx("runs", runs, "--prune")
    assert (runs / "classifier" / "checkpoints" / "last").exists()
    assert not (runs / "encoder" / "checkpoints" / "last").exists()


def test_a_run_that_cannot_be_pruned_is_named_and_the_others_are_pruned(runs: Path) -> None:
    with locked(runs / "classifier"), pytest.warns(DataWarning, match="classifier was not pruned: "):
        imdb_tx("runs", runs, "--prune")
    assert (runs / "classifier" / "checkpoints" / "last").exists()
    assert not (runs / "encoder" / "checkpoints" / "last").exists()


def test_a_run_in_the_place_of_a_folder_of_runs_is_named(runs: Path) -> None:
    refused = imdb_tx("runs", runs / "classifier")
    assert str(refused.exception) == f"{runs / 'classifier'} is a run. Name the folder that it is in: {runs}."


def test_a_pruned_run_shows_the_cost_of_its_whole_training(tiny: Tiny, tmp_path: Path) -> None:
    folder = train(tiny("train.best_by=loss", "train.lr=0.3"), tmp_path / "run").folder
    before = result_of(folder)
    assert before.best_step < before.num_steps
    imdb_tx("runs", tmp_path, "--prune")
    assert result_of(folder) == before
    assert runs_in(tmp_path)[0]["step"] == before.num_steps


def test_a_checkpoint_may_be_named_without_the_folder_of_the_runs(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs.parent)
    imdb_tx("runs", "--prune")
    assert imdb_tx("predict", "--run", "classifier/checkpoints/best", "a film").exit_code == 0
    gone = imdb_tx("predict", "--run", "classifier/checkpoints/last", "a film")
    assert "runs/classifier/checkpoints/last was deleted to free space" in str(gone.exception)


def test_a_missing_folder_of_runs_is_an_error_unless_it_is_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "There is no folder experiments." in str(imdb_tx("runs", "experiments").exception)
    assert imdb_tx("runs").exit_code == 0
