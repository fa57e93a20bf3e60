import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from imdb_transformer.config import Config
from imdb_transformer.data import corpus
from imdb_transformer.errors import DataWarning
from imdb_transformer.evaluation.baseline import make_baseline
from imdb_transformer.evaluation.evaluate import evaluate
from imdb_transformer.evaluation.scores import ClassScore
from imdb_transformer.report.evaluations import card
from imdb_transformer.store import run
from imdb_transformer.training.finish import finish
from tests.conftest import imdb_tx, write_jsonl
from tests.in_process import train


def test_eval_on_test_writes_a_model_card_that_the_hub_can_read(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "# my: [run]\n---\n{x"
    of_other_tests = shutil.ignore_patterns("evaluation", "README.md")
    shutil.copytree(trained, folder, ignore=of_other_tests)
    assert imdb_tx("eval", folder, "--split", "validation").exit_code == 0
    assert not (folder / "README.md").exists()
    assert imdb_tx("eval", folder).exit_code == 0
    text = (folder / "README.md").read_text()
    read = ModelCard(text)  # the hub's own reader
    body, told = read.text, read.data
    assert told.pipeline_tag == "text-classification"
    assert told.model_name == folder.name
    accuracy = evaluate(folder).accuracy
    assert told.eval_results is not None
    result = told.eval_results[0]
    assert (result.metric_type, result.metric_value) == ("accuracy", round(accuracy, 4))
    assert result.dataset_type == "own"
    assert f"{100 * accuracy:.2f}%" in body
    assert "On the test split, " in body
    assert "It was not evaluated on other texts." in body
    other = tmp_path / "other | texts.jsonl"
    write_jsonl(other, ["a good film", "a bad film"], ["pos", "neg"])
    assert imdb_tx("eval", folder, "--source", other).exit_code == 0
    body = (folder / "README.md").read_text()
    assert r"| all of other \| texts.jsonl |" in body
    assert "It was not evaluated on other texts." not in body


def test_the_card_says_how_many_of_the_reviews_were_learnt(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    opened = run.open_run(folder)
    learnt = corpus.read_split(corpus.ensure(opened.config.data), "train").texts[:3]
    other = tmp_path / "other.jsonl"
    write_jsonl(other, [*learnt, "a text of its own"], ["pos", "neg"] * 2)
    with pytest.warns(DataWarning, match="3 of these 4 reviews were in training or validation"):
        shown = imdb_tx("eval", folder, "--source", other).stdout
    assert "reviews                   4 (3 of them also in training or validation)" in shown
    assert imdb_tx("eval", folder).exit_code == 0
    assert (
        "| all of other.jsonl (3 of them also in training or validation) |"
        in (folder / "README.md").read_text()
    )


def test_an_unfinished_run_gets_a_note_and_no_card(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("README.md")))
    run.open_run(folder).write_status("interrupted")
    with pytest.warns(DataWarning, match="is not finished: it is not calibrated, and gets no model card"):
        assert imdb_tx("eval", folder).exit_code == 0
    assert not (folder / "README.md").exists()


def test_a_readme_of_the_user_is_no_card_and_stays(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    (folder / "README.md").write_text("my own notes\n")
    with pytest.warns(DataWarning, match="is not a model card, and was kept"):
        assert imdb_tx("eval", folder).exit_code == 0
    finish(run.open_run(folder))
    assert (folder / "README.md").read_text() == "my own notes\n"
    (folder / "README.md").unlink()
    assert imdb_tx("eval", folder).exit_code == 0
    assert ModelCard((folder / "README.md").read_text()).data.model_name == "run"
    finish(run.open_run(folder))
    assert not (folder / "README.md").exists()


def test_a_card_has_the_scores_on_each_of_two_files_of_the_same_name(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation")))
    accuracies = []
    for name, labels in (("s1", ["pos", "neg"]), ("s2", ["neg", "neg"])):
        (tmp_path / name).mkdir()
        write_jsonl(tmp_path / name / "test.jsonl", ["a good film", "a bad film"], labels)
        accuracies.append(evaluate(folder, source=str(tmp_path / name / "test.jsonl")).accuracy)
    text = card(run.open_run(folder), evaluate(folder, "test"))
    shown = re.findall(r"^\| (all of test\.jsonl.*?) \| ([\d.]+)% \|", text, re.M)
    names = ["all of test.jsonl", "all of test.jsonl (2)"]
    assert shown == [
        (name, f"{100 * accuracy:.2f}") for name, accuracy in zip(names, accuracies, strict=True)
    ]


def test_the_card_of_a_student_names_its_teachers_and_compare_shows_them(
    tiny: Callable[..., Config], tmp_path: Path
) -> None:
    make_baseline(tmp_path / "my nb", tiny(), "nb")
    student = train(tiny("train.epochs=1"), tmp_path / "student", teachers=[tmp_path / "my nb"])
    alone = train(tiny("train.epochs=1"), tmp_path / "alone")
    text = card(student, evaluate(student.folder, "validation"))
    assert "It also learnt the predictions of my nb for the unlabelled reviews." in text
    assert "`imdb-tx train --config config.toml --teacher 'my nb'` repeats the training, with" in text
    assert "predictions of" not in card(alone, evaluate(alone.folder, "validation"))
    compared = json.loads(imdb_tx("compare", student.folder, alone.folder, "--json").stdout)
    assert compared["differences"] == {"teachers": [str(tmp_path / "my nb"), "none"]}


def test_the_card_of_a_run_of_the_package_has_commands_that_work_beside_it(trained: Path) -> None:
    evaluation = evaluate(trained)
    assert 'imdb-tx predict --run imdb "' in card(run.open_run(Path("imdb")), evaluation)
    assert 'imdb-tx predict --run . "' in card(run.open_run(trained), evaluation)


def test_only_a_run_that_began_with_random_weights_is_tagged_as_trained_from_scratch(trained: Path) -> None:
    opened, evaluation = run.open_run(trained), evaluate(trained)
    started = opened._replace(config=opened.config.replaced("train", init_from="imdb-encoder"))
    tagged = [
        "trained-from-scratch" in (ModelCard(card(each, evaluation)).data.tags or ())
        for each in (opened, started)
    ]
    assert tagged == [True, False]


def test_a_card_neither_names_folders_nor_contains_markup_of_a_class(trained: Path) -> None:
    opened = run.open_run(trained)
    evaluation = evaluate(trained, "validation").model_copy(update={
        "classes": ("<b>a|b</b>", "# two"),
        "per_class": {"<b>a|b</b>": ClassScore(precision=1, recall=1, f1=1, support=1)},
    })  # fmt: skip
    text = card(opened, evaluation)
    assert str(Path(opened.config.data.source).parent) not in text.split("```toml")[0]
    assert "<b>" not in text
    assert "\\<b\\>a\\|b\\</b\\>" in text
    assert re.search(r"^# two", text, re.M) is None
