import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from imdb_transformer.config import TokenizerConfig
from imdb_transformer.data import demo
from imdb_transformer.data.tokenizer import FILE_NAME, PAD_ID, SPECIAL_PIECES, UNK_ID, Tokenizer
from imdb_transformer.errors import DataError, RunError

TEXTS = demo.reviews().splits["train"].texts[:200]
CONFIGS = {
    kind: TokenizerConfig(kind=kind, vocab_size=400, max_length=20, tail_length=5)  # type: ignore[arg-type]
    for kind in ("byte", "char")
}
TOKENIZERS = {kind: Tokenizer.train(TEXTS, config) for kind, config in CONFIGS.items()}
ANY_TEXT = st.text(st.characters())  # lone surrogates and NUL included


@pytest.mark.parametrize("kind", ["byte", "char"])
@given(st.lists(ANY_TEXT, min_size=1, max_size=5))
def test_any_string_gives_at_least_one_id_all_in_the_vocabulary(kind: str, texts: list[str]) -> None:
    tokenizer = TOKENIZERS[kind]
    batch = tokenizer.encode(texts)
    for text, ids in zip(texts, batch, strict=True):
        assert 1 <= len(ids) <= 20
        assert ids.max() < tokenizer.vocab_size
        assert PAD_ID not in ids
        assert np.array_equal(ids, tokenizer.encode([text])[0])


@given(ANY_TEXT)
def test_the_file_alone_gives_the_same_pieces_in_another_program(text: str) -> None:
    tokenizer = TOKENIZERS["byte"]
    other = tokenizers.Tokenizer.from_str(tokenizer._json)
    printable = text.encode("utf-8", "replace").decode()
    expected = other.encode(printable).ids or [UNK_ID]
    assert tokenizer.encode_whole([text])[0].tolist() == expected


def test_save_then_load_is_identity(tmp_path: Path) -> None:
    for kind, tokenizer in TOKENIZERS.items():
        tokenizer.save(tmp_path)
        loaded = Tokenizer.load(tmp_path, CONFIGS[kind])
        assert loaded.content_hash == tokenizer.content_hash
        assert np.array_equal(loaded.encode(TEXTS[:1])[0], tokenizer.encode(TEXTS[:1])[0])


def test_same_texts_in_any_order_give_the_same_tokenizer() -> None:
    again = Tokenizer.train(reversed(TEXTS), CONFIGS["byte"])
    assert again.content_hash == TOKENIZERS["byte"].content_hash


def test_special_pieces_in_a_text_are_text() -> None:
    ids = TOKENIZERS["byte"].encode(["a [PAD] and a [MASK]"])[0]
    assert not set(ids.tolist()) & set(range(len(SPECIAL_PIECES)))


def test_line_breaks_and_case_do_not_matter() -> None:
    plain, marked = TOKENIZERS["byte"].encode(["a good film . really", "A GOOD film .<br /><BR/>Really"])
    assert np.array_equal(plain, marked)


def test_long_text_keeps_its_head_and_its_tail() -> None:
    tokenizer = TOKENIZERS["byte"]
    whole = tokenizer.encode_whole([" ".join(TEXTS[:20])])[0]
    cut = tokenizer.cut(whole)
    assert len(whole) > 20
    assert cut.tolist() == [*whole[:15], *whole[-5:]]


def test_unknown_character_is_spelt_in_bytes_or_unknown() -> None:
    assert UNK_ID not in TOKENIZERS["byte"].encode(["☃"])[0]
    assert TOKENIZERS["char"].encode(["☃"])[0].tolist() == [UNK_ID]


def test_first_token_stands_before_every_review_the_empty_one_included() -> None:
    config = CONFIGS["byte"].model_copy(update={"first_token": True})
    tokenizer = Tokenizer.train(TEXTS, config)
    assert [tokenizer.pieces(ids[:1]) for ids in tokenizer.encode(["", "a good film"])] == [["[CLS]"]] * 2


def test_a_megabyte_without_a_space_is_encoded() -> None:
    assert len(TOKENIZERS["byte"].encode(["x" * 1_000_000])[0]) == 20


@pytest.mark.parametrize("content", ["{", "{}", json.dumps({"version": "1.0"})])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(RunError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path, CONFIGS["byte"])


def test_a_foreign_tokenizer_is_refused() -> None:
    foreign = tokenizers.Tokenizer(tokenizers.models.BPE())
    with pytest.raises(RunError, match="not made by imdb-tx"):
        Tokenizer(foreign.to_str(), CONFIGS["byte"])


def test_texts_without_characters_are_refused() -> None:
    with pytest.raises(DataError, match="no characters"):
        Tokenizer.train(["", " "], CONFIGS["char"])
