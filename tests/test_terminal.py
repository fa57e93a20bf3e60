"""Text out of files can be read on a terminal, and does not steer it."""

import io
import json
import re
import subprocess
import sys
import tarfile
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from imdb_transformer.inference.explanation import Explanation, WordShare
from imdb_transformer.inference.predictor import Prediction
from imdb_transformer.report import reviews
from imdb_transformer.report.layout import text_table
from imdb_transformer.report.terminal import SafeStream, beneath, visible

CLEAR = "\x1b[2J"
HOSTILE = [CLEAR, "\x07", "\r", "\b", "\x7f", "\x85", "\x9b31m", "\u200b", "\u202e", "\u2028", "\U000e0041"]
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202e\u2028\U000e0041]")


def safe_stream(encoding: str = "utf-8") -> SafeStream:
    return SafeStream(io.TextIOWrapper(io.BytesIO(), encoding))


def written(stream: SafeStream) -> str:
    stream.flush()
    content = stream.buffer.getvalue()  # type: ignore[attr-defined]
    return str(content.decode(stream.encoding))


@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_are_spelt_out(text: str) -> None:
    stream = safe_stream()
    print(f"a{text}b", "c", file=stream)
    stream.writelines([text])
    assert not STEERING.search(written(stream))
    assert written(stream).startswith("a\\u")


@given(st.text(st.characters()))
def test_no_control_or_format_character_is_left_of_any_text(text: str) -> None:
    shown = visible(text)
    assert {c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs")} <= {*"\n\t\u200c\u200d"}
    assert visible(shown) == shown


@given(st.text())
def test_json_means_the_same_after_escaping(text: str) -> None:
    assert json.loads(visible(json.dumps([text], ensure_ascii=False))) == [text]


def test_columns_of_a_table_are_aligned_where_characters_are_wide_or_have_no_width() -> None:
    table = text_table(["class", "rows"], [["好评", 5], ["नहीं", 12], ["cafe\u0301", 1000], ["plain", 1]])
    assert table.split("\n") == [
        "class   rows",
        "好评       5",
        "नहीं       12",
        "cafe\u0301   1,000",
        "plain      1",
    ]


@pytest.mark.parametrize("text", ["می\u200cخواهم", "क्\u200dष", "👩\u200d🚀"])
def test_joiners_of_words_and_emoji_are_unchanged(text: str) -> None:
    assert visible(text) == text


def test_plain_text_lines_and_tabs_are_unchanged() -> None:
    stream = safe_stream()
    print("pos\t0.9\tünïcode 这部 😀\u3000█\nnext", file=stream)
    assert written(stream) == "pos\t0.9\tünïcode 这部 😀\u3000█\nnext\n"
    ascii_stream = safe_stream("ascii")
    print("☃", file=ascii_stream)
    print("☃", file=beneath(ascii_stream), flush=True)
    assert written(ascii_stream) == "\\u2603\n\\u2603\n"


def test_a_progress_bar_keeps_its_line_and_output_its_order() -> None:
    stream = safe_stream()
    print("before", file=stream)
    with tqdm(total=2, file=beneath(stream)) as bar:
        bar.update()
    print("after", file=stream)
    assert re.fullmatch("before\n\r.*\n?after\n", written(stream), re.DOTALL)


COMMANDS = """
import sys
from imdb_transformer.cli import main
for arguments in ARGUMENTS:
    sys.argv = ["imdb-tx", *arguments]
    try: main()
    except SystemExit as ended: print("code", ended.code, file=sys.stderr)
"""


def a_hostile_archive(path: Path) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(f"aclImdb/train/pos/{CLEAR}1.txt")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"\xe9"))
    return path


def test_no_command_prints_control_characters_from_files(tmp_path: Path) -> None:
    names = [f"neg{CLEAR}", "pos\u202e\x9b31m"]
    rows = [{"text": f"a film {i}", "label": names[i % 2]} for i in range(60)]
    source = tmp_path / f"r{CLEAR}.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "r.csv").write_text(f"text{CLEAR}\u202e,label\na,b\n")
    archive = a_hostile_archive(tmp_path / "a.tar.gz")
    download = ["download", "--data-dir", str(tmp_path / "data"), "--source"]
    arguments = [
        [*download, str(source)], [*download, str(source), "--json"],
        [*download, str(tmp_path / "r.csv")], [*download, str(archive)],
        ["train", "--set", f"train.{CLEAR}=1"], ["predict", f"--{CLEAR}"],
    ]  # fmt: skip
    script = COMMANDS.replace("ARGUMENTS", repr(arguments))
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, timeout=60)
    stdout, stderr = ended.stdout.decode(), ended.stderr.decode()
    assert not STEERING.search(stdout + stderr)
    *shown, as_json = stdout.splitlines()
    assert "neg\\u001b[2J" in "".join(shown)
    assert json.loads(as_json)["classes"] == names
    assert "text\\u001b[2J\\u202e" in stderr
    assert "\\u001b[2J1.txt is not UTF-8" in stderr
    assert [line for line in stderr.splitlines() if line.startswith("code")] == [
        "code 3", "code 3", "code 2", "code 2",
    ]  # fmt: skip


def test_coloured_text_has_no_escape_codes_but_ours() -> None:
    words = [WordShare(f"good{CLEAR}\x1b[31m", 0, 1.0), WordShare(CLEAR, 9, 0.0)]
    shown = reviews.coloured(Explanation("pos", "neg", 1.0, 0.0, words))
    assert shown == "  \x1b[1m\x1b[32mgood\\u001b[2J\\u001b[31m\x1b[0m \\u001b[2J"


@pytest.mark.parametrize("name", ["two\nlines", "a\ttab", "a\rreturn"])
def test_a_name_of_several_lines_stays_in_its_cell(name: str) -> None:
    plain = name.replace("\n", " ").replace("\t", " ").replace("\r", " ")
    assert text_table([name], [[name]]) == f"{plain}\n{plain}"
    assert reviews.as_text(Prediction(name, 0.5, name, {})) == f"{plain}\t0.5000\t{plain}"
