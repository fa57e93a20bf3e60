"""The words of a text, and the word that each id is a piece of."""

import bisect
import re
from collections.abc import Sequence
from typing import NamedTuple

from imdb_transformer.data.reviews import BREAK_TAG

BREAK_OR_WORD = re.compile(rf"{BREAK_TAG}|(?P<word>(?:(?!{BREAK_TAG})\S)+)", re.IGNORECASE)


class Word(NamedTuple):
    """A run of characters between spaces or break tags."""

    text: str
    start: int
    """index of its first character"""


def words_of(text: str, spans: Sequence[tuple[int, int]]) -> tuple[list[Word], list[int]]:
    """The words of a text, and for each id the index of its word.

    `spans` are the characters of each id, as (start, end). An id without characters belongs to an empty word
    in front of the others.

    >>> words_of("a dull film", [(0, 1), (2, 4), (4, 6), (7, 11)])[1]
    [0, 1, 1, 2]
    >>> words_of("a film", [(0, 0), (0, 1), (2, 6)])[1]
    [0, 1, 2]
    >>> [word.text for word in words_of("a film.<br /><br />The end", [])[0]]
    ['a', 'film.', 'The', 'end']
    """
    matches = BREAK_OR_WORD.finditer(text)
    words = [Word(match["word"], match.start()) for match in matches if match["word"]]
    starts = [word.start for word in words]
    index = [bisect.bisect_right(starts, start) - 1 if end > start else -1 for start, end in spans]
    if -1 not in index:
        return words, index
    return [Word("", 0), *words], [i + 1 for i in index]
