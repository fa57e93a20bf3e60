import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from imdb_transformer import config_file
from imdb_transformer.cli.options import config_for
from imdb_transformer.config import Config, TrainConfig
from imdb_transformer.errors import ConfigError
from tests.conftest import imdb_tx, write_jsonl
from tests.in_process import prepared, train

CONFIG_MODULE = Config.__module__
ROOT = Path(__file__).parent.parent
SHIPPED = sorted((ROOT / "configs").glob("*.toml"))
KEYS = [f"{section}.{key}" for section, values in Config().model_dump().items() for key in values]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_config_loads_and_opens_with_its_command(path: Path) -> None:
    config_file.load(path.name)
    assert re.search(rf"imdb-tx (train|pretrain) --config {path.name}", path.read_text())


def test_the_defaults_are_those_of_base_toml() -> None:
    assert config_file.load("base.toml") == Config()


@pytest.mark.parametrize("name", ["large-labels.toml", "large-contrast.toml"])
def test_the_encoder_of_large_toml_fits_the_configs_that_start_from_it(name: str) -> None:
    encoder, other = map(config_file.load, ("large.toml", name))
    assert other.model.model_copy(update={"embedding_std": encoder.model.embedding_std}) == encoder.model
    assert other.tokenizer == encoder.tokenizer
    assert other.train.init_from == "runs/large"


