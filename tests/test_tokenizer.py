import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from imdb_transformer.config import TokenizerConfig
from imdb_transformer.data import demo
from imdb_transformer.data.tokenizer import FILE_NAME, PAD_ID, SPACE, SPECIAL_PIECES, Tokenizer
from imdb_transformer.errors import RunError

TEXTS = demo.reviews().splits["train"].texts[:200]
CONFIG = TokenizerConfig(vocab_size=400, max_length=20, tail_length=5)
TOKENIZER = Tokenizer.train(TEXTS, CONFIG)
ANY_TEXT = st.text(st.characters())  # lone surrogates and NUL included


@given(st.lists(ANY_TEXT, min_size=1, max_size=5))
def test_any_string_gives_at_least_one_id_all_in_the_vocabulary(texts: list[str]) -> None:
    batch = TOKENIZER.encode(texts)
    for text, ids in zip(texts, batch, strict=True):
        assert 1 <= len(ids) <= 20
        assert ids.max() < TOKENIZER.vocab_size
        assert PAD_ID not in ids
        assert np.array_equal(ids, TOKENIZER.encode([text])[0])


@given(ANY_TEXT)
def test_the_file_alone_gives_the_same_pieces_in_another_program(text: str) -> None:
    other = tokenizers.Tokenizer.from_str(TOKENIZER._json)
    printable = text.encode("utf-8", "replace").decode()
    expected = other.encode(printable).ids or TOKENIZER.encode([""])[0].tolist()
    assert TOKENIZER.encode([text], whole=True)[0].tolist() == expected


def test_an_empty_text_becomes_one_space_which_no_other_text_contains() -> None:
    (space,) = TOKENIZER.encode([" \n"])[0]
    assert TOKENIZER._engine.id_to_token(int(space)) == SPACE
    assert all(space not in ids for ids in TOKENIZER.encode(TEXTS, whole=True))


def test_save_then_load_is_identity(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path)
    loaded = Tokenizer.load(tmp_path, CONFIG)
    assert loaded.content_hash == TOKENIZER.content_hash
    assert np.array_equal(loaded.encode(TEXTS[:1])[0], TOKENIZER.encode(TEXTS[:1])[0])


def test_same_texts_in_any_order_give_the_same_tokenizer() -> None:
    again = Tokenizer.train(reversed(TEXTS), CONFIG)
    assert again.content_hash == TOKENIZER.content_hash


def test_special_pieces_in_a_text_are_text() -> None:
    ids = TOKENIZER.encode(["a [PAD] and a [MASK]"])[0]
    assert not set(ids.tolist()) & set(range(len(SPECIAL_PIECES)))


def test_line_breaks_and_case_do_not_matter() -> None:
    plain, marked = TOKENIZER.encode(["a good film . really", "A GOOD film .<br /><BR/>Really"])
    assert np.array_equal(plain, marked)


def test_long_text_keeps_its_head_and_its_tail() -> None:
    tokenizer = TOKENIZER
    whole = tokenizer.encode([" ".join(TEXTS[:20])], whole=True)[0]
    cut = tokenizer.cut(whole)
    assert len(whole) > 20
    assert cut.tolist() == [*whole[:15], *whole[-5:]]


def test_a_character_that_training_did_not_see_is_spelt_in_bytes() -> None:
    assert len(TOKENIZER.encode(["☃"])[0]) == 3


def test_a_megabyte_without_a_space_is_encoded() -> None:
    assert len(TOKENIZER.encode(["x" * 1_000_000])[0]) == 20


@pytest.mark.parametrize("content", ["{", "{}", json.dumps({"version": "1.0"})])
def test_a_file_that_is_not_a_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(RunError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path, CONFIG)


def test_a_foreign_tokenizer_is_refused() -> None:
    foreign = tokenizers.Tokenizer(tokenizers.models.BPE())
    with pytest.raises(RunError, match="not made by imdb-tx"):
        Tokenizer(foreign.to_str(), CONFIG)
