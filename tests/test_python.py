"""The package from Python: what a newcomer passes, prints and copies."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import imdb_transformer
from imdb_transformer import Predictor
from imdb_transformer.errors import ConfigError

README = Path(__file__).parent.parent / "README.md"


class ByLength:
    """A model that is surer of "long" the longer a text is."""

    classes, temperature, step, precision = ("short", "long"), 1.0, 7, "fp32"

    def logits(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([[10, len(text)] for text in texts], dtype=np.float32)


@pytest.fixture
def predictor() -> Predictor:
    return Predictor([ByLength()])


def test_probabilities_of_a_text_are_a_row_of_those_of_a_list(predictor: Predictor) -> None:
    alone, rows = predictor.probabilities("a good film"), predictor.probabilities(["a good film", ""])
    assert alone.shape == (2,)
    assert rows.shape == (2, 2)
    np.testing.assert_array_equal(alone, rows[0])


@pytest.mark.parametrize("kind", [pd.Series, np.array, tuple, iter])
def test_texts_may_be_a_column_of_a_table_an_array_or_any_other_row_of_texts(
    predictor: Predictor, kind: type
) -> None:
    texts = ["a good film", "bad"]
    np.testing.assert_array_equal(predictor.probabilities(kind(texts)), predictor.probabilities(texts))
    assert [each.label for each in predictor(kind(texts))] == ["long", "short"]


def test_paths_are_taken_where_strings_are(trained: Path, source: Path) -> None:
    assert imdb_transformer.load_config(Path("demo.toml")) == imdb_transformer.load_config("demo.toml", None)
    assert imdb_transformer.evaluate(trained, source=source / "test.jsonl").num_examples == 100


def test_no_run_at_all_is_refused_with_a_sentence() -> None:
    for call in (Predictor.load, lambda: imdb_transformer.evaluate([])):
        with pytest.raises(ConfigError, match="No run is named"):
            call()


def test_a_list_of_runs_is_refused_with_the_call_that_takes_several(trained: Path) -> None:
    with pytest.raises(TypeError, match=r'Predictor\.load\("imdb", "runs/nb"\)'):
        Predictor.load([trained, trained])  # type: ignore[arg-type]


def test_an_empty_column_gives_no_rows(predictor: Predictor) -> None:
    assert predictor.probabilities(pd.Series([], dtype=str)).shape == (0, 2)


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_a_missing_text_is_reported_with_its_number_and_a_remedy(
    predictor: Predictor, missing: object
) -> None:
    for texts in (["good", missing], pd.Series(["good", missing], dtype=object)):
        with pytest.raises(TypeError, match=r"Text 2 is .*: leave missing texts out, or fill them with ''\."):
            predictor.probabilities(texts)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="Text 2 is"):
            list(predictor(texts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("passed", "told"),
    [
        (None, "Texts must be a str or an iterable of them, not None."),
        (5, "Texts must be a str or an iterable of them, not 5."),
        (b"good", "Bytes were passed; pass a str"),
        (pd.DataFrame({"text": ["good"]}), "A whole table was passed; pass its column of texts"),
        ({"first": "good"}, "A dict was passed; pass a list of its texts"),
    ],
)
def test_anything_but_text_is_refused_with_a_sentence(
    predictor: Predictor, passed: object, told: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(told)):
        predictor.probabilities(passed)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=re.escape(told)):
        list(predictor(passed))  # type: ignore[call-overload]


def test_none_is_refused_when_the_predictor_is_called(predictor: Predictor) -> None:
    with pytest.raises(TypeError, match="not None"):
        predictor(None)  # type: ignore[call-overload]


def test_a_predictor_shows_its_classes_and_models(predictor: Predictor) -> None:
    assert repr(predictor) == "Predictor(classes=('short', 'long'), ByLength(step=7))"


def test_dir_lists_what_the_package_offers() -> None:
    assert set(imdb_transformer.__all__) <= set(dir(imdb_transformer))


def test_the_first_python_example_of_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    command = [sys.executable, "example.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    told = re.findall(r"print\(.*\)  # (.*)", example)
    assert told == done.stdout.splitlines()[: len(told)]


def test_wrong_arguments_of_a_training_are_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"load_config\('base\.toml'\), not 'demo\.toml'"):
        imdb_transformer.train("demo.toml", tmp_path / "run")  # type: ignore[arg-type]
    for overrides in ({"train.epochs": 3}, [3]):
        with pytest.raises(TypeError, match=r"strings in a list, such as \['train\.epochs=3'\]"):
            imdb_transformer.load_config("demo.toml", overrides)  # type: ignore[arg-type]
