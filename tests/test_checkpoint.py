import shutil
from pathlib import Path

import numpy as np
import pytest

from imdb_transformer.store import checkpoint, run
from imdb_transformer.store.checkpoint import dequantized
from scripts.ship import quantized


@pytest.mark.parametrize(("columns", "width"), [(30, 30), (192, 64)])
def test_a_packed_matrix_comes_back_within_half_a_step_of_each_group(columns: int, width: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(20, columns)).astype(np.float32)
    matrix[3] *= 1e-3
    matrix[5] = 0
    matrix[7, :3] *= 100
    vector = np.arange(4, dtype=np.float32)
    stored = quantized({"matrix": matrix, "vector": vector})
    assert stored["matrix"].dtype == np.int8
    back = dequantized(stored)
    assert back.keys() == {"matrix", "vector"}
    np.testing.assert_array_equal(back["vector"], vector)
    groups = matrix.reshape(20, -1, width)
    step = abs(groups).max(2, keepdims=True) / 127
    assert (abs(back["matrix"].reshape(groups.shape) - groups) <= step / 2 + 1e-9).all()
    assert not back["matrix"][5].any()


def test_arrays_that_are_not_packed_stay_as_they_are() -> None:
    matrix = np.ones((2, 3), np.float32)
    assert dequantized({"matrix": matrix})["matrix"] is matrix


def test_factors_of_another_number_of_rows_are_refused() -> None:
    stored = quantized({"matrix": np.ones((2, 3), np.float32)})
    stored["matrix.factors"] = np.ones(5, np.float32)
    with pytest.raises(ValueError, match="reshape"):
        dequantized(stored)


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = run.open_run(shutil.copytree(trained, tmp_path / "run"))
    folder, metas = opened.checkpoint("best"), []

    def read_meta(path: Path, *, tokenizer_hash: str) -> checkpoint.Checkpoint:
        meta = original(path, tokenizer_hash=tokenizer_hash)
        former = meta.model_copy(update={"step": 1, "file_hashes": {checkpoint.MODEL: "0" * 64}})
        metas.append(meta if metas else former)  # a save comes after the first
        return metas[-1]

    original = checkpoint.read_meta
    monkeypatch.setattr(checkpoint, "read_meta", read_meta)
    step, _ = checkpoint.read_model(folder, tokenizer_hash=opened.info.tokenizer_hash)
    assert step == original(folder, tokenizer_hash=opened.info.tokenizer_hash).step
    assert len(metas) == 3
