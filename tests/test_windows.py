from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from imdb_transformer.data.tokenizer import CLS_ID, PAD_ID, Tokenizer
from imdb_transformer.errors import RunError
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.inference.transformer import EncoderModel
from imdb_transformer.inference.windows import spans
from imdb_transformer.store import run
from tests.conftest import imdb_tx
from tests.test_explain import a_predictor

LONG = "The plot is dull and nobody cares, but the ending is a great joy. " * 20


@given(st.integers(1, 5000), st.integers(4, 1024))
def test_windows_cover_every_id_and_none_is_too_long(length: int, size: int) -> None:
    found = spans(length, size)
    assert (found[0][0], found[-1][1]) == (0, length)
    assert all(end - start == min(size, length) for start, end in found)
    assert all(b < end for (_, end), (b, _) in pairwise(found))
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_a_text_of_one_window_is_answered_as_ever(trained: Path, pooling: str) -> None:
    predictor = a_predictor(trained, pooling=pooling, ngram_buckets=64)
    (model,) = predictor.models
    assert isinstance(model, EncoderModel)
    texts = ["a dull film", "", "great " * 8]
    expected = model.logits(texts)
    model.windows = True
    np.testing.assert_allclose(model.logits(texts), expected, atol=1e-5)
    assert model.num_windows(texts) == [1, 1, 1]


def test_maxima_are_over_all_windows(trained: Path) -> None:
    predictor = a_predictor(trained)
    (model,) = predictor.models
    assert isinstance(model, EncoderModel)
    model.windows = True
    (ids,) = model.tokenizer.encode_whole([LONG])
    with torch.no_grad():
        pooled = [
            model.classifier.pooled(part, part >= 0, torch.float32)[0]
            for start, end in spans(len(ids), model.limit)
            for part in [torch.from_numpy(ids[start:end].astype(np.int64))[None]]
        ]
        expected = model.classifier.head(torch.stack(pooled).max(0).values)
    assert len(pooled) > 2
    np.testing.assert_allclose(model.logits([LONG, "short"])[0], expected, atol=1e-5)


def test_every_window_begins_with_the_first_token(trained: Path) -> None:
    predictor = a_predictor(trained)
    (model,) = predictor.models
    assert isinstance(model, EncoderModel)
    assert np.array_equal(model.tokenizer.encode_whole([LONG])[0][:1] == CLS_ID, [False])
    config = run.open_run(trained).config.tokenizer.model_copy(update={"first_token": True})
    model.tokenizer = Tokenizer.train([LONG] * 9, config)
    model.windows = model.first_token = True
    read: list[torch.Tensor] = []
    encoder = model.classifier.encoder
    encoder.register_forward_pre_hook(lambda _, arguments: read.extend(arguments[0]))
    num_windows = model.num_windows([LONG, ""])
    model.logits([LONG, ""])
    assert len(read) == sum(num_windows) > 4
    assert num_windows[1] == 1
    assert all(ids[0] == CLS_ID and CLS_ID not in ids[1:] for ids in read)
    assert max(int((ids != PAD_ID).sum()) for ids in read) == model.limit


def test_the_middle_of_a_long_text_is_read_by_windows_only(trained: Path) -> None:
    middle = "good film " * 50 + "an awful, dull bore, a waste " * 3 + "good film " * 50
    plain = "good film " * 120
    cut, windows = (Predictor.load(trained, windows=whole) for whole in (False, True))
    assert cut(middle).probability == pytest.approx(cut(plain).probability, abs=1e-2)
    assert abs(windows(middle).probability - windows(plain).probability) > 1e-2


def test_the_output_says_in_how_many_windows(trained: Path, tmp_path: Path) -> None:
    shown = imdb_tx("predict", "--run", trained, "--windows", LONG, "short")
    first, second = shown.stdout.splitlines()
    assert "windows)" in first
    assert "windows" not in second
    (tmp_path / "r.txt").write_text(LONG + "\nshort\n")
    imdb_tx(
        "predict",
        "--run",
        trained,
        "--windows",
        "--input",
        tmp_path / "r.txt",
        "--output",
        tmp_path / "o.csv",
    )
    header, *rows = (tmp_path / "o.csv").read_text().splitlines()
    assert header.endswith('"windows"')
    assert [int(row.rsplit(",", 1)[1]) > 1 for row in rows] == [True, False]
    assert isinstance(imdb_tx("predict", "--run", tmp_path / "none", "--windows", "x").exception, RunError)
