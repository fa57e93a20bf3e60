import html
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax

from imdb_transformer.config import Config
from imdb_transformer.data.corpus import ensure
from imdb_transformer.data.encoded import rows_of
from imdb_transformer.errors import DataError, DataWarning, RunError
from imdb_transformer.evaluation import baseline as baseline_module
from imdb_transformer.evaluation.baseline import Yardstick, accuracy_together, make_baseline
from imdb_transformer.evaluation.compare import compare
from imdb_transformer.evaluation.evaluate import evaluate, predict_split
from imdb_transformer.inference.linear import STRENGTH, fit, log_count_ratio, vectorizer
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.report import summaries
from imdb_transformer.report.evaluations import card
from imdb_transformer.report.pages import write_evaluation, write_training
from imdb_transformer.store.run import Weighting
from imdb_transformer.training.train import result_of
from tests.conftest import imdb_tx, write_jsonl
from tests.in_process import train

KINDS: tuple[Weighting, ...] = ("nb", "tfidf")
WORDS = r"\w+|[^\w\s]+"
TEXTS = ["a good good film", "a bad film", "good , good", "bad , bad", "a dull film", "a dull thing"]


@pytest.mark.parametrize("weighting", KINDS)
def test_eval_and_predict_accept_a_baseline(weighting: Weighting, config_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / weighting
    made = json.loads(
        imdb_tx(
            "baseline", "--config", config_path, "--kind", weighting, "--run-dir", folder, "--json"
        ).stdout
    )
    assert made["run"] == str(folder)
    again = evaluate(folder, "validation")
    assert again.accuracy == pytest.approx(made["validation"]["accuracy"])
    assert (folder / "evaluation" / "best-validation.json").exists()
    test = evaluate(folder)
    assert test.accuracy_low > 0.5  # on reviews that it has not seen, better than guessing
    predicted = imdb_tx("predict", "--run", folder, "an awful, boring film", "", "\0 😀")
    assert len(predicted.stdout.splitlines()) == 3


def test_a_baseline_takes_a_file_of_reviews_with_the_options_of_train(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    rows = [
        f'"a {word} film about the number {i}",{stars}'
        for i in range(40)
        for word, stars in (("good", 5), ("bad", 1))
    ]
    table.write_text("\n".join(["body,stars", *rows, "no class,"]))
    data = ("--set", f"data.data_dir={tmp_path / 'data'}", "--run-dir", tmp_path / "nb", "--json")
    refused = imdb_tx("baseline", table, *data)
    assert "Perhaps: --text-column body --label-column stars" in str(refused.exception)
    columns = ("--text-column", "body", "--label-column", "stars", "--bad-rows", "skip")
    made = json.loads(imdb_tx("baseline", table, *columns, *data).stdout)
    assert made["validation"]["accuracy"] == 1.0
    assert list(Predictor.load(tmp_path / "nb").classes) == ["1", "5"]


@pytest.mark.parametrize("weighting", KINDS)
def test_a_saved_baseline_gives_the_logits_of_the_one_fitted(
    weighting: Weighting, tiny: Callable[..., Config], tmp_path: Path
) -> None:
    config = tiny()
    make_baseline(tmp_path / "run", config, weighting)
    loaded = Predictor.load(tmp_path / "run").models[0]
    stored = ensure(config.data)
    rows = rows_of(config.data, stored, "train")
    fitted = fit(weighting, rows.texts, np.array(rows.labels), num_classes=2)
    np.testing.assert_array_equal(loaded.logits(TEXTS), fitted.logits(TEXTS))
    assert fitted.weights.dtype == np.float32  # a run of float64 would be twice as large


def test_tfidf_features_equal_those_of_scikit_learn() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    theirs = TfidfVectorizer(ngram_range=(1, 2), token_pattern=WORDS, min_df=2, sublinear_tf=True)
    expected = theirs.fit_transform(TEXTS)
    ours = vectorizer("tfidf", min_df=2).fit_transform(TEXTS)
    np.testing.assert_allclose(ours.toarray(), expected.toarray(), rtol=1e-5)


def test_log_count_ratio_equals_the_papers() -> None:
    counts = vectorizer("nb", use_idf=False).fit_transform(["good", "good", "bad", "dull"])
    ratio = log_count_ratio(counts, np.array([True, True, False, False]))  # bad, dull, good
    inside, outside = np.array([1, 1, 3]) / 5, np.array([2, 2, 1]) / 5
    np.testing.assert_allclose(ratio, np.log(inside / outside), rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("अच्छी फ़िल्म।", ["अच्छी", "फ़िल्म", "।"]),  # Hindi; vowel signs are marks
        ("நல்ல திரைப்படம்!!", ["நல்ல", "திரைப்படம்", "!!"]),  # Tamil
        ("می\u200cخواهم", ["می\u200cخواهم"]),  # Persian, with a joiner
        ("cafe\u0301 noir", ["caf\u00e9", "noir"]),  # the accent is a character of its own
        ("bien <BR/>fait", ["bien", "fait"]),
        ("很好看abc 的", ["很", "好", "看", "abc", "的"]),
        ("面白い。", ["面", "白", "い", "。"]),
    ],
)
def test_words_of_other_scripts_stay_whole_or_are_characters(text: str, words: list[str]) -> None:
    reader = vectorizer("nb").build_analyzer()
    assert [ngram for ngram in reader(text) if " " not in ngram] == words


def test_chinese_reviews_can_be_classified_by_characters() -> None:
    texts = [f"{word}的电影{i}" for i in range(10) for word in ("很好看", "很无聊")]
    model = fit("nb", texts, np.tile([1, 0], 10), num_classes=2)
    assert model.logits(["好看!", "无聊"]).argmax(1).tolist() == [1, 0]


COLOURS = ["red red apple", "red rose", "blue sea", "blue blue sky", "green leaf", "green grass grass"] * 3
LABELS = np.array([0, 0, 1, 1, 2, 2] * 3)


@pytest.mark.parametrize("weighting", KINDS)
def test_three_classes_are_distinguished(weighting: Weighting) -> None:
    model = fit(weighting, COLOURS, LABELS, num_classes=3)
    assert model.logits(["a red thing", "a blue one", "green !"]).argmax(1).tolist() == [0, 1, 2]


def test_each_class_is_fitted_on_the_features_of_prediction() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    model = fit("tfidf", COLOURS, LABELS, num_classes=3)
    theirs = TfidfVectorizer(ngram_range=(1, 2), token_pattern=WORDS, min_df=2, sublinear_tf=True)
    features = theirs.fit_transform(COLOURS)
    strength = STRENGTH["tfidf"]
    solver = LogisticRegression(C=strength, solver="liblinear", dual=True, tol=1e-6, max_iter=100_000)
    expected = np.stack([solver.fit(features, label == LABELS).decision_function(features)
                         for label in range(3)], axis=1)  # fmt: skip
    np.testing.assert_allclose(model.logits(COLOURS), expected, atol=0.05)


def test_damaged_ngrams_are_refused(tiny: Callable[..., Config], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_baseline(folder, tiny(), "nb")
    path = folder / "ngrams.txt"
    path.write_text(path.read_text().replace("film", "felm", 1))
    with pytest.raises(RunError, match="tokenizer"):
        Predictor.load(folder)
    path.unlink()
    with pytest.raises(RunError, match=r"ngrams\.txt"):
        Predictor.load(folder)


def test_texts_without_a_common_ngram_are_refused() -> None:
    with pytest.raises(DataError, match=r"The 4 training reviews are too few .* occurs in 2 of them"):
        fit("nb", ["alpha", "beta", "gamma", "delta"], np.array([0, 1, 0, 1]), num_classes=2)


def test_a_training_ends_with_a_comparison_with_a_linear_model(
    tiny: Callable[..., Config], tmp_path: Path
) -> None:
    ended = train(tiny("train.yardstick=true", "train.epochs=1", "train.lr=1e-9"), tmp_path / "run")
    linear = make_baseline(tmp_path / "nb", tiny(), "nb").validation
    yardstick = result_of(ended.folder).yardstick
    assert linear is not None
    assert yardstick is not None
    assert yardstick.accuracy == linear.accuracy
    pair = compare([tmp_path / "nb", ended.folder], "validation")[0].pairs[0]
    assert (yardstick.difference, yardstick.low, yardstick.high) == (pair.difference, pair.low, pair.high)
    told = html.escape(summaries.yardstick_line(yardstick))
    page = write_training(ended.folder, 1).read_text()
    assert told in page
    assert yardstick.difference < 0
    assert f"{told}<br>The linear model {'is' if yardstick.high < 0 else 'may be'} better here." in page
    assert told in write_evaluation(predict_split([ended.folder], "validation"), {}).read_text()
    assert summaries.yardstick_line(yardstick) in card(ended, evaluate(ended.folder, "validation"))
    assert result_of(train(tiny(), tmp_path / "without").folder).yardstick is None


def test_a_training_says_why_it_has_no_linear_model_to_compare_with(
    tiny: Callable[..., Config], tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "numbers.jsonl", [str(10_000 + i) for i in range(100)], ["a", "b"] * 50)
    config = tiny(f"data.source={tmp_path / 'numbers.jsonl'}", "train.yardstick=true", "train.epochs=1")
    with pytest.warns(DataWarning, match=r"no linear model to compare with\. .* no n-gram occurs in 2"):
        ended = train(config, tmp_path / "run")
    assert result_of(ended.folder).yardstick is None


def test_the_mean_with_a_linear_model_has_the_accuracy_that_eval_measures(
    tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    monkeypatch.setattr(baseline_module, "accuracy_together", lambda *each: compared.append(each))
    ended = train(tiny("train.yardstick=true", "train.epochs=1"), tmp_path / "run")
    make_baseline(tmp_path / "nb", tiny(), "nb")
    both = evaluate([ended.folder, tmp_path / "nb"], "validation")
    ((first, second, labels),) = compared
    mean = np.log((np.exp(first) + np.exp(second)) / 2)
    assert (mean.argmax(1) == labels).mean() == both.accuracy
    assert -mean[np.arange(len(labels)), labels].mean() == pytest.approx(both.loss, rel=1e-5)


def test_the_mean_of_two_models_is_better_only_by_more_than_chance() -> None:
    labels = np.random.default_rng(0).integers(0, 2, 400)

    def model(noise: float, seed: int) -> NDArray[np.float64]:
        signal = 2 * labels - 1 + noise * np.random.default_rng(seed).normal(size=400)
        scores = signal[:, None] / noise**2 * [-1, 1]
        return np.asarray(log_softmax(scores, axis=1))

    def correct(log_probabilities: NDArray[np.float64]) -> float:
        return float((log_probabilities.argmax(1) == labels).mean())

    first, second, better = model(1.5, 1), model(1.5, 2), model(0.5, 3)
    mean = np.log((np.exp(first) + np.exp(second)) / 2)
    assert accuracy_together(first, second, labels) == correct(mean) > correct(first) > correct(second)
    assert accuracy_together(first, first, labels) is None
    assert accuracy_together(first, better, labels) is None
    assert accuracy_together(first[:19], second[:19], labels[:19]) is None


def test_a_lower_log_loss_is_enough_if_the_mean_is_as_accurate() -> None:
    """Each model is sure of half of the reviews, and only just right about the others."""
    labels = np.zeros(400, np.int64)
    sure, unsure = np.log([0.99, 0.01]), np.log([0.51, 0.49])
    first = np.array([sure, unsure] * 200)
    second = first[::-1]
    assert accuracy_together(first, second, labels) == 1
    assert accuracy_together(first, np.flip(second, 1), labels) is None


def test_the_mean_is_not_named_if_the_linear_model_alone_is_better(
    tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean with a model that is always right beats the run by far, and not that model."""
    rows = rows_of(tiny().data, ensure(tiny().data), "validation")
    label_of = dict(zip(*rows, strict=True))

    class AlwaysRight:
        def logits(self, texts: list[str]) -> NDArray[np.float32]:
            return 3 * np.eye(2, dtype=np.float32)[[label_of[text] for text in texts]]

    monkeypatch.setattr(baseline_module, "fit", lambda *_, **__: AlwaysRight())
    yardstick = result_of(
        train(tiny("train.yardstick=true", "train.epochs=1"), tmp_path / "run").folder
    ).yardstick
    assert yardstick is not None
    assert (yardstick.accuracy, yardstick.together) == (1.0, None)
    assert yardstick.high < 0
    assert "The linear model is better here." in summaries.yardstick(yardstick, "runs/a")


def test_the_comparison_names_the_commands_that_use_both_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    better = Yardstick(accuracy=0.8, difference=-0.01, low=-0.02, high=0.001, together=0.8234)
    told = summaries.yardstick(better, "runs/a")
    assert "\nThe mean of both is better: 82.34%. To use it:\n" in told
    assert "imdb-tx baseline --config runs/a/config.toml --run-dir runs/a-nb\n" in told
    assert told.endswith("imdb-tx predict --run runs/a --run runs/a-nb 'a text'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a-nb").mkdir(parents=True)
    assert "--run-dir runs/a-nb-2\n" in summaries.yardstick(better, "runs/a")


def test_the_comparison_names_the_command_that_fits_a_better_linear_model() -> None:
    better = Yardstick(accuracy=0.8, difference=0.0123, low=-0.001, high=0.02)
    told = summaries.yardstick(better, "runs/a b")
    assert "has 80.00% on the same reviews; the run minus the linear model: +1.23 points (95% " in told
    assert "(95% interval -0.10 to +2.00)" in told
    assert "imdb-tx baseline" not in told
    worse = Yardstick(accuracy=0.8, difference=-0.0123, low=-0.02, high=0.001)
    told = summaries.yardstick(worse, "runs/a b")
    assert "\nThe linear model may be better here." in told
    assert told.endswith("imdb-tx baseline --config 'runs/a b/config.toml'")
    surely = worse.model_copy(update={"high": -0.001})
    assert "\nThe linear model is better here." in summaries.yardstick(surely, "runs/a b")
