import json
import math
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from imdb_transformer import config_file
from imdb_transformer.data import corpus, encoded
from imdb_transformer.errors import ConfigError, DataError, DataWarning
from imdb_transformer.evaluation.baseline import make_baseline
from imdb_transformer.evaluation.evaluate import CLEAN, evaluate, fit_temperature
from imdb_transformer.evaluation.scores import evaluation_of, score
from imdb_transformer.inference.predictor import Predictor, load_model
from imdb_transformer.inference.transformer import TransformerModel, logits_of
from imdb_transformer.report.evaluations import as_text, evaluation_tables, score_rows
from imdb_transformer.store import run
from imdb_transformer.store.files import write_json
from tests.conftest import imdb_tx, write_jsonl

LOGITS = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 2, 50)


def test_score_equals_a_naive_loop() -> None:
    correct, loss = 0, 0.0
    for (a, b), label in zip(LOGITS.tolist(), LABELS.tolist(), strict=True):
        probabilities = [math.exp(a) / (math.exp(a) + math.exp(b)), math.exp(b) / (math.exp(a) + math.exp(b))]
        correct += (b > a) == label
        loss -= math.log(probabilities[label])
    result = score(LOGITS, LABELS)
    assert result.f1 == pytest.approx(f1_score(LABELS, LOGITS.argmax(1), average="macro"))
    assert (result.accuracy, result.loss) == (correct / 50, pytest.approx(loss / 50))


def test_scores_agree_with_each_other() -> None:
    evaluation = evaluation_of(LOGITS, LABELS, split="test", checkpoint="best", classes=("neg", "pos"))
    (tn, fp), (fn, tp) = evaluation.confusion
    assert evaluation.accuracy == (tn + tp) / 50
    assert evaluation.f1 == pytest.approx(2 * tp / (2 * tp + fp + fn))
    pairs = [(p, n) for p in LOGITS[LABELS == 1] for n in LOGITS[LABELS == 0]]
    wins = [(p[1] - p[0] > n[1] - n[0]) for p, n in pairs]
    assert evaluation.roc_auc == pytest.approx(np.mean(wins))


def test_brier_score_is_the_mean_squared_distance_summed_over_classes() -> None:
    logits = np.log([[0.8, 0.2], [0.3, 0.7]])
    labels = np.array([0, 0])
    evaluation = evaluation_of(logits, labels, split="test", checkpoint="best", classes=("neg", "pos"))
    assert evaluation.calibrated.brier == pytest.approx((0.2**2 + 0.2**2 + 0.7**2 + 0.7**2) / 2)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_average_precision_follows_its_definition(num_classes: int) -> None:
    """The precision at each true review of a class, from the most probable on; of more classes the mean."""
    logits = np.random.default_rng(0).normal(size=(40, num_classes))
    labels = np.random.default_rng(1).integers(0, num_classes, 40)
    classes = tuple("abc"[:num_classes])
    evaluation = evaluation_of(logits, labels, split="test", checkpoint="best", classes=classes)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = []
    for i in [1] if num_classes == 2 else range(3):
        ranked = labels[np.argsort(-probabilities[:, i])] == i
        precisions = np.cumsum(ranked) / np.arange(1, 41)
        expected.append(precisions[ranked].mean())
    assert evaluation.average_precision == pytest.approx(np.mean(expected))


@pytest.fixture
def guesses(tmp_path: Path) -> run.Run:
    """A linear run on words and labels at random; test repeats all of train and validation."""
    generator = random.Random(0)
    words = [f"word{i}" for i in range(200)]
    texts = [" ".join(generator.choices(words, k=30)) for _ in range(130)]
    labels = [generator.choice(["neg", "pos"]) for _ in texts]
    write_jsonl(tmp_path / "train.jsonl", texts[:100], labels[:100])
    write_jsonl(tmp_path / "test.jsonl", texts, labels)
    data = {"source": str(tmp_path), "data_dir": str(tmp_path / "data")}
    make_baseline(tmp_path / "run", config_file.parse({"data": data}, origin="here"), "nb")
    return run.open_run(tmp_path / "run")


