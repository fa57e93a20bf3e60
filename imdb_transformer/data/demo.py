"""The demo corpus: reviews from a small grammar, split like IMDB, the same on every machine.

A review is a few clauses about parts of a film. Counting words is not enough: there is negation ("not a good
plot" is bad), contrast ("the score is lovely, but the film is dull" is bad), and asides of the other opinion.
The label is that of the verdict.
"""

import random

from imdb_transformer.data.reviews import UNLABELLED, Reviews, Rows

CLASSES = ("neg", "pos")
NUM_LABELLED = 3000
NUM_UNLABELLED = 6000

PARTS = (
    "acting", "plot", "score", "script", "camera work", "ending", "opening", "dialogue", "pacing", "cast",
    "direction", "humour", "love story", "villain", "editing", "music", "lighting", "second half",
)  # fmt: skip
FILMS = ("film", "movie", "picture", "comedy", "thriller", "western", "sequel", "drama", "cartoon", "musical")
GOOD = (
    "good", "great", "wonderful", "brilliant", "moving", "charming", "superb", "clever", "lovely", "gripping",
    "funny", "beautiful", "excellent", "fresh", "delightful", "touching", "sharp", "warm", "perfect", "fine",
)  # fmt: skip
BAD = (
    "bad", "awful", "boring", "terrible", "dull", "clumsy", "weak", "stupid", "lifeless", "horrible",
    "tedious", "flat", "silly", "painful", "dreadful", "messy", "cheap", "lazy", "hollow", "poor",
)  # fmt: skip
DEGREES = ("", "", "", "really ", "quite ", "truly ", "rather ", "simply ", "very ")
NEUTRAL = (
    "I saw it on a rainy Sunday.", "My sister picked it.", "It runs for about two hours.",
    "The story is set in a small town by the sea.", "We watched it with the whole family.",
    "It was made on a small budget, I hear.", "Half of it takes place on a train.",
    "I had read the book before.", "The cinema was half empty.", "There is a dog in it, too.",
)  # fmt: skip
VERDICTS = {
    1: ("I would see it again.", "Do not miss it.", "Highly recommended.", "Two hours well spent.",
        "I loved every minute.", "One of the best this year."),
    0: ("I want my money back.", "Avoid it.", "Two hours wasted.", "I nearly walked out.",
        "I could not wait for it to end.", "One of the worst this year."),
}  # fmt: skip
BREAKS = (" ", " ", " ", " ", "<br /><br />")


def reviews() -> Reviews:
    """The demo corpus: 3,000 train, 3,000 test, 6,000 unlabelled reviews; no text is in two splits."""
    generator = random.Random(20110619)
    seen: set[str] = set()
    splits = {name: _rows(generator, NUM_LABELLED, seen) for name in ("train", "test")}
    unlabelled = _rows(generator, NUM_UNLABELLED, seen)
    splits["unsupervised"] = unlabelled._replace(labels=[UNLABELLED] * NUM_UNLABELLED)
    return Reviews(splits, CLASSES)


def _rows(generator: random.Random, count: int, seen: set[str]) -> Rows:
    texts: list[str] = []
    while len(texts) < count:
        text = _review(generator, len(texts) % 2)
        if text not in seen:
            seen.add(text)
            texts.append(text)
    return Rows(texts, [i % 2 for i in range(count)])


def _review(r: random.Random, label: int) -> str:
    """A review whose verdict is `label`, of one clause to about twenty."""
    length = r.choice((1, 1, 2, 3, 4, 6, 10, 20))
    if length == 1:
        return r.choice((_exclamation, _main_clause))(r, label)
    sentences = [_main_clause(r, label)]
    for _ in range(length - 1):
        kind = r.random()
        if kind < 0.25:
            sentences.append(r.choice(NEUTRAL))
        elif kind < 0.40:
            sentences.append(_concession(r, label))
        else:
            sentences.append(_clause(r, label))
    if length > 2:
        r.shuffle(sentences)
    if r.random() < 0.5:
        sentences.append(r.choice(VERDICTS[label]))
    return "".join(sentence + r.choice(BREAKS) for sentence in sentences).removesuffix("<br /><br />").strip()


def _opinion(r: random.Random, label: int) -> str:
    """An adjective phrase of the polarity `label`. One in four negates an adjective of the other."""
    if r.random() < 0.25:
        return r.choice(("not ", "not at all ", "never ", "hardly ")) + r.choice(BAD if label else GOOD)
    return r.choice(DEGREES) + r.choice(GOOD if label else BAD)


def _exclamation(r: random.Random, label: int) -> str:
    words = GOOD if label else BAD
    first, second = r.sample(words, 2)
    article = "an" if first[0] in "aeiou" else "a"
    film = r.choice(FILMS)
    text = r.choice((f"{article} {first}, {second} {film}", f"{article} {first} and {second} {film}"))
    other = r.choice(BAD if label else GOOD)
    negated = f"not {'an' if other[0] in 'aeiou' else 'a'} {other} {film}"
    return r.choice((text, text.capitalize() + ".", f"What {text}!", negated))


def _main_clause(r: random.Random, label: int) -> str:
    film = r.choice(FILMS)
    return r.choice((
        f"This {film} is {_opinion(r, label)}.",
        f"The {r.choice(PARTS)} is {_opinion(r, 1 - label)}, but the film is {_opinion(r, label)}.",
        f"Although the {r.choice(PARTS)} is {_opinion(r, 1 - label)}, this is {_opinion(r, label)}.",
        f"All in all the {film} is {_opinion(r, label)} and {_opinion(r, label)}.",
    ))  # fmt: skip


def _clause(r: random.Random, label: int) -> str:
    return r.choice((
        f"The {r.choice(PARTS)} is {_opinion(r, label)}.",
        f"I found the {r.choice(PARTS)} {_opinion(r, label)}.",
        f"The {r.choice(PARTS)} and the {r.choice(PARTS)} are {_opinion(r, label)}.",
    ))  # fmt: skip


def _concession(r: random.Random, label: int) -> str:
    part, other, opinion = r.choice(PARTS), _opinion(r, 1 - label), _opinion(r, label)
    return f"Some say the {part} is {other}, yet to me it is {opinion}."
