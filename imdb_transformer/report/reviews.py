"""Predictions, deciding words and attention of single reviews, as text and as HTML."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from imdb_transformer.report.page import write_page
from imdb_transformer.report.tables import one_line
from imdb_transformer.report.terminal import BOLD, GREEN, PLAIN, RED, visible

if TYPE_CHECKING:  # heavy modules; at run time only their results come here
    from imdb_transformer.inference.attention import Attention
    from imdb_transformer.inference.explanation import Explanation, WordShare
    from imdb_transformer.inference.predictor import Prediction

NUM_DECIDING = 5  # words for and against, as text
MAP_WIDTH, NAME_WIDTH = 30, 12  # of a heat map as text: words, characters of a word
SHADES = " ░▒▓█"
FAINTEST = 0.05  # share of the strongest; below it nothing is coloured
GREEN_RGB, RED_RGB, BLUE_RGB = "0 160 60", "220 40 40", "59 125 216"
LEGEND = "Words on green speak for the class in the first line, words on red for the class in the second."


def prediction_as_text(prediction: "Prediction") -> str:
    """One line for a review."""
    text = one_line(prediction.text[:100]) + ("..." if len(prediction.text) > 100 else "")
    return f"{_answer(prediction)}\t{text}"


def as_text(prediction: "Prediction", why: "Explanation | None", attention: "Attention | None") -> str:
    """A prediction, with the words that decided and a heat map of attention if they are passed."""
    views = [*(_explanation_lines(why) if why else []), *(_map_as_text(attention) if attention else [])]
    return "\n  ".join([_answer(prediction) if why else prediction_as_text(prediction), *views])


def as_html(prediction: "Prediction", why: "Explanation | None", attention: "Attention | None") -> str:
    """The same as a section of a page."""
    parts = [f"<h2>{html.escape(f'{prediction.label} ({prediction.probability:.4f})')}</h2>"]
    if why is None:
        parts.append(f"<p>{html.escape(prediction.text)}</p>")
    else:
        lines = "<br>".join(map(html.escape, _explanation_lines(why)))
        parts += [f"<p>{lines}</p>", f"<p>{marked_words(why)}</p>"]
    if attention is not None:
        parts.append(_map_as_html(attention))
    return "\n".join(parts)


def write_reviews(path: Path, sections: Sequence[str]) -> None:
    """Writes a page of sections from `as_html`."""
    write_page(path, "Which words decided", [f"<p>{LEGEND}</p>", *sections])


def coloured(explanation: "Explanation") -> str:
    """The whole text for a terminal: deciding words in colour, control characters spelt out."""
    return "  " + " ".join(_coloured(word, explanation.largest) for word in explanation.words)


def marked_words(explanation: "Explanation") -> str:
    """The whole text as HTML: words for `toward` on green, others on red; shares are tooltips."""
    marked = []
    for word in explanation.words:
        strength = 0.7 * abs(word.share) / explanation.largest
        colour = _background(GREEN_RGB if word.share > 0 else RED_RGB, strength)
        marked.append(f'<mark{colour} title="{word.share:+.3f}">{html.escape(word.word)}</mark>')
    return " ".join(marked)


def _answer(prediction: "Prediction") -> str:
    return f"{one_line(prediction.label)}\t{prediction.probability:.4f}"


def _explanation_lines(explanation: "Explanation") -> list[str]:
    """The words with the largest shares for either class, and the logit difference."""
    ordered = sorted(explanation.words, key=lambda word: -word.share)
    toward = [word for word in ordered[:NUM_DECIDING] if word.share > 0]
    against = [word for word in ordered[: -NUM_DECIDING - 1 : -1] if word.share < 0]
    return [
        f"for {explanation.toward}: {_shares(toward)}",
        f"for {explanation.against}: {_shares(against)}",
        f"logit difference {explanation.logit_difference:+.3f}, of which the bias is {explanation.bias:+.3f} "
        "(a word's share includes what it read in its neighbours)",
    ]


def _shares(words: "Sequence[WordShare]") -> str:
    return ", ".join(f'"{word.word[:40]}" {word.share:+.3f}' for word in words) or "nothing"


def _coloured(word: "WordShare", largest: float) -> str:
    text, strength = visible(word.word), abs(word.share) / largest
    if strength < 0.1:
        return text
    return f"{BOLD if strength > 0.5 else ''}{GREEN if word.share > 0 else RED}{text}{PLAIN}"


def _map_caption(attention: "Attention") -> str:
    where = f"layer {attention.layer}, head {attention.head}"
    return f"attention of {where}: each row is a word, and the words that it attends to are marked"


def _strengths(attention: "Attention", num_words: int | None = None) -> list[list[float]]:
    """Weights of the first words, each divided by the largest of its row."""
    weights = attention.weights[:num_words, :num_words]
    return (weights / weights.max(1, keepdims=True).clip(1e-9)).tolist()


def _map_as_text(attention: "Attention") -> list[str]:
    """A heat map in shades. If the text is long, it shows the first words."""
    words = attention.words[:MAP_WIDTH]
    is_cut = len(attention.words) > len(words)
    lines = [
        _map_caption(attention) + (f" (the first {MAP_WIDTH} words; --html shows all)" if is_cut else ""),
        " " * (NAME_WIDTH + 4) + "".join(f"{i % 100:2d}" for i in range(1, len(words) + 1)),
    ]
    for i, (word, row) in enumerate(zip(words, _strengths(attention, MAP_WIDTH), strict=True), 1):
        shades = (SHADES[min(int(len(SHADES) * strength), len(SHADES) - 1)] * 2 for strength in row)
        lines.append(f"{word[:NAME_WIDTH]:>{NAME_WIDTH}} {i:2d} {''.join(shades)}".rstrip())
    return lines


def _map_as_html(attention: "Attention") -> str:
    """The same in shades of blue, with all words; the weight is a tooltip."""
    words = list(map(html.escape, attention.words))
    head = "".join(f"<th scope=col>{word}</th>" for word in words)
    rows = []
    for word, weights, strengths in zip(words, attention.weights, _strengths(attention), strict=True):
        shades = (
            f'{_background(BLUE_RGB, strength)} title="{weight:.3f}"' if strength >= FAINTEST else ""
            for weight, strength in zip(weights, strengths, strict=True)
        )
        cells = "".join(f"<td{shade}></td>" for shade in shades)
        rows.append(f"<tr><th scope=row>{word}</th>{cells}</tr>")
    table = f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<p>{_map_caption(attention)}.</p>\n<div class="scroll"><table class="map">{table}</table></div>'


def _background(rgb: str, strength: float) -> str:
    return f' style="background: rgb({rgb} / {strength:.2f})"' if strength >= FAINTEST else ""
