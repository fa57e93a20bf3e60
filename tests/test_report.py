import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from imdb_transformer import run
from imdb_transformer.evaluation import plots
from imdb_transformer.evaluation.baseline import make_baseline
from imdb_transformer.evaluation.evaluate import evaluate
from imdb_transformer.evaluation.report import write_report
from imdb_transformer.evaluation.split import answers
from tests.conftest import imdb_tx, write_jsonl

TITLES = ["Learning curves", "ROC", "Reliability", "Confusion", "Accuracy by kind of review"]


def test_eval_writes_a_page_with_every_figure_that_asks_for_nothing(trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    shown = imdb_tx("eval", copy).stdout
    page = (copy / "report.html").read_text()
    assert str(copy / "report.html") in shown
    for title in TITLES:
        assert f"<b>{title}.</b>" in page
    assert page.count('role="img" aria-label="') == len(TITLES)
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert "@import" not in page
    assert "<mark" in page
    assert "train.lr" not in page
    assert "lr = 0.01" in page


def test_hostile_reviews_are_escaped(trained: Path, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script> \x1b[2J {title} "
    path = tmp_path / "o.jsonl"
    write_jsonl(path, [f"{hostile}{i}" for i in range(60)], ["neg", "pos"] * 30)
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    found = answers([copy], "test", source=str(path), data_dir=str(tmp_path))
    page = write_report([copy], found).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_linear_models_page_has_errors_without_marks(trained: Path, tmp_path: Path) -> None:
    make_baseline(tmp_path / "nb", run.open_run(trained).config, "nb")
    page = write_report([tmp_path / "nb"], answers([tmp_path / "nb"], "test")).read_text()
    assert "<mark" not in page
    assert "Learning curves" not in page
    assert "<b>ROC.</b>" in page


@pytest.mark.parametrize("num_classes", [2, 3])
def test_plots_of_a_split_of_one_class_only(num_classes: int) -> None:
    logits = np.random.default_rng(0).normal(size=(20, num_classes))
    labels = np.zeros(20, np.int64)
    classes = tuple("abc"[:num_classes])
    found = evaluate(logits, labels, split="test", checkpoint="best", classes=classes)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert plots.roc(probabilities, labels, classes) is None
    assert plots.slices(found) is None
    assert plots.confusion(found).svg.startswith("<svg")
    same = [plots.reliability(probabilities, probabilities, labels, found).svg for _ in range(2)]
    assert same[0] == same[1]
