"""Embeddings in 8 bits and other matrices in 16, for weights that travel with the package.

A row of an embedding becomes whole numbers from -127 to 127 and one factor (symmetric quantisation by row:
Jacob et al. 2018, section 2.1, with zero as zero). A file marks a packed matrix by the tensor of its factors.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

FACTORS = ".factors"
LARGEST = 127


def packed(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays, with each embedding as integers (int8) and factors (fp32, one a row), matrices as fp16."""
    result: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        result[name] = array
        if array.ndim == 2 and "embedding" not in name:
            result[name] = array.astype(np.float16)
        elif array.ndim == 2:
            factors = np.maximum(abs(array).max(1), np.finfo(np.float32).tiny * LARGEST) / LARGEST
            result[name] = np.round(array / factors[:, None]).astype(np.int8)
            result[name + FACTORS] = factors.astype(np.float32)
    return result


def unpacked(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays of `packed`, in fp32 again; other arrays as they are. Raises ValueError if shapes differ."""
    result = {}
    for name, array in arrays.items():
        factors = arrays.get(name + FACTORS)
        if factors is not None:
            result[name] = array.astype(np.float32) * factors[:, None]
        elif not name.endswith(FACTORS):
            result[name] = array.astype(np.float32) if array.dtype == np.float16 else array
    return result
