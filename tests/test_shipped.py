"""The runs that come with the package."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from imdb_transformer import evaluate, load_config
from imdb_transformer.cli.predict import default_run
from imdb_transformer.cli.screen import exit_on_error
from imdb_transformer.data import corpus, imdb
from imdb_transformer.data.encoded import rows_of
from imdb_transformer.data.imdb import words_key
from imdb_transformer.errors import DataWarning, RunError
from imdb_transformer.evaluation.evaluate import CLEAN
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.store import run
from imdb_transformer.store.upkeep import unused, verify
from imdb_transformer.training import starting_weights
from imdb_transformer.training.adapt import is_due
from imdb_transformer.training.prepare import prepare
from imdb_transformer.training.start import check_unchanged, create_run
from imdb_transformer.training.starting_weights import choose_start, probe_accuracy
from tests.conftest import imdb_tx
from tests.in_process import CPU

has_classifier = pytest.mark.skipif(
    not (run.SHIPPED / "imdb").exists(), reason="the package comes with the encoder alone"
)
TEXTS = [
    "A wonderful, moving film with a superb cast. I loved every minute of it.",
    "An awful, boring mess. I want my two hours back.",
    "It was fine.",
]


def test_shipped_runs_take_at_most_16_mib_and_their_files_are_whole() -> None:
    files = [path for path in run.SHIPPED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 16 << 20
    names = [path.parent.name for path in run.SHIPPED.glob("*/run.json")]
    assert "imdb-encoder" in names
    for name in names:
        assert not any(verify(run.SHIPPED / name).values())


def test_shipped_runs_contain_nothing_about_the_machine_that_made_them() -> None:
    for path in run.SHIPPED.rglob("*"):
        if path.suffix in (".toml", ".json", ".md") and path.name != "tokenizer.json":
            text = path.read_text()
            assert "/work" not in text
            assert "/home" not in text
            assert "/tmp" not in text


@has_classifier
def test_a_text_is_predicted_without_torch() -> None:
    """As it is in a fresh process, where nothing else has imported it."""
    script = (
        "import atexit, sys\n"
        "from imdb_transformer.cli import main\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
        f"sys.argv = ['imdb-tx', 'predict', '--run', 'imdb', '--json', {TEXTS[0]!r}, {TEXTS[1]!r}]\n"
        "main()"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert [json.loads(line)["label"] for line in ended.stdout.splitlines()] == ["pos", "neg"]
    assert ended.stderr.splitlines()[-1] == "False"


@has_classifier
def test_one_text_many_texts_and_lines_get_the_same_probabilities() -> None:
    many = [*TEXTS * 12, " ".join(TEXTS) * 40]
    few = Predictor.load("imdb", few=True).probabilities(many)
    exact = Predictor.load("imdb", exact=True).probabilities(many)
    np.testing.assert_allclose(few, exact, atol=1e-5)
    alone = np.concatenate([Predictor.load("imdb", few=True).probabilities([text]) for text in TEXTS])
    np.testing.assert_array_equal(alone, few[:3])


@has_classifier
def test_predict_without_a_run_names_the_run_that_it_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = imdb_tx("predict", TEXTS[0])
    assert shown.exit_code == 0
    assert "run: imdb" in shown.stderr
    assert shown.stdout.startswith("pos")


@has_classifier
def test_a_folder_with_the_name_of_a_shipped_run_comes_first(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run.locate(Path("imdb"))[0].folder == run.SHIPPED / "imdb"
    shutil.copytree(trained, tmp_path / "imdb")
    assert run.locate(Path("imdb"))[0].folder == Path("imdb")


@has_classifier
def test_a_damaged_or_missing_shipped_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run.SHIPPED, tmp_path / "shipped")
    monkeypatch.setattr(run, "SHIPPED", tmp_path / "shipped")
    weights = tmp_path / "shipped" / "imdb" / "checkpoints" / "best" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(RunError, match=r"model\.safetensors is damaged: its checksum"):
        Predictor.load("imdb", few=True)
    weights.unlink()
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the tests keep their own
    with pytest.raises(SystemExit, match="4"), exit_on_error():
        Predictor.load("imdb", few=True)
    told = capsys.readouterr().err
    assert "model.safetensors cannot be read: No such file or directory. It is a file of the package" in told
    (tmp_path / "shipped" / "imdb" / run.INFO).unlink()
    with pytest.raises(SystemExit, match="4"), exit_on_error():
        Predictor.load("imdb", few=True)
    assert "it has no run.json. It is a file of the package: install imdb-tx again" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="4"), exit_on_error():
        raise RunError(f"{run.SHIPPED}/imdb does not fit: its model.width is 256, here it is 128.")
    assert "of the package" not in capsys.readouterr().err
    with pytest.raises(RunError, match=r"imdb is not a run: it has no run\.json"):
        Predictor.load("imdb", few=True)
    shutil.rmtree(tmp_path / "shipped" / "imdb")
    with pytest.raises(RunError, match="There is no run imdb"):
        Predictor.load("imdb", few=True)


@has_classifier
def test_shipped_runs_are_verified_and_listed_and_never_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "checkpoints/best: ok" in imdb_tx("verify", "imdb").stdout
    assert "in the package: imdb, imdb-encoder" in imdb_tx("runs").stdout
    for command in ("train", "pretrain"):
        refused = imdb_tx(command, "--resume", "imdb-encoder").exception
        assert "imdb-encoder comes with the package and is finished" in str(refused)
    with pytest.raises(RunError, match=r"imdb-encoder is an encoder .*--init-from imdb-encoder$"):
        Predictor.load("imdb-encoder")


def test_the_base_config_starts_from_the_shipped_encoder() -> None:
    config = load_config("base.toml")
    assert config.train.init_from == "auto"
    encoder = run.locate(Path("imdb-encoder"))[0]
    assert encoder.info.kind == "encoder"
    assert encoder.config.tokenizer == config.tokenizer
    for name in ("scratch.toml", "pretrain.toml", "demo.toml", "large.toml"):
        assert load_config(name).train.init_from == ""


def test_each_part_of_pretraining_continues_the_one_before_and_base_can_start_from_the_last() -> None:
    names = ("pretrain", "deepen", "contrast", "base")
    first, *others = configs = [load_config(f"{name}.toml") for name in names]
    assert [each.train.init_from for each in configs] == ["", "runs/pretrain", "runs/deepen", "auto"]
    assert [each.model.num_layers for each in configs] == [2, 4, 4, 4]
    ignored = run.FREE_MODEL_KEYS | {"num_layers"}
    for each in others:
        assert each.model.model_dump(exclude=ignored) == first.model.model_dump(exclude=ignored)
        assert each.tokenizer == first.tokenizer


def test_a_checkpoint_of_a_shipped_run_can_be_named() -> None:
    path = Path("imdb/checkpoints/best")
    assert run.locate(path)[1] == run.SHIPPED / path
    assert imdb_tx("predict", "--run", path, "a good film").stdout.startswith("pos")


def test_an_evaluation_of_a_shipped_run_is_written_beside_your_runs() -> None:
    assert run.locate(Path("imdb-encoder"))[0].reports == Path("runs/imdb-encoder")


def test_a_folder_called_imdb_is_not_taken_for_the_run_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run.of_package("imdb") == default_run() == Path("imdb")
    Path("imdb").mkdir()
    Path("imdb/run.json").write_text("{}")
    assert run.of_package("imdb") == default_run() == run.SHIPPED / "imdb"
    assert run.of_package("imdb-encoder") == Path("imdb-encoder")


def test_a_new_run_is_not_called_like_one_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert unused(Path("runs/imdb")) == Path("runs/imdb-2")
    Path("runs/imdb-2").mkdir(parents=True)
    assert unused(Path("runs/imdb")) == Path("runs/imdb-3")


def test_a_run_that_cannot_be_read_is_named_before_another_one_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("damaged", ".hidden"):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, run.INFO).write_text("{}")
    told = imdb_tx("predict", "a dull film")
    assert told.stdout.startswith("neg\t")
    assert [line.partition(":")[0] for line in told.stderr.splitlines()] == ["left out", "run"]
    assert "runs/damaged/run.json is damaged" in told.stderr
    assert "runs that cannot be read: runs/damaged. `" in imdb_tx("runs").stderr


def test_training_starts_from_the_encoder_that_suits_the_reviews_and_never_learnt_their_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    praise, blame = ("superb", "moving", "lovely"), ("awful", "boring", "dull")
    subjects = ("cast", "plot", "camera", "end", "score", "lead", "pace", "set")
    texts = [f"the {subject} is {word}" for subject in subjects for word in (*praise, *blame)]
    rows = [f"{text},{int(any(word in text for word in praise))}" for text in texts]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]))
    values = [f"data.source={tmp_path / 'mine.csv'}", f"data.data_dir={tmp_path / 'data'}"]
    config = load_config("base.toml", values)
    chosen = {}
    for name, accuracies in (("imdb", (0.7, 0.8)), ("imdb-encoder", (0.795, 0.8))):
        accuracy = "imdb_transformer.training.starting_weights.probe_accuracy"
        monkeypatch.setattr(accuracy, lambda which, *_, a=accuracies: a[which == Path("imdb")])
        chosen[name] = choose_start(config, "classifier", CPU).train.init_from
        assert choose_start(config, "encoder", CPU).train.init_from == "imdb-encoder"
    assert chosen == {"imdb": "imdb", "imdb-encoder": "imdb-encoder"}
    monkeypatch.undo()
    rows_read = rows_of(config.data, corpus.ensure(config.data), "train")
    assert probe_accuracy(Path("imdb"), config, rows_read, CPU) > 0.8
    one_class = rows_read._replace(labels=[0] * len(rows_read.labels))
    assert probe_accuracy(Path("imdb"), config, one_class, CPU) == 0

    labelled = load_config("base.toml", [*values, 'train.init_from="imdb"'])
    assert prepare(labelled, "classifier", CPU).config.train.init_from == "imdb"
    key = words_key(rows_read.texts[0].upper())
    monkeypatch.setattr(imdb, "imdb_table", lambda _: np.array([key << 4], np.uint64))
    imdbs = choose_start(config, "classifier", CPU)
    assert (imdbs.train.init_from, imdbs.model.dropout) == ("imdb-encoder", 0.0)
    assert not is_due(config, imdbs)
    assert prepare(config, "classifier", CPU, ready=False).config.train.epochs == 2
    monkeypatch.setattr(imdb, "imdb_table", lambda _: np.array([key], np.uint64))
    others = load_config("base.toml", [*values, 'train.init_from="imdb-encoder"'])
    assert prepare(others, "classifier", CPU, ready=False).config.train.epochs == 8
    monkeypatch.setattr(imdb, "imdb_table", lambda _: np.array([key << 4], np.uint64))
    with pytest.raises(RunError, match="may have seen what is held out here"):
        prepare(labelled, "classifier", CPU)


def test_eval_counts_reviews_that_imdb_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = ["a superb film", "a dull film", "an awful plot", "a great cast"]
    rows = zip(texts, ("pos", "neg", "neg", "pos"), strict=True)
    Path("mine.csv").write_text("\n".join(["text,label", *map(",".join, rows)]))
    keys = sorted(words_key(text) << 4 for text in texts[:3])
    monkeypatch.setattr(imdb, "imdb_table", lambda _: np.array(keys, np.uint64))
    with pytest.warns(DataWarning, match="3 of these 4 reviews were in training"):
        assert evaluate("imdb", source="mine.csv").slices[CLEAN].num_examples == 1


def test_training_on_a_table_without_a_config_starts_from_a_shipped_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty reviews and two words are enough to see that it starts where reading film reviews ended."""
    monkeypatch.chdir(tmp_path)
    praise = ("good", "superb", "moving", "great", "lovely")
    blame = ("bad", "awful", "boring", "poor", "dull")
    rows = [f"a {word} film number {i},{label}" for i in range(8)
            for words, label in ((praise, 5), (blame, 1)) for word in words]  # fmt: skip
    (tmp_path / "mine.csv").write_text("\n".join(["body,stars", *rows]))
    columns = ("--text-column", "body", "--label-column", "stars")
    made = imdb_tx("train", "mine.csv", *columns, "--set", "train.epochs=6")
    assert made.exit_code == 0, made.output
    opened = run.open_run(tmp_path / "runs" / "mine")
    encoder = Path("runs/mine-encoder")  # it exists if the probe chose imdb-encoder
    assert opened.config.train.init_from == (str(encoder) if encoder.exists() else "imdb")
    answers = Predictor.load(opened.folder)(["a superb story", "an awful story"])
    assert [answer.label for answer in answers] == ["5", "1"]


