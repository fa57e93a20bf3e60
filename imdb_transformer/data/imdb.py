"""What the package knows of IMDB's reviews beside their classes: star ratings and films.

A negative review has 1 to 4 stars and a positive one 7 to 10. The official archive has the stars in its file
names, and names the film of each review. Other sources of IMDB lack both, so the package has two tables,
sorted arrays of 64-bit numbers. The first bits of a number are the hash of a review's words. The others are
its stars (`imdb_stars.npy`, 4 bits, training reviews) or the number of its film (`imdb_films.npy`, 14 bits,
training and unlabelled reviews). `scripts/make_stars.py` and `scripts/make_films.py` made the tables. They
omit texts that are in the test split.

Shapes: N reviews.
"""

import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.errors import DataError

STARS = (1, 2, 3, 4, 7, 8, 9, 10)
STAR_BITS, FILM_BITS = 4, 14
HASH_BITS = 60
UNKNOWN = -1
NO_WORD = re.compile(r"<[^>]*>|\W|_")  # an HTML tag, or a character between words


@cache
def imdb_table(name: str) -> NDArray[np.uint64]:
    """The table of `stars` or `films`."""
    return load_table(Path(__file__).with_name(f"imdb_{name}.npy"))


def load_table(path: Path) -> NDArray[np.uint64]:
    """A table of the package. Raises DataError if it is damaged."""
    try:
        table: NDArray[np.uint64] = np.load(path, allow_pickle=False)
    except (ValueError, EOFError):  # cut short, or no table
        raise DataError(f"{path} is damaged. Install imdb-tx again.") from None
    return table


def words_key(text: str) -> int:
    """60 bits of the SHA-256 of a text's words. Tags, punctuation, spaces and case do not change it."""
    end = text.rfind(">") + 1  # a "<" after it begins no tag, and looking for its ">" would take long
    words = NO_WORD.sub(" ", text[:end] + text[end:].replace("<", " ")).casefold().split()
    return int(sha256(" ".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:15], 16)


def stars_of(texts: Sequence[str]) -> NDArray[np.int64]:
    """(N,): for each text the index of its rating in `STARS`, or -1 if the table does not have the text."""
    stars = _values_of(texts, imdb_table("stars"), STAR_BITS)
    return np.where(stars == UNKNOWN, UNKNOWN, np.searchsorted(STARS, stars))


def films_of(texts: Sequence[str]) -> NDArray[np.int64]:
    """(N,): for each text the number of its film, or -1 if the table does not have the text."""
    return _values_of(texts, imdb_table("films"), FILM_BITS)


def _values_of(texts: Sequence[str], table: NDArray[np.uint64], num_bits: int) -> NDArray[np.int64]:
    """(N,): the last `num_bits` bits of the row that begins with a text's hash, or -1 if there is none."""
    num_dropped = HASH_BITS + num_bits - 64  # bits of the hash
    keys = np.array([words_key(text) >> num_dropped for text in texts], np.uint64)
    hashes = table >> np.uint64(num_bits)
    nearest = np.searchsorted(hashes, keys).clip(max=len(table) - 1)
    values = (table[nearest] & np.uint64((1 << num_bits) - 1)).astype(np.int64)
    return np.where(hashes[nearest] == keys, values, UNKNOWN)
