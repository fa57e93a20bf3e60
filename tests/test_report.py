"""The pages: what they say, and that they stand alone."""

import json
import re
import shutil
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from imdb_transformer.config import Config
from imdb_transformer.errors import Interrupted, shortened
from imdb_transformer.evaluation.baseline import baselines_beside, make_baseline
from imdb_transformer.evaluation.evaluate import evaluate, predict_split, save
from imdb_transformer.evaluation.scores import evaluation_of
from imdb_transformer.report import charts, figures
from imdb_transformer.report.evaluations import evaluation_tables
from imdb_transformer.report.layout import html_table
from imdb_transformer.report.pages import with_page, write_evaluation
from imdb_transformer.report.summaries import class_table
from imdb_transformer.store import run
from imdb_transformer.store.files import write_json
from imdb_transformer.training import loop
from imdb_transformer.training.start import training_steps
from tests.conftest import imdb_tx, write_jsonl

OUTSIDE = re.compile(r'(?:src|href)="(?!data:|#)')
TITLES = ["Loss", "Validation accuracy", "ROC", "Reliability"]


def test_eval_writes_a_page_that_stands_alone_with_all_figures(trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    shown = imdb_tx("eval", copy).stdout
    page = (copy / "report.html").read_text()
    assert str(copy / "report.html") in shown
    assert "<title>run on test</title>" in page
    assert "<h1>run on test</h1>" in page
    for title in TITLES:
        assert f"<b>{title}</b>" in page
    assert page.count('role="img" aria-label="') == page.count("<svg") == len(TITLES)
    for heading in ("support", "95% interval", "true \\ predicted"):
        assert f">{heading}</th>" in page
    assert not OUTSIDE.search(page)
    assert "@import" not in page
    assert "<mark" in page
    assert page.index("<summary>Config</summary>") < page.index("lr = 0.01")
    assert page.index("<summary>Environment</summary>") < page.index("&quot;platform&quot;")


def test_a_page_about_the_mean_of_runs_has_nothing_that_is_about_one_of_them(
    trained: Path, tmp_path: Path
) -> None:
    first, second = (Path(shutil.copytree(trained, tmp_path / name)) for name in ("first", "second"))
    page_of = re.compile(r"written to \S+ and (\S+)")
    alone, together = (
        Path(page_of.findall(imdb_tx("eval", *paths).stdout)[0]).read_text()
        for paths in ([first], [first, second])
    )
    assert "<h1>first and 1 more on test</h1>" in together
    for title, is_of_one in zip(TITLES, (True, True, False, False), strict=True):
        assert f"<b>{title}</b>" in alone
        assert (f"<b>{title}</b>" not in together) == is_of_one
    assert "<summary>Config</summary>" in alone
    assert "<summary>Config</summary>" not in together


def test_hostile_reviews_are_escaped(trained: Path, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script> \x1b[2J {title} "
    path = tmp_path / "o.jsonl"
    write_jsonl(path, [f"{hostile}{i}" for i in range(60)], ["neg", "pos"] * 30)
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    answers = predict_split([copy], source=str(path), data_dir=str(tmp_path))
    save(answers)  # which makes the folder of the page
    page = write_evaluation(answers, {}).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_linear_models_page_has_errors_without_marks(linear: Path, tmp_path: Path) -> None:
    shutil.copytree(linear, tmp_path / "nb")
    page = write_evaluation(predict_split([tmp_path / "nb"]), {}).read_text()
    assert "<mark" not in page
    assert "<b>Loss</b>" not in page
    assert "<b>ROC</b>" in page


def test_listed_errors_are_sorted_by_confidence(linear: Path, tmp_path: Path) -> None:
    shutil.copytree(linear, tmp_path / "nb")
    answered = predict_split([tmp_path / "nb"], "test")
    assert answered.correct.mean() == pytest.approx(answered.evaluation.accuracy)
    page = write_evaluation(answered, {}).read_text()
    errors = re.findall(r"<summary>(\w+) at ([\d.]+)%, labelled (\w+):", page)
    assert len(errors) == min(20, (~answered.correct).sum()) > 1
    assert all(answer != label for answer, _, label in errors)
    shares = [float(share) for _, share, _ in errors]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_figures_of_a_split_with_one_class(num_classes: int) -> None:
    logits = np.random.default_rng(0).normal(size=(20, num_classes))
    labels = np.zeros(20, np.int64)
    classes = tuple("abc"[:num_classes])
    evaluation = evaluation_of(logits, labels, split="test", checkpoint="best", classes=classes)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    answers = SimpleNamespace(
        evaluation=evaluation, labels=labels, log_probabilities=np.log(probabilities),
        raw_log_probabilities=np.log(probabilities),
    )  # fmt: skip
    assert figures.roc({"run": answers}) == ""
    assert figures.losses({"run": []}) == ""
    assert figures.accuracies({"run": []}) == ""
    assert "><svg" in figures.reliability({"run": answers})
    recall = evaluation.confusion[0][0] / 20
    table = html_table(*class_table(evaluation.per_class))
    assert f'<td class="number">1.0000</td><td class="number">{recall:.4f}</td>' in table
    assert '<td class="number">0.0000</td><td class="number">0.0000</td>' in table  # of an absent class


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
    baselines = json.loads(imdb_tx("eval", copy, "--json").stdout)["baselines"]
    assert {Path(name).name for name in baselines} == {"nb", "tfidf"}
    assert baselines[str(tmp_path / "nb")]["accuracy"] == alone.accuracy
    assert (tmp_path / "tfidf" / "evaluation" / "best-test.json").exists()
    assert str(tmp_path / "tfidf") in (copy / "report.html").read_text()


def test_baselines_are_evaluated_in_the_same_data_folder(trained: Path, linear: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "runs" / "run"))
    shutil.copytree(linear, tmp_path / "runs" / "nb")
    elsewhere = tmp_path / "corpora"
    (beside,) = baselines_beside(run.open_run(folder), "test", data_dir=str(elsewhere)).values()
    assert any(elsewhere.glob("*/test.parquet"))
    assert beside.num_examples == 100


def test_eval_shows_no_baselines_of_other_reviews(trained: Path, linear: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    shutil.copytree(linear, tmp_path / "nb")
    assert len(baselines_beside(run.open_run(copy), "test")) == 1
    info = run.open_run(tmp_path / "nb").info
    write_json(tmp_path / "nb" / run.INFO, info.model_copy(update={"corpus_hash": "0" * 64}))
    assert baselines_beside(run.open_run(copy), "test") == {}


def test_eval_shows_no_baseline_that_is_damaged_or_learnt_validation(trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    config = run.open_run(trained).config
    make_baseline(tmp_path / "all", config.replaced("data", held_out_fraction=0.0), "nb")
    make_baseline(tmp_path / "broken", config, "nb")
    (tmp_path / "broken" / "checkpoints" / "best" / "model.safetensors").write_bytes(b"")
    assert baselines_beside(run.open_run(copy), "validation") == {}
    assert imdb_tx("eval", copy).exit_code == 0


def test_compare_writes_a_page_with_the_runs_curves_together(
    trained: Path, linear: Path, tmp_path: Path
) -> None:
    shutil.copytree(linear, tmp_path / "nb")
    path = tmp_path / "compare.html"
    assert imdb_tx("compare", trained, tmp_path / "nb", "--html", path).exit_code == 0
    page = path.read_text()
    for title in ("Loss", "Validation accuracy", "ROC", "Reliability"):
        assert f"<b>{title}</b>" in page
    assert page.count("</i>") == 6  # a linear model has no loss against the step
    (pair,) = json.loads(imdb_tx("compare", trained, tmp_path / "nb", "--json").stdout)["pairs"]
    low, high = (f"{100 * pair[end]:+.2f}" for end in ("low", "high"))
    assert f'>{100 * pair["difference"]:+.2f}</td><td class="number">{low} to {high}</td>' in page
    assert "McNemar" in page
    assert not OUTSIDE.search(page)


def test_a_column_of_headings_is_aligned_with_its_header() -> None:
    written = html_table(["class", "F1"], [["1", "0.5"], ["2", "0.25"]])
    assert '<th scope=col>class</th><th scope=col class="number">F1</th>' in written


def test_only_a_table_with_long_headings_is_as_wide_as_they_need() -> None:
    assert 'class="name"' not in html_table(["class", "F1"], [["neg", "0.5"], ["pos", "0.25"]])
    assert 'class="name"' in html_table(["config", "a"], [["tokenizer.max_length", "256"]])


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
    loss, accuracy = figures.losses(logged), figures.accuracies(logged)
    assert "from 2.000 to 1.000 in 1,000 steps" in loss
    assert "91.25%" in accuracy


def test_a_run_without_steps_is_a_dashed_line_at_its_accuracy() -> None:
    logged = {"a": [{"step": i, "validation": {"accuracy": 0.9, "loss": 1.0}} for i in (5, 10)], "nb": []}
    drawn = figures.accuracies(logged, {"a": 0.8, "nb": 0.95})
    assert re.findall(r"<i></i>(\w+)", drawn) == ["a", "nb"]
    assert "<span>The best: a 90.00%, nb 95.00% (dashed)." in drawn
    ((start, end),) = re.findall(r'class="level [^>]*><polyline points="([\d.]+),[\d.]+ ([\d.]+),', drawn)
    assert (float(start), float(end)) == (charts.LEFT, charts.WIDTH - charts.RIGHT)
    assert ">95.00</text>" in drawn
    without = figures.accuracies(logged)
    assert "nb" not in without
    assert figures.accuracies({"nb": []}, {"nb": 0.95}) == ""


def test_an_axis_that_does_not_start_at_zero_says_so() -> None:
    logged = [{"step": i, "validation": {"accuracy": i / 100, "loss": 1.0}} for i in (91, 95, 93)]
    drawn = figures.accuracies({"run": logged})
    assert "The axis starts at 91%." in drawn
    assert ">91<" in drawn
    assert ">95.00</text>" in drawn  # the best has its value


def test_an_axis_of_tiny_values_has_distinct_ticks() -> None:
    for high in (1e-9, 1e-11, 3e-300):
        shown = charts.ticks(0, high)
        assert len(set(shown)) == len(shown) > 3
        assert shown[-1] >= high


def test_the_axis_of_a_loss_starts_at_zero() -> None:
    drawn = figures.losses({"run": [{"step": i, "loss": 5.0 + i} for i in range(1, 9)]})
    assert re.search(r'text-anchor="end">0</text>', drawn)


def test_points_lie_where_their_values_say() -> None:
    curve = charts.Curve("run", [(0, 0), (50, 0.5), (100, 1)], 0)
    svg = charts.line_chart([curve], "x", "y", digits=1)
    (path,) = re.findall(r'points="([^"]*)"', svg)
    places = [tuple(map(float, place.split(","))) for place in path.split()]
    right, bottom = charts.WIDTH - charts.RIGHT, charts.HEIGHT - charts.BOTTOM
    middle = ((charts.LEFT + right) / 2, (charts.TOP + bottom) / 2)
    assert places == [(charts.LEFT, bottom), middle, (right, charts.TOP)]
    assert "<title>run, x 50: 0.5</title>" in svg


def test_values_of_curves_that_end_together_do_not_overlap() -> None:
    logged = {
        name: [{"step": 1, "validation": {"accuracy": accuracy, "loss": 1.0}}]
        for name, accuracy in (("a", 0.901), ("b", 0.902), ("c", 0.903))
    }
    drawn = figures.accuracies(logged)
    levels = sorted(float(y) for y in re.findall(r'y="([\d.-]+)"[^>]*class="value"', drawn))
    assert len(levels) == 3
    assert min(b - a for a, b in pairwise(levels)) >= 12


def test_names_of_classes_and_runs_are_escaped_in_figures() -> None:
    logits, labels = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 3
    evaluation = evaluation_of(logits, labels, split="test", checkpoint="best", classes=("<b>", "$$", "&"))
    losses = figures.losses({"<b>": [{"step": 1, "loss": 1.0}]})
    page = figures.grid([losses]) + "".join(html_table(*table) for table in evaluation_tables(evaluation, {}))
    assert "<b>" not in page.replace("<figcaption><b>", "")
    assert "&lt;b&gt;" in page


def test_a_long_text_is_cut_at_the_end_of_a_word() -> None:
    assert shortened("one two three", 13) == "one two three"
    assert shortened("one two three", 12) == "one two…"
    assert shortened("x" * 30, 10) == "x" * 9 + "…"
    assert shortened("one\ntwo", 10) == "one two"


def test_errors_keep_their_line_breaks_and_are_cut_between_words(linear: Path, tmp_path: Path) -> None:
    shutil.copytree(linear, tmp_path / "nb")
    answered = predict_split([tmp_path / "nb"], "test")
    i = int(np.argmax(~answered.correct))
    answered.texts[i] = "First line.<br /><br />" + "second " * 20
    page = write_evaluation(answered, {}).read_text()
    assert "First line.\n\nsecond" in page
    assert re.search(r"First line\.  (second ){6,}second…</summary>", page)


def test_a_page_shows_a_training_while_it_runs(tiny: Callable[..., Config], tmp_path: Path) -> None:
    path = tmp_path / "run" / "report.html"
    steps = with_page(training_steps(tiny(), path.parent, "classifier"), path.parent)
    pages = [(update.step, path.read_text()) for update in steps if update.step == 1 or update.saved]
    assert len(pages) > 2
    num_steps = pages[-1][0]
    for step, page in pages:
        assert '<meta http-equiv="refresh"' in page
        assert f'<progress value="{step if step > 1 else 0}" max="{num_steps}">' in page
        assert (">running, about " in page) == (1 < step < num_steps)
    assert "<b>Validation accuracy</b>" not in pages[0][1]
    assert "<b>Validation accuracy</b>" in pages[1][1]
    ended = path.read_text()
    assert ">finished. " in ended
    assert "http-equiv" not in ended


def test_the_page_of_an_interrupted_training_says_so(tiny: Callable[..., Config], tmp_path: Path) -> None:
    steps = with_page(training_steps(tiny(), tmp_path / "run", "classifier"), tmp_path / "run")
    while next(steps).step < 3:
        pass
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Interrupted):
        next(steps)
    page = (tmp_path / "run" / "report.html").read_text()
    assert ">interrupted. " in page
    assert '<progress value="3"' in page
    assert "http-equiv" not in page


def test_the_page_of_a_run_that_was_killed_after_its_last_step_is_written_when_it_is_resumed(
    tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "run"
    monkeypatch.setattr(loop, "finish", killed)
    with pytest.raises(KeyboardInterrupt):
        list(with_page(training_steps(tiny(), folder, "classifier"), folder))
    assert "http-equiv" in (folder / "report.html").read_text()
    monkeypatch.undo()
    assert not list(with_page(training_steps(None, folder, "classifier", resume=True), folder))
    page = (folder / "report.html").read_text()
    assert ">finished. " in page
    assert "http-equiv" not in page


def test_train_writes_the_page(trained: Path, encoder: Path) -> None:
    for folder in (trained, encoder):
        assert "<b>Loss</b>" in (folder / "report.html").read_text()


def test_the_points_of_several_runs_say_whether_they_are_of_training_or_validation() -> None:
    metrics = [{"step": 1, "loss": 2.0}, {"step": 1, "validation": {"loss": 1.5}}]
    page = figures.losses({"a": metrics, "b": metrics})
    for run_name in "ab":
        assert f"{run_name}, training, step 1: 2.000" in page
        assert f"{run_name}, validation, step 1: 1.500" in page
        assert f"<i></i>{run_name}</span>" in page
