"""Which of IMDB's training and unlabelled reviews are about the same film.

The official archive names the film of each review. Other sources of IMDB do not, so the package has a table,
`imdb_films.npy`: a sorted array of 64-bit numbers. The first 50 bits of a number are the hash of a review's
words, the other 14 the number of its film. `scripts/make_films.py` made the table. It has no text of test.

Shapes: N reviews.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.data.stars import UNKNOWN, load_table, values_of

FILM_BITS = 14
NUM_CHECKED = 10_000  # texts that tell whether the reviews are IMDB's


@cache
def imdb_films() -> NDArray[np.uint64]:
    """The sorted table of hashes and films."""
    return load_table(Path(__file__).with_name("imdb_films.npy"))


def films_of(texts: Sequence[str]) -> NDArray[np.int64]:
    """(N,): for each text the number of its film, or -1 if the table does not have the text.

    If the table has none of the first 10,000 texts, the others are not looked up.
    """
    if (values_of(texts[:NUM_CHECKED], imdb_films(), FILM_BITS) == UNKNOWN).all():
        return np.full(len(texts), UNKNOWN)
    return values_of(texts, imdb_films(), FILM_BITS)
