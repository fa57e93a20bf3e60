"""How commands end: mistakes, full disks, signals, and streams that are closed."""

import errno
import os
import pickle
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from imdb_transformer.errors import ConfigError, Interrupted
from imdb_transformer.store import run
from tests.conftest import imdb_tx
from tests.test_archive import make_archive
from tests.tiny import TINY_MODEL


def process(
    *arguments: object, cwd: Path | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "imdb_transformer", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["train", "--config", "nowhere.toml"], 2, "in the package"),
        (["train", "--set", "train.epoch=1"], 2, "Did you mean train.epochs"),
        (["train", "--set", "train.epochs=x"], 2, "train.epochs"),
        (["train", "--colour"], 2, "--colour"),
        (["download", "nowhere.csv"], 3, "nowhere.csv"),
        (["download", "a.csv", "--source", "b.csv"], 2, "one source"),
        (["download", "empty.csv"], 3, "empty"),
        (["download", "latin.csv"], 3, "not UTF-8"),
        (["download", "one.csv"], 3, "two classes"),
        (["download", "--text-column", "body"], 2, "name your file"),
        (["download", "cut.tar.gz"], 3, "cut short"),
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
        advice = "there is no folder none." if "none" in page else "name a file that ends in .html or .htm."
        assert str(refused.exception).endswith(advice)


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
    assert "not an ordinary file; name a file that ends in .html or .htm" in str(refused.exception)
    assert stat.S_IFMT(page.stat().st_mode) == kind


def test_a_reader_that_leaves_early_gives_141(trained: Path) -> None:
    command = f"{sys.executable} -u -m imdb_transformer verify {trained} | true"
    ended = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (141, b"")


def metrics_lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """A training by two threads, and beside it its config."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    data = f'[data]\nsource = "{source}"\ndata_dir = "{folder / "data"}"\n'
    (folder / "tiny.toml").write_text(data + TINY_MODEL)
    sets = ("--set", "train.epochs=8", "--set", "model.dropout=0.3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "2")
        ended = process("train", "--config", folder / "tiny.toml", *sets, "--run-dir", folder / "run")
    assert ended.returncode == 0, ended.stderr
    return folder / "run"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_the_parent_ignores_does_not_stop_a_command(number: signal.Signals) -> None:
    """`nohup` ignores the first, and a script the second for its background jobs."""
    lines = [
        f"import signal; signal.signal({int(number)}, signal.SIG_IGN)",
        "from imdb_transformer.cli import screen",
        f"with screen.exit_on_error(): signal.raise_signal({int(number)}); print('goes on', flush=True)",
        "with screen.exit_on_error(): signal.raise_signal(signal.SIGTERM)",
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == "goes on\n", ended.stderr
    assert ended.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_stopped_by_a_signal_and_resumed_equals_the_uninterrupted_one(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    folder = tmp_path / "parts"
    options = ["--config", uninterrupted / run.CONFIG, "--run-dir", folder]
    command = [sys.executable, "-m", "imdb_transformer", "train", *map(str, options)]
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
        one, two = (path / "checkpoints" / name for path in (uninterrupted, folder))
        assert one.read_bytes() == two.read_bytes(), name


def test_a_loss_that_is_not_finite_exits_with_5_and_names_step_and_rate(
    config_path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    options = ["--set", "train.lr=1e18", "--set", "train.clip_norm=0.0", "--set", "train.precision=fp32"]
    ended = process("train", "--config", config_path, *options, "--run-dir", folder)
    assert ended.returncode == 5, ended.stderr
    assert b"step " in ended.stderr
    assert b"at rate " in ended.stderr
    assert b"Traceback" not in ended.stderr
    assert (folder / "checkpoints" / "last" / "model.safetensors").exists()


def test_an_interruption_can_be_sent_to_another_process() -> None:
    sent = pickle.loads(pickle.dumps(Interrupted("Stopped.", exit_code=143)))
    assert (str(sent), sent.exit_code) == ("Stopped.", 143)


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
