"""`imdb-tx predict` as a whole: its files, notes and refusals."""

import errno
import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather

from imdb_transformer import config_file
from imdb_transformer.errors import ConfigError, DataError
from imdb_transformer.inference import table_formats
from imdb_transformer.store import run
from tests.conftest import accept_config, imdb_tx


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
        ["predict", "a", "-"],
        ["predict", "a", "--text-column", "body"],
        ["predict", "a", "--encoding", "cp1252"],
        ["predict", "--run", "imdb", "-", "--text-column", "body"],
        ["predict", "--run", "imdb", "--input", "-", "--text-column", "body", "--output", "o.csv"],
        ["predict", "--input", "b.csv", "--force"],
        ["train", "--resume", "runs/x", "--set", "train.lr=1"],
        ["train", "--resume", "runs/x", "--config", "demo.toml"],
    ],
)
def test_conflicting_arguments_are_refused(arguments: list[str]) -> None:
    assert isinstance(imdb_tx(*arguments).exception, ConfigError)


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


def test_a_bad_row_of_a_pipe_leaves_no_folder(trained: Path, tmp_path: Path) -> None:
    command = ("predict", "--run", trained, "--input", "-", "--output", tmp_path / "out.csv")
    for content, error in ((b"good\n\xff\n", DataError), (b"good\n", None)):
        ended = imdb_tx(*command, stdin=content)
        assert type(ended.exception) is (error or type(None))
        assert [path.name for path in tmp_path.iterdir()] == ([] if error else ["out.csv"])


@pytest.mark.parametrize("is_pipe", [True, False])
def test_a_full_disk_keeps_the_predictions_of_a_file_but_none_of_a_pipe(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_pipe: bool
) -> None:
    def write(table: pa.Table, path: Path, **options: str) -> None:
        if "000001" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_feather(table, str(path), **options)

    write_feather = feather.write_feather
    monkeypatch.setattr(feather, "write_feather", write)
    monkeypatch.setattr("imdb_transformer.data.tables.BLOCK_ROWS", 1)
    source, output = tmp_path / "r.txt", tmp_path / "out.csv"
    source.write_text("good\nbad\n")
    command = ("predict", "--run", trained, "--output", output, "--input")
    ended = imdb_tx(*command, "-", stdin="good\nbad\n") if is_pipe else imdb_tx(*command, source)
    assert isinstance(ended.exception, OSError)
    assert ended.exception.errno == errno.ENOSPC
    assert ("Predictions saved: 1; add --resume to continue" in ended.stderr) != is_pipe
    assert sorted(path.name for path in tmp_path.iterdir() if path != source) == (
        [] if is_pipe else [".out.csv.parts"]
    )
    monkeypatch.setattr(feather, "write_feather", write_feather)
    if not is_pipe:
        assert imdb_tx(*command, source, "--resume").exit_code == 0
        assert len(output.read_text().splitlines()) == 3


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
    table_formats.write_tables([table := pa.table({"text": ["a good film"]})], table.schema, path)
    link.symlink_to(path)
    before = path.read_bytes()
    options = ["predict", "--run", trained, "--input", path, "--output", link]
    refused = imdb_tx(*options)
    assert isinstance(refused.exception, ConfigError)
    assert "--force" in str(refused.exception)
    assert path.read_bytes() == before
    assert imdb_tx(*options, "--force").exit_code == 0
    assert b"predicted_label" in path.read_bytes()


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


def test_a_page_is_written_though_the_reader_of_stdout_leaves(trained: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = f"{sys.executable} -m imdb_transformer predict --run {trained} --explain --html {page} - | true"
    ended = subprocess.run(
        ["bash", "-c", command], input=b"a good film\n" * 300, capture_output=True, check=False
    )
    assert f"written to {page}".encode() in ended.stderr
    assert "a good film" in re.sub(r"<[^>]*>", "", page.read_text())


@pytest.mark.parametrize(
    ("target", "unbuffered", "code"), [(">/dev/full", "", 6), (">/dev/full", "1", 6), ("| true", "", 0)]
)
def test_unwritable_stdout_ends_with_a_documented_code(
    trained: Path, target: str, unbuffered: str, code: int
) -> None:
    command = f"{sys.executable} -m imdb_transformer verify {trained} {target}"
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, check=False, env=environment
    )
    assert ended.returncode == code
    assert (b"standard output" in ended.stderr) == (code == 6)
    assert b"Exception" not in ended.stderr


def test_mistakes_are_found_before_a_model_is_loaded(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.csv").write_text("body\na good film\n")
    monkeypatch.setattr("imdb_transformer.cli.predictions.load", lambda *_, **__: pytest.fail("loaded"))
    table, column = ("predict", "--run", trained, "--input", tmp_path / "r.csv"), ("--text-column", "body")
    for arguments, message in (
        (("predict", "--run", trained, "--input", tmp_path / "none.csv"), "There is no file"),
        ((*table, "--text-column", "nope"), "no column 'nope'"),
        ((*table, *column, "--output", tmp_path / "o.foo"), "name a file that ends in .csv"),
        ((*table, *column, "--output", tmp_path / "none" / "o.csv"), "there is no folder"),
    ):
        assert message in str(imdb_tx(*arguments).exception)


def test_a_comparison_with_a_missing_run_fails_before_the_others_are_evaluated(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imdb_transformer.evaluation.compare.predict_split", lambda *_: pytest.fail("ran"))
    assert "none" in str(imdb_tx("compare", trained, tmp_path / "none").exception)


def test_compressed_standard_input_is_refused_by_its_format(trained: Path) -> None:
    refused = imdb_tx("predict", "--run", trained, "-", stdin=gzip.compress(b"a good film")).exception
    assert "standard input cannot be read: it is compressed by gzip" in str(refused)


def test_an_input_of_another_format_is_refused_with_advice(linear: Path, tmp_path: Path) -> None:
    (tmp_path / "r.xls").write_text("hello")
    refused = imdb_tx("predict", "--run", linear, "--input", tmp_path / "r.xls").exception
    assert isinstance(refused, ConfigError)
    assert str(refused).endswith("or .xlsx. Save the workbook as .xlsx.")
