"""An encoder of the package that reads one's own reviews before a classifier starts from it."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import imdb_transformer
from imdb_transformer import load_config
from imdb_transformer.cli import screen, training
from imdb_transformer.config import Config
from imdb_transformer.errors import ConfigError, DivergedError, Interrupted, RunError
from imdb_transformer.store import run
from imdb_transformer.training.adapt import pretraining_config
from imdb_transformer.training.prepare import prepare
from imdb_transformer.training.seeds import seed_trainings
from imdb_transformer.training.train import trainings
from tests.conftest import imdb_tx
from tests.in_process import CPU, weights

Mine = Callable[..., Config]
VALUES = ("train.epochs=2", "train.precision=fp32", "train.yardstick=false")


def enter(folder: Path, patch: pytest.MonkeyPatch) -> Mine:
    """Changes to a folder with a table of 60 texts, for which `auto` starts from imdb-encoder.

    Gives base.toml with overrides for this table.
    """
    probe = "imdb_transformer.training.starting_weights.probe_accuracy"
    patch.setattr(probe, lambda path, *_: float(path == Path("imdb-encoder")))
    patch.chdir(folder)
    rows = [f"a {word} valve for the pump number {i},{word}" for i in range(30) for word in ("red", "blue")]
    Path("mine.csv").write_text("\n".join(["text,label", *rows]))
    return lambda *overrides: load_config("base.toml", ["data.source=mine.csv", *VALUES, *overrides])


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mine:
    """`enter` with a new folder."""
    return enter(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def trained_there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which runs/whole was trained on the table, after runs/whole-encoder."""
    folder = tmp_path_factory.mktemp("adapted")
    with pytest.MonkeyPatch.context() as patch:
        ended = imdb_transformer.train(enter(folder, patch)(), "runs/whole")
    assert (ended.run, ended.kind) == ("runs/whole", "classifier")
    return folder


@pytest.fixture
def whole(mine: Mine, trained_there: Path) -> Path:  # noqa: ARG001  (it enters the folder)
    """A copy of runs/whole in the folder of `mine`, with its encoder beside it."""
    shutil.copytree(trained_there, ".", dirs_exist_ok=True)
    return Path("runs/whole")


def test_the_encoder_has_a_run_of_its_own_and_the_classifier_starts_from_it(whole: Path) -> None:
    encoder, classifier = run.open_run(Path("runs/whole-encoder")), run.open_run(whole)
    assert (encoder.info.kind, encoder.info.status) == ("encoder", "finished")
    assert (encoder.config.train.init_from, encoder.config.train.epochs) == ("imdb-encoder", 2)
    assert encoder.config.model.dropout == 0
    assert encoder.info.pruned
    assert [path.name for path in encoder.checkpoints.iterdir()] == ["best"]
    assert classifier.config.train.init_from == "runs/whole-encoder"
    assert (classifier.config.train.epochs, classifier.config.model.dropout) == (2, 0.1)


@pytest.mark.usefixtures("whole")
def test_an_interrupted_encoder_is_continued_by_the_same_call(mine: Mine) -> None:
    encoder, steps = next(trainings(mine(), Path("runs/parts")))
    assert encoder == Path("runs/parts-encoder")
    next(steps)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="imdb-tx pretrain --resume runs/parts-encoder"):
        list(steps)
    assert run.open_run(encoder).info.status == "interrupted"
    assert not Path("runs/parts").exists()

    imdb_transformer.train(mine(), "runs/parts")
    for ending in ("", "-encoder"):
        assert weights(Path(f"runs/whole{ending}")) == weights(Path(f"runs/parts{ending}"))
        assert weights(Path(f"runs/whole{ending}"))["best"]


def test_an_interrupted_classifier_is_continued_without_its_encoder(mine: Mine, whole: Path) -> None:
    for folder, steps in trainings(mine(), Path("runs/parts")):
        next(steps)
        if folder.name == "parts":
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(Interrupted, match="imdb-tx train --resume runs/parts"):
                list(steps)
        else:
            list(steps)
    shutil.rmtree("runs/parts-encoder")
    imdb_transformer.train(None, "runs/parts", resume=True)
    assert weights(whole) == weights(Path("runs/parts"))


def test_a_repeated_call_with_resume_trains_nothing_again(mine: Mine, whole: Path) -> None:
    again = [(folder, list(steps)) for folder, steps in trainings(mine(), whole, resume=True)]
    assert again == [(whole, [])]


@pytest.mark.usefixtures("mine")
def test_an_encoder_is_announced_and_if_interrupted_says_how_to_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(screen, "note", notes.append)

    def interrupted(folder: Path, *_: object) -> None:
        raise Interrupted(f"Stopped in {folder}; saved. Continue with:\n  imdb-tx pretrain", exit_code=130)

    monkeypatch.setattr(training, "_finish", interrupted)
    with pytest.raises(Interrupted) as told:
        imdb_tx("train", "mine.csv")
    assert str(told.value) == "Stopped in runs/mine-encoder; saved. To continue, repeat the command."
    assert "adapting imdb-encoder to these reviews first, in runs/mine-encoder" in notes
    with pytest.raises(Interrupted, match="To continue with all 2 seeds, repeat the command"):
        imdb_tx("train", "mine.csv", "--seeds", 2)
    assert "adapting imdb-encoder to these reviews first, in runs/mine-seed-0-encoder" in notes


def test_a_folder_that_a_config_cannot_name_is_refused_before_the_encoder_reads(mine: Mine) -> None:
    folder = Path("runs/caf\udce9")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        next(trainings(mine(), folder))
    assert not Path("runs").exists()


