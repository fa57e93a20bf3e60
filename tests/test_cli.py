"""Whole commands: in this process where the result is enough, as a process where the exit code matters."""

import errno
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer

from imdb_transformer import config_file, hardware
from imdb_transformer.cli import app
from imdb_transformer.errors import ConfigError, DataError
from imdb_transformer.inference import tables
from imdb_transformer.store import run
from imdb_transformer.training import estimate, train
from tests.conftest import accept_config, imdb_tx
from tests.test_archive import make_archive
from tests.tiny import TINY_MODEL

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def process(
    *arguments: object, cwd: Path | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "imdb_transformer", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, check=False, timeout=120)


def test_every_command_prints_json(config_path: Path, tmp_path: Path, source: Path) -> None:
    answers: dict[str, list[Any]] = {}

    def answer(command: str, *arguments: object, stdin: str = "") -> Any:
        ended = imdb_tx(command, *arguments, "--json", stdin=stdin)
        assert ended.exit_code == 0, ended.exception
        answers[command] = [json.loads(line) for line in ended.stdout.splitlines()]
        return answers[command][0]

    data = ("--source", source, "--data-dir", tmp_path / "data")
    config = ("--config", config_path, "--set", "train.epochs=1", "--run-dir")
    trained, linear, causal = (tmp_path / "runs" / name for name in ("r", "nb", "causal"))
    downloaded = answer("download", *data)
    assert {split["split"]: split["num_rows"] for split in downloaded["statistics"]} == {
        "train": 200, "test": 100, "unsupervised": 100,
    }  # fmt: skip
    assert answer("download", *data)["was_there"]
    tokenized = answer("tokenize", "--config", config_path)
    assert tokenized["vocab_size"] <= 400
    assert tokenized["splits"]["test"]["num_reviews"] == 100
    made = answer("train", *config, trained)
    assert {"run", "best_step", "train_seconds", "tokens_per_second"} <= set(made)
    assert {"accuracy", "f1", "loss"} == set(made["validation"])
    assert answer("baseline", *config[:2], "--run-dir", linear)["weighting"] == "nb"
    assert answer("pretrain", *config, causal, "--set", "pretrain.objective=causal")["kind"] == "encoder"
    evaluated = answer("eval", trained)
    assert evaluated["split"] == "test"
    assert {"num_examples", "accuracy", "loss", "roc_auc"} <= set(evaluated)
    assert len(answer("compare", trained, linear)["pairs"]) == 1
    answer("predict", "--run", trained, "-", stdin="a good film\nawful\n")
    assert [line["text"] for line in answers["predict"]] == ["a good film", "awful"]
    assert set(answers["predict"][0]) == {"label", "probability", "text", "probabilities"}
    assert set(answer("generate", causal, "--num-tokens", 3)) == {"seed", "text"}
    assert answer("verify", trained)["parts"]["config.toml"] == "ok"
    assert {each["kind"] for each in answer("runs", tmp_path / "runs")} == {"classifier", "linear", "encoder"}
    assert Path(answer("export", trained)["file"]).exists()
    assert sorted(answers) == COMMANDS


def test_text_output_ends_with_the_next_command(config_path: Path, tmp_path: Path, source: Path) -> None:
    table = imdb_tx("download", "--source", source, "--data-dir", tmp_path / "data").stdout
    assert re.search(r"^neg +100 +50 +0$", table, re.MULTILINE)
    assert max(map(len, table.partition("\n\n")[0].splitlines())) <= 80
    assert "reviews cut" in imdb_tx("tokenize", "--config", config_path).stdout
    trained = imdb_tx("train", "--config", config_path, "--run-dir", tmp_path / "r").stdout
    assert f"next: imdb-tx eval {tmp_path / 'r'}" in trained
    assert "95% interval" in imdb_tx("eval", tmp_path / "r").stdout
    assert imdb_tx("predict", "--run", tmp_path / "r", "a good film").stdout.startswith(("pos\t", "neg\t"))


