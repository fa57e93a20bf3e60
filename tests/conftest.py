"""What the tests share: a tiny corpus of reviews that the demo's grammar wrote, and a run trained on it."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from typer.testing import CliRunner, Result

from imdb_transformer import config_file
from imdb_transformer.cli import app
from imdb_transformer.config import Config
from imdb_transformer.data import demo
from imdb_transformer.evaluation.baseline import make_baseline
from imdb_transformer.inference.export import export
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.store import run
from imdb_transformer.store.files import sha256_of, write_json
from tests.tiny import TINY_MODEL

# What is promised to the bit is promised of a CPU; torch has not looked for a GPU yet.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# With pytest-xdist, a process tests on each core.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)
settings.register_profile("untimed", deadline=None)  # a busy machine is no defect
settings.load_profile("untimed")


def write_jsonl(path: Path, texts: list[str], labels: list[str]) -> None:
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(autouse=True)
def seed() -> None:
    """Seeds torch, so that a test's random tensors do not depend on the tests that ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train, test and unsupervised JSONL files of 200, 100 and 100 reviews."""
    folder = tmp_path_factory.mktemp("source")
    splits = demo.reviews().splits
    for name, count in (("train", 200), ("test", 100), ("unsupervised", 100)):
        texts, labels = splits[name]
        names = [demo.CLASSES[label] if label >= 0 else "" for label in labels]
        write_jsonl(folder / f"{name}.jsonl", texts[:count], names[:count])
    return folder


@pytest.fixture
def config_path(tmp_path: Path, source: Path) -> Path:
    """A config that trains on `source` in about a second, with its data below `tmp_path`."""
    path = tmp_path / "tiny.toml"
    data = f'[data]\nsource = "{source}"\ndata_dir = "{tmp_path / "data"}"\n'
    path.write_text(data + TINY_MODEL)
    return path


@pytest.fixture
def tiny(config_path: Path) -> Callable[..., Config]:
    """Gives the tiny config with overrides applied."""
    return lambda *overrides: config_file.load(str(config_path), overrides)


def imdb_tx(*arguments: object, stdin: str | bytes | None = None) -> Result:
    """Runs a command in this process; errors are exceptions in the result, as below `main`."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def accept_config(folder: Path) -> None:
    """Makes run.json agree with a config.toml that a test has changed."""
    info = run.open_info(folder)
    hashes = info.file_hashes | {run.CONFIG: sha256_of(folder / run.CONFIG)}
    write_json(folder / run.INFO, info.model_copy(update={"file_hashes": hashes}))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """A finished run of a classifier on `source`. A test that alters it copies it first."""
    folder = tmp_path_factory.mktemp("trained")
    path = folder / "tiny.toml"
    path.write_text(f'[data]\nsource = "{source}"\ndata_dir = "{folder / "data"}"\n' + TINY_MODEL)
    result = imdb_tx("train", "--config", path, "--run-dir", folder / "run", "--set", "train.epochs=25")
    assert result.exit_code == 0, result.output
    return folder / "run"


@pytest.fixture(scope="session")
def predictor(trained: Path) -> Predictor:
    """The predictor of `trained`."""
    return Predictor.load(trained)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    """`trained` as an ONNX file, which takes some seconds to write."""
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    return export(trained, path)


@pytest.fixture(scope="session")
def linear(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    """A finished run of the linear model `nb` on the same reviews."""
    folder = tmp_path_factory.mktemp("linear") / "nb"
    make_baseline(folder, run.open_run(trained).config, "nb")
    return folder


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    """A finished run of pretraining on the same reviews."""
    folder = tmp_path_factory.mktemp("encoder") / "run"
    command = ("pretrain", "--config", trained.parent / "tiny.toml", "--run-dir", folder)
    result = imdb_tx(*command)
    assert result.exit_code == 0, result.output
    return folder
