"""Text of which a run has read few words gets a note; probabilities of all classes, and a threshold."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from imdb_transformer import load_config
from imdb_transformer.config import Config, TokenizerConfig
from imdb_transformer.data import demo
from imdb_transformer.data.tokenizer import Tokenizer
from imdb_transformer.errors import ConfigError
from imdb_transformer.inference.export import export
from imdb_transformer.inference.predicted_tables import open_reviews
from imdb_transformer.inference.predictor import Predictor, unfamiliar
from imdb_transformer.store import run
from imdb_transformer.training.start import create_run
from tests.conftest import imdb_tx, write_jsonl
from tests.test_screen import typed


class Fixed:
    """A model that gives every text the same probabilities."""

    temperature, step, precision = 1.0, 0, "fp32"

    def __init__(self, classes: tuple[str, ...], probabilities: list[float]) -> None:
        self.classes, self.row = classes, np.log(probabilities)

    def logits(self, texts: list[str]) -> np.ndarray:
        return np.tile(self.row, (len(texts), 1))


NEG_POS = Fixed(("neg", "pos"), [0.4, 0.6])


def test_a_prediction_has_the_probability_of_each_class() -> None:
    prediction = Predictor([Fixed(("a", "b", "c"), [0.2, 0.5, 0.3])])("text")
    assert (prediction.label, prediction.probability) == ("b", pytest.approx(0.5))
    assert prediction._asdict()["probabilities"] == pytest.approx({"a": 0.2, "b": 0.5, "c": 0.3})


@pytest.mark.parametrize(
    ("threshold", "label", "probability"), [(None, "pos", 0.6), (0.59, "pos", 0.6), (0.61, "neg", 0.4)]
)
def test_a_threshold_decides_for_the_second_class(threshold: float, label: str, probability: float) -> None:
    prediction = Predictor([NEG_POS], threshold=threshold)("text")
    assert (prediction.label, prediction.probability) == (label, pytest.approx(probability))


def test_a_threshold_of_three_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match="two classes"):
        Predictor([Fixed(("a", "b", "c"), [0.2, 0.5, 0.3])], threshold=0.5)


@pytest.mark.parametrize("view", ["--explain", "--attention"])
def test_an_explained_prediction_may_have_the_probability_of_each_class(trained: Path, view: str) -> None:
    command = ("predict", "--run", trained, view, "a good film")
    first = imdb_tx(*command, "--probabilities").stdout.split("\n")[0].split("\t")
    plain = imdb_tx(*command).stdout.split("\n")[0].split("\t")
    assert [cell.split()[0] for cell in first[2:4]] == ["neg", "pos"]
    assert [*first[:2], *first[4:]] == plain


def test_a_threshold_in_percent_is_refused() -> None:
    with pytest.raises(ConfigError, match="from 0 to 1, not 70"):
        Predictor([NEG_POS], threshold=70)


def test_pieces_of_unknown_words_are_short() -> None:
    texts = demo.reviews().splits["train"].texts
    tokenizer = Tokenizer.train(texts, TokenizerConfig(vocab_size=600))
    usual = tokenizer.characters_per_piece(texts)
    assert tokenizer.characters_per_piece(["a charming, funny film"]) > 0.9 * usual
    assert tokenizer.characters_per_piece(["Ein wunderbarer Streifen, schaurig und packend"]) < 0.5 * usual
    assert tokenizer.characters_per_piece([""]) == 0


def test_a_text_in_another_language_is_unlike_the_training_reviews(trained: Path) -> None:
    usual = run.open_info(trained).characters_per_piece
    assert usual > 1
    predictor = Predictor.load(trained)
    texts = ["a good film, and a charming cast", "这部电影非常好看，演员表演得很出色。"]
    assert unfamiliar(predictor, texts) == texts[1:]


@pytest.mark.parametrize(
    ("texts", "is_strange"),
    [
        (["OK", "Meh.", "5/5", "👍👍", "Yikes", "Snoozefest", "WOW", "Not for me.", "BORING!!!"], False),
        (["The acter was realy grate but teh plot sux", "bruh wtf did i just watch lmao"], False),
        (["THE WORST MOVIE I HAVE EVER SEEN", "Kieslowski and Tarkovsky fans will love it."], False),
        (["Great battery life, sharp screen, but the speakers are tinny and the charger gets hot."], False),
        (["Un film magnifique, les acteurs sont excellents.", "J'ai adoré ce film du début à la fin."], True),
        (
            ["Toller Film, sehr zu empfehlen.", "Leider konnte mich der Film überhaupt nicht überzeugen."],
            True,
        ),
        (["Muy mala.", "La peor película que he visto en mi vida."], True),
        (["Mi è piaciuto dall'inizio alla fine.", "Il peggior film che abbia mai visto."], True),
        (["Ik vond het niet leuk, te lang en saai.", "Hele goede film"], True),
        (["とても面白い映画でした。", "Очень хороший фильм"], True),
        (["बहुत अच्छी फ़िल्म है।", "மிகவும் நல்ல திரைப்படம்", "দারুণ একটা সিনেমা", "വളരെ നല്ല ചിത്രം"], True),
        (["หนังสนุกมาก", "فیلم خیلی خوبی بود، می\u200cخواهم دوباره ببینم"], True),
        (["I loved it 10/10!!! ❤️❤️", "a so-so café film", "a cafe\u0301 film"], False),
    ],
)
def test_the_package_knows_english_and_no_other_language(texts: list[str], is_strange: bool) -> None:
    predictor = Predictor.load("imdb", few=True)
    assert unfamiliar(predictor, texts) == (texts if is_strange else [])


def test_a_training_on_another_language_warns_that_the_encoder_knows_few_words(
    tiny: Callable[..., Config], tmp_path: Path
) -> None:
    for name, texts in (("zh", ("很好看的电影", "很无聊的电影")), ("en", ("a superb film", "an awful film"))):
        write_jsonl(tmp_path / f"{name}.jsonl", [f"{texts[i % 2]} {i}" for i in range(40)], ["a", "b"] * 20)
        data = tiny(f"data.source={tmp_path / name}.jsonl").data
        config = load_config("base.toml", ["train.init_from=imdb-encoder"]).model_copy(update={"data": data})
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            create_run(config, tmp_path / name, "classifier")
        texts = " ".join(str(each.message) for each in told)
        assert ("encoder of imdb-encoder knows few words of these reviews" in texts) == (name == "zh")


def test_a_run_on_the_demo_warns_that_it_knows_a_toy_grammar(tmp_path: Path) -> None:
    sets = [
        "train.epochs=1",
        "train.evals_per_epoch=1",
        "model.num_layers=1",
        "model.width=8",
        "model.head_width=8",
    ]
    options = [word for each in [*sets, f"data.data_dir={tmp_path / 'data'}"] for word in ("--set", each)]
    trained = imdb_tx("train", *options, "--run-dir", tmp_path / "demo")
    assert "toy grammar" in trained.stderr
    assert "toy grammar" not in trained.stdout
    predicted = imdb_tx("predict", "--run", tmp_path / "demo", "a good film")
    assert "toy grammar" in predicted.stderr
    assert "toy grammar" not in predicted.stdout


def test_an_exported_file_knows_the_words_that_its_run_knows(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = onnx.load(exported)  # another one, since words are in the tokenizer
    monkeypatch.setattr("imdb_transformer.inference.export._traced", lambda _: graph)
    export(Path("imdb"), tmp_path / "imdb.onnx")
    predictor = Predictor.load(tmp_path / "imdb.onnx")
    texts = ["a good film with a superb cast", "Der Film war leider sehr langweilig und viel zu lang."]
    assert unfamiliar(predictor, texts) == texts[1:]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_probabilities_have_a_column_for_each_class(linear: Path, tmp_path: Path, suffix: str) -> None:
    (tmp_path / "in.csv").write_text("text,id\na good film,1\nan awful mess,2\n")
    command = ("predict", "--run", linear, "--probabilities", "--threshold", "1.0")
    out = tmp_path / f"out{suffix}"
    assert imdb_tx(*command, "--input", tmp_path / "in.csv", "--output", out).exit_code == 0
    schema, parts = open_reviews(out, "text")
    added = ["predicted_label", "probability", "probability_neg", "probability_pos"]
    assert schema.names == ["text", "id", *added]
    for row in (row for part in parts for row in part.to_pylist()):
        assert row["predicted_label"] == "neg"  # nothing is certain
        each = float(row["probability_neg"]), float(row["probability_pos"])
        assert (each[0], sum(each)) == (float(row["probability"]), pytest.approx(1))
    assert len(imdb_tx(*command, "a good film").stdout.split("\t")) == 5


def test_predict_without_arguments_on_a_terminal_prompts_for_reviews(linear: Path, tmp_path: Path) -> None:
    keys = {rb"> ": b"a good film\n", rb"(?s)> .*> ": b"\x04"}
    code, shown = typed("predict", "--run", linear, cwd=tmp_path, keys=keys)
    assert code == 0
    assert "Ctrl-D ends" in shown
    assert re.search(r"^(pos|neg)\t0\.\d+\ta good film", shown, re.MULTILINE)