def test_dry_run_shows_the_cost_and_writes_no_run(config_path: Path, tmp_path: Path) -> None:
    shown = json.loads(imdb_tx("train", "--config", config_path, "--dry-run", "--json").stdout)
    cost = shown["estimate"]
    width, inner, hidden, vocab_size = 16, 2 * 8, 32, 400  # of tests/tiny.py
    parts = {
        "embedding": vocab_size * width,
        "attention": width * 3 * inner + 3 * inner + inner * width + width,
        "feed-forward": 2 * width * hidden + hidden + width,
        "layer norms": 3 * 2 * width,
        "head": 2 * width + 2,
    }
    assert cost["parameters"] == {**parts, "total": sum(parts.values())}
    assert cost["memory_bytes"] > 4 * 4 * sum(parts.values())  # weights, gradients and two moments
    # Each weight of the products costs two FLOPs a token forwards and four backwards; of those backwards most
    # are left out where max-pooling sends no gradient, and attention's own products and padding come to it.
    per_token = cost["flops"] / (2 * cost["tokens_per_epoch"])
    assert 5 < per_token / (parts["attention"] + parts["feed-forward"]) < 10
    assert cost["num_steps"] == round(2 * cost["steps_per_epoch"])
    assert cost["seconds"] > 0
    assert shown["config"]["model"]["width"] == 16
    without = imdb_tx("train", "--config", config_path, "--dry-run", "--set", "data.held_out_fraction=0")
    assert "reviews           train 200, test 100" in without.stdout
    text = imdb_tx("train", "--config", config_path, "--dry-run", "--set", "train.epochs=0").stdout
    assert "nothing was trained" in text
    assert "reviews           train 180, validation 20, test 100" in text
    assert re.search(r"^batches +of at most [\d,]+ tokens; 20 epochs$", text, re.MULTILINE)
    assert "epochs = 20" in text  # the number that follows from the reviews
    assert not list(tmp_path.rglob("run.json"))
    assert not (tmp_path / "data").exists()  # nor was anything imported


def test_the_time_of_a_dry_run_includes_an_update_for_each_step(
    config_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([0.0, 0.0, 2.0])  # to learn a batch, to predict one, to update the weights
    monkeypatch.setattr(estimate, "_seconds", lambda *_: next(seconds))
    cost = json.loads(imdb_tx("train", "--config", config_path, "--dry-run", "--json").stdout)["estimate"]
    assert cost["seconds"] == 2 * cost["num_steps"]


def test_a_dry_run_does_not_fetch_reviews(tmp_path: Path) -> None:
    hub = ("--set", "data.source=hub", "--set", f"data.data_dir={tmp_path}")
    refused = imdb_tx("train", "--config", "scratch.toml", "--dry-run", *hub)
    assert isinstance(refused.exception, ConfigError)
    assert "Fetch them first" in str(refused.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("train", "paper.toml"), ("train", "article.toml"), ("train", "base.toml"),
        ("train", "scratch.toml"), ("train", "large.toml"),
        ("pretrain", "pretrain.toml"), ("pretrain", "large.toml"),
    ],
)  # fmt: skip
def test_shipped_models_have_a_dry_run_and_take_a_few_steps(
    command: str, name: str, source: Path, tmp_path: Path
) -> None:
    sets = [f"data.source={source}", f"data.data_dir={tmp_path}", "train.epochs=1"]
    sets += [
        "train.evals_per_epoch=1",
        "tokenizer.max_length=16",
        "tokenizer.tail_length=0",
        "train.batch_tokens=1536",
    ]
    small = [word for item in sets for word in ("--set", item)]
    cost = json.loads(imdb_tx(command, "--config", name, *small, "--dry-run", "--json").stdout)
    assert cost["estimate"]["parameters"]["total"] > 100_000 or name == "article.toml"
    folder = tmp_path / "run"
    result = imdb_tx(command, "--config", name, *small, "--run-dir", folder)
    assert result.exit_code == 0, result.output


