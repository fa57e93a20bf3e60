"""What trained runs answer: every function gives the lines to print."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from imdb_transformer.report.table import one_line, table
from imdb_transformer.report.terminal import visible
from imdb_transformer.report.words import figures, or_undefined

if TYPE_CHECKING:  # heavy modules; at run time only their results come here
    from imdb_transformer.evaluation.compare import Comparison
    from imdb_transformer.evaluation.figures import Evaluation
    from imdb_transformer.inference.attention import Attention
    from imdb_transformer.inference.explanation import Explanation, WordShare
    from imdb_transformer.inference.predictor import Prediction

NUM_DECIDING = 5
MAP_WIDTH, NAME_WIDTH = 30, 12  # words of a heat map, characters of a word
SHADES = " ░▒▓█"
GREEN, RED, BOLD, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[0m"


def evaluation(found: "Evaluation", baselines: "Mapping[str, Evaluation]") -> str:
    """The tables of `imdb-tx eval`, the linear models' figures beside the run's."""
    slices = table(
        ["subset", "reviews", "accuracy"],
        [[name, part.num_examples, f"{100 * part.accuracy:.2f}%"] for name, part in found.slices.items()],
    )
    confusion = table(
        ["true \\ predicted", *found.classes],
        [[name, *counts] for name, counts in zip(found.classes, found.confusion, strict=True)],
    )
    parts = [table([found.split, found.checkpoint], figures(found)), slices, confusion]
    if baselines:
        parts.append(_scores("baseline", dict(baselines)))
    return "\n\n".join(parts)


def comparison(found: "Comparison") -> str:
    """The tables of `imdb-tx compare`: configs, figures, pairs."""
    differences = table(
        ["", *found.runs], [[key, *map(str, values)] for key, values in found.differences.items()]
    )
    scores = _scores("run", dict(zip(found.runs, found.evaluations, strict=True)))
    pairs = table(
        ["difference", "points", "95% interval", "only first correct", "only second", "p (McNemar)"],
        [
            [f"{p.second} - {p.first}", f"{100 * p.difference:+.2f}",
             f"{100 * p.low:+.2f} to {100 * p.high:+.2f}",
             p.only_first_right, p.only_second_right, f"{p.p_value:.2g}"]
            for p in found.pairs
        ],
    )  # fmt: skip
    parts = [differences] if found.differences else ["the configs are the same"]
    return "\n\n".join([*parts, scores, pairs])


def _scores(title: str, found: "Mapping[str, Evaluation]") -> str:
    header = [title, "accuracy", "95% interval", "loss", "calibration error", "ROC AUC"]
    rows = [
        [name, f"{100 * e.accuracy:.2f}%", f"{100 * e.accuracy_low:.2f} to {100 * e.accuracy_high:.2f}",
         f"{e.loss:.4f}", f"{100 * e.calibrated.ece:.2f}%", or_undefined(e.roc_auc)]
        for name, e in found.items()
    ]  # fmt: skip
    alone = [e.encoder_alone for e in found.values()]
    if any(alone):
        header.append("encoder alone")
        rows = [
            [*row, f"{100 * score.accuracy:.2f}%" if score else "-"]
            for row, score in zip(rows, alone, strict=True)
        ]
    return table(header, rows)


def views(found: "Prediction", why: "Explanation | None", looked: "Attention | None") -> str:
    """A prediction, and beside it which words decided and what each looked at, as far as they are given."""
    lines = [prediction(found) if why is None else f"{one_line(found.label)}\t{found.probability:.4f}"]
    if why is not None:
        lines += _deciding(why)
    if looked is not None:
        lines += _heat_map(looked)
    return "\n".join(lines)


def _deciding(why: "Explanation") -> list[str]:
    """The words that decided."""
    for_it = sorted(why.words, key=lambda word: -word.share)[:NUM_DECIDING]
    against_it = sorted(why.words, key=lambda word: word.share)[:NUM_DECIDING]
    return [
        f"  for {why.toward}: {_shares([word for word in for_it if word.share > 0])}",
        f"  for {why.against}: {_shares([word for word in against_it if word.share < 0])}",
        f"  logit difference {why.logit_difference:+.3f}, of which the bias is {why.bias:+.3f} (a word's "
        "share includes what it read in its neighbours)",
    ]


def coloured(why: "Explanation") -> str:
    """The whole text with the words that decided in colour: what stands in a word is spelt out here."""
    return "  " + " ".join(_marked(word, why.largest) for word in why.words)


def _heat_map(looked: "Attention") -> list[str]:
    """Rows look, columns are looked at, in shades; of a long text the first words."""
    words = [word[:NAME_WIDTH] for word in looked.words[:MAP_WIDTH]]
    weights = looked.weights[: len(words), : len(words)]
    dropped = len(looked.words) - len(words)
    lines = [
        f"  attention of layer {looked.layer}, head {looked.head}: each row is a word, and what it looks at "
        f"is dark{f' (the first {MAP_WIDTH} words; --html shows all)' if dropped else ''}",
        "  " + " " * (NAME_WIDTH + 4) + "".join(f"{i % 100:2d}" for i in range(1, len(words) + 1)),
    ]
    for i, (word, row) in enumerate(zip(words, weights, strict=True), 1):
        shades = (SHADES[min(int(len(SHADES) * w / max(row.max(), 1e-9)), len(SHADES) - 1)] * 2 for w in row)
        lines.append(f"  {word:>{NAME_WIDTH}} {i:2d} {''.join(shades)}".rstrip())
    return lines


def _shares(words: "Sequence[WordShare]") -> str:
    return ", ".join(f'"{word.word[:40]}" {word.share:+.3f}' for word in words) or "nothing"


def _marked(word: "WordShare", largest: float) -> str:
    text, strength = visible(word.word), abs(word.share) / largest
    if strength < 0.1:
        return text
    return f"{BOLD if strength > 0.5 else ''}{GREEN if word.share > 0 else RED}{text}{PLAIN}"


def prediction(found: "Prediction") -> str:
    """One line a review."""
    label, text = one_line(found.label), one_line(found.text[:100])
    return f"{label}\t{found.probability:.4f}\t{text}{'...' if len(found.text) > 100 else ''}"