def test_the_temperature_is_fitted_on_validation(guesses: run.Run) -> None:
    stored = corpus.ensure(guesses.config.data)

    def fitted(split: str) -> float:
        rows = encoded.rows_of(guesses.config.data, stored, split)
        logits = load_model(guesses.folder).logits(rows.texts)
        return fit_temperature(logits, np.array(rows.labels))

    assert guesses.info.temperature == pytest.approx(fitted("validation"))
    assert guesses.info.temperature > 2 * fitted("train")


def test_the_clean_slice_omits_reviews_of_train_and_of_validation(guesses: run.Run) -> None:
    evaluation = evaluate(guesses.folder, "test")
    assert evaluation.num_examples == 130
    assert evaluation.slices[CLEAN].num_examples == 30
    assert CLEAN not in evaluate(guesses.folder, "validation").slices


def test_the_interval_follows_wilsons_formula() -> None:
    labels = np.array([0] * 10)
    logits = np.tile([1.0, 0.0], (10, 1))
    logits[0] = [0.0, 1.0]  # 9 of 10
    evaluation = evaluation_of(logits, labels, split="test", checkpoint="best", classes=("neg", "pos"))
    z, n, p = 1.959964, 10, 0.9
    centre, half = (p + z * z / 2 / n), z * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n)
    low, high = ((centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n))
    assert (evaluation.accuracy_low, evaluation.accuracy_high) == (pytest.approx(low), pytest.approx(high))
    assert evaluation.roc_auc is None  # one class only


def test_f1_is_zero_without_true_or_predicted_positives() -> None:
    logits = np.tile([1.0, 0.0], (10, 1))
    measured = evaluation_of(
        logits, np.zeros(10, np.int64), split="test", checkpoint="best", classes=("neg", "pos")
    )
    assert measured.f1 == 0.0


