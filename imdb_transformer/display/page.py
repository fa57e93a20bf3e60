"""Explanations as one self-contained HTML page: words on green or red, the stronger the more they decided."""

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imdb_transformer.inference.explain import Explanation
    from imdb_transformer.inference.predict import Prediction

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Which words decided</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.8 system-ui, sans-serif; max-width: 45rem; margin: 1rem auto; padding: 0 1rem; }}
mark {{ color: inherit; background: none; border-radius: .2em; }}
</style></head><body>
<h1>Which words decided</h1>
<p>Green speaks for the first class named, red for the second. A word's share also holds what it read in its
neighbours.</p>
{sections}
</body></html>
"""


def section(prediction: "Prediction", why: "Explanation") -> str:
    """One review."""
    from imdb_transformer.inference.marking import marked_words

    title = f"{prediction.label} ({prediction.probability:.4f})"
    summary = (
        f"{why.toward} or {why.against}: {why.logit_difference:+.3f} in all, {why.bias:+.3f} of it bias."
    )
    return f"<h2>{html.escape(title)}</h2>\n<p>{html.escape(summary)}</p>\n<p>{marked_words(why)}</p>"


def page(sections: list[str]) -> str:
    """The page with all reviews."""
    return PAGE.format(sections="\n".join(sections))
