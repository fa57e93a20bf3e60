"""Run directories, checkpoints and whole writes."""

import json
import os
import pickle
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import nn

from imdb_transformer import config_file
from imdb_transformer.cli.predict import default_run
from imdb_transformer.config import Config, TokenizerConfig
from imdb_transformer.data.tokenizer import Tokenizer
from imdb_transformer.errors import RunError
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.store import checkpoint, metrics, run
from imdb_transformer.store.files import (
    new_folder,
    recover_folder,
    sha256_of,
    whole_file,
    whole_folder,
    write_whole,
)
from imdb_transformer.store.locks import locked
from imdb_transformer.store.upkeep import unused, verify
from imdb_transformer.training.start import run_to_continue
from tests.conftest import accept_config


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """A finished run, moved elsewhere: it may be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "moved"))


def test_a_run_moved_elsewhere_still_predicts(trained: Path, copy: Path) -> None:
    here, moved = Predictor.load(trained), Predictor.load(copy)
    assert here.probabilities(["a good film"]).tolist() == moved.probabilities(["a good film"]).tolist()


@pytest.mark.parametrize("name", ["best", "last", "previous"])
def test_a_run_may_be_called_like_a_checkpoint(trained: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "checkpoints" / name))
    opened, best = run.locate(folder)
    assert (opened.folder, best) == (folder, folder / "checkpoints" / "best")
    assert run.locate(best) == (opened, best)
    opened, begin_from = run_to_continue(folder, "classifier")
    assert (opened.folder, begin_from) == (folder, "last")


def test_a_run_that_a_dot_names_has_its_own_name(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy)
    assert run.open_run(Path()).folder == copy
    assert run.locate(Path("checkpoints/best"))[1] == copy / "checkpoints" / "best"
    monkeypatch.chdir(copy / "checkpoints")
    assert run.open_run(Path("..")).folder == copy


def test_a_run_records_its_environment_and_hashes(trained: Path) -> None:
    opened = run.open_run(trained)
    environment = json.loads((trained / "environment.json").read_text())
    assert opened.info.status == "finished"
    assert opened.config.train.epochs == 25
    assert torch.__version__.startswith(environment["versions"]["torch"])
    assert {"command", "hardware", "python"} <= set(environment)
    assert len(opened.info.corpus_hash) == len(opened.info.tokenizer_hash) == 64


def test_interrupted_save_leaves_the_old_checkpoint(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy / "checkpoints" / "best"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device", "model.safetensors")

    monkeypatch.setattr(checkpoint, "save_file", full_disk)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(folder, step=9, counters={}, tokenizer_hash="x", model={"w": torch.ones(1)})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert sorted(path.name for path in folder.parent.iterdir()) == ["best", "last", "previous"]


@pytest.mark.parametrize("killed_after", ["first rename", "second rename"])
def test_a_kill_between_the_renames_loses_nothing(tmp_path: Path, killed_after: str) -> None:
    folder = tmp_path / "last"
    with whole_folder(folder) as new:
        (new / "a").write_text("old")
    folder.rename(tmp_path / ".last.old")
    if killed_after == "second rename":
        folder.mkdir()
        (folder / "a").write_text("new")
    recover_folder(folder)
    assert (folder / "a").read_text() == ("old" if killed_after == "first rename" else "new")
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_a_rename_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, former = tmp_path / "last", tmp_path / "previous"
    with whole_folder(folder, former=former) as new:
        (new / "a").write_text("old")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if target == folder and self != former:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="Input"), whole_folder(folder, former=former) as new:
        (new / "a").write_text("new")
    assert (folder / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_verify_accepts_a_run_that_was_killed_between_the_renames_of_last(copy: Path) -> None:
    run.open_run(copy).write_status("running")
    checkpoints = copy / "checkpoints"
    shutil.rmtree(checkpoints / "previous")
    (checkpoints / "last").rename(checkpoints / "previous")
    assert not any(verify(copy).values())


def test_an_error_names_the_file_and_not_its_temporary_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        write_whole(tmp_path / "none" / "file", b"new")
    assert error.value.filename == str(tmp_path / "none" / "file")


def test_failed_writes_leave_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, b"old")
    with pytest.raises(FileNotFoundError), whole_file(path) as temporary:
        temporary.with_name("nowhere").rename(temporary)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "pickle"])
def test_damaged_checkpoint_is_refused_by_name(copy: Path, name: str, damage: str) -> None:
    path = copy / "checkpoints" / "best" / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 0x80]) + content[middle + 1 :]
        damaged = {"cut": content[:-9], "flipped": flipped, "pickle": pickle.dumps({"a": 1})}
        path.write_bytes(damaged[damage])
    with pytest.raises(RunError, match=name):
        Predictor.load(copy)


def test_checkpoint_of_another_tokenizer_is_refused(copy: Path) -> None:
    path = copy / "tokenizer.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(RunError, match="not the tokenizer"):
        Predictor.load(copy)
    meta = copy / "checkpoints" / "best" / "checkpoint.json"
    with pytest.raises(RunError, match="was made with a different vocabulary"):
        checkpoint.read_meta(meta.parent, tokenizer_hash="0" * 64)


def _tensors(offsets: dict[str, list[int]]) -> bytes:
    """A safetensors header of fp32 tensors at these places."""
    entries = {name: {"dtype": "F32", "shape": [1], "data_offsets": at} for name, at in offsets.items()}
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header


def test_checkpoint_of_another_model_is_refused(copy: Path) -> None:
    config = copy / "config.toml"
    config.write_text(config.read_text().replace("feedforward_width = 32", "feedforward_width = 48"))
    with pytest.raises(RunError, match=r"config\.toml has changed since"):
        Predictor.load(copy)
    accept_config(copy)
    with pytest.raises(RunError, match=r"another model.*feed_forward"):
        Predictor.load(copy)


@pytest.mark.parametrize(
    "header",
    [
        (1 << 60).to_bytes(8, "little"),
        _tensors({"a": [0, 4], "b": [2, 6]}),
        _tensors({"a": [0, 1 << 50]}),
        _tensors({"a": [-4, 0]}),
    ],
    ids=["endless", "overlapping", "beyond the end", "negative"],
)
def test_forged_tensors_are_refused_even_with_the_right_checksum(copy: Path, header: bytes) -> None:
    folder = copy / "checkpoints" / "best"
    (folder / checkpoint.MODEL).write_bytes(header + b"\0" * 64)
    opened = run.open_run(copy)
    meta = checkpoint.read_meta(folder, tokenizer_hash=opened.info.tokenizer_hash)
    forged = {checkpoint.MODEL: sha256_of(folder / checkpoint.MODEL)}
    with pytest.raises(RunError, match=r"model\.safetensors"):
        checkpoint.load_arrays(folder, checkpoint.MODEL, meta.model_copy(update={"file_hashes": forged}))


def test_a_changed_value_in_run_json_is_damage(copy: Path) -> None:
    path = copy / "run.json"
    text = path.read_text()
    for old, new in (
        ('"temperature": ', '"temperature": 9'),
        ('"neg"', '"meg"'),
        ('"finished"', '"running"'),
    ):
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(RunError, match=r"run\.json is damaged"):
            run.open_run(copy)


def test_a_run_of_another_version_is_not_called_damaged(copy: Path) -> None:
    path = copy / run.CONFIG
    path.write_text(path.read_text().replace("[model]\n", "[model]\nflavour = 1.0\n"))
    accept_config(copy)
    with pytest.raises(RunError, match=r"another version of imdb-tx.*flavour"):
        run.open_run(copy)


def test_the_error_names_absent_tensors() -> None:
    with pytest.raises(RunError, match="weight is absent in the file"):
        checkpoint.load_weights(nn.Linear(1, 1, bias=False), {}, origin=Path("x"))


def test_a_checkpoint_without_a_training_state_is_refused(trained: Path) -> None:
    folder = trained / "checkpoints" / "best"
    meta = checkpoint.read_meta(folder, tokenizer_hash=run.open_run(trained).info.tokenizer_hash)
    with pytest.raises(RunError, match=r"training\.safetensors cannot be read: No such file"):
        checkpoint.load_arrays(folder, checkpoint.TRAINING, meta)


@pytest.mark.parametrize(("name", "content"), [("run.json", "{"), ("config.toml", "[train]\nlrr = 1")])
def test_a_damaged_run_is_refused_with_the_files_name(copy: Path, name: str, content: str) -> None:
    (copy / name).write_text(content)
    with pytest.raises(RunError, match=name):
        run.open_run(copy)


def test_the_error_about_a_missing_run_names_the_command_that_lists_runs(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"There is no run .* `imdb-tx runs` lists runs"):
        run.locate(tmp_path / "pretrain")


def test_a_run_directory_is_not_overwritten(trained: Path) -> None:
    opened = run.open_run(trained)
    with pytest.raises(RunError, match="is not empty; name another --run-dir"):
        run.check_free(opened.folder)
    with pytest.raises(RunError, match=r"run\.json is a file; name another --run-dir"):
        run.check_free(opened.folder / run.INFO)


def test_a_folder_with_an_unfinished_run_is_refused_with_the_command_that_continues_it(copy: Path) -> None:
    folder = copy.rename(copy.with_name("my run"))
    run.open_run(folder).write_status("interrupted")
    with pytest.raises(RunError, match=f"continue it with `imdb-tx train --resume '{folder}'`, or name"):
        run.check_free(folder)
    with locked(folder), pytest.raises(RunError, match="is not empty; name another --run-dir"):
        run.check_free(folder)  # another process trains in it
    run.open_run(folder).write_status("diverged")  # as it would again
    with pytest.raises(RunError, match="is not empty; name another --run-dir"):
        run.check_free(folder)


def test_a_run_that_was_not_validated_yet_is_said_to_be_that(copy: Path) -> None:
    run.open_run(copy).write_status("interrupted")
    shutil.rmtree(copy / "checkpoints" / "best")
    for few in (True, False):
        with pytest.raises(RunError, match="cannot predict yet: its training has not reached a validation"):
            Predictor.load(copy, few=few)


def test_a_run_replaces_only_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    run.check_free(tmp_path / "empty")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    monkeypatch.chdir(tmp_path / "empty")
    for name in (tmp_path / "link", Path()):
        with pytest.raises(RunError, match="cannot become a run"):
            run.check_free(name)
    with new_folder(tmp_path / "empty") as made:
        (made / "one").touch()
    assert (tmp_path / "empty" / "one").exists()


def test_the_second_of_two_commands_that_create_a_run_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["a good film"], TokenizerConfig(vocab_size=300))
    created = run.create(
        tmp_path / "run", Config(), save_vocabulary=tokenizer.save, hardware="CPU",
        kind="classifier", classes=("a", "b"), corpus_hash="", vocab_size=300, tokenizer_hash="",
    )  # fmt: skip
    stack = ExitStack()
    stack.enter_context(created)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("another's")
    with pytest.raises(RunError, match="in the meantime"):
        stack.close()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run" / "run.json").read_text() == "another's"


def test_new_folders_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in ("base", "base-2", "base-3"):
        folder = unused(Path("runs/base"))
        folder.mkdir(parents=True)
        assert folder == Path("runs") / expected


def test_predict_uses_your_newest_classifier_or_else_the_shipped_one(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SHIPPED", tmp_path / "shipped")
    with pytest.raises(RunError, match="No finished run"):
        default_run(tmp_path)
    (tmp_path / "shipped" / "imdb").mkdir(parents=True)
    assert default_run(tmp_path) == Path("imdb")
    for name in ("a", "b", "c"):
        shutil.copytree(trained, tmp_path / name)
        run.open_run(tmp_path / name).write_status("finished" if name != "c" else "interrupted")
    assert default_run(tmp_path).name == "b"
    other = run.open_run(tmp_path / "c")
    for kind in ("encoder", "linear"):  # the one knows no classes, the other is the number to beat
        other._replace(info=other.info.model_copy(update={"kind": kind})).write_status("finished")
        assert default_run(tmp_path).name == "b"
    other.write_status("finished")
    assert default_run(tmp_path).name == "c"


def test_a_run_on_the_demo_is_never_the_default_of_predict(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SHIPPED", tmp_path / "shipped")
    (tmp_path / "shipped" / "imdb").mkdir(parents=True)
    shutil.copytree(trained, tmp_path / "toy")
    path = tmp_path / "toy" / run.CONFIG
    config = run.open_run(tmp_path / "toy").config
    demo = config.replaced("data", source="demo")
    path.write_text(config_file.dump(demo))
    accept_config(tmp_path / "toy")
    assert default_run(tmp_path) == Path("imdb")


def test_a_run_without_its_config_is_refused(copy: Path) -> None:
    (copy / "config.toml").unlink()
    with pytest.raises(RunError, match=r"config\.toml"):
        run.open_run(copy)


def test_a_metrics_line_cut_by_a_crash_is_forgotten(copy: Path) -> None:
    opened = run.open_run(copy)
    before = metrics.read(opened.folder)
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "lo')
    assert metrics.read(opened.folder) == before
    metrics.drop_after(opened.folder, 3)
    assert [line["step"] for line in metrics.read(opened.folder)] == [1, 2, 3]


def test_whoever_may_read_the_folder_may_read_the_weights(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        checkpoint.save(
            tmp_path / "best", step=1, counters={}, tokenizer_hash="x", model={"w": torch.ones(1)}
        )
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "best").iterdir()}
    assert modes == {"model.safetensors": 0o644, "checkpoint.json": 0o644}
