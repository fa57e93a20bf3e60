"""Which splits are IMDB's, and which reviews are held out.

If the source has only train, a test split is held out as well as the validation split.

- A source's own validation split is used as it is.
- IMDB's validation split is fixed: `imdb_validation.txt` lists its reviews by hash. No training review is
  about one of their films.
- A corpus with a part of IMDB's train split holds out the listed reviews, if these are at least 5% and at
  most half of each class.
- Any other corpus holds out a share of each class.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from imdb_transformer.config import DataConfig
from imdb_transformer.data.reviews import SPLITS, Reviews, Rows, normalized
from imdb_transformer.errors import DataError, warn

DEFAULT_SHARE = 0.1
NUM_SUSPECT = 10  # classes; if more have too few texts, they may be numbers or ids

# `content_hash` of the official splits, whatever the row order.
IMDB_HASHES = {
    "train": "0160afc8272aab7a7058585fa7d7f04743ed4eba791c1215801e4ee4c4109de0",
    "test": "30ea9c8c7b342f2313fd992b7fb458dd950e1c416eb0e9caf42ccea89008d7ac",
    "unsupervised": "9efd3f63da6d1a40e6908ad787cb6b723991c3ee4d31d9b71cc686153da61d1c",
}


def text_hash(text: str) -> str:
    """SHA-256 of a review's UTF-8, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def content_hash(rows: Rows) -> str:
    """SHA-256 of a split's sorted (text hash, label) lines: the same for every row order."""
    lines = sorted(f"{text_hash(text)} {label}\n" for text, label in zip(*rows, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def is_imdb(reviews: Reviews, source: str) -> bool:
    """Whether all splits are IMDB's. Raises DataError if a source with IMDB's name lacks one of them.

    Any other source may hold a part of IMDB, or IMDB's train split and another test split.
    """
    official = {name for name, rows in reviews.splits.items() if content_hash(rows) == IMDB_HASHES.get(name)}
    wrong = [name for name in IMDB_HASHES if name not in official]
    if wrong and (source == "hub" or Path(source).name.startswith("aclImdb_v1.")):
        counts = ", ".join(f"{name} {len(rows.texts):,}" for name, rows in reviews.splits.items())
        raise DataError(
            f"{source} is not IMDB: wrong checksum of {', '.join(wrong)}. It has {counts}. IMDB has 25,000 "
            "train, 25,000 test, 50,000 unsupervised. Fetch it again. If it is your own file, rename it."
        )
    return official == set(reviews.splits)


def share_of(config: DataConfig) -> float:
    """The share that the stored corpus holds out. If it is learnt as well, training joins the parts again."""
    return config.held_out_fraction or DEFAULT_SHARE


def hold_out(reviews: Reviews, config: DataConfig) -> dict[str, Rows]:
    """The splits to store, each in the order of its text hashes; `unsupervised` without held-out texts."""
    splits = {name: _sorted(rows) for name, rows in reviews.splits.items()}
    if len(splits) == 1 and config.label_column:  # without labels there is nothing to test
        splits["train"], splits["test"] = _take_share(splits["train"], share_of(config))
    if "validation" not in splits:
        train, hashes = splits["train"], imdb_validation_hashes()
        listed = _partition(train, [text_hash(text)[:16] in hashes for text in train.texts])
        is_fair = _is_fair(*listed)
        splits["train"], splits["validation"] = listed if is_fair else _take_share(train, share_of(config))
    if "unsupervised" in splits:
        # Pretraining and tokenizer training read this split: it must hold no held-out text.
        parts = [splits[name] for name in ("validation", "test") if name in splits]
        held_out = {normalized(text) for part in parts for text in part.texts}
        rows = splits["unsupervised"]
        splits["unsupervised"], _ = _partition(rows, [normalized(text) in held_out for text in rows.texts])
    learnt = set(splits["train"].labels)
    if missing := [name for label, name in enumerate(reviews.classes) if label not in learnt]:
        raise DataError(
            f"{config.source}: train has no text of {_named(missing, reviews.classes)}; leave them out."
        )
    for name in ("train", "validation", "test"):
        if name in splits and not splits[name].texts:
            advice = f" Is {config.label_column!r} the label?" if len(reviews.classes) > NUM_SUSPECT else ""
            raise DataError(
                f"{config.source} has too few different texts in each class: its {name} split would be empty."
                f"{advice}"
            )
    _warn_of_held_out(reviews, splits, config)
    return {name: splits[name] for name in SPLITS if name in splits}


def _warn_of_held_out(reviews: Reviews, splits: dict[str, Rows], config: DataConfig) -> None:
    """Warns of classes without a held-out text, and if copies make a held-out split too large."""
    num_rows = len(reviews.splits["train"].texts)
    for name in [each for each in ("test", "validation") if each in splits]:
        num_held_out, present = len(splits[name].texts), set(splits[name].labels)
        is_of_source = name in reviews.splits
        if missing := [each for label, each in enumerate(reviews.classes) if label not in present]:
            reason = "scores on it say little" if is_of_source else "too few of its texts differ"
            warn(f"{name} has no text of {_named(missing, reviews.classes)}: {reason}")
        if not is_of_source and num_held_out > 2 * share_of(config) * num_rows + len(reviews.classes):
            warn(
                f"{name} has {num_held_out:,} of {num_rows:,} reviews, because copies of a text stay together"
            )


def _named(missing: list[str], classes: Sequence[str]) -> str:
    return f"{len(missing)} of {len(classes)} classes ({', '.join(map(repr, missing[:10]))})"


@cache
def imdb_validation_hashes() -> frozenset[str]:
    """First 16 hex digits of the text hash of each review in IMDB's validation split."""
    text = Path(__file__).with_name("imdb_validation.txt").read_text("ascii")
    return frozenset(line for line in text.split("\n") if line and not line.startswith("#"))


def _is_fair(rest: Rows, share: Rows) -> bool:
    """Whether `share` has a fair part of each class. IMDB's list has 10%."""
    totals, counts = Counter(rest.labels + share.labels), Counter(share.labels)
    return all(0.05 <= counts[label] / total <= 0.5 for label, total in totals.items())


def _sorted(rows: Rows) -> Rows:
    order = sorted(range(len(rows.texts)), key=lambda i: (text_hash(rows.texts[i]), rows.labels[i]))
    return Rows([rows.texts[i] for i in order], [rows.labels[i] for i in order])


def _take_share(rows: Rows, fraction: float) -> tuple[Rows, Rows]:
    """(rest, share): a share of each class, every copy of a text on the same side.

    The share has about this fraction of a class's rows, and at most this fraction of its different texts, but
    a text at least, if the class has two. The last text of a class stays in the rest.
    """
    texts = [normalized(text) for text in rows.texts]
    # By class, its texts with the number of their rows. Rows are in the order of their hashes.
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    labels_of: dict[str, set[int]] = defaultdict(set)
    for text, label in zip(texts, rows.labels, strict=True):
        counts[label][text] += 1
        labels_of[text].add(label)
    chosen: set[str] = set()
    num_left = {label: len(each) for label, each in counts.items()}
    for label in sorted(counts):
        totals = counts[label].total(), len(counts[label])
        num_rows, num_texts = (max(1, round(fraction * total)) for total in totals)
        # Even the rarest text may have more copies than that. Then it is taken all the same.
        most_rows = max(num_rows, min(counts[label].values()))
        taken = [text for text in counts[label] if text in chosen]  # with another label, too
        num_taken = sum(counts[label][text] for text in taken)
        for text, count in counts[label].items():
            is_last = any(num_left[other] == 1 for other in labels_of[text])
            fits = num_taken + count / 2 <= most_rows and len(taken) < num_texts
            if text not in chosen and fits and not is_last:
                chosen.add(text)
                taken.append(text)
                num_taken += count
                for other in labels_of[text]:
                    num_left[other] -= 1
    return _partition(rows, [text in chosen for text in texts])


def _partition(rows: Rows, chosen: list[bool]) -> tuple[Rows, Rows]:
    def pick(value: bool) -> Rows:
        indices = [i for i, flag in enumerate(chosen) if flag is value]
        return Rows([rows.texts[i] for i in indices], [rows.labels[i] for i in indices])

    return pick(False), pick(True)