def test_an_evaluation_names_the_checkpoint_of_each_run(trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    alone = evaluate(trained, "validation")
    together = evaluate([copy, trained / "checkpoints" / "last"], "validation")
    assert re.fullmatch(r"best \(step \d+\)", alone.checkpoint)
    assert re.fullmatch(r"copy/best \(step \d+\) \+ run/last \(step \d+\)", together.checkpoint)


def test_three_classes_are_scored() -> None:
    logits = np.random.default_rng(0).normal(size=(60, 3))
    labels = np.arange(60) % 3
    evaluation = evaluation_of(logits, labels, split="test", checkpoint="best", classes=("a", "b", "c"))
    assert sum(map(sum, evaluation.confusion)) == 60
    assert evaluation.roc_auc is not None
    assert 0 < evaluation.roc_auc < 1


def test_logits_do_not_depend_on_the_batch_size(trained: Path) -> None:
    model = Predictor.load(trained).models[0]
    assert isinstance(model, TransformerModel)
    reviews = model.tokenizer.encode([f"a {'very ' * (i % 9)}good film" for i in range(40)])
    hardware = model.hardware._replace(dtype=torch.float32)
    one, many = (logits_of(model.classifier, reviews, hardware, batch_tokens=n) for n in (1, 4096))
    np.testing.assert_allclose(one, many, atol=1e-5)


def test_evaluation_of_a_split_is_written_into_the_run(trained: Path) -> None:
    folder = trained / "evaluation"
    evaluation = evaluate(trained)
    assert evaluation.num_examples == 100
    assert evaluation.accuracy > 0.6
    assert type(evaluation).model_validate_json((folder / "best-test.json").read_bytes()) == evaluation
    last = evaluate(str(trained / "checkpoints" / "last"), "validation")
    assert last.num_examples == 20
    assert (folder / "last-validation.json").exists()


def test_other_classes_than_the_runs_are_refused(trained: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "o.jsonl", [f"t{i}" for i in range(40)], ["good", "bad"] * 20)
    with pytest.raises(DataError, match=r"o\.jsonl: line 1 has label 'good'; the classes are neg, pos"):
        evaluate(trained, source=str(tmp_path / "o.jsonl"))
    (tmp_path / "o").mkdir()
    write_jsonl(tmp_path / "o" / "train.jsonl", [f"t{i}" for i in range(40)], ["good", "bad"] * 20)
    with pytest.raises(DataError, match=r"bad, good.*neg, pos"):
        evaluate(trained, "train", source=str(tmp_path / "o"), data_dir=str(tmp_path))


def test_columns_of_another_source_can_be_chosen(trained: Path, tmp_path: Path) -> None:
    rows = [{"review": f"a film {i}", "stars": ("neg", "pos")[i % 2]} for i in range(40)]
    path = tmp_path / "o.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = shutil.copytree(trained, tmp_path / "run")
    options = ["eval", folder, "--source", path, "--data-dir", tmp_path / "data", "--json"]
    wrong = imdb_tx(*options)
    assert isinstance(wrong.exception, DataError)
    alone = imdb_tx("eval", folder, "--text-column", "review")
    assert isinstance(alone.exception, ConfigError)
    measured = imdb_tx(*options, "--text-column", "review", "--label-column", "stars")
    assert json.loads(measured.stdout)["num_examples"] == 40


def test_a_file_of_other_reviews_is_measured_whole_and_has_a_page_of_its_own(
    trained: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    (folder / "report.html").write_text("of the run's own test")
    write_jsonl(tmp_path / "hold.jsonl", ["a good film", "a fine film", "one"], ["pos", "pos", "pos"])
    ended = imdb_tx("eval", folder, "--source", tmp_path / "hold.jsonl", "--json")
    measured = json.loads(ended.stdout)
    assert f" on {tmp_path / 'hold.jsonl'} ..." in ended.stderr
    assert (measured["num_examples"], measured["split"]) == (3, "all of hold.jsonl")
    assert (folder / "report.html").read_text() == "of the run's own test"
    (page,) = folder.glob("evaluation/best-all-hold-*.html")
    assert page.with_suffix(".json").exists()
    with pytest.raises(ConfigError, match=r"one file, and has no splits\. Leave out --split test"):
        evaluate(folder, "test", source=str(tmp_path / "hold.jsonl"))


def test_all_splits_of_a_folder_can_be_measured_together(trained: Path, tmp_path: Path, source: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    assert evaluate(folder, "all", source=str(source)).num_examples == 300
    (tmp_path / "held").mkdir()
    write_jsonl(tmp_path / "held" / "test.jsonl", ["a good film"], ["pos"])
    assert evaluate(folder, "all", source=str(tmp_path / "held")).num_examples == 1
    (tmp_path / "hub").mkdir()
    (tmp_path / "held").rename(tmp_path / "hub" / "data")  # the hub's layout
    assert evaluate(folder, "all", source=str(tmp_path / "hub")).num_examples == 1
    with pytest.raises(ConfigError, match="split all is for reviews of another source"):
        evaluate(folder, "all")


def test_other_reviews_have_no_clean_slice_as_their_training_reviews_are_not_the_runs(
    trained: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    learnt = [f"a film {i}" for i in range(40)]
    for name, texts in (("train", learnt), ("test", [*learnt, "one", "two"])):
        write_jsonl(other / f"{name}.jsonl", texts, ["pos", "neg"] * (len(texts) // 2))
    folder = shutil.copytree(trained, tmp_path / "run")
    assert CLEAN not in evaluate(folder, "test", source=str(other)).slices


def test_bad_rows_of_other_reviews_can_be_skipped(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "o.csv").write_bytes(b"text;label\ncaf\xe9;pos\na;b;c\nfine;neg\n")
    with pytest.warns(DataWarning, match="line 3"):
        measured = evaluate(folder, source=str(tmp_path / "o.csv"), encoding="cp1252", bad_rows="skip")
    assert measured.num_examples == 2
    (tmp_path / "o.csv").write_text("text,label\nfine,5\n")
    with (
        pytest.warns(DataWarning, match="line 2 has label '5'"),
        pytest.raises(DataError, match=r"o\.csv has no review with a label"),
    ):
        evaluate(folder, source=str(tmp_path / "o.csv"), bad_rows="skip")


@pytest.mark.parametrize("split", ["tset", "unsupervised"])
def test_an_unlabelled_or_unknown_split_is_refused(trained: Path, split: str) -> None:
    with pytest.raises(ConfigError, match="test, validation, train"):
        evaluate(trained, split)


def test_a_corpus_that_changed_since_training_is_refused(trained: Path, tmp_path: Path, source: Path) -> None:
    moved = Path(shutil.copytree(trained, tmp_path / "run"))
    info = run.open_run(moved).info
    write_json(moved / run.INFO, info.model_copy(update={"corpus_hash": "0" * 64}))
    with pytest.raises(DataError, match="differs from the reviews"):
        evaluate(moved, "test")
    evaluation = evaluate(moved, "test", source=str(source))
    assert evaluation.num_examples == 100
    (written,) = (moved / "evaluation").glob(f"best-test-{source.name}-*.json")
    assert type(evaluation).model_validate_json(written.read_bytes()) == evaluation


def test_the_temperature_is_the_usual_one_if_validation_has_no_error() -> None:
    """A few easy reviews would ask for a temperature of zero, and make the first error cost all."""
    logits = np.array([[2.0, 0.0], [0.0, 0.5], [3.0, 1.0]])
    assert fit_temperature(logits, np.array([0, 1, 0])) == 1.0
    assert fit_temperature(logits, np.array([0, 1, 0]), usual=2.0) == 2.0
    assert fit_temperature(logits, np.array([0, 1, 1])) > 1.0


@pytest.mark.parametrize("usual", [1.0, 6.0])
def test_few_reviews_leave_the_temperature_near_the_usual_and_many_decide_it(usual: float) -> None:
    logits, labels = np.array([[8.0, 0.0]] * 10), np.array([0] * 9 + [1])
    best = 8 / np.log(9)  # 9 of 10 are right
    few = fit_temperature(logits, labels, usual=usual)
    many = fit_temperature(np.tile(logits, (100, 1)), np.tile(labels, 100), usual=usual)
    assert min(usual, best) < few < max(usual, best)
    assert abs(np.log(few / usual)) > 0.2
    assert many == pytest.approx(best, rel=0.02)


def test_the_evaluation_of_many_runs_has_a_short_file_name(trained: Path, tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(trained, tmp_path / f"a-run-of-a-long-name-{i}")) for i in range(12)]
    evaluation = evaluate(copies, "validation")
    (written,) = (copies[0] / "evaluation").glob("*-with-*.json")
    assert len(written.name) < 100
    assert json.loads(written.read_text())["checkpoint"] == evaluation.checkpoint
    assert evaluation.checkpoint.count("a-run-of-a-long-name") == 12
    evaluate(copies[:-1], "validation")
    assert len(list((copies[0] / "evaluation").glob("*-with-*.json"))) == 2


def test_scores_are_named_and_rounded_for_people() -> None:
    evaluation = evaluation_of(LOGITS, LABELS, split="test", checkpoint="best", classes=("neg", "pos"))
    told = dict(score_rows(evaluation))
    first = ["reviews", "accuracy", "F1 of pos", "ROC AUC", "average precision"]
    assert list(told) == [*first, "loss", "Brier score", "calibration error"]
    assert told["reviews"] == str(len(LABELS))
    assert told["accuracy"].startswith(f"{100 * evaluation.accuracy:.2f}% (95% interval ")
    assert told["ROC AUC"] == f"{evaluation.roc_auc:.4f}"
    alone = evaluation_of(
        LOGITS, np.zeros_like(LABELS), split="test", checkpoint="best", classes=("neg", "pos")
    )
    assert dict(score_rows(alone))["ROC AUC"] == "undefined: a class is absent"


def test_each_class_has_precision_recall_f1_and_support() -> None:
    logits = np.log(np.eye(3)[[0, 0, 1, 2, 2]] * 0.8 + 0.1)
    labels = np.array([0, 1, 1, 1, 2])
    evaluation = evaluation_of(logits, labels, split="test", checkpoint="best", classes=("1", "3", "10"))
    per_class = evaluation.per_class.items()
    figures = {name: (each.precision, each.recall, each.support) for name, each in per_class}
    assert figures == {"1": (0.5, 1.0, 1), "3": (1.0, pytest.approx(1 / 3), 3), "10": (0.5, 1.0, 1)}
    assert evaluation.f1 == pytest.approx(np.mean([each.f1 for each in evaluation.per_class.values()]))
    assert evaluation.mean_absolute_error == pytest.approx((2 + 7) / 5)  # 3 taken for 1, and for 10
    shown = as_text(evaluation_tables(evaluation, {}))
    assert "macro F1" in shown
    assert re.search(r"mean absolute error +1\.8000", shown)
    assert "class  precision  recall  F1      support" in shown


@pytest.mark.parametrize("classes", [("a", "b", "c"), ("1", "2", "nan")])
def test_only_classes_that_are_numbers_have_a_mean_error(classes: tuple[str, ...]) -> None:
    evaluation = evaluation_of(np.eye(3), np.arange(3), split="test", checkpoint="best", classes=classes)
    assert evaluation.mean_absolute_error is None
    assert "absolute" not in as_text(evaluation_tables(evaluation, {}))


def test_f1_of_two_classes_names_its_class() -> None:
    evaluation = evaluation_of(LOGITS, LABELS, split="test", checkpoint="best", classes=("neg", "pos"))
    assert "F1 of pos" in as_text(evaluation_tables(evaluation, {}))
    assert evaluation.f1 == pytest.approx(evaluation.per_class["pos"].f1)


def test_scores_are_printed_even_if_they_cannot_be_written(trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    shutil.rmtree(copy / "evaluation", ignore_errors=True)
    (copy / "evaluation").touch()  # a file where the folder should be
    ended = imdb_tx("eval", copy)
    assert "calibration error" in ended.stdout
    assert "written to" not in ended.stdout
    assert isinstance(ended.exception, OSError)


def test_learnt_reviews_in_another_source_are_counted(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    stored = corpus.ensure(run.open_run(folder).config.data)
    learnt = corpus.read_split(stored, "train").texts[:30]
    texts = [*learnt, *(f"a film {i}" for i in range(10))]
    write_jsonl(tmp_path / "o.jsonl", texts, ["neg", "pos"] * 20)
    with pytest.warns(DataWarning, match="30 of these 40 reviews"):
        evaluation = evaluate(folder, source=str(tmp_path / "o.jsonl"))
    assert evaluation.slices[CLEAN].num_examples == 10


def test_an_unknown_key_of_the_data_is_refused(trained: Path) -> None:
    with pytest.raises(ConfigError, match=r"sourc.*Did you mean data\.source"):
        evaluate(trained, sourc="x.csv")


def test_an_empty_label_column_is_refused(trained: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "o.jsonl", ["a", "b"], ["pos", "neg"])
    refused = imdb_tx("eval", trained, "--source", tmp_path / "o.jsonl", "--label-column", "")
    assert "This command needs labels" in str(refused.exception)
    assert "describe a --source" in str(imdb_tx("eval", trained, "--label-column", "").exception)