def test_predict_uses_the_newest_finished_run_and_says_so_on_stderr(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(trained)
    monkeypatch.chdir(tmp_path)
    result = imdb_tx("predict", "a good film")
    assert "runs/mine" in result.stderr
    assert "runs/mine" not in result.stdout


def test_predict_writes_a_file(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,text\n7,a good film\n8,awful\n")
    imdb_tx("predict", "--run", trained, "--input", tmp_path / "in.csv", "--output", tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == '"id","text","predicted_label","probability"'
    assert len(lines) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict"],
        ["predict", "a", "--input", "b.csv"],
        ["predict", "a", "--output", "b.csv"],
        ["predict", "a", "--text-column", "body"],
        ["predict", "a", "--encoding", "cp1252"],
        ["predict", "--input", "b.csv", "--force"],
        ["train", "--resume", "runs/x", "--set", "train.lr=1"],
        ["train", "--resume", "runs/x", "--config", "demo.toml"],
    ],
)
def test_conflicting_arguments_are_refused(arguments: list[str]) -> None:
    assert isinstance(imdb_tx(*arguments).exception, ConfigError)


def test_commands_that_compute_keep_freed_memory(
    trained: Path, config_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(hardware, "keep_freed_memory", lambda: calls.append("kept"))
    (tmp_path / "r.txt").write_text("a good film\n")
    for command in (
        ["train", "--config", config_path, "--dry-run"],
        ["train", "--config", config_path, "--run-dir", tmp_path / "run", "--set", "train.epochs=1"],
        ["pretrain", "--config", config_path, "--dry-run"],
        ["eval", trained, "--split", "validation"],
        ["compare", trained, trained, "--split", "validation"],
        ["predict", "--run", trained, "a good film"],
        ["predict", "--run", trained, "--input", tmp_path / "r.txt"],
    ):
        ended = imdb_tx(*command)
        assert ended.exit_code == 0, ended.output
        assert calls.pop() == "kept", command


def test_a_training_releases_unused_memory_regularly(
    config_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(train, "STEPS_BETWEEN_RELEASES", 3)
    monkeypatch.setattr(hardware, "release_freed_memory", lambda: calls.append(1))
    ended = imdb_tx("train", "--config", config_path, "--run-dir", tmp_path / "run", "--json")
    assert len(calls) == json.loads(ended.stdout)["num_steps"] // 3 > 1


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_names_json(command: str) -> None:
    assert "--json" in imdb_tx(command, "--help").stdout


def test_settings_of_torchs_libraries_are_made_before_torch_loads_unless_they_are_set() -> None:
    names = ("GOMP_SPINCOUNT", "THP_MEM_ALLOC_ENABLE")
    script = (
        "import os, sys; sys.argv = ['imdb-tx', '--help']\n"
        "from imdb_transformer.cli import main\n"
        f"main(); print(*(os.environ[name] for name in {names}), 'torch' in sys.modules)"
    )
    for added, expected in ({}, "3000 1"), (dict.fromkeys(names, "7"), "7 7"):
        environment = {key: value for key, value in os.environ.items() if key not in names} | added
        command = [sys.executable, "-c", script]
        shown = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert shown.stdout.splitlines()[-1] == f"{expected} False"


def test_help_is_quick_because_it_imports_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['imdb-tx', '--help']\n"
        "from imdb_transformer.cli import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'numpy', 'pyarrow', 'datasets', 'sklearn', 'rich') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["train", "--config", "nowhere.toml"], 2, "in the package"),
        (["train", "--set", "train.epoch=1"], 2, "Did you mean train.epochs"),
        (["train", "--set", "train.epochs=x"], 2, "train.epochs"),
        (["train", "--colour"], 2, "--colour"),
        (["download", "--source", "nowhere.csv"], 3, "nowhere.csv"),
        (["download", "--source", "empty.csv"], 3, "empty"),
        (["download", "--source", "latin.csv"], 3, "not UTF-8"),
        (["download", "--source", "one.csv"], 3, "two classes"),
        (["download", "--source", "cut.tar.gz"], 3, "cut short"),
        (["download", "--source", "aclImdb_v1.tar.gz"], 3, "wrong checksum"),
        (["eval", "runs/none"], 4, "runs/none"),
        (["eval", "runs/none", "--split", "tset"], 2, "tset"),
        (["train", "--resume", "runs/none"], 4, "runs/none"),
        (["predict", "a good film", "--run", "runs/none"], 4, "runs/none"),
        (["predict", "a", "--run", "."], 4, "no run"),
    ],
)
def test_a_users_mistake_gets_an_error_message_and_its_exit_code(
    tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "latin.csv").write_bytes(b"text,label\ncaf\xe9,a\nb,b\n")
    (tmp_path / "one.csv").write_text("text,label\na,pos\n")
    archive = make_archive(tmp_path / "aclImdb_v1.tar.gz")
    (tmp_path / "cut.tar.gz").write_bytes(archive.read_bytes()[:-20])
    ended = process(*arguments, cwd=tmp_path)
    stderr = ended.stderr.decode()
    assert ended.returncode == code, stderr
    assert said in stderr
    assert "Traceback" not in stderr
    assert not ended.stdout


def test_a_file_that_cannot_be_written_exits_with_6(config_path: Path) -> None:
    ended = process("train", "--config", config_path, "--run-dir", "/dev/null/run")
    assert ended.returncode == 6
    assert b"error: /dev/null/run cannot be read or written: Not a directory" in ended.stderr
    assert b"Traceback" not in ended.stderr


@pytest.mark.parametrize(("number", "told"), [(28, b"disk is full"), (5, b"model.safetensors cannot be")])
def test_a_disk_that_fails_exits_with_6_and_a_sentence(config_path: Path, number: int, told: bytes) -> None:
    script = (
        "import imdb_transformer.store.checkpoint as c\n"
        "from safetensors import SafetensorError\n"
        f"def fail(*a): raise SafetensorError('I/O error: some words (os error {number})')\n"
        "c.save_file = fail\n"
        "from imdb_transformer.cli import main; main()"
    )
    folder = config_path.parent / "run"
    command = [sys.executable, "-c", script, "train", "--config", str(config_path), "--run-dir", str(folder)]
    ended = subprocess.run(command, capture_output=True, check=False)
    assert ended.returncode == 6
    assert told in ended.stderr
    assert b"Traceback" not in ended.stderr
    assert not folder.exists()  # a run begins with its first checkpoint


def test_lines_of_a_pipe_are_predicted_before_it_ends_and_bad_ones_are_skipped(trained: Path) -> None:
    options = ["--run", str(trained), "--bad-rows", "skip"]
    for arguments in (["-"], ["--input", "-"]):
        command = [sys.executable, "-m", "imdb_transformer", "predict", *arguments, *options]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, **pipes) as running:  # type: ignore[call-overload]
            running.stdin.write(b"a good film\ncaf\xe9\n")
            running.stdin.flush()
            assert running.stdout.readline().endswith(b"\ta good film\n")
            stdout, stderr = running.communicate(b"awful\n", timeout=100)
        assert (stdout.count(b"\n"), running.returncode) == (1, 0)
        assert b"skipped: standard input: line 2 is not UTF-8" in stderr
        assert b"skipped rows: 1" in stderr


