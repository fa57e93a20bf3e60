"""Lines of text files in any encoding. A pipe is read as it fills: its lines can be answered at once."""

import codecs
import io
import os
import re
import stat
from collections.abc import Iterator
from itertools import chain
from select import select
from typing import Any, BinaryIO

from imdb_transformer.data.reviews import MAX_REVIEW_BYTES
from imdb_transformer.errors import ConfigError, DataError

READ_BYTES = 1 << 20
LINE = re.compile(r"[^\r\n]*+(?:\r\n?|\n)")
UNDECODED = re.compile("[\udc80-\udcff]")
"""a byte that the encoding does not have, by Python's `surrogateescape`"""
BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def lines_as_they_come(file: Any, encoding: str, origin: object) -> Iterator[list[str]]:
    """Lines with their ends, in lists of those that could be read without waiting for more.

    A byte order mark goes before `encoding`. A byte that the encoding does not have is `UNDECODED`. Raises
    ConfigError for an unknown encoding, and DataError for a line that is too long for a review.
    """
    decoder, number = None, 0
    pending: list[str] = []  # of a line whose end has not come
    for data in chain(iter(lambda: file.read1(READ_BYTES), b""), [b""]):
        decoder = decoder or io.IncrementalNewlineDecoder(_decoder(encoding, data), translate=False)
        try:
            pending.append(decoder.decode(data, final=not data))
        except UnicodeDecodeError as error:  # UTF-16 has no single bytes to mark
            raise DataError(f"{origin} is not {encoding} after line {number} ({error.reason}).") from None
        lines: list[str] = []
        if not data or "\n" in pending[-1] or "\r" in pending[-1]:
            text = "".join(pending)
            lines = LINE.findall(text)
            pending = [text[sum(map(len, lines)) :]]
        if not data and pending[0]:
            lines.append(pending.pop())
        for length in (*map(len, lines), sum(map(len, pending))):
            number += 1
            if length > MAX_REVIEW_BYTES:
                raise DataError(f"{origin}: line {number} has more than {MAX_REVIEW_BYTES:,} bytes.")
        number -= 1
        yield lines


def _decoder(encoding: str, first: bytes) -> codecs.IncrementalDecoder:
    try:
        "".encode(encoding)  # also refuses what is no encoding of text
        name = codecs.lookup(encoding).name
    except LookupError:
        usual = "utf-8, cp1252 (Windows) and utf-16 are usual"
        raise ConfigError(f"There is no encoding {encoding!r}; {usual}.") from None
    name = BYTE_ORDER_MARKS.get(first[:2], "utf-8-sig" if name == "utf-8" else name)
    return codecs.getincrementaldecoder(name)("surrogateescape")


def comes_slowly(file: BinaryIO) -> bool:
    """Whether someone may be writing the file while we read: a pipe or a terminal."""
    try:
        return not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, AttributeError):  # it is no file of the system
        return False


def has_more(file: BinaryIO, seconds: float) -> bool:
    """Whether something can be read from a pipe, or its end is reached, within some seconds."""
    return bool(select([file], [], [], max(seconds, 0))[0])