def test_a_request_to_stop_at_the_end_of_an_encoder_starts_no_classifier(mine: Mine) -> None:
    runs = trainings(mine(), Path("runs/mine"))
    folder, steps = next(runs)
    last = next(update for update in steps if update.step == update.num_steps)
    assert last.saved
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Interrupted) as told:
        next(steps)
    assert str(told.value) == "Stopped by SIGTERM. runs/mine-encoder is finished."
    assert told.value.exit_code == 143
    assert run.open_run(folder).info.status == "finished"
    assert imdb_transformer.train(mine(), "runs/mine", resume=True).run == "runs/mine"


def test_a_named_encoder_reads_nothing_first(mine: Mine) -> None:
    config = mine("train.init_from=imdb-encoder")
    assert [folder.name for folder, _ in trainings(config, Path("runs/mine"))] == ["mine"]


def test_a_folder_in_use_is_refused_before_the_encoder_reads(mine: Mine) -> None:
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/notes.txt").touch()
    with pytest.raises(RunError, match="runs/mine is not empty"):
        next(trainings(mine(), Path("runs/mine")))


@pytest.mark.parametrize("content", ["file", "other files", "another config", "another kind"])
def test_anything_else_in_the_encoders_folder_is_refused_at_once(
    mine: Mine, trained: Path, trained_there: Path, content: str
) -> None:
    encoder = Path("runs/mine-encoder")
    encoder.parent.mkdir()
    if content == "file":
        encoder.touch()
    elif content == "other files":
        encoder.mkdir()
        (encoder / "notes.txt").touch()
    elif content == "another config":
        shutil.copytree(trained_there / "runs/whole-encoder", encoder)
    else:
        shutil.copytree(trained, encoder)
    with pytest.raises(
        RunError, match=r"in runs/mine-encoder, but something else is there\. .* Or delete it"
    ):
        next(trainings(mine("train.epochs=3"), Path("runs/mine")))


def test_an_encoder_cannot_have_the_name_of_that_of_the_package(mine: Mine) -> None:
    with pytest.raises(RunError, match="imdb-encoder would have the name of a run of the package"):
        next(trainings(mine(), Path("imdb")))


def test_seeds_continue_after_their_encoders_were_deleted(mine: Mine) -> None:
    folders = [folder.name for folder, steps in seed_trainings(mine(), Path("runs/mine"), 1) if list(steps)]
    assert folders == ["mine-seed-0-encoder", "mine-seed-0"]
    shutil.rmtree("runs/mine-seed-0-encoder")
    again = [folder.name for folder, steps in seed_trainings(mine(), Path("runs/mine"), 2) if list(steps)]
    assert again == ["mine-seed-1-encoder", "mine-seed-1"]


def test_an_encoder_that_diverges_says_how_to_train_without_it(
    mine: Mine, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine()

    def diverged(*_: object) -> None:
        raise DivergedError("Training diverged.")

    monkeypatch.setattr(training, "_finish", diverged)
    told = str(imdb_tx("train", "mine.csv").exception)
    assert told == "Training diverged. To train without this encoder: --init-from imdb-encoder"


@pytest.mark.parametrize(
    ("num_unlabelled", "epochs", "expected"), [(0, 20, 6), (54, 20, 3), (5000, 20, 1), (0, 2, 2), (0, 0, 6)]
)
def test_unlabelled_texts_are_read_in_fewer_epochs(
    mine: Mine, tmp_path: Path, num_unlabelled: int, epochs: int, expected: int
) -> None:
    """Without a split `test`, 48 texts are for training, and otherwise 54. As many more halve the epochs."""
    folder = tmp_path / "texts"
    folder.mkdir()
    Path("mine.csv").rename(folder / "train.csv")
    if num_unlabelled:
        lines = (f"pump number {i} drips\n" for i in range(num_unlabelled))
        (folder / "unsupervised.txt").write_text("".join(lines))
    config = mine(f"data.source={folder}", f"train.epochs={epochs}")
    prepared = prepare(config, "classifier", CPU, ready=False)
    assert len(prepared.train.lengths) == (54 if num_unlabelled else 48)
    assert pretraining_config(prepared).train.epochs == expected


@pytest.mark.usefixtures("mine")
def test_a_dry_run_shows_the_adaptation_and_its_time() -> None:
    sets = [part for value in VALUES for part in ("--set", value)]
    shown = imdb_tx("train", "mine.csv", *sets, "--dry-run").stdout
    assert "adaptation        2 epochs of guessing masked tokens, in a run before this one" in shown
    cost = json.loads(imdb_tx("train", "mine.csv", *sets, "--dry-run", "--json").stdout)["estimate"]
    assert cost["adapt_epochs"] == 2
    without = ("--init-from", "imdb-encoder", "--set", "model.dropout=0.1")
    other = json.loads(imdb_tx("train", "mine.csv", *sets, *without, "--dry-run", "--json").stdout)[
        "estimate"
    ]
    assert other["adapt_epochs"] == 0
    assert other["flops"] < cost["flops"]
    assert "adaptation" not in imdb_tx("train", "mine.csv", *sets, *without, "--dry-run").stdout
    assert not Path("runs").exists()


def test_adaptation_follows_the_package_and_not_a_file_of_that_name(mine: Mine) -> None:
    prepared = prepare(mine(), "classifier", CPU, ready=False)
    expected = pretraining_config(prepared)
    Path("adapt.toml").write_text("[train]\nlr = 1.0\n")
    assert pretraining_config(prepared) == expected
