import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from imdb_transformer import config_file, hardware
from imdb_transformer.data import corpus, encoded
from imdb_transformer.errors import ConfigError, DataError, DataWarning, RunError
from imdb_transformer.evaluation.baseline import make_baseline
from imdb_transformer.evaluation.evaluate import CLEAN, evaluate, predict_split, save
from imdb_transformer.evaluation.scores import fit_temperature
from imdb_transformer.inference.predictor import Predictor, load_model
from imdb_transformer.inference.transformer import TransformerModel, outputs_of
from imdb_transformer.store import run
from imdb_transformer.store.files import write_json
from tests.conftest import accept_config, imdb_tx, write_jsonl


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


def test_an_evaluation_names_the_checkpoint_of_each_run(trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    alone = evaluate(trained, "validation")
    together = evaluate([copy, trained / "checkpoints" / "last"], "validation")
    assert re.fullmatch(r"best \(step \d+\)", alone.checkpoint)
    assert re.fullmatch(r"copy/best \(step \d+\) \+ run/last \(step \d+\)", together.checkpoint)


def test_logits_do_not_depend_on_the_batch_size(trained: Path) -> None:
    model = Predictor.load(trained).models[0]
    assert isinstance(model, TransformerModel)
    reviews = model.tokenizer.encode([f"a {'very ' * (i % 9)}good film" for i in range(40)])
    hardware = model.hardware._replace(dtype=torch.float32)
    many = outputs_of(model.classifier, reviews, hardware)
    single = [outputs_of(model.classifier, [review], hardware)[0] for review in reviews]
    np.testing.assert_allclose(single, many, atol=1e-5)


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


def test_a_folder_of_other_reviews_that_has_only_test_is_measured_whole(
    trained: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    tables, tree = tmp_path / "tables", tmp_path / "tree"
    tables.mkdir()
    write_jsonl(tables / "test.jsonl", ["a good film", "a fine film"], ["pos", "pos"])
    (tree / "test" / "neg").mkdir(parents=True)
    (tree / "test" / "neg" / "1.txt").write_text("a bad film")
    for folder, number in ((tables, 2), (tree, 1)):
        measured = json.loads(imdb_tx("eval", run, "--source", folder, "--json").stdout)
        assert (measured["num_examples"], measured["split"]) == (number, f"all of {folder.name}")


def test_a_folder_whose_names_say_no_split_is_measured_whole(trained: Path, tmp_path: Path) -> None:
    copy, folder = Path(shutil.copytree(trained, tmp_path / "run")), tmp_path / "new"
    folder.mkdir()
    write_jsonl(folder / "reviews.jsonl", ["a good film"] * 20, ["pos"] * 20)
    (folder / "README.md").write_text("# Reviews\n")
    assert evaluate(copy, source=str(folder)).num_examples == 20
    write_jsonl(folder / "train.jsonl", [f"a film {i}" for i in range(40)], ["pos", "neg"] * 20)
    assert evaluate(copy, source=str(folder), data_dir=str(tmp_path)).num_examples < 20


def test_a_folder_that_has_only_test_may_be_asked_for_test(trained: Path, tmp_path: Path) -> None:
    copy, folder = Path(shutil.copytree(trained, tmp_path / "run")), tmp_path / "only"
    folder.mkdir()
    write_jsonl(folder / "test.jsonl", ["a good film", "a fine film"], ["pos", "pos"])
    assert evaluate(copy, "test", source=str(folder)).num_examples == 2


def test_other_reviews_are_not_read_with_the_encoding_of_the_runs_own(trained: Path, tmp_path: Path) -> None:
    folder, path = Path(shutil.copytree(trained, tmp_path / "run")), tmp_path / "r.csv"
    config = run.open_run(folder).config.replaced("data", encoding="cp1252", bad_rows="skip")
    (folder / run.CONFIG).write_text(config_file.dump(config))
    accept_config(folder)
    path.write_text("text,label\nschön,pos\n", encoding="utf-8")
    assert predict_split([folder], source=str(path)).texts == ["schön"]
    assert predict_split([folder], source=str(path), encoding="cp1252").texts == ["schÃ¶n"]
    path.write_text("text,label\ngood,pos\nno label\n")
    with pytest.raises(DataError, match="--bad-rows skip"):
        predict_split([folder], source=str(path))


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
    with pytest.raises(ConfigError, match="test, validation, train or"):
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


def test_two_runs_of_different_reviews_are_refused_together(trained: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(trained, tmp_path / "run"))
    write_json(moved / run.INFO, run.open_run(moved).info.model_copy(update={"corpus_hash": "0" * 64}))
    with pytest.raises(RunError, match=f"{trained} and {moved} were trained on different reviews"):
        evaluate([trained, moved], "test")


def test_columns_without_a_source_are_refused(trained: Path) -> None:
    with pytest.raises(ConfigError, match=r"Name the source that these describe: encoding, text_column\."):
        evaluate(trained, text_column="body", encoding="cp1252")


def test_a_source_that_is_no_name_is_refused(trained: Path) -> None:
    with pytest.raises(TypeError, match="A source is the name of a file or folder"):
        evaluate(trained, source=[{"text": "good", "label": "pos"}])


def test_the_evaluation_of_many_runs_has_a_short_file_name(trained: Path, tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(trained, tmp_path / f"a-run-of-a-long-name-{i}")) for i in range(12)]
    evaluation = evaluate(copies, "validation")
    (written,) = (copies[0] / "evaluation").glob("*-with-*.json")
    assert len(written.name) < 100
    assert json.loads(written.read_text())["checkpoint"] == evaluation.checkpoint
    assert evaluation.checkpoint.count("a-run-of-a-long-name") == 12
    evaluate(copies[:-1], "validation")
    assert len(list((copies[0] / "evaluation").glob("*-with-*.json"))) == 2
    chinese = [Path(shutil.copytree(trained, tmp_path / ("评" * 21 + str(i)))) for i in range(4)]
    evaluate(chinese, "validation")
    (written,) = (chinese[0] / "evaluation").glob("*-with-*.json")
    assert len(written.name.encode()) < 100


def test_an_evaluation_is_not_kept_if_the_training_has_ended_meanwhile(trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    shutil.rmtree(copy / "evaluation", ignore_errors=True)
    predictions = predict_split([copy], "validation")
    opened = run.open_run(copy)
    temperature = opened.info.temperature
    opened.write_info(temperature=temperature + 1)
    with pytest.warns(DataWarning, match="has changed meanwhile"):
        assert not save(predictions)
    assert not (copy / "evaluation").exists()
    run.open_run(copy).write_info(temperature=temperature)
    assert save(predictions)
    assert predictions.file.exists()


def test_the_command_writes_no_page_of_an_evaluation_that_is_not_kept(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    shutil.rmtree(copy / "evaluation", ignore_errors=True)
    page = copy / "report.html"
    before = page.read_bytes()
    monkeypatch.setattr("imdb_transformer.evaluation.evaluate.save", lambda _: False)
    shown = imdb_tx("eval", copy).stdout
    assert "accuracy" in shown
    assert "written to" not in shown
    assert page.read_bytes() == before


def test_a_run_trained_on_the_cpu_is_evaluated_there(trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    config = copy / "config.toml"
    config.write_text(re.sub('device = "auto"', 'device = "cpu"', config.read_text()))
    accept_config(copy)
    asked: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        choose = hardware.choose
        patch.setattr(hardware, "choose", lambda config: asked.append(config.device) or choose(config))
        evaluate(copy, "validation")
        evaluate(trained, "validation")
    assert asked == ["cpu", "auto"]


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
    texts = [*learnt[:20], *(text.replace(" ", "  ") for text in learnt[20:])]
    texts += [f"a film {i}" for i in range(10)]
    write_jsonl(tmp_path / "o.jsonl", texts, ["neg", "pos"] * 20)
    with pytest.warns(DataWarning, match="30 of these 40 reviews"):
        evaluation = evaluate(folder, source=str(tmp_path / "o.jsonl"))
    assert evaluation.slices[CLEAN].num_examples == 10
    with pytest.warns(DataWarning, match="30 of these 40 reviews"):
        evaluate(folder, source=str(tmp_path / "o.jsonl"), data_dir=str(tmp_path / "other"))


def test_a_test_split_that_was_learnt_whole_gives_a_warning(tmp_path: Path) -> None:
    texts = [f"word{i % 7} of {i}" for i in range(40)]
    for name in ("train", "validation", "test"):
        write_jsonl(tmp_path / f"{name}.jsonl", texts, ["neg", "pos"] * 20)
    data = {"source": str(tmp_path), "data_dir": str(tmp_path / "data")}
    with pytest.warns(DataWarning, match="40 of 40 reviews of test are in train"):
        make_baseline(tmp_path / "run", config_file.parse({"data": data}, origin="here"), "nb")
    with pytest.warns(DataWarning, match="40 of these 40 reviews were in training"):
        evaluate(tmp_path / "run")


def test_a_folder_of_validation_and_test_is_evaluated_by_split(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    source = tmp_path / "others"
    source.mkdir()
    for name, count in (("validation", 4), ("test", 6)):
        write_jsonl(
            source / f"{name}.jsonl", [f"{name} {i}" for i in range(count)], ["neg", "pos"] * (count // 2)
        )
    sizes = {
        split: evaluate(folder, split, source=str(source)).num_examples
        for split in (None, "test", "validation", "all")
    }
    assert sizes == {None: 6, "test": 6, "validation": 4, "all": 10}
    with pytest.raises(DataError, match=r"has no review with a label \(split train\)"):
        evaluate(folder, "train", source=str(source))


def test_a_card_says_which_files_are_evaluated(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    data = {"source": str(tmp_path / "others"), "data_dir": str(tmp_path / "data")}
    source = Path(data["source"])
    source.mkdir()
    for name, count in (("first", 40), ("test", 6)):
        labels = ["neg", "pos"] * (count // 2)
        write_jsonl(source / f"{name}.jsonl", [f"{name} {i}" for i in range(count)], labels)
    head = "---\nconfigs:\n- config_name: default\n  data_files:\n"
    train, test = ("  - split: train\n    path: first.jsonl\n", "  - split: test\n    path: test.jsonl\n")
    (source / "README.md").write_text(f"{head}{train}{test}---\n")
    for split, count in ((None, 6), ("validation", 4), ("train", 36)):
        assert evaluate(folder, split, **data).num_examples == count
    (source / "README.md").write_text(f"{head}{test}---\n")
    assert evaluate(folder, **data).num_examples == 6


def test_an_empty_review_is_among_the_short_ones(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    write_jsonl(tmp_path / "o.jsonl", ["a film", ""], ["neg", "pos"])
    evaluation = evaluate(folder, source=str(tmp_path / "o.jsonl"))
    assert evaluation.slices["up to 100 words"].num_examples == 2


def test_a_run_without_its_reviews_says_how_to_name_them(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    gone = run.open_run(folder).config.replaced("data", source="gone.csv", data_dir=str(tmp_path / "data"))
    (folder / run.CONFIG).write_text(config_file.dump(gone))
    accept_config(folder)
    with pytest.raises(DataError, match=r"gone\.csv.*with --data-dir, or others with eval's --source\.$"):
        evaluate(folder)
    stored = run.open_run(trained).config.data.data_dir
    (folder / run.CONFIG).write_text(
        (trained / run.CONFIG).read_text().replace(stored, str(tmp_path / "data"))
    )
    accept_config(folder)
    moved = shutil.copytree(stored, tmp_path / "moved")
    compared = imdb_tx("compare", folder, folder, "--data-dir", moved, "--json")
    assert json.loads(compared.stdout)["pairs"][0]["difference"] == 0


def test_an_unknown_key_of_the_data_is_refused(trained: Path) -> None:
    with pytest.raises(ConfigError, match=r"sourc.*Did you mean data\.source"):
        evaluate(trained, sourc="x.csv")


def test_an_empty_label_column_is_refused(trained: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "o.jsonl", ["a", "b"], ["pos", "neg"])
    refused = imdb_tx("eval", trained, "--source", tmp_path / "o.jsonl", "--label-column", "")
    assert "This command needs labels" in str(refused.exception)
    assert "describe a --source" in str(imdb_tx("eval", trained, "--label-column", "").exception)
