"""Whole commands: in this process where the result is enough, as a process where the exit code matters."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from imdb_transformer import hardware
from imdb_transformer.cli import app
from imdb_transformer.errors import ConfigError, DataError
from imdb_transformer.store import run
from imdb_transformer.training import estimate, start
from tests.conftest import imdb_tx, write_jsonl
from tests.tiny import TINY_MODEL

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


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
    assert answer("download", *data)["was_stored"]
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


def test_tokenize_uses_the_tokenizer_that_training_would_use(
    config_path: Path, tmp_path: Path, encoder: Path
) -> None:
    options = ("--config", config_path, "--set", f"train.init_from={encoder}", "--json")
    told = json.loads(imdb_tx("tokenize", *options).stdout)
    assert told["tokenizer_hash"] == run.open_run(encoder).info.tokenizer_hash
    write_jsonl(tmp_path / "r.jsonl", [f"zzyzx qwerty {i}" for i in range(100)], ["a", "b"] * 50)
    source = ("--set", f"data.source={tmp_path / 'r.jsonl'}")
    assert (
        json.loads(imdb_tx("tokenize", *options, *source).stdout)["tokenizer_hash"] == told["tokenizer_hash"]
    )


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
    sets = ("--set", "data.held_out_fraction=0", "--set", "train.epochs=1")
    without = imdb_tx("train", "--config", config_path, "--dry-run", *sets)
    assert "reviews           train 200, test 100" in without.stdout
    assert re.search(r"^batches +of at most [\d,]+ tokens; 1 epoch$", without.stdout, re.MULTILINE)
    text = imdb_tx("train", "--config", config_path, "--dry-run", "--set", "train.epochs=0").stdout
    assert "nothing was trained" in text
    assert "reviews           train 180, validation 20, test 100" in text
    assert re.search(r"^batches +of at most [\d,]+ tokens; 20 epochs$", text, re.MULTILINE)
    assert "epochs = 20" in text  # the number that follows from the reviews
    assert not list(tmp_path.rglob("run.json"))
    assert not (tmp_path / "data").exists()  # nor was anything imported


def test_an_empty_name_of_an_encoder_means_random_weights(config_path: Path, encoder: Path) -> None:
    command = ("train", "--config", config_path, "--dry-run", "--json")
    for name, init_from in ((encoder, str(encoder)), ("", "")):
        shown = json.loads(imdb_tx(*command, "--init-from", name).stdout)
        assert shown["config"]["train"]["init_from"] == init_from


@pytest.mark.parametrize(("batch_tokens", "steps_an_update"), [(2049, 1), (2048, 8)])
def test_the_time_of_a_dry_run_includes_the_updates_of_all_steps(
    config_path: Path, monkeypatch: pytest.MonkeyPatch, batch_tokens: int, steps_an_update: int
) -> None:
    # To learn a batch, to predict one, and to update the weights with and without those that Muon updates.
    seconds = iter([0.0, 0.0, 5.0, 2.0])
    monkeypatch.setattr(estimate, "_seconds", lambda *_: next(seconds))
    options = (f"train.batch_tokens={batch_tokens}", "train.epochs=1", "train.evals_per_epoch=1")
    command = ("train", "--config", config_path, *(word for option in options for word in ("--set", option)))
    cost = json.loads(imdb_tx(*command, "--dry-run", "--json").stdout)["estimate"]
    assert cost["seconds"] == 2 * cost["num_steps"] + 3 * math.ceil(cost["num_steps"] / steps_an_update)


def test_a_dry_run_tries_a_part_of_a_large_batch(config_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(estimate, "_learn", lambda _, batch, learn=estimate._learn: (
        tried.append(batch.ids.numel()), learn(_, batch),
    ))  # fmt: skip
    command = ("train", "--config", config_path, "--set", "train.batch_tokens=4096", "--dry-run", "--json")
    whole = json.loads(imdb_tx(*command).stdout)["estimate"]
    assert max(tried) > 2048
    tried.clear()
    monkeypatch.setattr(estimate, "MAX_TRIED_TOKENS", 512)
    part = json.loads(imdb_tx(*command).stdout)["estimate"]
    assert max(tried) <= 512
    assert part["num_steps"] == whole["num_steps"]
    assert part["flops"] == pytest.approx(whole["flops"], rel=0.1)
    assert part["memory_bytes"] == pytest.approx(whole["memory_bytes"], rel=0.1)


def test_a_dry_run_does_not_fetch_reviews(tmp_path: Path) -> None:
    hub = ("--set", "data.source=hub", "--set", f"data.data_dir={tmp_path}")
    refused = imdb_tx("train", "--config", "scratch.toml", "--dry-run", *hub)
    assert isinstance(refused.exception, ConfigError)
    assert "Fetch them first" in str(refused.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "name", "overrides"),
    [
        ("train", "paper.toml", "model.num_layers=2"), ("train", "article.toml", ""),
        ("train", "base.toml", ""), ("train", "scratch.toml", ""),
        ("train", "large-labels.toml", "train.init_from= model.num_layers=2"),
        ("pretrain", "pretrain.toml", ""), ("pretrain", "large.toml", "model.num_layers=2"),
        ("pretrain", "adapt.toml", ""), ("pretrain", "distil.toml", ""),
        ("pretrain", "large-contrast.toml", "train.init_from= model.num_layers=2"),
    ],
)  # fmt: skip
def test_shipped_models_have_a_dry_run_and_take_a_few_steps(
    command: str, name: str, overrides: str, source: Path, tmp_path: Path
) -> None:
    sets = [
        f"data.source={source}", f"data.data_dir={tmp_path}", "train.epochs=1", "train.evals_per_epoch=1",
        "tokenizer.max_length=16", "tokenizer.tail_length=0", "train.batch_tokens=2048", *overrides.split(),
    ]  # fmt: skip
    small = [word for item in sets for word in ("--set", item)]
    cost = json.loads(imdb_tx(command, "--config", name, *small, "--dry-run", "--json").stdout)
    assert cost["estimate"]["parameters"]["total"] > 100_000 or name == "article.toml"
    folder = tmp_path / "run"
    result = imdb_tx(command, "--config", name, *small, "--run-dir", folder)
    assert result.exit_code == 0, result.output


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
    monkeypatch.setattr(start, "STEPS_BETWEEN_RELEASES", 3)
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


def test_a_source_of_the_package_that_is_also_a_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo").mkdir()
    write_jsonl(Path("demo/train.jsonl"), [f"text {i}" for i in range(100)], ["a", "b"] * 50)
    for command in (["download", "demo"], ["eval", "imdb", "--source", "demo"]):
        refused = imdb_tx(*command).exception
        assert isinstance(refused, ConfigError)
        assert "For yours, write ./demo" in str(refused)
    assert json.loads(imdb_tx("download", "./demo", "--json").stdout)["classes"] == ["a", "b"]


def test_a_leading_tilde_means_the_home_folder_in_a_config_and_after_an_equals_sign(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "mine.jsonl", [f"text {i}" for i in range(100)], ["a", "b"] * 50)
    (tmp_path / "own.toml").write_text('[data]\nsource = "~/mine.jsonl"\ndata_dir = "~/data"\n')
    script = "from imdb_transformer.cli import main; main()"
    command = [sys.executable, "-c", script, "tokenize", "--config=~/own.toml"]
    (tmp_path / "elsewhere").mkdir()
    environment = os.environ | {"HOME": str(tmp_path)}
    subprocess.run(command, cwd=tmp_path / "elsewhere", env=environment, capture_output=True, check=True)
    assert [path.name.rpartition("-")[0] for path in (tmp_path / "data").glob("mine-*")] == ["mine"]
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY_MODEL)
    table = tmp_path / '😀 "so".csv'
    table.write_text("text,label\n" + "".join(f"review {i},{'ab'[i % 2]}\n" for i in range(100)))
    sets = ("--set", f"data.data_dir={tmp_path / 'data'}")
    command = ("train", table, "--config", tmp_path / "tiny.toml", *sets, "--run-dir")
    assert imdb_tx(*command, tmp_path / "😀").exit_code == 0
    assert imdb_tx(*command, tmp_path / "next", "--init-from", tmp_path / "😀").exit_code == 0


def test_download_reads_no_config_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "r.jsonl", [f"t{i}" for i in range(40)], ["a", "b"] * 20)
    (tmp_path / "base.toml").write_text("[data]\nheld_out_fraction = 0.5\n")
    monkeypatch.chdir(tmp_path)
    ended = imdb_tx("download", "r.jsonl", "--json")
    splits = json.loads(ended.stdout)["splits"]
    assert {name: split["num_rows"] for name, split in splits.items()} == {
        "train": 32, "validation": 4, "test": 4,
    }  # fmt: skip
