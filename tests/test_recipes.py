"""Several runs together: seeds, teachers, ensembles; and probabilities that were calibrated."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

import imdb_transformer
from imdb_transformer.data import corpus
from imdb_transformer.data.encoded import tokenize
from imdb_transformer.errors import ConfigError, DataError, Interrupted, RunError
from imdb_transformer.evaluation.baseline import make_baseline, yardstick_of
from imdb_transformer.evaluation.evaluate import CLEAN, evaluate, predict_split
from imdb_transformer.evaluation.scores import expected_calibration_error, fit_temperature
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.store import metrics, run
from imdb_transformer.training.prepare import labels_of_teachers, prepare, with_soft_labels
from tests.conftest import imdb_tx, write_jsonl
from tests.in_process import CPU, Tiny, train, weights

ROOT = Path(__file__).parent.parent


def test_each_seed_gives_a_run_and_the_command_prints_a_table_row(
    config_path: Path, source: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "own"))
    data = ("--config", config_path, "--set", f"data.source={folder}", "--set", "train.yardstick=true")
    arguments = ("train", *data, "--seeds", 2, "--run-dir", tmp_path / "r", "--test")
    printed = imdb_tx(*arguments).stdout
    header, rule, row = (line.strip("| ").split(" | ") for line in printed.splitlines()[:3])
    assert f"| recipe | {' | '.join(header)} |" in (ROOT / "configs" / "README.md").read_text()
    assert len(header) == len(rule) == len(row)
    assert row[0] == "2 seeds"
    yardsticks = [yardstick_of(tmp_path / f"r-seed-{seed}") for seed in (0, 1)]
    assert (
        printed.splitlines()[-1] == f"next: imdb-tx compare {tmp_path / 'r-seed-0'} {tmp_path / 'r-seed-1'}"
    )
    shown = [line.split()[-1] for line in printed.splitlines()[-3:-1]]
    assert shown == [f"{100 * each.accuracy:.2f}" for each in yardsticks if each is not None]
    summary = json.loads(imdb_tx(*arguments, "--json").stdout)  # the runs are there: nothing is trained again
    assert summary["runs"] == [str(tmp_path / f"r-seed-{seed}") for seed in (0, 1)]
    each = summary["test_accuracy"]["each"]
    assert summary["test_accuracy"]["mean"] == pytest.approx(np.mean(each))
    assert summary["test_accuracy"]["sd"] == pytest.approx(np.std(each, ddof=1))
    evaluations = [evaluate([tmp_path / f"r-seed-{seed}"], "test") for seed in (0, 1)]
    assert summary["raw_ece"]["mean"] == pytest.approx(np.mean([one.raw.ece for one in evaluations]))
    assert summary["calibrated_ece"]["each"] == [one.calibrated.ece for one in evaluations]
    assert summary["clean_test_accuracy"]["each"] == [one.slices[CLEAN].accuracy for one in evaluations]
    files = [weights(tmp_path / f"r-seed-{seed}") for seed in (0, 1)]
    assert files[0] != files[1]
    (tmp_path / "r-seed-0/yardstick.json").unlink()  # a mean over one of the runs would mislead
    without_yardstick = imdb_tx(*arguments)
    assert without_yardstick.exit_code == 0
    assert "nb on validation" in printed
    assert "nb on validation" not in without_yardstick.stdout
    other = imdb_tx(*arguments, "--set", "train.lr=0.5")
    assert isinstance(other.exception, RunError)
    imdb_tx("baseline", *data, "--run-dir", tmp_path / "nb")
    for teacher in (tmp_path / "nb", tmp_path / "missing"):
        taught = imdb_tx(*arguments, "--teacher", teacher)
        assert "--teacher" in str(taught.exception)
    with (folder / "train.jsonl").open("a") as file:
        file.write('{"text": "one more", "label": "pos"}\n')
    assert "other reviews" in str(imdb_tx(*arguments).exception)


def test_teachers_are_asked_once_for_all_seeds_and_not_by_a_dry_run(
    config_path: Path, tmp_path: Path
) -> None:
    imdb_tx("baseline", "--config", config_path, "--run-dir", tmp_path / "nb")
    arguments = ("train", "--config", config_path, "--teacher", tmp_path / "nb", "--run-dir", tmp_path / "r")
    assert imdb_tx(*arguments, "--seeds", 2).exit_code == 0
    second = tmp_path / "r-seed-1"
    expected = weights(second)
    shutil.rmtree(second)
    (model,) = (tmp_path / "nb").rglob("*.safetensors")
    model.write_bytes(model.read_bytes()[:-1])  # it could not answer
    result = imdb_tx(*arguments, "--seeds", 2)
    assert result.exit_code == 0, result.exception
    assert weights(second) == expected
    again = imdb_tx("train", "--config", config_path, "--teacher", tmp_path / "nb", "--dry-run")
    assert again.exit_code == 0, again.exception


@pytest.mark.parametrize("options", [("--test",), ("--seeds", 2, "--dry-run")])
def test_options_that_do_not_go_together_are_refused(config_path: Path, options: tuple[object, ...]) -> None:
    assert isinstance(imdb_tx("train", "--config", config_path, *options).exception, ConfigError)


def test_seeds_are_tested_only_if_there_is_a_test_split(
    config_path: Path, source: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "own"))
    (folder / "test.jsonl").unlink()
    arguments = (
        "train",
        "--config",
        config_path,
        "--set",
        f"data.source={folder}",
        "--run-dir",
        tmp_path / "r",
    )
    refused = imdb_tx(*arguments, "--seeds", 2, "--test")
    assert "has no test split: leave out --test" in str(refused.exception)
    assert not list(tmp_path.glob("r-*"))
    trained = imdb_tx(*arguments[:-1], tmp_path / "all", "--set", "data.held_out_fraction=0")
    assert trained.stdout.endswith(f"next: imdb-tx eval {tmp_path / 'all'} --source labelled.csv\n")


def test_seeds_that_are_interrupted_say_how_to_continue_all(config_path: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "imdb_transformer", "train", "--config", str(config_path),
        "--set", "train.epochs=200", "--seeds", "2", "--run-dir", str(tmp_path / "r"),
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("step "):
                break
        running.send_signal(signal.SIGINT)
        told = running.stderr.read()
    assert running.returncode == 130
    assert told.endswith("\nTo continue with all 2 seeds, repeat the command.\n")


def test_seeds_beyond_the_largest_are_refused(config_path: Path, tmp_path: Path) -> None:
    largest = f"train.seed={2**31 - 1}"
    arguments = ("train", "--config", config_path, "--run-dir", tmp_path / "run", "--set", largest)
    assert "the largest is 2,147,483,647" in str(imdb_tx(*arguments, "--seeds", 2).exception)
    assert not list(tmp_path.glob("run-*"))


def test_a_student_learns_the_unlabelled_reviews_and_resumes_bit_for_bit(tiny: Tiny, tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    make_baseline(teacher, tiny(), "nb")
    config = tiny("train.ema_decay=0.9")
    imdb_transformer.train(config, tmp_path / "whole", teachers=str(teacher))
    whole = run.open_run(tmp_path / "whole")
    assert whole.info.teachers == (str(teacher),)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", 5, teachers=[teacher])
    for path in teacher.rglob("*.safetensors"):
        path.unlink()  # what it said is in the run
    parts = train(config, tmp_path / "parts")
    assert weights(whole.folder) == weights(parts.folder)
    alone = train(config, tmp_path / "alone")
    assert len(metrics.read(whole.folder)) > len(metrics.read(alone.folder))


def test_damaged_soft_labels_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    make_baseline(tmp_path / "teacher", tiny(), "tfidf")
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "run", 1, teachers=[tmp_path / "teacher"])
    path = tmp_path / "run" / "soft_labels.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(RunError, match=r"soft_labels\.npy"):
        train(tiny(), tmp_path / "run")


def test_labelled_reviews_keep_their_hard_labels(tiny: Tiny) -> None:
    data = tokenize(tiny(), ["train", "unsupervised"])
    soft = np.tile(np.array([[0.6, 0.4], [0.05, 0.95]], np.float32), (50, 1))
    learnt = with_soft_labels(data.splits["train"], data.splits["unsupervised"], soft)
    num_train = len(data.splits["train"].labels)
    assert learnt.labels.shape == (num_train + 100, 2)
    assert (learnt.labels[:num_train].argmax(1) == data.splits["train"].labels).all()
    assert (learnt.labels[num_train:] == soft).all()
    first = data.splits["unsupervised"].review(0)
    np.testing.assert_array_equal(learnt.review(num_train), first)


def test_each_unlabelled_review_gets_its_teachers_probabilities(tiny: Tiny, tmp_path: Path) -> None:
    teachers = [tmp_path / kind for kind in ("nb", "tfidf")]
    for path in teachers:
        make_baseline(path, tiny(), path.name)  # type: ignore[arg-type]
    stored = corpus.ensure(tiny().data)
    soft = labels_of_teachers(teachers, tiny(), stored)
    texts = corpus.read_split(stored, "unsupervised").texts
    means = np.mean([Predictor.load(path).probabilities(texts) for path in teachers], axis=0)
    np.testing.assert_allclose(soft, means, atol=1e-6)
    assert len(np.unique(soft[:, 0])) > 50


def test_the_epochs_of_a_student_depend_on_the_unlabelled_reviews_too(tiny: Tiny, tmp_path: Path) -> None:
    make_baseline(tmp_path / "nb", tiny(), "nb")
    config = tiny("train.epochs=0", "train.batch_tokens=64")
    alone = prepare(config, "classifier", CPU)
    student = prepare(config, "classifier", CPU, teachers=[tmp_path / "nb"], ready=False)
    sizes = len(alone.train.lengths), len(student.train.lengths)
    assert sizes[1] > 1.4 * sizes[0]
    assert student.config.train.epochs == pytest.approx(
        alone.config.train.epochs * sizes[0] / sizes[1], abs=1
    )


def test_a_teacher_that_may_have_seen_what_is_held_out_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    make_baseline(tmp_path / "all", tiny("data.held_out_fraction=0"), "nb")
    with pytest.raises(RunError, match="validation split"):
        prepare(tiny(), "classifier", CPU, teachers=[tmp_path / "all"])
    write_jsonl(tmp_path / "o.jsonl", [f"t{i} good" for i in range(40)], ["neg", "pos"] * 20)
    other = f"data.source={tmp_path / 'o.jsonl'}"
    make_baseline(tmp_path / "other", tiny(other), "nb")
    with pytest.raises(RunError, match="other reviews"):
        prepare(tiny(), "classifier", CPU, teachers=[tmp_path / "other"])
    with pytest.raises(DataError, match="unlabelled"):
        prepare(tiny(other), "classifier", CPU, teachers=[tmp_path / "other"])


def test_several_runs_predict_their_mean_probability(trained: Path, tmp_path: Path) -> None:
    config = run.open_run(trained).config
    make_baseline(tmp_path / "nb", config, "nb")
    texts = ["a good film", "an awful film"]
    alone = [Predictor.load(path).probabilities(texts) for path in (trained, tmp_path / "nb")]
    together = Predictor.load(trained, tmp_path / "nb").probabilities(texts)
    np.testing.assert_allclose(together, np.mean(alone, axis=0))
    exact = Predictor.load(trained, tmp_path / "nb", few=True).probabilities(texts)
    answers = predict_split([trained, tmp_path / "nb"])
    assert re.fullmatch(r"best-test-with-nb-\w{8}\.json", answers.file.name)
    other = predict_split([tmp_path / "nb", run.open_run(trained).checkpoint("last")])
    assert re.fullmatch(r"best-test-with-run-last-\w{8}\.json", other.file.name)
    assert "+" in answers.evaluation.checkpoint
    copy = shutil.copytree(trained, tmp_path / "copy")
    both = json.loads(imdb_tx("eval", copy, tmp_path / "nb", "--json").stdout)
    right = Predictor.load(trained, tmp_path / "nb").probabilities(answers.texts).argmax(1) == answers.labels
    assert both["accuracy"] == right.mean()
    shown = imdb_tx("predict", "--run", trained, "--run", tmp_path / "nb", "a good film", "--json")
    assert json.loads(shown.stdout)["probability"] == pytest.approx(exact[0].max())


def test_runs_with_the_same_names_have_separate_evaluations(tiny: Tiny, tmp_path: Path) -> None:
    for name in ("run", "nb", "elsewhere/nb"):
        make_baseline(tmp_path / name, tiny(), "nb")
    evaluate([tmp_path / "run", tmp_path / "nb"])
    evaluate([tmp_path / "run", tmp_path / "elsewhere" / "nb"])
    assert len(list((tmp_path / "run" / "evaluation").glob("best-test-with-nb-*.json"))) == 2


def test_runs_with_different_classes_do_not_predict_together(
    tiny: Tiny, trained: Path, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "o.jsonl", [f"t{i} good" for i in range(40)], ["bad", "good"] * 20)
    make_baseline(tmp_path / "o", tiny(f"data.source={tmp_path / 'o.jsonl'}"), "nb")
    with pytest.raises(RunError, match=r"bad, good.*neg, pos"):
        Predictor.load(trained, tmp_path / "o")


def test_the_temperature_has_the_lowest_loss_and_is_used_by_predictions(
    trained: Path, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20_000, 2)) * 2
    probabilities = np.exp(log_softmax(logits, axis=1))
    labels = (rng.random(20_000) < probabilities[:, 1]).astype(int)
    assert fit_temperature(logits * 3, labels) == pytest.approx(3, rel=0.05)
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    run.open_run(folder).write_info(temperature=2.0)
    predictor = Predictor.load(folder)
    raw = predictor.models[0].logits(["a good film"]).astype(np.float64)
    expected = np.exp(log_softmax(raw / 2.0, axis=1))
    np.testing.assert_allclose(predictor.probabilities(["a good film"]), expected)


def test_calibration_error_of_calibrated_and_of_overconfident_probabilities() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1, 50_000)
    labels = (rng.random(50_000) > p).astype(int)  # class 0 with probability p
    assert expected_calibration_error(np.stack([p, 1 - p], 1), labels) < 0.01
    certain = np.tile([1.0, 0.0], (50_000, 1))
    assert expected_calibration_error(certain, labels) == pytest.approx(labels.mean())


def test_evaluation_has_a_slice_of_reviews_that_were_not_trained_on(
    tiny: Tiny, source: Path, tmp_path: Path
) -> None:
    """At least 7 of the test reviews stand in train or validation as well."""
    copied = Path(shutil.copytree(source, tmp_path / "copied"))
    rows = [json.loads(line) for line in (copied / "test.jsonl").read_text().splitlines()]
    known = {json.loads(line)["text"] for line in (copied / "train.jsonl").read_text().splitlines()}
    repeated = [row for row in rows if row["text"] not in known][:7]
    with (copied / "train.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in repeated)
    make_baseline(tmp_path / "nb", tiny(f"data.source={copied}"), "nb")
    evaluation = evaluate([tmp_path / "nb"], "test")
    known |= {row["text"] for row in repeated}
    clean = [row for row in rows if row["text"] not in known]
    assert 0 < len(clean) <= 93
    assert evaluation.slices[CLEAN].num_examples == len(clean)
    predictor = Predictor.load(tmp_path / "nb")
    answered = predictor.probabilities([row["text"] for row in clean]).argmax(1)
    right = [predictor.classes[i] == row["label"] for i, row in zip(answered, clean, strict=True)]
    assert evaluation.slices[CLEAN].accuracy == pytest.approx(np.mean(right))


def test_evaluation_slices_the_split(trained: Path) -> None:
    evaluation = evaluate(trained, "test")
    sizes = {name: part.num_examples for name, part in evaluation.slices.items()}
    assert sizes["cut"] + sizes["not cut"] == 100
    assert sum(size for name, size in sizes.items() if "words" in name) == 100
    assert evaluation.calibrated.loss == evaluation.loss


def test_another_source_has_no_slice_of_reviews_that_were_not_trained_on(
    trained: Path, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "o.jsonl", [f"t{i} good" for i in range(40)], ["neg", "pos"] * 20)
    evaluation = evaluate(trained, source=str(tmp_path / "o.jsonl"))
    assert CLEAN not in evaluation.slices


def test_validation_that_a_run_was_trained_on_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    make_baseline(tmp_path / "all", tiny("data.held_out_fraction=0"), "nb")
    with pytest.raises(ConfigError, match="trained on the validation split"):
        evaluate([tmp_path / "all"], "validation")


def test_the_text_recipe_runs_as_the_readme_has_it(config_path: Path, tmp_path: Path) -> None:
    options = ("--config", config_path)
    imdb_tx("baseline", *options, "--run-dir", tmp_path / "nb")
    imdb_tx("pretrain", *options, "--run-dir", tmp_path / "p")
    start = ("train", *options, "--init-from", tmp_path / "p")
    assert imdb_tx(*start, "--run-dir", tmp_path / "teacher").exit_code == 0
    taught = ("--teacher", tmp_path / "teacher", "--teacher", tmp_path / "nb")
    result = imdb_tx(*start, *taught, "--seeds", 2, "--test", "--run-dir", tmp_path / "r", "--json")
    told = json.loads(result.stdout)
    students = [tmp_path / f"r-seed-{seed}" for seed in (0, 1)]
    assert told["runs"] == list(map(str, students))
    stored = corpus.ensure(run.open_run(tmp_path / "teacher").config.data)
    unlabelled = corpus.read_split(stored, "unsupervised").texts
    taught_by = Predictor.load(tmp_path / "teacher", tmp_path / "nb").probabilities(unlabelled)
    for student, accuracy in zip(students, told["test_accuracy"]["each"], strict=True):
        np.testing.assert_allclose(np.load(student / "soft_labels.npy"), taught_by, atol=1e-6)
        assert json.loads((student / "evaluation" / "best-test.json").read_text())["accuracy"] == accuracy
        # It reads 100 unlabelled reviews beside the 180 that its teacher read.
        seen = [sum(line["num_tokens"] for line in metrics.read(path) if "loss" in line)
                for path in (student, tmp_path / "teacher")]  # fmt: skip
        assert 1.3 < seen[0] / seen[1] < 1.8


def test_an_unfinished_run_can_neither_start_nor_teach_another(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "half", 5)
    half = tmp_path / "half"
    with pytest.raises(RunError, match="not finished"):
        prepare(tiny(f"train.init_from={half}"), "classifier", CPU)
    with pytest.raises(RunError, match="not finished"):
        prepare(tiny(), "classifier", CPU, teachers=[half])
    prepare(tiny(f"train.init_from={half / 'checkpoints' / 'last'}"), "classifier", CPU)


def test_a_teacher_of_other_classes_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    texts = [f"t{i} good" for i in range(40)]
    write_jsonl(tmp_path / "train.jsonl", texts, ["good", "poor"] * 20)
    write_jsonl(tmp_path / "unsupervised.jsonl", ["another"], [""])
    with pytest.raises(RunError, match="its classes are neg, pos, here they are good, poor"):
        prepare(tiny(f"data.source={tmp_path}"), "classifier", CPU, teachers=[Path("imdb")])
