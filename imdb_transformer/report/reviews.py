"""Predictions, deciding words and attention of single reviews, as text and as HTML."""

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from imdb_transformer.errors import one_line, shortened
from imdb_transformer.report.layout import display_width, read_asset, write_page
from imdb_transformer.report.terminal import BOLD, GREEN, PLAIN, RED, visible

if TYPE_CHECKING:  # heavy modules, which only the types need
    from imdb_transformer.inference.explanation import Attention, Explanation, WordShare
    from imdb_transformer.inference.predictor import Prediction

TEXT_WIDTH = 100  # of a review beside its prediction
NUM_DECIDING = 5  # words for and against, as text
MAP_WIDTH, NAME_WIDTH = 30, 12  # of a heat map as text: words, columns of a word
SHADES = " ░▒▓█"
CELL = 18  # pixels of a heat map on a page
LEAST_WEIGHT = 0.01  # of attention on a page; there are too many smaller ones
FAINTEST = 0.05  # share of the strongest; below it nothing is coloured


def as_text(
    prediction: "Prediction", why: "Explanation | None" = None, attention: "Attention | None" = None, *,
    each_class: bool = False,
) -> str:  # fmt: skip
    """One line for a review: its class, the probability of each class if asked for, and its text.

    The words that decided and a heat map of attention follow if they are passed. The words replace the text.
    """
    columns = [f"{one_line(prediction.label)}\t{prediction.probability:.4f}"]
    if each_class:
        columns += [f"{one_line(name)} {value:.4f}" for name, value in prediction.probabilities.items()]
    if why is None:
        columns.append(shortened(prediction.text, TEXT_WIDTH))
    views = [*(_explanation_lines(why) if why else []), *(_map_as_text(attention) if attention else [])]
    return "\n  ".join(["\t".join(columns), *views])


def as_html(
    prediction: "Prediction", why: "Explanation | None", attention: "Attention | None",
    heads: "Sequence[Attention]",
) -> str:  # fmt: skip
    """The same as a section of a page. It shows `attention` until the reader chooses another of `heads`."""
    answer = f"{html.escape(prediction.label)} <small>{prediction.probability:.4f}</small>"
    parts = [f"<h2>{answer}</h2>"]
    if why is None:
        parts.append(f'<p class="review">{with_breaks(prediction.text)}</p>')
    else:
        shares = [word.share for word in why.words]
        toward, against = (sum(max(0, sign * share) for share in shares) for sign in (1, -1))
        parts += [
            f'<p><mark class="for" style="--a: .4">for {html.escape(why.toward)} {toward:+.1f}</mark>, '
            f'<mark class="against" style="--a: .4">against {against:+.1f}</mark></p>',
            f'<p class="review">{marked_words(why, prediction.text)}</p>',
            f'<p class="note">{"<br>".join(map(html.escape, _explanation_lines(why)))}</p>',
        ]
    if attention is not None:
        parts.append(_map_as_html(attention, heads))
    return f'<section class="card">{"".join(parts)}</section>'


def write_reviews(path: Path, sections: Sequence[str], *, explained: bool, attended: bool) -> None:
    """Writes a page of sections from `as_html`."""
    title = "Which words decided" if explained else "What each word attended to"
    if explained and attended:
        title += ", and what they attended to"
    scripts = [f"<script>{read_asset('attention.js')}</script>"] if attended else []
    write_page(path, title, [*sections, *scripts])


def coloured(explanation: "Explanation") -> str:
    """The whole text for a terminal: deciding words in colour, control characters spelt out."""
    largest, words = explanation.largest, []
    for word in explanation.words:
        text, strength = visible(word.word), abs(word.share) / largest
        colour = f"{BOLD if strength > 0.5 else ''}{GREEN if word.share > 0 else RED}"
        words.append(text if strength < 0.1 else f"{colour}{text}{PLAIN}")
    return f"  {' '.join(words)}"


def marked_words(explanation: "Explanation", text: str) -> str:
    """The whole text as HTML. Words for and against `toward` have two colours; tooltips show the shares."""
    marked, end, largest = [], 0, explanation.largest
    for word in explanation.words:
        strength = abs(word.share) / largest
        side, style = "for" if word.share > 0 else "against", ""
        if strength >= FAINTEST:
            style = f' class="{side}" style="--a: {0.7 * strength:.2f}"'
        mark = f'<mark{style} title="{word.share:+.3f}">{html.escape(word.word)}</mark>'
        marked += [with_breaks(text[end : word.start]), mark]
        end = word.start + len(word.word)
    return "".join([*marked, with_breaks(text[end:])])


