"""What a command shows besides its results: progress bars, and lines whose first word has a colour."""

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO

from imdb_transformer import progress
from imdb_transformer.errors import DataWarning
from imdb_transformer.report import terminal
from imdb_transformer.report.terminal import BOLD, CYAN, PLAIN, RED, YELLOW

OPENINGS = {"error:": RED, "warning:": YELLOW, "note:": YELLOW, "next:": CYAN}
# The bar shrinks until the line fits the terminal; 4 columns stay free, for ^C.
FORMAT = "{desc} {n_fmt} of {total_fmt} {bar:-4} {remaining} left{postfix}"
FORMAT_WITHOUT_TOTAL = "{desc} {n_fmt}, {elapsed}"
ERASE_LINE = "\r\x1b[2K"
SECONDS_BEFORE = 0.5  # quicker work shows no bar

IS_FIRST = os.environ.get("RANK", "0") == "0"  # of torchrun's processes one shows progress

_bars: list[Any] = []


def show(text: str, stream: TextIO) -> None:
    """Prints text. On a terminal with colours, the first word of an error, a note or a next step has one."""
    if terminal.has_colours(stream):
        text = "\n".join(map(_coloured, terminal.visible(text).split("\n")))
        stream = terminal.beneath(stream)
    print(text, file=stream, flush=True)


def note(text: str) -> None:
    """Prints lines on stderr, above the bar if there is one. Of several processes only the first does."""
    if not IS_FIRST:
        return
    screen = terminal.beneath(sys.stderr)
    with _bars[-1].external_write_mode(file=screen) if _bars else nullcontext():
        show(text, sys.stderr)


def show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """Shows a warning about reviews as a sentence, and any other as Python does."""
    is_ours = issubclass(category, DataWarning)
    shown = (
        f"warning: {message}"
        if is_ours
        else warnings.formatwarning(message, category, filename, lineno, line)
    )
    print(shown, file=file) if file else note(shown.rstrip())


@contextmanager
def bar(work: str, total: int | None = None, *, done: int = 0) -> Iterator[Any]:
    """A line on stderr that says how far some work has come; it is erased at the end.

    There is none if stderr is no terminal, or in a process that is not the first. Work inside this work has
    no bar of its own.
    """
    from tqdm import tqdm

    outer, progress.watch = progress.watch, None
    shown: Any = tqdm(
        desc=work, total=total, initial=done, file=terminal.beneath(sys.stderr), leave=False,
        disable=None if IS_FIRST else True, dynamic_ncols=True, delay=SECONDS_BEFORE,
        bar_format=FORMAT_WITHOUT_TOTAL if total is None else FORMAT,
    )  # fmt: skip
    _bars.append(shown)
    try:
        yield shown
    finally:
        close_bars()
        progress.watch = outer


def tracked(items: Iterable[Any], work: str, total: int | None) -> Iterator[Any]:
    """The items, with a bar."""
    if total == 1:
        yield from items
        return
    with bar(work, total) as shown:
        for item in items:
            yield item
            shown.update()


def end(sentence: str) -> None:
    """Prints a last sentence on stderr, on a line of its own: bars and the terminal's ^C are erased."""
    close_bars()
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        print(end=ERASE_LINE, file=terminal.beneath(sys.stderr))
    show(sentence, sys.stderr)


def close_bars() -> None:
    """Erases the bars."""
    while _bars:
        _bars.pop().close()


def _coloured(line: str) -> str:
    opening, blank, rest = line.partition(" ")
    colour = OPENINGS.get(opening)
    return f"{BOLD}{colour}{opening}{PLAIN}{blank}{rest}" if colour else line
