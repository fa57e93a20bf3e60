"""What decided about reviews, as one self-contained HTML page that fetches nothing."""

import html
from pathlib import Path
from typing import TYPE_CHECKING

from imdb_transformer.report.page import write_page

if TYPE_CHECKING:
    from imdb_transformer.inference.attention import Attention
    from imdb_transformer.inference.explanation import Explanation
    from imdb_transformer.inference.predictor import Prediction

BLUE = "59 125 216"
FAINTEST = 0.05

TITLE = "Which words decided"
LEGEND = (
    "<p>Green speaks for the first class named, red for the second. A word's share also holds what it read "
    "in its neighbours.</p>"
)


def write_views(path: Path, sections: list[str]) -> None:
    """Writes the page with all reviews."""
    write_page(path, TITLE, [LEGEND, *sections])


def section(prediction: "Prediction", why: "Explanation | None", looked: "Attention | None") -> str:
    """One review: its words marked by what they decided, and what each looked at."""
    from imdb_transformer.report.marking import marked_words

    parts = [f"<h2>{html.escape(f'{prediction.label} ({prediction.probability:.4f})')}</h2>"]
    if why is None:
        parts.append(f"<p>{html.escape(prediction.text)}</p>")
    else:
        summary = (
            f"{why.toward} or {why.against}: {why.logit_difference:+.3f} in all, {why.bias:+.3f} of it bias."
        )
        parts += [f"<p>{html.escape(summary)}</p>", f"<p>{marked_words(why)}</p>"]
    if looked is not None:
        parts.append(_heat_map(looked))
    return "\n".join(parts)


def _heat_map(looked: "Attention") -> str:
    words = [html.escape(word) for word in looked.words]
    head = "".join(f"<th scope=col>{word}</th>" for word in words)
    rows = "".join(
        f"<tr><th scope=row>{word}</th>{_cells(row)}</tr>"
        for word, row in zip(words, looked.weights.tolist(), strict=True)
    )
    return (
        f"<p>Attention of layer {looked.layer}, head {looked.head}: each row is a word, and what it looks at "
        f'is blue.</p>\n<div class="scroll"><table class="map"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cells(row: list[float]) -> str:
    """The weights of a row, as strong as each is beside the largest."""
    largest = max(row) or 1.0
    strengths = [(weight, weight / largest) for weight in row]
    return "".join(
        f'<td style="background: rgb({BLUE} / {strength:.2f})" title="{weight:.3f}"></td>'
        if strength >= FAINTEST
        else "<td></td>"
        for weight, strength in strengths
    )
