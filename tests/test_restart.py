"""A prediction of a file that is stopped goes on, and ends as if it had not been stopped."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from imdb_transformer import hardware
from imdb_transformer.errors import ConfigError, DataError, Interrupted, RunError
from imdb_transformer.inference.predicted_tables import claimed, parts_folder
from imdb_transformer.inference.predictor import Predictor
from tests.conftest import imdb_tx

NUM_ROWS, PART = 50, 8


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of reviews that is read in parts of 8."""
    monkeypatch.setattr("imdb_transformer.data.tables.BLOCK_ROWS", PART)
    path = tmp_path / "reviews.jsonl"
    rows = [{"id": i, "text": f"a good film number {i}"} for i in range(NUM_ROWS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def stop_after(monkeypatch: pytest.MonkeyPatch, num_parts: int) -> list[int]:
    """Makes a signal arrive in the prediction of a later part; tells how many were predicted."""
    predicted: list[int] = []
    whole = Predictor.probabilities

    def probabilities(self: Predictor, texts: Sequence[str]) -> Any:
        if len(predicted) == num_parts:
            raise Interrupted("SIGTERM: stopped.", exit_code=143)
        predicted.append(len(texts))
        return whole(self, texts)

    monkeypatch.setattr(Predictor, "probabilities", probabilities)
    return predicted


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_stopped_prediction_resumes_to_the_same_output(
    trained: Path, reviews: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["predict", "--run", trained, "--input", reviews, "--output"]
    whole, stopped = tmp_path / f"whole{suffix}", tmp_path / f"stopped{suffix}"
    assert imdb_tx(*command, whole).exit_code == 0
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Interrupted, match="Predictions saved: 24"):
            imdb_tx(*command, stopped)
    assert not stopped.exists()
    with monkeypatch.context() as patch:
        predicted = stop_after(patch, 99)
        assert imdb_tx(*command, stopped, "--resume").exit_code == 0
    assert sum(predicted) == NUM_ROWS - 24
    assert stopped.read_bytes() == whole.read_bytes()
    assert not parts_folder(stopped).exists()


def test_without_resume_all_rows_are_predicted_again(
    trained: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["predict", "--run", trained, "--input", reviews, "--output", tmp_path / "o.csv"]
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Interrupted):
            imdb_tx(*command)
    predicted = stop_after(monkeypatch, 99)
    assert imdb_tx(*command).exit_code == 0
    assert sum(predicted) == NUM_ROWS


def test_resume_refuses_another_input_or_run(
    trained: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "o.csv"
    command = ["predict", "--run", trained, "--output", output]
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Interrupted):
            imdb_tx(*command, "--input", reviews)
    refused = imdb_tx(*command, "--input", reviews, "--resume", "--probabilities")
    assert isinstance(refused.exception, ConfigError)
    assert "--probabilities: [], now ['neg', 'pos']" in str(refused.exception)
    reviews.write_text(reviews.read_text() + '{"id": 1, "text": "more"}\n')
    refused = imdb_tx(*command, "--input", reviews, "--resume")
    assert "input: " in str(refused.exception)


def test_a_prediction_that_a_bad_row_has_stopped_resumes_without_the_row(
    trained: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = reviews.read_text().splitlines()
    lines[-3] = "{torn"
    reviews.write_text("\n".join(lines) + "\n")
    command = ["predict", "--run", trained, "--input", reviews, "--output", tmp_path / "o.csv"]
    assert isinstance(imdb_tx(*command).exception, DataError)
    predicted = stop_after(monkeypatch, 99)
    resumed = [*command, "--resume", "--bad-rows", "skip"]
    assert imdb_tx(*resumed).exit_code == 0
    assert sum(predicted) < NUM_ROWS - 1
    assert len((tmp_path / "o.csv").read_text().splitlines()) == NUM_ROWS


@pytest.mark.parametrize("begun_in_bf16", [True, False])
def test_resume_refuses_another_precision(
    trained: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun_in_bf16: bool
) -> None:
    """As on another machine: its answers would differ within one file."""
    command = ["predict", "--run", trained, "--input", reviews, "--output", tmp_path / "o.csv"]
    monkeypatch.setattr(hardware, "computes_in_bf16", lambda _: begun_in_bf16)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Interrupted):
            imdb_tx(*command)
    monkeypatch.setattr(hardware, "computes_in_bf16", lambda _: not begun_in_bf16)
    refused = imdb_tx(*command, "--resume")
    assert isinstance(refused.exception, ConfigError)
    earlier, now = ("bf16", "fp32") if begun_in_bf16 else ("fp32", "bf16")
    assert f"precision: ['{earlier}'], now ['{now}']" in str(refused.exception)
    monkeypatch.setattr(hardware, "computes_in_bf16", lambda _: begun_in_bf16)
    assert imdb_tx(*command, "--resume").exit_code == 0


def test_a_second_call_does_not_disturb_the_first(trained: Path, reviews: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.csv"
    command = ["predict", "--run", trained, "--input", reviews, "--output", output]
    with claimed(output, {}, resume=False):
        before = sorted(path.name for path in parts_folder(output).iterdir())
        for option in ([], ["--resume"]):
            assert isinstance(imdb_tx(*command, *option).exception, RunError)
        assert sorted(path.name for path in parts_folder(output).iterdir()) == before
    assert imdb_tx(*command).exit_code == 0


def test_resume_without_an_earlier_call_starts_anew(trained: Path, reviews: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.csv"
    command = ["predict", "--run", trained, "--input", reviews, "--output", output]
    assert imdb_tx(*command, "--resume").exit_code == 0
    assert len(output.read_text().splitlines()) == NUM_ROWS + 1
    assert isinstance(imdb_tx("predict", "--run", trained, "--resume", "x").exception, ConfigError)
