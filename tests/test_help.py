"""What the command line says before it works: help, versions, completion, and what to say instead."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from imdb_transformer import __version__
from imdb_transformer.cli import app
from imdb_transformer.cli.options import run_path
from tests.conftest import imdb_tx

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_two_examples_and_headings_and_fits_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = imdb_tx(command, "--help").stdout.splitlines()
    examples = lines[lines.index("Examples:") + 1 :]
    assert [line.startswith(f"  imdb-tx {command}") for line in examples] == [True, True]
    assert "Other:" in lines
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_that_takes_a_value_says_which_and_not_its_python_type(command: str) -> None:
    shown = imdb_tx(command, "--help").stdout
    assert not re.search("<[a-z]", shown, re.IGNORECASE)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_example_is_a_command_that_parses(command: str) -> None:
    for example in COMMANDS[command].epilog.splitlines():
        COMMANDS[command].make_context(command, shlex.split(example)[2:])


def test_summaries_of_commands_are_whole_sentences() -> None:
    shown = imdb_tx("--help").stdout
    assert "..." not in shown.partition("Reviews:")[2]
    for heading in ("Reviews:", "Training:", "Trained runs:"):
        assert f"\n{heading}\n" in shown


def test_version_names_the_package_and_torch() -> None:
    shown = imdb_tx("--version").stdout
    assert re.fullmatch(rf"imdb-tx {re.escape(__version__)}, torch \S+, Python \S+\n", shown)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lr", "0.1"], "Use --set train.lr=0.1"),
        (["--width=64"], "Use --set model.width=64"),
        (["--batch_token", "64"], "Use --set train.batch_tokens=64"),
        (["--epochs", "--dry-run"], "Use --set train.epochs=VALUE"),
        (["--layers", "3"], "Use --set model.num_layers=3"),
        (["--text_column", "my text"], "Use --set 'data.text_column=my text'"),
        (["--resum", "x"], "--resume"),
    ],
)
def test_an_option_that_is_a_key_is_answered_with_set(arguments: list[str], said: str) -> None:
    ended = imdb_tx("train", *arguments)
    assert ended.exit_code == 2
    assert said in ended.stderr
    for unknown in ("--colour", "--force"):
        assert "--set" not in imdb_tx("train", unknown).stderr


def test_a_wrong_choice_is_answered_with_the_right_ones() -> None:
    ended = imdb_tx("train", "--bad-rows", "drop")
    assert ended.exit_code == 2
    assert ended.stderr.endswith("Invalid value for '--bad-rows': 'drop' is not one of 'fail', 'skip'.\n")


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("imdb-tx pre", ["predict", "pretrain"]),
        ("imdb-tx train --config ba", ["base.toml"]),
        ("imdb-tx train --set train.l", ["train.label_smoothing=", "train.lr="]),
        ("imdb-tx train --set train.lr", ["train.lr=", "train.lr=VALUE"]),
        ("imdb-tx gen", ["generate"]),
        ("imdb-tx eval runs/", ["runs/linear", "runs/one", "runs/two"]),
        ("imdb-tx eval imdb", ["imdb"]),
        ("imdb-tx train --init-from imdb", ["imdb", "imdb-encoder"]),
        ("imdb-tx train --resume imdb", []),
        ("imdb-tx pretrain --resume runs/", ["runs/encoder", "runs/one", "runs/two"]),
        ("imdb-tx generate im", []),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_configs_keys_and_runs(
    tmp_path: Path, shell: str, words: str, completions: list[str]
) -> None:
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").touch()
    for kind in ("encoder", "linear"):
        (tmp_path / "runs" / kind).mkdir()
        (tmp_path / "runs" / kind / "run.json").write_text(json.dumps({"kind": kind}))
    asked = {
        "_IMDB_TX_COMPLETE": f"complete_{shell}", "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }  # fmt: skip
    script = "import sys; sys.argv[0] = 'imdb-tx'; from imdb_transformer.cli import main; main()"
    shown = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | asked,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    offered = re.findall(r"^(?:_arguments '\*: :\(\()?\"?([\w./=-]+)", shown, re.MULTILINE)
    assert sorted({*offered} - {"_files"}) == completions  # without any, zsh offers files


def test_fish_gets_each_description_on_one_line() -> None:
    asked = {
        "_IMDB_TX_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": "imdb-tx ", "COLUMNS": "40",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }  # fmt: skip
    script = "import sys; sys.argv[0] = 'imdb-tx'; from imdb_transformer.cli import main; main()"
    command = [sys.executable, "-c", script]
    shown = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=True).stdout
    assert "runs\tList runs" in shown
    assert all("\t" in line for line in shown.splitlines())


def test_typer_prints_no_colours_which_would_be_spelt_out() -> None:
    assert app.info.context_settings["color"] is False


def test_a_run_is_found_by_its_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()  # a folder, and no run
    (tmp_path / "runs" / "base").mkdir(parents=True)
    (tmp_path / "runs" / "base" / "run.json").touch()
    assert run_path("base") == run_path("runs/base") == Path("runs/base")
    (tmp_path / "base" / "run.json").touch()
    assert run_path("base") == Path("base")
    assert run_path("none") == Path("none")
