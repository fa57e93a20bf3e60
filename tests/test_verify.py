import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from imdb_transformer.errors import RunError
from imdb_transformer.store import run
from imdb_transformer.store.upkeep import verify
from tests.conftest import imdb_tx

FILES = [
    "tokenizer.json",
    "metrics.jsonl",
    "checkpoints/best/model.safetensors",
    "checkpoints/last/model.safetensors",
    "checkpoints/last/training.safetensors",
    "checkpoints/last/checkpoint.json",
]


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def test_a_whole_run_passes(copy: Path) -> None:
    assert not any(verify(copy).values())
    parts = json.loads(imdb_tx("verify", copy, "--json").stdout)["parts"]
    assert set(parts.values()) == {"ok"}
    assert {"checkpoints/best", "checkpoints/last"} < set(parts)


def test_a_checkpoint_that_a_training_is_replacing_is_not_called_damaged(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.open_run(copy).write_status("running")
    last, away = copy / "checkpoints" / "last", copy / "checkpoints" / ".new"
    last.rename(away)
    shutil.rmtree(copy / "checkpoints" / "previous")
    slept: list[float] = []

    def arrive(seconds: float) -> None:
        slept.append(seconds)
        if seconds and away.exists():
            away.rename(last)

    monkeypatch.setattr(time, "sleep", arrive)
    assert not any(verify(copy).values())
    assert sum(map(bool, slept)) == 1


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_every_damaged_file_is_reported(copy: Path, name: str, damage: str) -> None:
    path = copy / name
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 0x80]) + content[middle + 1 :]
    path.write_bytes(flipped if damage == "flipped" else content[: middle + 1])
    assert any(verify(copy).values())
    refused = imdb_tx("verify", copy)
    assert isinstance(refused.exception, RunError)


@pytest.mark.parametrize("name", ["checkpoints/best", "checkpoints/last", "metrics.jsonl"])
def test_a_missing_part_of_a_finished_run_is_reported(copy: Path, name: str) -> None:
    path = copy / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert [part for part, problem in verify(copy).items() if problem] == [name]
    (path / "checkpoint.json" if path.suffix == "" else path).mkdir(parents=True)  # a folder is no file
    assert [part for part, problem in verify(copy).items() if problem] == [name]


def test_a_file_that_may_not_be_read_is_not_called_damaged(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    for name in ("model.safetensors", "checkpoint.json", "tokenizer.json"):
        with pytest.raises(PermissionError, match=name):
            verify(copy)