@pytest.mark.parametrize(
    ("length", "few", "start", "values", "kind", "dropout", "first_share", "reads_first"),
    [
        (50, 33, "imdb", (), "classifier", 0.1, 0.35, False),
        (50, 32, "imdb", (), "classifier", 0.1, 0.0, False),
        (70, 33, "imdb", (), "classifier", 0.1, 0.0, False),
        (70, 32, "imdb", (), "classifier", 0.0, 0.0, False),
        (50, 33, "imdb-encoder", (), "classifier", 0.1, 0.0, True),
        (70, 32, "imdb-encoder", (), "classifier", 0.1, 0.0, True),
        (50, 33, "imdb", ("model.dropout=0.3",), "classifier", 0.3, 0.35, False),
        (50, 33, "imdb", ("train.init_from=imdb",), "classifier", 0.0, 0.0, False),
        (50, 33, "imdb", ("train.init_from=imdb-encoder",), "classifier", 0.0, 0.0, False),
        (50, 33, "imdb", (), "encoder", 0.0, 0.0, False),
    ],
)
def test_short_few_or_unfamiliar_reviews_get_dropout_and_unfamiliar_ones_adaptation_if_the_start_is_chosen(
    tmp_path: Path, length: int, few: int, start: str, values: tuple[str, ...], kind: run.Kind,
    dropout: float, first_share: float, reads_first: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """32 of the 40 reviews are left for training. Their length is in words, and about that many tokens."""
    probe = "imdb_transformer.training.starting_weights.probe_accuracy"
    monkeypatch.setattr(probe, lambda path, *_: float(path == Path(start)))
    monkeypatch.setattr(starting_weights, "FEW_REVIEWS", few)
    rows = [f"{i}{' film' * length},{i % 2}" for i in range(40)]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]))
    data = [f"data.source={tmp_path / 'mine.csv'}", f"data.data_dir={tmp_path / 'data'}"]
    requested = load_config("base.toml", [*data, *values])
    config = choose_start(requested, kind, CPU)
    assert config.model.dropout == dropout
    assert config.train.first_share == first_share
    assert (kind == "classifier" and is_due(requested, config)) == reads_first


