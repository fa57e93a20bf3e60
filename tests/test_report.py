import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from imdb_transformer.evaluation.baseline import baselines_beside, make_baseline
from imdb_transformer.evaluation.evaluate import answer, evaluate
from imdb_transformer.evaluation.scores import evaluation_of
from imdb_transformer.report import figures
from imdb_transformer.report.evaluations import write_report
from imdb_transformer.report.tables import html_table
from imdb_transformer.store import run
from imdb_transformer.store.files import write_json
from tests.conftest import imdb_tx, write_jsonl

OUTSIDE = re.compile(r'(?:src|href)="(?!data:|#)')
TITLES = [
    "Training loss",
    "Validation accuracy",
    "ROC",
    "Reliability",
    "Confusion",
    "Accuracy by kind of review",
]


def test_eval_writes_a_page_that_stands_alone_with_all_figures(trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    shown = imdb_tx("eval", copy).stdout
    page = (copy / "report.html").read_text()
    assert str(copy / "report.html") in shown
    assert "<title>run on test</title>" in page
    assert "<h1>run on test</h1>" in page
    for title in TITLES:
        assert f"<b>{title}.</b>" in page
    assert page.count('role="img" aria-label="') == len(TITLES)
    assert not OUTSIDE.search(page)
    assert "@import" not in page
    assert "<mark" in page
    assert "train.lr" not in page
    assert "lr = 0.01" in page


def test_hostile_reviews_are_escaped(trained: Path, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script> \x1b[2J {title} "
    path = tmp_path / "o.jsonl"
    write_jsonl(path, [f"{hostile}{i}" for i in range(60)], ["neg", "pos"] * 30)
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    found = answer([copy], "test", source=str(path), data_dir=str(tmp_path))
    page = write_report(found, {}).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_linear_models_page_has_errors_without_marks(linear: Path, tmp_path: Path) -> None:
    shutil.copytree(linear, tmp_path / "nb")
    page = write_report(answer([tmp_path / "nb"]), {}).read_text()
    assert "<mark" not in page
    assert "Training loss" not in page
    assert "<b>ROC.</b>" in page


def test_listed_errors_are_sorted_by_confidence(linear: Path, tmp_path: Path) -> None:
    shutil.copytree(linear, tmp_path / "nb")
    answered = answer([tmp_path / "nb"], "test")
    assert answered.correct.mean() == pytest.approx(answered.evaluation.accuracy)
    page = write_report(answered, {}).read_text()
    errors = re.findall(r"<summary>(\w+) at ([\d.]+)%, labelled (\w+):", page)
    assert len(errors) == min(20, (~answered.correct).sum()) > 1
    assert all(answer != label for answer, _, label in errors)
    shares = [float(share) for _, share, _ in errors]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_plots_of_a_split_of_one_class_only(num_classes: int) -> None:
    logits = np.random.default_rng(0).normal(size=(20, num_classes))
    labels = np.zeros(20, np.int64)
    classes = tuple("abc"[:num_classes])
    found = evaluation_of(logits, labels, split="test", checkpoint="best", classes=classes)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert figures.roc({"run": probabilities}, labels, classes) is None
    assert figures.slices(found) is None
    assert figures.losses({"run": []}) is None
    assert figures.validations({"run": []}) is None
    assert figures.confusion(found).svg.startswith("<svg")
    same = [figures.reliability({"run": probabilities}, labels, {"run": 0.1}).svg for _ in range(2)]
    assert same[0] == same[1]


def test_eval_shows_baselines_of_the_same_reviews(trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    config = run.open_run(trained).config
    make_baseline(tmp_path / "nb", config, "nb")
    make_baseline(tmp_path / "tfidf", config, "tfidf")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / run.INFO).write_text("{")
    alone = evaluate([tmp_path / "nb"], "test")
    shown = imdb_tx("eval", copy).stdout
    assert "\nbaseline " in shown
    assert f"{100 * alone.accuracy:.2f}%" in shown
    found = json.loads(imdb_tx("eval", copy, "--json").stdout)["baselines"]
    assert {Path(name).name for name in found} == {"nb", "tfidf"}
    assert found[str(tmp_path / "nb")]["accuracy"] == alone.accuracy
    assert (tmp_path / "tfidf" / "evaluation" / "best-test.json").exists()
    assert str(tmp_path / "tfidf") in (copy / "report.html").read_text()


def test_baselines_are_evaluated_in_the_same_data_folder(trained: Path, linear: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "runs" / "run"))
    shutil.copytree(linear, tmp_path / "runs" / "nb")
    elsewhere = tmp_path / "corpora"
    (beside,) = baselines_beside(folder, "test", data_dir=str(elsewhere)).values()
    assert any(elsewhere.glob("*/test.parquet"))
    assert beside.num_examples == 100


def test_eval_shows_no_baselines_of_other_reviews(trained: Path, linear: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    shutil.copytree(linear, tmp_path / "nb")
    assert len(baselines_beside(copy, "test")) == 1
    info = run.open_run(tmp_path / "nb").info
    write_json(tmp_path / "nb" / run.INFO, info.model_copy(update={"corpus_hash": "0" * 64}))
    assert baselines_beside(copy, "test") == {}


def test_eval_shows_no_baseline_that_is_damaged_or_learnt_validation(trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    config = run.open_run(trained).config
    data = config.data.model_copy(update={"validation": False})
    make_baseline(tmp_path / "all", config.model_copy(update={"data": data}), "nb")
    make_baseline(tmp_path / "broken", config, "nb")
    (tmp_path / "broken" / "checkpoints" / "best" / "model.safetensors").write_bytes(b"")
    assert baselines_beside(copy, "validation") == {}
    assert imdb_tx("eval", copy).exit_code == 0


def test_compare_writes_a_page_with_the_runs_curves_together(
    trained: Path, linear: Path, tmp_path: Path
) -> None:
    shutil.copytree(linear, tmp_path / "nb")
    path = tmp_path / "compare.html"
    assert imdb_tx("compare", trained, tmp_path / "nb", "--html", path).exit_code == 0
    page = path.read_text()
    for title in ("Training loss", "Validation accuracy", "ROC", "Reliability"):
        assert f"<b>{title}.</b>" in page
    (pair,) = json.loads(imdb_tx("compare", trained, tmp_path / "nb", "--json").stdout)["pairs"]
    low, high = (f"{100 * pair[end]:+.2f}" for end in ("low", "high"))
    assert f"<td>{100 * pair['difference']:+.2f}</td><td>{low} to {high}</td>" in page
    assert "McNemar" in page
    assert not OUTSIDE.search(page)


def test_html_table_escapes_its_cells() -> None:
    written = html_table(["", "runs/a", "runs/<b>"], [["accuracy", "91%", "90%"]])
    cells = re.findall(r"<(t[hd])(?: [^>]*)?>(.*?)</", written)
    assert cells == [
        ("th", ""),
        ("th", "runs/a"),
        ("th", "runs/&lt;b&gt;"),
        ("th", "accuracy"),
        ("td", "91%"),
        ("td", "90%"),
    ]
    assert re.sub(r"<[^>]*>", "", written) == "runs/aruns/&lt;b&gt;accuracy91%90%"


def test_curves_are_described_in_words() -> None:
    metrics = [{"step": step, "loss": 2.0 if step < 500 else 1.0} for step in range(1, 1001)]
    logged = {"run": [*metrics, {"step": 1000, "validation": {"accuracy": 0.9125, "loss": 1.0}}]}
    loss, accuracy = figures.losses(logged), figures.validations(logged)
    assert loss is not None
    assert accuracy is not None
    assert "from 2.000 to 1.000 in 1,000 steps" in loss.description
    assert "91.25%" in accuracy.description


def test_the_curves_of_runs_with_long_names_are_drawn() -> None:
    names = {f"/{'a-long-folder/' * 20}{run_name}": [0.5, 0.4] for run_name in ("first", "second")}
    logged = {
        name: [{"step": i, "loss": loss} for i, loss in enumerate(losses, 1)]
        for name, losses in names.items()
    }
    drawn = figures.losses(logged)  # matplotlib warns, which is an error here, where no room is left
    assert drawn is not None
    assert "first" in drawn.svg


def test_dollars_in_class_names_are_no_formulas() -> None:
    logits, labels = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 3
    found = evaluation_of(logits, labels, split="test", checkpoint="best", classes=("$", "$$", "$_$"))
    assert "$_$" in figures.confusion(found).svg