def test_predict_knows_the_column_of_the_runs_reviews(trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    opened = run.open_run(copy)
    (copy / run.CONFIG).write_text(config_file.dump(opened.config.replaced("data", text_column="my review")))
    accept_config(copy)
    (tmp_path / "r.csv").write_text("my review,other\na good film,bad\n")
    assert imdb_tx("predict", "--run", copy, "--input", tmp_path / "r.csv").stdout.endswith("\ta good film\n")
    (tmp_path / "r.csv").write_text("text,other one\na good film,bad\n")
    refused = imdb_tx("predict", "--run", copy, "--input", tmp_path / "r.csv")
    assert str(refused.exception).endswith(
        "r.csv has no column 'my review'; it has: 'text', 'other one'. Choose the column with --text-column."
    )


def test_a_text_that_is_the_name_of_a_file_gets_a_note(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my r.csv").write_text("text\na good film\n")
    result = imdb_tx("predict", "--run", trained, "my r.csv", "none.csv", "long " * 100, "a\0b")
    assert result.exit_code == 0
    assert result.stderr.count("is a file") == 1
    assert "note: my r.csv is a file. To classify its reviews: --input 'my r.csv'\n" in result.stderr


@pytest.mark.parametrize(
    ("texts", "told"),
    [(["good"], ""), ([""], "this review is empty."), (["good", " "], "empty reviews: 1 of 2.")],
)
def test_a_prediction_for_an_empty_review_gets_a_note(trained: Path, texts: list[str], told: str) -> None:
    result = imdb_tx("predict", "--run", trained, *texts)
    assert len(result.stdout.splitlines()) == len(texts)
    assert ("A prediction for an empty review means nothing." in result.stderr) == bool(told)
    assert f"note: {told}" in result.stderr or not told


@pytest.mark.parametrize(("name", "content"), [("h.csv", "text,id\n"), ("h.txt", "")])
def test_no_reviews_give_an_empty_result(trained: Path, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    options = ["predict", "--run", trained, "--input", tmp_path / name]
    answered = imdb_tx(*options)
    assert (answered.exit_code, answered.stdout) == (0, "")
    written = imdb_tx(*options, "--output", tmp_path / "out.csv")
    assert written.exit_code == 0
    assert (tmp_path / "out.csv").read_text().count("\n") == 1


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_the_input_is_replaced_only_by_force(trained: Path, tmp_path: Path, ending: str) -> None:
    path, link = tmp_path / f"r{ending}", tmp_path / f"link{ending}"
    tables.write_tables([table := pa.table({"text": ["a good film"]})], table.schema, path)
    link.symlink_to(path)
    before = path.read_bytes()
    options = ["predict", "--run", trained, "--input", path, "--output", link]
    refused = imdb_tx(*options)
    assert isinstance(refused.exception, ConfigError)
    assert "--force" in str(refused.exception)
    assert path.read_bytes() == before
    assert imdb_tx(*options, "--force").exit_code == 0
    assert b"predicted_label" in path.read_bytes()


def test_warnings_about_reviews_are_lines_on_stderr(config_path: Path, tmp_path: Path) -> None:
    rows = "".join(f"a film {i};{('bad', 'good')[i % 2]}\r\n" for i in range(60))
    (tmp_path / "w.csv").write_bytes(f"Körper;Sterne\r\n{rows}torn\r\n".encode("cp1252"))
    keys = ["source=w.csv", "text_column=Körper", "label_column=Sterne", "encoding=cp1252", "bad_rows=skip"]
    sets = [word for key in keys for word in ("--set", f"data.{key}")]
    ended = process("train", "--config", config_path, *sets, "--dry-run", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stderr.decode().splitlines()
    assert "warning: rows left out: 1. The first ones:" in lines
    assert any(line.startswith("w.csv: line 62 has another number of fields") for line in lines)
    assert any(line.startswith("warning: validation has only 6 reviews") for line in lines)
    assert "DataWarning" not in ended.stderr.decode()


def test_predict_ends_quietly_when_its_reader_leaves(trained: Path) -> None:
    command = f"{sys.executable} -m imdb_transformer predict --run {trained} - | head -1"
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        input=b"a good film\n" * 20_000,
        capture_output=True,
        check=False,
    )
    assert ended.stdout.count(b"\n") == 1
    assert b"Traceback" not in ended.stderr
    assert ended.returncode == 0


@pytest.mark.parametrize(("target", "code"), [(">/dev/full", 6), ("| true", 0)])
def test_unwritable_stdout_ends_with_a_documented_code(trained: Path, target: str, code: int) -> None:
    command = f"{sys.executable} -m imdb_transformer verify {trained} {target}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, check=False, env=environment
    )
    assert ended.returncode == code
    assert (b"standard output" in ended.stderr) == (code == 6)
    assert b"Exception" not in ended.stderr


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["verify", "predict --explain good --run", "predict - --run", "--help"])
def test_a_closed_standard_stream_becomes_dev_null(trained: Path, command: str, closed: str) -> None:
    run_path = "" if command == "--help" else trained
    ended = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m imdb_transformer {command} {run_path} {closed}"],
        capture_output=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, b"Traceback" in ended.stderr) == (0, False)
    if ">&-" in closed.replace("2>&-", ""):
        assert not ended.stdout