def test_unknown_key_is_refused_with_section_and_nearest_key() -> None:
    with pytest.raises(
        ConfigError, match=r"train\.warmup_fractio in section \[train\].*mean train\.warmup_fraction\?"
    ):
        config_file.parse({"train": {"warmup_fractio": 1}}, origin="x")
    with pytest.raises(
        ConfigError,
        match=r"train\.colour in section \[train\]\. Known: init_from, seed, .*device",
    ):
        config_file.parse({"train": {"colour": 1}}, origin="x")
    with pytest.raises(ConfigError, match=r"Did you mean train\.epochs"):
        config_file.parse({}, ["train.epoch=3"], origin="x")
    with pytest.raises(ConfigError, match="Did you mean model"):
        config_file.parse({"modle": {}}, origin="x")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.epochs=many", "train.epochs"),
        ("train.epochs=1.5", "train.epochs"),
        ("train.lr=-1", "train.lr"),
        ("train.lr=nan", "train.lr"),
        ("train.lr=1e39", "train.lr"),
        ("train.muon_lr_scale=1e300", "train.muon_lr_scale"),
        ("train.weight_decay=inf", "train.weight_decay"),
        ("data.held_out_fraction=1", "data.held_out_fraction"),
        ("model.norm=side", "model.norm"),
        ("train=3", "section.key=value"),
        ("epochs", "section.key=value"),
        ("tokenizer.tail_length=1024", "below max_length"),
        ("model.head_width=7", "even"),
    ],
)
def test_wrong_value_is_refused_with_the_key_in_the_message(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        config_file.parse({}, override.split(" "), origin="x")


def test_set_equals_editing_the_file(tmp_path: Path) -> None:
    edited = tmp_path / "edited.toml"
    edited.write_text('[train]\nlr = 3e-4\n[data]\nsource = "../shared/imdb"\n')
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    overrides = ["train.lr=3e-4", "data.source=../shared/imdb"]
    assert config_file.load(str(edited)) == config_file.load(str(empty), overrides)


def test_a_single_override_may_be_a_str() -> None:
    assert config_file.load("base.toml", "train.seed=7") == config_file.load("base.toml", ["train.seed=7"])


def test_a_byte_order_mark_before_a_config_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[train]\nseed = 7\n", encoding="utf-8-sig")
    assert config_file.load(str(tmp_path / "c.toml")).train.seed == 7


def test_a_key_of_tables_is_refused_without_a_table() -> None:
    """Whoever forgets the file would otherwise train on the demo, or for an hour on IMDB."""
    for name in ("demo.toml", "base.toml"):
        with pytest.raises(ConfigError, match=r"data\.text_column is for tables, and the source is"):
            config_file.load(name, ['data.text_column="body"'])
    assert config_file.load("base.toml", ['data.text_column="body"', 'data.source="r.csv"']).data.source


def test_yaml_reads_as_toml_does(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("train:\n  epochs: 3\n")
    assert config_file.load(str(path)).train.epochs == 3


@pytest.mark.parametrize("content", [b"[train", b"\xff\xfe", b"- 1\n", b"x" * 2_000_000])
@pytest.mark.parametrize("suffix", [".toml", ".yaml"])
def test_a_file_that_is_no_config_is_refused_by_name(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="bad"):
        config_file.load(str(path))


def test_missing_config_names_the_shipped_ones() -> None:
    with pytest.raises(ConfigError, match=r"base\.toml"):
        config_file.load("nowhere.toml")


@given(
    st.builds(
        TrainConfig,
        seed=st.integers(0, 2**31 - 1),
        lr=st.floats(1e-9, 1, allow_nan=False),
        clip_norm=st.floats(0, 1e6),
        schedule=st.sampled_from(["linear", "cosine", "inverse_sqrt", "constant"]),
    ),
    st.text(st.characters(codec="utf-8"), min_size=1),
)
def test_dump_then_parse_is_identity(train: TrainConfig, source: str) -> None:
    config = Config(train=train, data=Config().data.model_copy(update={"source": source}))
    tree = config_file.tomllib.loads(config_file.dump(config))
    assert config_file.parse(tree, origin="x") == config


def test_every_key_is_read_by_some_training(
    tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By code of the package; that the config checks or stores a key does not count."""
    read = set()
    sections = {type(values): name for name, values in Config()}

    def reading(self: BaseModel, name: str) -> Any:
        if name in type(self).model_fields and sys._getframe(1).f_globals["__name__"] != CONFIG_MODULE:
            read.add(f"{sections[type(self)]}.{name}")
        return object.__getattribute__(self, name)

    for section in sections:
        monkeypatch.setattr(section, "__getattribute__", reading)
    short = ("train.epochs=1", "train.evals_per_epoch=1", "train.batch_tokens=100000")
    choices = ("train.optimizer=muon", "train.ema_decay=0.5", "model.embedding_norm=true")
    train(tiny(*short, *choices), tmp_path / "a")
    train(tiny(*short), tmp_path / "b", kind="encoder")
    texts = [f"{word} film number {i}" for i in range(20) for word in ("good", "bad")]
    write_jsonl(tmp_path / "one.jsonl", texts, ["pos", "neg"] * 20)  # has no test split
    prepared(tiny(f"data.source={tmp_path / 'one.jsonl'}"))
    assert sorted(set(KEYS) - read) == []


@pytest.mark.parametrize("key", KEYS)
def test_every_key_stands_in_the_readme_with_its_default_and_meaning(key: str) -> None:
    section, name = key.split(".")
    values = getattr(Config(), section)
    default = json.dumps(getattr(values, name))
    meaning = type(values).model_fields[name].description
    assert f"| `{key}` | `{default}` | {meaning} |" in (ROOT / "configs" / "README.md").read_text()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["train.lr=-1"], "--set train.lr=-1: train.lr: "),
        (["train.seed=1", "train.lrr=1"], "--set train.lrr=1: unknown key train.lrr"),
        (["trian.lr=1"], "--set trian.lr=1: unknown key trian"),
        (
            ["train.lr=1e-3", "tokenizer.max_length=8"],
            "--set tokenizer.max_length=8: tokenizer: tail_length (256)",
        ),
        (
            ["pretrain.mask_fractions=[0.3]"],
            "--set pretrain.mask_fractions=[0.3]: pretrain.mask_fractions.1: ",
        ),
        (["train.seed=1", "train.lr=nan"], "--set train.lr=nan: train.lr: "),
    ],
)
def test_an_override_is_blamed_and_not_the_file(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config_file.load("base.toml", overrides)
    assert str(raised.value).startswith(said)
    assert "base.toml" not in str(raised.value)


def test_a_file_is_blamed_for_its_own_faults(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[train]\nlr = -1\n[tokenizer]\ntail_length = 2000\n")
    with pytest.raises(ConfigError) as raised:
        config_file.load(str(path), ["tokenizer.vocab_size=500", "train.seed=-1"])
    told = str(raised.value).splitlines()
    assert [line.split(": ")[0] for line in told] == [str(path), "--set train.seed=-1", str(path)]


def test_the_example_of_a_data_frame_takes_a_config_that_needs_no_stars() -> None:
    readme = Path(__file__).parent.parent / "imdb_transformer" / "cli" / "README.md"
    (name,) = re.findall(r'train\(load_config\("([\w.]+)", overrides\)', readme.read_text(encoding="utf-8"))
    assert config_file.load(name).train.star_weight == 0


@pytest.mark.parametrize(
    "text", ["train:\n  lr: 1.0\n  lr: 2.0\n", "train:\n  lr: 1.0\ntrain:\n  epochs: 2\n"]
)
def test_a_key_that_comes_twice_in_yaml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"line 3 has '(lr|train)' a second time"):
        config_file.load(str(path))


@pytest.mark.parametrize(
    ("text", "value"), [("010", None), ("1_000", 1000), ("1:30", None), ("0x10", None), ("09", None)]
)
def test_numbers_in_yaml_are_decimal(tmp_path: Path, text: str, value: int | None) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"train: {{seed: {text}, lr: 3e-4, star_weight: .5}}")
    if value is None:
        with pytest.raises(ConfigError, match=r"train\.seed"):
            config_file.load(path)
    else:
        train = config_file.load(path).train
        assert (train.seed, train.lr, train.star_weight) == (value, 3e-4, 0.5)


def test_a_value_that_yaml_cannot_read_is_refused_by_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for value in ("!!timestamp soon", "!!bool maybe", '!!int ""'):
        path.write_text(f"train: {{seed: {value}}}")
        with pytest.raises(ConfigError, match=r"c\.yaml"):
            config_file.load(str(path))


@pytest.mark.parametrize(
    ("source", "overrides", "name"),
    [
        (None, None, "demo.toml"),
        ("r.csv", None, "base.toml"),
        (None, ["data.source=r.csv"], "base.toml"),
        (None, ["data.source = r.csv"], "base.toml"),
        (None, ['data.source="demo"'], "demo.toml"),
        ("r.csv", ["train.epochs=2"], "base.toml"),
    ],
)
def test_the_default_config_is_base_toml_for_reviews_of_ones_own(
    source: str | None, overrides: list[str] | None, name: str
) -> None:
    assert config_for(None, source, overrides) == name
    assert config_for("mine.toml", source, overrides) == "mine.toml"


@pytest.mark.parametrize(
    ("arguments", "override"),
    [
        (["a.csv"], "data.source=b.csv"),
        (["a.csv", "--text-column", "body"], "data.text_column = title"),
        (["--init-from", "imdb"], "train.init_from=runs/mine"),
    ],
)
def test_an_option_and_set_that_name_the_same_key_are_refused(arguments: list[str], override: str) -> None:
    refused = imdb_tx("train", *arguments, "--set", override).exception
    assert isinstance(refused, ConfigError)
    assert str(refused) == f"--set {override} and another argument are for the same key; leave one out."


def test_text_and_label_in_one_column_are_refused() -> None:
    with pytest.raises(ConfigError, match="text_column and label_column are both 'label'"):
        config_file.load("demo.toml", ["data.text_column=label"])
