"""Two processes that want the same cache wait for each other. Threads stand for them: the locks part both."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from imdb_transformer.config import DataConfig, TokenizerConfig
from imdb_transformer.data import corpus, encoded
from imdb_transformer.data.corpus import former_folder
from imdb_transformer.data.reviews import Rows
from imdb_transformer.data.tokenizer import Tokenizer
from imdb_transformer.errors import DataError
from imdb_transformer.store import locks
from tests.conftest import write_jsonl
from tests.in_process import Tiny

T = TypeVar("T")


class Slow:
    """Calls a function slowly, to give another thread time to want the same. Counts the calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.num_calls, self.begun = function, 0, threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.num_calls += 1
        self.begun.set()
        time.sleep(0.3)
        return self.function(*arguments)


def by_two(want: Callable[[], T], slow: Slow) -> tuple[T, T]:
    """What two threads get. The second starts while the first is working."""
    with ThreadPoolExecutor() as pool:
        first = pool.submit(want)
        assert slow.begun.wait(10)
        second = pool.submit(want)
        return first.result(), second.result()


def test_two_processes_import_a_corpus_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reviews.jsonl"
    config = DataConfig(source=str(path), data_dir=str(tmp_path / "data"))
    write_jsonl(path, [f"t{i}" for i in range(40)], ["a", "b"] * 20)
    former = corpus.ensure(config)
    write_jsonl(path, [f"t{i}" for i in range(60)], ["a", "b"] * 30)
    slow = Slow(corpus.sources.read)
    monkeypatch.setattr(corpus.sources, "read", slow)
    first, second = by_two(lambda: corpus.ensure(config), slow)
    assert first == second._replace(is_new=True) != former
    assert not second.is_new
    assert slow.num_calls == 1
    backup = former_folder(former.folder, former.content_hash)
    assert {*(tmp_path / "data").iterdir()} == {first.folder, backup}


def test_a_second_process_does_not_disturb_an_import_between_its_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that comes meanwhile must not take the renames for those of a process that was killed."""
    path = tmp_path / "reviews.jsonl"
    config = DataConfig(source=str(path), data_dir=str(tmp_path / "data"))
    write_jsonl(path, [f"t{i}" for i in range(40)], ["a", "b"] * 20)
    former = corpus.ensure(config)
    backup = former_folder(former.folder, former.content_hash)
    write_jsonl(path, [f"t{i}" for i in range(60)], ["a", "b"] * 30)
    rename = Path.rename
    slow = Slow(lambda: None)

    def renamed(path: Path, target: Path) -> Path:
        result = rename(path, target)
        if target == backup:
            slow()
        return result

    monkeypatch.setattr(Path, "rename", renamed)
    first, second = by_two(lambda: corpus.ensure(config), slow)
    assert first == second._replace(is_new=True)
    assert not second.is_new
    assert first.manifest.splits["train"].num_rows > 40


def test_two_processes_train_a_tokenizer_once(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny()
    stored = corpus.ensure(config.data)
    slow = Slow(Tokenizer.train)
    monkeypatch.setattr(Tokenizer, "train", slow)
    first, second = by_two(lambda: encoded.tokenize(config, []), slow)
    assert slow.num_calls == 1
    assert first.tokenizer.content_hash == second.tokenizer.content_hash
    assert not list(stored.folder.parent.rglob("*.lock"))


def test_two_processes_encode_a_split_once(tmp_path: Path) -> None:
    rows = Rows(["a good film", "bad"], [1, 0])
    tokenizer = Tokenizer.train(rows.texts, TokenizerConfig(vocab_size=300))
    slow = Slow(lambda: rows)
    first, second = by_two(lambda: encoded.encode_split(slow, "a" * 64, tokenizer, tmp_path), slow)
    assert slow.num_calls == 1
    assert first.ids.tolist() == second.ids.tolist()
    assert not list(tmp_path.rglob("*.lock"))


def test_one_at_a_time_admits_one_of_many(tmp_path: Path) -> None:
    """Also where the file of the lock goes and comes back between them."""
    inside, most = 0, 0

    def work(_: int) -> None:
        nonlocal inside, most
        with locks.one_at_a_time(tmp_path / "a"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.002)
            inside -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(40)))
    assert most == 1
    assert not list(tmp_path.iterdir())


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    (tmp_path / ".a.lock").touch()
    with locks.one_at_a_time(tmp_path / "a"):
        pass
    assert not list(tmp_path.iterdir())


def test_an_intact_cache_needs_no_lock(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that may only be read can be used."""
    config = tiny()
    encoded.tokenize(config, ["train"])

    def refused(_: Path) -> None:
        raise PermissionError

    for module in (corpus, encoded):
        monkeypatch.setattr(module, "one_at_a_time", refused)
    assert encoded.tokenize(config, ["train"]).splits["train"].report.num_reviews


def test_a_corpus_replaced_during_verification_is_verified_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path
) -> None:
    config = DataConfig(source=str(source), data_dir=str(tmp_path / "data"))
    stored = corpus.ensure(config)
    verify, told = corpus.verify, [DataError("its checksum is wrong")]

    def once(looked_at: corpus.Corpus) -> None:
        if told:
            raise told.pop()
        verify(looked_at)

    monkeypatch.setattr(corpus, "verify", once)
    assert corpus.ensure(config) == stored._replace(is_new=False)