@pytest.mark.parametrize("page", [".", "/", "", "none/page.html", "reviews.csv"])
def test_a_page_that_cannot_be_written_is_refused_before_the_work(page: str) -> None:
    for command in (["predict", "--explain", "good", "--html", page], ["compare", "a", "b", "--html", page]):
        refused = imdb_tx(*command)
        assert isinstance(refused.exception, ConfigError)
        assert "name a file such as page.html" in str(refused.exception)


@pytest.mark.parametrize("output", ["page.html", "table.csv", "m.onnx"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_work(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    (tmp_path / "in.csv").write_text("text\na good film\n")
    monkeypatch.setattr(Path, "touch", refuse)
    path = tmp_path / output
    for command in {
        "page.html": (
            ["predict", "--run", trained, "--explain", "good", "--html", path],
            ["compare", trained, trained, "--html", path],
        ),
        "table.csv": (["predict", "--run", trained, "--input", tmp_path / "in.csv", "--output", path],),
        "m.onnx": (["export", trained, "--output", path],),
    }[output]:
        refused = imdb_tx(*command)
        assert isinstance(refused.exception, PermissionError)
        assert refused.exception.filename == str(path)
        assert refused.stdout == ""


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFCHR])
def test_a_pipe_or_a_device_is_not_replaced_by_a_page(tmp_path: Path, kind: int) -> None:
    page, null = tmp_path / "page.html", Path(os.devnull).stat().st_rdev
    try:
        os.mknod(page, 0o600 | kind, null if kind == stat.S_IFCHR else 0)
    except PermissionError:
        pytest.skip("only root makes devices")
    refused = imdb_tx("predict", "--explain", "good", "--html", page)
    assert isinstance(refused.exception, ConfigError)
    assert "not an ordinary file; name a file such as page.html" in str(refused.exception)
    assert stat.S_IFMT(page.stat().st_mode) == kind


def test_a_reader_that_leaves_early_gives_141(trained: Path) -> None:
    command = f"{sys.executable} -u -m imdb_transformer verify {trained} | true"
    ended = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (141, b"")


def metrics_lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_stopped_by_a_signal_and_resumed_equals_the_uninterrupted_one(
    config_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    sets = ("train.epochs=10", "model.dropout=0.3")
    options = ["--config", config_path, *(word for each in sets for word in ("--set", each))]
    assert process("train", *options, "--run-dir", tmp_path / "whole").returncode == 0
    folder = tmp_path / "parts"
    command = [
        sys.executable,
        "-m",
        "imdb_transformer",
        "train",
        *map(str, options),
        "--run-dir",
        str(folder),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as running:
        while metrics_lines(folder) < 20:
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal(number)
        _, stderr = running.communicate(timeout=60)
    assert running.returncode == 128 + number
    assert f"--resume {folder}".encode() in stderr
    assert b"Traceback" not in stderr
    resumed = process("train", "--resume", folder)
    assert resumed.returncode == 0, resumed.stderr
    for name in ("best/model.safetensors", "last/model.safetensors", "last/training.safetensors"):
        one, two = (run / "checkpoints" / name for run in (tmp_path / "whole", folder))
        assert one.read_bytes() == two.read_bytes(), name


def test_a_loss_that_is_not_finite_exits_with_5_and_names_step_and_rate(
    config_path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    options = ["--set", "train.lr=1e30", "--set", "train.clip_norm=0.0", "--set", "train.precision=fp32"]
    ended = process("train", "--config", config_path, *options, "--run-dir", folder)
    assert ended.returncode == 5, ended.stderr
    assert b"step " in ended.stderr
    assert b"at rate " in ended.stderr
    assert b"Traceback" not in ended.stderr
    assert (folder / "checkpoints" / "last" / "model.safetensors").exists()


def test_an_interrupted_download_leaves_nothing_and_exits_with_143(tmp_path: Path) -> None:
    script = (
        "import os, signal, imdb_transformer.data.demo as demo\n"
        "real = demo.reviews\n"
        "def reviews(): os.kill(os.getpid(), signal.SIGTERM); return real()\n"
        "demo.reviews = reviews\n"
        "from imdb_transformer.cli import main; main()"
    )
    command = [
        sys.executable,
        "-c",
        script,
        "download",
        "--source",
        "demo",
        "--data-dir",
        str(tmp_path / "data"),
    ]
    ended = subprocess.run(command, capture_output=True, check=False)
    assert ended.returncode == 143
    assert b"SIGTERM" in ended.stderr
    assert b"Traceback" not in ended.stderr
    assert not list(tmp_path.rglob("*.parquet"))


def test_the_demo_learns_its_grammar(tmp_path: Path) -> None:
    data = ["--set", f"data.data_dir={tmp_path / 'data'}"]
    trained = json.loads(imdb_tx("train", *data, "--run-dir", tmp_path / "demo", "--json").stdout)
    assert trained["validation"]["accuracy"] > 0.9
    assert json.loads(imdb_tx("eval", tmp_path / "demo", "--json").stdout)["accuracy"] > 0.9
    lines = imdb_tx(
        "predict", "--run", tmp_path / "demo", "an awful, boring film", "a charming, funny film"
    ).stdout
    assert [line.split("\t")[0] for line in lines.splitlines()] == ["neg", "pos"]


def test_training_prints_its_folder_and_hardware_once(config_path: Path, tmp_path: Path) -> None:
    shown = imdb_tx(
        "train", "--config", config_path, "--run-dir", tmp_path / "run", "--set", "train.epochs=1"
    )
    assert shown.stderr.count(f"training in {tmp_path / 'run'} on ") == 1


def test_a_training_takes_a_file_of_reviews_and_names_the_run_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        f"{word} film {i};{stars}" for i in range(60) for word, stars in (("schön", "4,5"), ("öd", "1,0"))
    ]
    (tmp_path / "my.reviews.csv").write_bytes("\n".join(["body;stars", *rows, "torn"]).encode("cp1252"))
    small = (
        "model.width=16", "model.num_layers=1", "model.num_heads=2", "model.head_width=8",
        "model.feedforward_width=32", "tokenizer.vocab_size=400", "train.epochs=1", "train.init_from=",
    )  # fmt: skip
    options = [option for key in small for option in ("--set", key)]
    columns = ("--text-column", "body", "--label-column", "stars", "--encoding", "cp1252")
    made = imdb_tx("train", "my.reviews.csv", *columns, "--bad-rows", "skip", *options)
    assert made.exit_code == 0, made.output
    opened = run.open_run(tmp_path / "runs" / "my")
    assert opened.info.classes == ("1", "4.5")
    assert opened.config.data.source == "my.reviews.csv"
    assert opened.config.train.optimizer == "muon"  # base.toml's
    table = ("my.reviews.csv", *columns, "--bad-rows", "skip", *options)
    tokenized = json.loads(imdb_tx("tokenize", *table, "--json").stdout)
    assert sum(split["num_reviews"] for split in tokenized["splits"].values()) == 120
    assert imdb_tx("pretrain", *table).exit_code == 0
    assert run.open_run(tmp_path / "runs" / "my-pretrain").info.kind == "encoder"
    (tmp_path / "skips.toml").write_text('data.bad_rows = "skip"\n')
    refused = imdb_tx(
        "train", "my.reviews.csv", *columns, "--config", "skips.toml", "--bad-rows", "fail", *options
    )
    assert isinstance(refused.exception, DataError)
    assert "line 122 has another number of fields" in str(refused.exception)


def test_a_dry_run_leaves_the_stored_corpus_of_a_changed_source_alone(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY_MODEL)
    table = tmp_path / "r.csv"
    table.write_text("text,label\n" + "".join(f"review {i},{'ab'[i % 2]}\n" for i in range(100)))
    command = [
        "train",
        table,
        "--config",
        tmp_path / "tiny.toml",
        "--set",
        f"data.data_dir={tmp_path / 'data'}",
    ]
    assert imdb_tx(*command, "--run-dir", tmp_path / "run").exit_code == 0
    with table.open("a") as file:
        file.write("one more,a\n")
    assert imdb_tx(*command, "--dry-run").exit_code == 0
    assert imdb_tx("eval", tmp_path / "run").exit_code == 0


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY_MODEL)
    table = tmp_path / '😀 "so".csv'
    table.write_text("text,label\n" + "".join(f"review {i},{'ab'[i % 2]}\n" for i in range(100)))
    sets = ("--set", f"data.data_dir={tmp_path / 'data'}")
    command = ("train", table, "--config", tmp_path / "tiny.toml", *sets, "--run-dir")
    assert imdb_tx(*command, tmp_path / "😀").exit_code == 0
    assert imdb_tx(*command, tmp_path / "next", "--init-from", tmp_path / "😀").exit_code == 0
