"""What a person sees in a terminal while a command works: each command runs in a pseudo-terminal."""

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from imdb_transformer import progress
from imdb_transformer.cli import screen
from imdb_transformer.store import run

HANG_UP = b"close the terminal"
MAIN = "from imdb_transformer.cli import main; main()"


def _take_terminal() -> None:
    """Makes stdin this process's terminal. Its closing is noticed even if `nohup` began the tests."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def typed(
    *arguments: object, cwd: Path, columns: int = 80, keys: dict[bytes, bytes] | None = None,
    script: str = MAIN, **environment: str,
) -> tuple[int, str]:  # fmt: skip
    """Exit code and output of a command in a terminal.

    `keys` are pressed once their output has been seen; with `HANG_UP` the terminal is closed then.
    """
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    command = [sys.executable, "-c", f"import sys; sys.argv[0] = 'imdb-tx'; {script}", *map(str, arguments)]
    waiting, shown = dict(keys or {}), b""
    with subprocess.Popen(
        command, cwd=cwd, stdin=child, stdout=child, stderr=child, start_new_session=True,
        preexec_fn=_take_terminal, env=os.environ | environment,
    ) as process:  # fmt: skip
        os.close(child)
        while select.select([parent], [], [], 120)[0]:
            try:
                part = os.read(parent, 65_536)
            except OSError:  # Linux: the other side is closed
                break
            shown += part
            for seen in [seen for seen in waiting if re.search(seen, shown)]:
                if waiting[seen] == HANG_UP:
                    os.close(parent)
                    return process.wait(), shown.decode()
                os.write(parent, waiting.pop(seen))
    os.close(parent)
    return process.returncode, shown.decode()


def rows(shown: str) -> list[str]:
    """The lines as they stand at the end: a carriage return begins a line anew."""
    shown = re.sub(r"[^\n]*\r\x1b\[2K", "", shown)
    lines = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown).replace("\r\n", "\n").split("\n")
    result = []
    for line in lines:
        cells: list[str] = []
        for part in line.split("\r"):
            cells[: len(part)] = part
        result.append("".join(cells).rstrip())
    return result


def frames(shown: str) -> list[str]:
    """Each state of the progress bar."""
    return [part for part in re.split("[\r\n]", shown) if "left" in part]


def test_a_training_in_a_terminal_prints_whole_lines_when_it_stops_and_resumes(
    config_path: Path, tmp_path: Path
) -> None:
    options = ("--config", config_path, "--run-dir", "run", "--set", "train.epochs=40")
    stop = {rb"left, loss \d": b"\x03"}  # once the bar is there
    code, shown = typed("train", *options, cwd=tmp_path, keys=stop)
    assert code == 130
    first, warning, second, *middle, told, command = (row for row in rows(shown) if row)
    assert warning.startswith("warning: validation has only 20 reviews")
    assert (first, second.partition(" on ")[0]) == ("preparing run ...", "training in run")
    assert [line for line in middle if not line.startswith("step ")] == []
    assert re.fullmatch(r"Stopped at step \d+ of \d+; saved\. Continue with:", told)
    assert command == "  imdb-tx train --resume run"
    assert all(len(frame) < 80 and "?" not in frame for frame in frames(shown)[1:])
    assert re.search(r"step \d+ of \d+ .*\d\d:\d\d left, loss \d", shown)
    assert "error" not in shown
    code, shown = typed("train", "--resume", "run", cwd=tmp_path, columns=120, NO_COLOR="1")
    assert code == 0
    num_done = re.search(r"step (\d+) of", told)
    assert num_done is not None
    assert f"{num_done[1]} of 400 steps were done before; continuing from there" in rows(shown)
    assert max(len(row) for row in rows(shown)) <= 120
    assert rows(shown)[-2] == "next: imdb-tx eval run"


def test_a_training_is_saved_when_its_terminal_closes(config_path: Path, tmp_path: Path) -> None:
    options = ("--config", config_path, "--run-dir", "run", "--set", "train.epochs=40")
    code, _ = typed("train", *options, cwd=tmp_path, keys={rb"left, loss \d": HANG_UP})
    assert code == 128 + signal.SIGHUP
    assert run.open_info(tmp_path / "run").status == "interrupted"


def test_nested_work_has_no_bar_and_no_bar_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(screen, "SECONDS_BEFORE", 0)
    monkeypatch.setattr(progress, "watch", screen.tracked)
    for _ in progress.tracked(range(3), "outer", 3):
        assert list(progress.tracked("ab", "inner", 2)) == ["a", "b"]
        screen.note("a line")
    assert "outer 1 of 3" in terminal.getvalue()
    assert "inner" not in terminal.getvalue()
    assert [row for row in rows(terminal.getvalue()) if row] == ["a line"] * 3
    assert list(progress.tracked("ab", "after", 2)) == ["a", "b"]
    assert "after" in terminal.getvalue()


def test_quick_work_that_prints_lines_leaves_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(screen, "SECONDS_BEFORE", 3600)
    with screen.bar("step", 3) as shown:
        for number in range(3):
            shown.update()
            screen.note(f"line {number}")
    assert terminal.getvalue() == "line 0\nline 1\nline 2\n"


def test_an_error_during_work_is_printed_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(screen, "SECONDS_BEFORE", 0)
    work = screen.tracked(range(3), "work", 3)
    next(iter(work))
    with pytest.raises(SystemExit):
        screen.exit_with("error: it broke.", 2)
    assert rows(terminal.getvalue())[-2:] == ["error: it broke.", ""]


def test_a_line_above_the_bar_has_nothing_of_the_terminals_own_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = EchoingTerminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(screen, "SECONDS_BEFORE", 0)
    with screen.bar("step", 3) as shown:
        shown.update()
        screen.note("saved")
        shown.update()
    with pytest.raises(SystemExit):
        screen.exit_with("stopped", 130)
    assert [row for row in rows(terminal.getvalue()) if row] == ["saved", "stopped"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class EchoingTerminal(Terminal):
    """A terminal in which Ctrl-C is pressed before each write."""

    def write(self, text: str, /) -> int:
        return super().write("^C") + super().write(text) if text else 0


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_are_printed_only_on_a_terminal_that_wants_them(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for stream, expected in ((Terminal(), coloured), (io.StringIO(), False)):
        screen.show("error: no", stream)
        assert ("\x1b[1m\x1b[31merror:\x1b[0m no" in stream.getvalue()) == expected


def test_an_error_is_the_last_line_where_both_outputs_go_into_one_file(tmp_path: Path) -> None:
    code = (
        "from imdb_transformer.cli import screen; print('a table'); screen.exit_with('error: it broke.', 6)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with (tmp_path / "log").open("w") as log:
        ended = subprocess.run([sys.executable, "-c", code], stdout=log, stderr=log, env=environment)
    assert ended.returncode == 6
    assert (tmp_path / "log").read_text() == "a table\nerror: it broke.\n"
