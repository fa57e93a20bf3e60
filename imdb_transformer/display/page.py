"""What decided about reviews, as one self-contained HTML page that fetches nothing."""

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imdb_transformer.inference.attended import Attention
    from imdb_transformer.inference.explain import Explanation
    from imdb_transformer.inference.predict import Prediction

BLUE = "59 125 216"
FAINTEST = 0.02

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Which words decided</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.8 system-ui, sans-serif; max-width: 45rem; margin: 1rem auto; padding: 0 1rem; }}
mark {{ color: inherit; background: none; border-radius: .2em; }}
.scroll {{ overflow-x: auto; }}
.map {{ border-collapse: collapse; font-size: .75rem; line-height: 1.1; }}
.map thead th {{ writing-mode: vertical-rl; text-align: right; }}
.map th {{ font-weight: normal; text-align: right; padding: .1rem .3rem; white-space: nowrap; }}
.map td {{ min-width: 1.1rem; height: 1.1rem; }}
</style></head><body>
<h1>Which words decided</h1>
<p>Green speaks for the first class named, red for the second. A word's share also holds what it read in its
neighbours.</p>
{sections}
</body></html>
"""


def section(prediction: "Prediction", why: "Explanation | None", looked: "Attention | None") -> str:
    """One review: its words marked by what they decided, and what each looked at."""
    from imdb_transformer.inference.marking import marked_words

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


def page(sections: list[str]) -> str:
    """The page with all reviews."""
    return PAGE.format(sections="\n".join(sections))


def _heat_map(looked: "Attention") -> str:
    words = [html.escape(word) for word in looked.words]
    head = "".join(f"<th scope=col>{word}</th>" for word in words)
    rows = "".join(
        f"<tr><th scope=row>{word}</th>{''.join(map(_cell, row))}</tr>"
        for word, row in zip(words, looked.weights.tolist(), strict=True)
    )
    return (
        f"<p>Attention of layer {looked.layer}, head {looked.head}: each row is a word, and what it looks at "
        f'is blue.</p>\n<div class="scroll"><table class="map"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(weight: float) -> str:
    if weight < FAINTEST:
        return "<td></td>"
    return f'<td style="background: rgb({BLUE} / {min(weight, 1):.2f})" title="{weight:.3f}"></td>'
