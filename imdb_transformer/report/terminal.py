"""Output to the terminal. Control characters are spelt out, because text from files may contain them."""

import io
import os
import sys
import unicodedata
from pathlib import Path
from typing import TextIO

GREEN, RED, YELLOW, CYAN, BOLD, PLAIN = (f"\x1b[{code}m" for code in (32, 31, 33, 36, 1, 0))
# Controls (C0, C1), formats (bidi marks, zero widths, tags), lone surrogates, line and paragraph separators.
CONTROL_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
PLAIN_CHARACTERS = "\n\t\u200c\u200d"  # with the joiners, which Persian, Hindi and emoji need


class SafeStream(io.TextIOWrapper):
    """A standard stream that spells out control characters, as `visible` does."""

    def __init__(self, beneath: io.TextIOWrapper) -> None:
        self.beneath = beneath
        beneath.reconfigure(errors="backslashreplace")  # characters that the encoding lacks
        super().__init__(
            beneath.buffer, beneath.encoding, beneath.errors,
            line_buffering=beneath.line_buffering, write_through=beneath.write_through,
        )  # fmt: skip

    def write(self, text: str, /) -> int:
        """Writes text with its control characters spelt out; returns the length of the original."""
        super().write(visible(text))
        return len(text)


def guard() -> None:
    """Makes stdout and stderr safe streams. A stream that the caller closed becomes /dev/null.

    This also takes its file number. Otherwise the next file to be opened would get the number, and with it
    the output of libraries.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - stays open
    for name in ("stdout", "stderr"):
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            setattr(sys, name, SafeStream(stream))


def beneath(stream: TextIO) -> TextIO:
    """The unprotected stream, for our own control characters: colours, a progress bar."""
    stream.flush()
    return stream.beneath if isinstance(stream, SafeStream) else stream


def has_colours(stream: TextIO) -> bool:
    """Whether a stream is a terminal that shows colours, and its user has not declined them (NO_COLOR)."""
    declined = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not declined


def visible(text: str) -> str:
    """The text with control characters, except newlines, tabs and joiners, spelt as in JSON.

    JSON text keeps its meaning.

    >>> print(visible("a\\x1b[31mred\\u202e"))
    a\\u001b[31mred\\u202e
    """
    if text.isprintable():
        return text
    return "".join(
        c if c in PLAIN_CHARACTERS or unicodedata.category(c) not in CONTROL_CATEGORIES else _escaped(c)
        for c in text
    )


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