def test_the_first_weights_keep_less_the_more_reviews_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting_weights, "probe_accuracy", lambda path, *_: float(path == Path("imdb")))
    rows = [f"number {i},{i % 2}" for i in range(500)]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]))
    data = [f"data.source={tmp_path / 'mine.csv'}", f"data.data_dir={tmp_path / 'data'}"]
    requested = load_config("base.toml", data)
    assert choose_start(requested, "classifier", CPU).train.first_share == pytest.approx(100 / 406)
    larger = requested.replaced("train", first_share=0.4)
    assert choose_start(larger, "classifier", CPU).train.first_share == 0.4
    without_average = requested.replaced("train", ema_decay=0.0)
    assert choose_start(without_average, "classifier", CPU).train.first_share == 0
    monkeypatch.setattr(starting_weights, "FEW_REVIEWS", 406)
    assert choose_start(requested, "classifier", CPU).train.first_share == 0


def test_a_run_on_short_reviews_has_the_config_that_it_was_started_with(tmp_path: Path) -> None:
    """Otherwise `train --seeds` could not continue: the config does not have the dropout that was chosen."""
    rows = [f"a {word} film number {i},{word}" for i in range(20) for word in ("good", "bad")]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]))
    data = [f"data.source={tmp_path / 'mine.csv'}", f"data.data_dir={tmp_path / 'data'}"]
    config = load_config("base.toml", data)
    create_run(config, tmp_path / "run", "classifier")
    opened = run.open_run(tmp_path / "run")
    assert opened.config.model.dropout == 0.1
    check_unchanged(opened, config, ())
    with pytest.raises(RunError, match="another config"):
        check_unchanged(opened, load_config("base.toml", [*data, "model.dropout=0.2"]), ())
