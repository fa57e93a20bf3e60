"""The one door to the terminal: what comes out of a file can be read there, and steers nothing."""

import io
import sys
import unicodedata
from typing import TextIO

# Controls (C0, C1), formats (bidi marks, zero widths, tags), lone surrogates, line and paragraph separators.
STEERING = {"Cc", "Cf", "Cs", "Zl", "Zp"}


class Door(io.TextIOWrapper):
    """A standard stream through which only `visible` text comes."""

    beneath: TextIO

    @classmethod
    def over(cls, stream: io.TextIOWrapper) -> "Door":
        """A door before a stream that stays usable as its `beneath`."""
        stream.reconfigure(errors="backslashreplace")  # an old terminal shows an emoji's number
        door = cls(
            stream.buffer, stream.encoding, stream.errors,
            line_buffering=stream.line_buffering, write_through=stream.write_through,
        )  # fmt: skip
        door.beneath = stream
        return door

    def write(self, text: str, /) -> int:
        """Writes the text with its control characters spelt out."""
        super().write(visible(text))
        return len(text)


def guard() -> None:
    """Puts a door before stdout and stderr."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = Door.over(sys.stdout)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = Door.over(sys.stderr)


def beneath(stream: TextIO) -> TextIO:
    """A stream without its door, for what holds control characters of ours: colours, a progress bar."""
    stream.flush()
    return stream.beneath if isinstance(stream, Door) else stream


def visible(text: str) -> str:
    """The text with all but newlines and tabs that steers a terminal spelt as JSON spells it.

    So JSON says after it what it said before.

    >>> print(visible("a\\x1b[31mred\\u202e"))
    a\\u001b[31mred\\u202e
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in STEERING else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
