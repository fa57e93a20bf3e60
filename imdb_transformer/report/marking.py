"""A text with the words that decided marked, as HTML."""

import html

from imdb_transformer.inference.explanation import Explanation

FOR, AGAINST = "0 160 60", "220 40 40"  # green and red
FAINTEST = 0.05


def marked_words(why: Explanation) -> str:
    """The words on green (for `toward`) or red, the stronger the more each decided; its share as a hint."""
    marked = []
    for word in why.words:
        strength = round(0.7 * abs(word.share) / why.largest, 2)
        colour = FOR if word.share > 0 else AGAINST
        style = f' style="background: rgb({colour} / {strength})"' if strength >= FAINTEST else ""
        marked.append(f'<mark{style} title="{word.share:+.3f}">{html.escape(word.word)}</mark>')
    return " ".join(marked)
