from pathlib import Path

import numpy as np
import pytest

from imdb_transformer.config import TokenizerConfig
from imdb_transformer.data.encoded import META, Meta, encode_split, load_split
from imdb_transformer.data.reviews import Rows
from imdb_transformer.data.tokenizer import Tokenizer
from imdb_transformer.errors import DataError
from imdb_transformer.store.files import read_json, sha256_of, write_json

CONFIG = TokenizerConfig(vocab_size=300, max_length=8, tail_length=2)
ROWS = Rows(["a good film", "bad", "", "a good film, a very good film, a good and long film"], [1, 0, -1, 1])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(ROWS.texts, CONFIG)


def must_not_run() -> Rows:
    raise AssertionError("the cache was not used")


def test_an_encoded_split_holds_the_ids_of_the_tokenizer(tmp_path: Path, tokenizer: Tokenizer) -> None:
    split = encode_split(lambda: ROWS, "a" * 64, tokenizer, tmp_path)
    for i, ids in enumerate(tokenizer.encode(ROWS.texts)):
        assert np.array_equal(split.review(i), ids)
    assert split.labels.tolist() == ROWS.labels
    whole = [len(ids) for ids in tokenizer.encode(ROWS.texts, whole=True)]
    cut = [max(0, length - 8) for length in whole]
    report = (split.report.num_tokens, split.report.num_reviews_cut, split.report.num_tokens_cut)
    assert report == (sum(whole), sum(c > 0 for c in cut), sum(cut))


@pytest.mark.parametrize("vocab_size", [300, 70_000])
def test_a_split_encoded_in_blocks_gives_the_same_file_as_one_encoded_at_once(
    tmp_path: Path, tokenizer: Tokenizer, vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imdb_transformer.data.encoded.CHUNK", 3)
    tokenizer = Sized(tokenizer._json, CONFIG, vocab_size)
    encode_split(lambda: ROWS, "a" * 64, tokenizer, tmp_path)
    ids = np.concatenate(tokenizer.encode(ROWS.texts)).astype(np.uint16 if vocab_size == 300 else np.uint32)
    np.save(tmp_path / "whole.npy", ids)
    assert next(tmp_path.rglob("ids.npy")).read_bytes() == (tmp_path / "whole.npy").read_bytes()


class Sized(Tokenizer):
    """Says that its vocabulary is as large as one wants."""

    def __init__(self, text: str, config: TokenizerConfig, vocab_size: int) -> None:
        super().__init__(text, config)
        self._vocab_size = vocab_size

    @property
    def vocab_size(self) -> int:
        return self._vocab_size


def test_cache_is_used_for_the_same_content_only(tmp_path: Path, tokenizer: Tokenizer) -> None:
    encode_split(lambda: ROWS, "a" * 64, tokenizer, tmp_path)
    encode_split(must_not_run, "a" * 64, tokenizer, tmp_path)
    with pytest.raises(AssertionError):
        encode_split(must_not_run, "b" * 64, tokenizer, tmp_path)
    longer = Tokenizer(tokenizer._json, CONFIG.model_copy(update={"max_length": 9}))
    with pytest.raises(AssertionError):
        encode_split(must_not_run, "a" * 64, longer, tmp_path)


@pytest.mark.parametrize("name", ["ids.npy", "offsets.npy", "labels.npy", "split.json"])
def test_damaged_file_is_refused(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    encode_split(lambda: ROWS, "a" * 64, tokenizer, tmp_path)
    path = next(tmp_path.rglob(name))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match="damaged"):
        load_split(path.parent)


def test_arrays_are_never_pickles(tmp_path: Path, tokenizer: Tokenizer) -> None:
    split = encode_split(lambda: ROWS, "a" * 64, tokenizer, tmp_path)
    assert {array.dtype.kind for array in split[:3]} <= {"u", "i"}
    assert all(np.load(path, allow_pickle=False) is not None for path in tmp_path.rglob("*.npy"))


def test_arrays_of_objects_run_no_code_even_with_the_right_checksum(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    encode_split(lambda: ROWS, "a" * 64, tokenizer, tmp_path)
    path = next(tmp_path.rglob("ids.npy"))
    np.save(path, np.array([Explosive()], dtype=object), allow_pickle=True)
    meta = read_json(path.parent / META, Meta)
    write_json(
        path.parent / META,
        meta.model_copy(update={"file_hashes": meta.file_hashes | {"ids": sha256_of(path)}}),
    )
    with pytest.raises(DataError, match="damaged"):
        load_split(path.parent)
    assert not Explosive.went_off


class Explosive:
    """Tells if it was unpickled."""

    went_off = False

    def __reduce__(self) -> object:
        return setattr, (Explosive, "went_off", True)