def with_breaks(text: str) -> str:
    """The text as HTML; its break tags are line ends, which the page shows."""
    from imdb_transformer.data.reviews import BREAK_TAG  # with numpy, which --help does not need

    return html.escape(re.sub(BREAK_TAG, "\n", text, flags=re.IGNORECASE))


def _explanation_lines(explanation: "Explanation") -> list[str]:
    """The words with the largest shares for either class, and the logit difference."""
    ordered = sorted(explanation.words, key=lambda word: -word.share)
    toward = [word for word in ordered[:NUM_DECIDING] if word.share > 0]
    against = [word for word in ordered[: -NUM_DECIDING - 1 : -1] if word.share < 0]
    return [
        f"for {one_line(explanation.toward)}: {_shares(toward)}",
        f"for {one_line(explanation.against)}: {_shares(against)}",
        f"logit difference {explanation.logit_difference:+.3f}: the sum of all shares and the bias "
        f"({explanation.bias:+.3f})",
    ]


def _shares(words: "Sequence[WordShare]") -> str:
    return ", ".join(f'"{word.word[:40]}" {word.share:+.3f}' for word in words) or "nothing"


def _map_as_text(attention: "Attention") -> list[str]:
    """A heat map in shades, relative to the largest weight of a row. A long text is cut."""
    words = attention.words[:MAP_WIDTH]
    is_cut = len(attention.words) > len(words)
    numbers = range(1, len(words) + 1)
    margin = " " * (NAME_WIDTH + 4)
    tens = "".join(f"{i // 10 or '':>2}" for i in numbers)
    where = f"layer {attention.layer}, head {attention.head}"
    caption = f"attention of {where}: each row is a word, and the words that it attends to are marked"
    lines = [
        caption + (f" (the first {MAP_WIDTH} words; --html shows all)" if is_cut else ""),
        *([margin + tens] if tens.strip() else []),
        margin + "".join(f"{i % 10:2d}" for i in numbers),
    ]
    weights = attention.weights[:MAP_WIDTH, :MAP_WIDTH]
    strengths = (weights / weights.max(1, keepdims=True).clip(1e-9)).tolist()
    for i, word, row in zip(numbers, words, strengths, strict=True):
        shades = (SHADES[min(int(len(SHADES) * strength), len(SHADES) - 1)] * 2 for strength in row)
        name = word[:NAME_WIDTH]
        while display_width(name) > NAME_WIDTH:
            name = name[:-1]
        blanks = " " * (NAME_WIDTH - display_width(name))
        lines.append(f"{blanks}{name} {i:2d} {''.join(shades)}".rstrip())
    return lines


def _map_as_html(chosen: "Attention", heads: "Sequence[Attention]") -> str:
    """A heat map of all words. The page's script draws the cells of the chosen layer and head."""
    by_layer: list[list[list[dict[int, float]]]] = [[] for _ in range(heads[-1].layer)]
    for each in heads:
        rows = [
            {column: round(weight, 3) for column, weight in enumerate(row) if weight >= LEAST_WEIGHT}
            for row in each.weights.tolist()
        ]
        by_layer[each.layer - 1].append(rows)
    words, side = chosen.words, CELL * len(chosen.words)
    data = json.dumps({"words": words, "heads": by_layer}, separators=(",", ":")).replace("<", "\\u003c")
    labels = "".join(f"<span>{html.escape(word) or '&nbsp;'}</span>" for word in words)
    return (
        f'<div class="attention"><h3>Attention</h3><p>{_choice("layer", len(by_layer), chosen.layer)}'
        f"{_choice('head', len(by_layer[0]), chosen.head)}</p>"
        '<p class="note">Each row is a word, and the words that it attends to are marked, the strongest '
        f"darkest. Weights below {LEAST_WEIGHT} are left out. Point at a cell for its weight.</p>"
        f'<output></output><div class="map"><div class="corner"></div><div class="columns">{labels}</div>'
        f'<div class="rows">{labels}</div><svg style="width: {side}px; height: {side}px"></svg></div>'
        f'<script type="application/json">{data}</script></div>'
    )


def _choice(name: str, count: int, chosen: int) -> str:
    """A menu of the numbers from 1."""
    numbers = "".join(f"<option{' selected' * (i == chosen)}>{i}</option>" for i in range(1, count + 1))
    return f"<label>{name} <select>{numbers}</select></label>"
