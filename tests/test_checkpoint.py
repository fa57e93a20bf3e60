import numpy as np
import pytest

from imdb_transformer.store.checkpoint import dequantized, quantized


def test_a_packed_embedding_comes_back_within_half_a_step_of_each_row() -> None:
    matrix = np.random.default_rng(0).normal(size=(20, 30)).astype(np.float32)
    matrix[3] *= 1e-3
    matrix[5] = 0
    vector = np.arange(4, dtype=np.float32)
    stored = quantized({"embedding": matrix, "vector": vector, "head": matrix})
    assert stored["embedding"].dtype == np.int8
    assert stored["head"].dtype == np.float16
    back = dequantized(stored)
    assert back.keys() == {"embedding", "vector", "head"}
    assert back["head"].dtype == np.float32
    np.testing.assert_allclose(back["head"], matrix, rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(back["vector"], vector)
    step = abs(matrix).max(1, keepdims=True) / 127
    assert (abs(back["embedding"] - matrix) <= step / 2 + 1e-9).all()
    assert not back["embedding"][5].any()


def test_arrays_that_are_not_packed_stay_as_they_are() -> None:
    matrix = np.ones((2, 3), np.float32)
    assert dequantized({"matrix": matrix})["matrix"] is matrix


def test_factors_of_another_number_of_rows_are_refused() -> None:
    stored = quantized({"embedding": np.ones((2, 3), np.float32)})
    stored["embedding.factors"] = np.ones(5, np.float32)
    with pytest.raises(ValueError, match="broadcast"):
        dequantized(stored)
