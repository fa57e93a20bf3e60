"""The predictor: texts to labels and probabilities, in order, with as little memory as promised."""

import ctypes
import doctest
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imdb_transformer.config import Config
from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.evaluation.baseline import make_baseline
from imdb_transformer.inference.plain import PlainModel
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.store import run
from tests.conftest import imdb_tx, write_jsonl

ODD_TEXTS = [
    "",
    " ",
    "\0",
    "☃ 😀",
    "这部电影很好",
    "<br /><br />",
    "x" * 1_000_000,
    "good " * 200_000,
    "\ud800",
    "\x1b[2J",
]


# glibc maps a large block on its own, unless it was told not to: then no mapped block is counted.
COUNT_MAPPED = """
import ctypes
from imdb_transformer import Predictor
Predictor.load(RUN)("a good film")
libc = ctypes.CDLL(None)
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", *"abcdef")]
libc.mallinfo2.restype, libc.malloc.restype = Info, ctypes.c_void_p
before = libc.mallinfo2().hblks
assert libc.malloc(ctypes.c_size_t(256 << 20))
print(libc.mallinfo2().hblks - before)
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="only glibc tells what its allocator does"
)
def test_loading_a_predictor_leaves_the_callers_allocator_alone(trained: Path) -> None:
    script = COUNT_MAPPED.replace("RUN", repr(str(trained)))
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout == "1\n"


def test_loading_a_predictor_leaves_torchs_generator_alone(trained: Path) -> None:
    before = torch.get_rng_state()
    Predictor.load(trained)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_text_alone_and_in_a_batch_gets_the_same_probability(predictor: Predictor) -> None:
    texts = ["a dull film", "The plot is great, and so is the ending. " * 9, "awful"]
    together = predictor.probabilities(texts)
    alone = np.concatenate([predictor.probabilities([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=2e-3)  # bf16 products of other shapes


def test_odd_texts_get_an_answer(predictor: Predictor) -> None:
    probabilities = predictor.probabilities(ODD_TEXTS)
    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities.sum(1), 1)


@given(st.lists(st.text(st.characters(), max_size=20), max_size=6))
@settings(max_examples=30)
def test_each_text_gets_one_prediction_in_order(predictor: Predictor, texts: list[str]) -> None:
    predictions = list(predictor(texts, chunk=2))
    assert [prediction.text for prediction in predictions] == texts
    assert all(prediction.label in predictor.classes for prediction in predictions)


def test_a_stream_is_predicted_while_it_comes(predictor: Predictor) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield f"a good film {read}"

    predictions = predictor(endless(), chunk=10)
    assert [next(predictions).text for _ in range(3)] == ["a good film 1", "a good film 2", "a good film 3"]
    assert read == 10


def test_one_text_gets_one_prediction_and_many_an_iterator(trained: Path) -> None:
    from imdb_transformer import Predictor as Exported

    predictor = Exported.load(trained)
    prediction = predictor("a good film")
    assert prediction.text == "a good film"
    assert [other.text for other in predictor(text for text in ("x", "y"))] == ["x", "y"]
    assert next(iter(predictor(["a good film"]))) == prediction


def test_the_docstring_example_runs(tiny: Callable[..., Config], tmp_path: Path) -> None:
    """With a linear run on reviews that leave no doubt, so that no processor's rounding decides."""
    words = {"neg": ("I hated it", "boring", "awful"), "pos": ("I loved it", "moving", "great")}
    rows = [(f"{word}: a film {i}", label) for i in range(40) for label in words for word in words[label]]
    write_jsonl(tmp_path / "r.jsonl", [text for text, _ in rows], [label for _, label in rows])
    make_baseline(tmp_path / "nb", tiny(f"data.source={tmp_path / 'r.jsonl'}"), "nb")
    predictor = Predictor.load(tmp_path / "nb")
    assert predictor.probabilities(["I hated it: a boring film", "a great film", "awful"]).max(1).min() > 0.7
    examples = doctest.DocTestParser().get_doctest(
        (Predictor.__doc__ or "").replace("runs/base", str(tmp_path / "nb")).replace("# doctest: +SKIP", ""),
        {"Predictor": Predictor}, "Predictor", None, 0,
    )  # fmt: skip
    assert len(examples.examples) == 5
    assert doctest.DocTestRunner().run(examples).failed == 0


def test_a_folder_that_is_no_run_does_not_hide_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imdb").mkdir()
    assert imdb_tx("predict", "--run", "imdb", "a good film").stdout.startswith("pos")


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="'gpu' is not a device"):
        Predictor.load("imdb", device="gpu")


def test_a_run_whose_checkpoint_has_another_depth_is_refused(trained: Path) -> None:
    opened = run.open_run(trained)
    other = opened._replace(config=opened.config.replaced("model", num_layers=2))
    with pytest.raises(RunError, match="the number of blocks is 1, and in the run's config 2"):
        PlainModel(other, other.checkpoint("best"))


def test_a_named_pipe_gets_the_probabilities_of_standard_input(trained: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    review = "a good film with a dull end\n"
    writing = threading.Thread(target=pipe.write_text, args=[review])
    writing.start()
    shown = imdb_tx("predict", "--run", trained, "--json", "--input", pipe).stdout
    writing.join()
    assert shown == imdb_tx("predict", "--run", trained, "--json", "-", stdin=review).stdout
    assert json.loads(shown)["label"] in ("neg", "pos")
