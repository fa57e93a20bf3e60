"""Brackets in brackets, and aliases of aliases: one sentence, whichever file holds them; little memory."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from imdb_transformer import config_file
from imdb_transformer.config import DataConfig, TokenizerConfig
from imdb_transformer.data import corpus, encoded, sources
from imdb_transformer.data.tokenizer import FILE_NAME, Tokenizer
from imdb_transformer.errors import USER_ERRORS, ConfigError, DataError, RunError
from imdb_transformer.inference import predicted_tables
from imdb_transformer.store import checkpoint, metrics, run

DEEP = b'{"a": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"


def _begun(folder: Path) -> None:
    (folder / "call.json").rename(folder / ".out.csv.parts" / "call.json")
    with predicted_tables.claimed(folder / "out.csv", {}, resume=True):
        pass


@pytest.mark.parametrize(("name", "read", "kind", "said"), [
    ("run.json", run.open_run, RunError, r"run\.json is damaged"),
    ("checkpoint.json", lambda path: checkpoint.read_meta(path, tokenizer_hash=""), RunError, "damaged"),
    ("manifest.json", corpus.open_stored, DataError, r"manifest\.json is damaged"),
    ("split.json", encoded.load_split, DataError, "damaged"),
    (FILE_NAME, lambda path: Tokenizer.load(path, TokenizerConfig()), RunError, "json is damaged"),
    ("call.json", _begun, DataError, "damaged; leave out --resume"),
    ("t.jsonl", lambda path: sources.read(DataConfig(source=str(path / "t.jsonl"))), DataError,
     r"t\.jsonl: line 1 nests lists or objects more than 100 deep"),
    ("c.toml", lambda path: config_file.load(str(path / "c.toml")), ConfigError, r"c\.toml does not parse"),
    ("c.yaml", lambda path: config_file.load(str(path / "c.yaml")), ConfigError, r"c\.yaml does not parse"),
], ids=lambda value: value if isinstance(value, str) and "." in value else "")  # fmt: skip
def test_deeply_nested_brackets_are_refused_with_a_sentence(
    tmp_path: Path, name: str, read: Callable[[Path], object], kind: type[Exception], said: str
) -> None:
    (tmp_path / ".out.csv.parts").mkdir()
    (tmp_path / name).write_bytes(b"a = " + DEEP[6:] if name == "c.toml" else DEEP)
    with pytest.raises(kind, match=said):
        read(tmp_path)
    assert kind in USER_ERRORS


def test_metrics_with_nested_brackets_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / metrics.FILE_NAME).write_bytes(b'{"step": 1}\n' + DEEP + b"\n")
    assert metrics.read(tmp_path) == [{"step": 1}]


def test_nested_brackets_in_parquet_metadata_name_no_classes(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b"] * 10, "label": [0, 1] * 10})
    parquet.write_table(table.replace_schema_metadata({"huggingface": DEEP}), tmp_path / "t.parquet")
    assert sources.read(DataConfig(source=str(tmp_path / "t.parquet"))).classes == ("0", "1")


@pytest.mark.parametrize("content", [
    '{"text": "a ' + "[{" * 500 + '", "label": "a"}\n{"text": "b \\" [", "label": "b"}\n',
    '{"text": "a", "label": "a", "x": [[1]]}\n' * 300 + '{"text": "b", "label": "b"}\n',
], ids=["in a text", "in many rows"])  # fmt: skip
def test_brackets_that_do_not_nest_are_accepted(tmp_path: Path, content: str) -> None:
    (tmp_path / "t.jsonl").write_text(content)
    assert sources.read(DataConfig(source=str(tmp_path / "t.jsonl"))).classes == ("a", "b")


@pytest.mark.parametrize("ending", ["", "\\", "\n"])
def test_a_cut_string_of_escaped_quotes_is_searched_once(tmp_path: Path, ending: str) -> None:
    line = '{"text": "' + '\\"a' * 300_000 + ending  # a search from each quote would take hours
    (tmp_path / "r.jsonl").write_text(line)
    with pytest.raises(DataError, match=r"line 1 is not JSON"):
        sources.read(DataConfig(source=str(tmp_path / "r.jsonl")))


def test_brackets_that_nest_over_many_lines_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('[{"text": \n' + '["]"\n,' * 200)
    with pytest.raises(
        DataError, match=r"t\.json cannot be read as JSON: nests lists or objects more than 100"
    ):
        sources.read(DataConfig(source=str(tmp_path / "t.json")))


def test_aliases_of_aliases_are_refused_before_they_grow(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    path.write_text("\n".join([*rows, "train: {lr: *a8}"]))
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=r"bomb\.yaml does not parse: line 2 has an alias"):
            config_file.load(str(path))
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("value", "shown"), [
    ("[" * 10_000 + "]" * 10_000, "(got '[[["),
    ("[" * 90 + "]" * 90, "(got [[["),
    ("[" + "1," * 5_000 + "]", "(got [1, 1, 1, 1, 1, 1, ...])"),
    ("0x" + "f" * 10_000, "(got a number of thousands of digits)"),
], ids=["deeper than can be parsed", "deep", "long", "a number"])  # fmt: skip
def test_a_large_value_is_shortened_in_the_message(value: str, shown: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_file.parse({}, [f"train.epochs={value}"], origin="x")
    assert shown in str(refused.value)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("content", ['train: !!int ""', "train: !!bool maybe"])
def test_a_value_that_yaml_cannot_make_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(ConfigError, match=r"c\.yaml does not parse"):
        config_file.load(str(tmp_path / "c.yaml"))
