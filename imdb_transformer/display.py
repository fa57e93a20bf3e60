"""Results as text for people: every function takes a result and gives the lines to print."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # heavy modules; at run time only their results come here
    from imdb_transformer.config import TokenizerConfig
    from imdb_transformer.data.corpus import Corpus
    from imdb_transformer.data.tokenized import TokenizedCorpus
    from imdb_transformer.evaluation.baseline import Baseline
    from imdb_transformer.evaluation.evaluate import Evaluation, Score
    from imdb_transformer.inference.predict import Prediction
    from imdb_transformer.training.estimate import Estimate
    from imdb_transformer.training.loop import TrainingResult, Update


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned: text to the left, figures to the right.

    >>> print(table(["split", "rows"], [["train", 25000], ["test", 9]]))
    split    rows
    train  25,000
    test        9
    """
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    numeric = [bool(rows) and not isinstance(rows[0][i], str) for i in range(len(header))]
    lines = []
    for row in cells:
        aligned = [
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / max(whole, 1):.1f}%"


def corpus(stored: "Corpus", *, was_there: bool) -> str:
    """The table of `imdb-tx download`, and what is stored where."""
    manifest = stored.manifest
    header = ["split", "rows", "labels", "empty", "duplicates", "also elsewhere", "<br />",
              "words p50", "p90", "p99", "max"]  # fmt: skip
    rows = [
        [
            s.split,
            s.num_rows,
            ", ".join(f"{name} {count:,}" for name, count in s.num_by_label.items()),
            s.num_empty,
            s.num_duplicates,
            ", ".join(f"{other} {count}" for other, count in s.num_shared.items() if count) or "-",
            _percent(s.num_with_breaks, s.num_rows),
            *s.word_percentiles.values(),
        ]
        for s in manifest.statistics
    ]
    sizes = ", ".join(f"{name} {split.num_rows:,}" for name, split in manifest.splits.items())
    kind = (
        "IMDB, as its authors published it (checksums match)" if manifest.is_imdb else "not the official IMDB"
    )
    state = "was there, verified" if was_there else "imported"
    return (
        f"{table(header, rows)}\n\n"
        f"{kind}; content {stored.content_hash[:16]}\n"
        f"{state}: {stored.folder} ({sizes})"
    )


def tokenized(result: "TokenizedCorpus", config: "TokenizerConfig") -> str:
    """The truncation report of `imdb-tx tokenize`."""
    header = ["split", "reviews", "tokens", "a review", "reviews cut", "", "tokens cut", ""]
    rows = []
    for name, split in result.splits.items():
        r = split.report
        rows.append([
            name, r.num_reviews, r.num_tokens, f"{r.num_tokens / max(r.num_reviews, 1):.1f}",
            r.num_reviews_cut, _percent(r.num_reviews_cut, r.num_reviews),
            r.num_tokens_cut, _percent(r.num_tokens_cut, r.num_tokens),
        ])  # fmt: skip
    head = config.max_length - config.tail_length
    return (
        f"vocabulary: {result.tokenizer.vocab_size:,} pieces ({config.kind}-level BPE)\n"
        f"length limit: {config.max_length} tokens; of a longer review the first {head} and the last "
        f"{config.tail_length} are kept\n\n{table(header, rows)}"
    )


def estimate(cost: "Estimate") -> str:
    """What `imdb-tx train --dry-run` found, after the config."""
    parts = "\n".join(f"  {name:<13}{count:>12,}" for name, count in cost.parameters.items())
    return (
        f"parameters\n{parts}\n"
        f"tokens an epoch   {cost.tokens_per_epoch:,}\n"
        f"steps             {cost.steps_per_epoch:,g} an epoch, {cost.num_steps:,} in all\n"
        f"compute           {cost.flops:.2e} FLOPs\n"
        f"memory            {cost.memory_bytes / 2**20:,.0f} MiB for weights, moments and activations\n"
        f"time              about {duration(cost.seconds)} on {cost.hardware}\n"
        "nothing was trained"
    )


def duration(seconds: float) -> str:
    """
    >>> duration(42), duration(754), duration(7500)
    ('42 s', '12 min 34 s', '2 h 5 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def postfix(update: "Update") -> str:
    """What stands behind the progress bar."""
    result = update.result
    speed = update.tokens_per_second / 1000
    return f"loss {result.loss:.3f}, accuracy {result.accuracy:.3f}, {speed:.1f}k tokens/s"


def validation(update: "Update") -> str:
    """One line a validation."""
    found = update.validation
    assert found is not None
    return (
        f"step {update.step:>6,} of {update.num_steps:,}  epoch {update.epoch + 1}  "
        f"validation accuracy {100 * found.accuracy:.2f}%  loss {found.loss:.4f}"
    )


def result(ended: "TrainingResult") -> str:
    """The last lines of a training: where it is, how good it is, and what to type next."""
    return (
        f"{ended.run}: {_figures(ended.validation)}, at step {ended.best_step:,}; "
        f"{duration(ended.train_seconds)}, {ended.tokens_per_second:,.0f} tokens/s\n"
        f"next: imdb-tx eval {ended.run}"
    )


def baseline(made: "Baseline") -> str:
    """What `imdb-tx baseline` fitted, and what to type next."""
    return (
        f"{made.run}: {made.kind}, {made.num_ngrams:,} n-grams; {_figures(made.validation)}\n"
        f"next: imdb-tx eval {made.run}"
    )


def _figures(found: "Score | None") -> str:
    if found is None:
        return "no validation split"
    return f"validation accuracy {100 * found.accuracy:.2f}%, loss {found.loss:.4f}"


def evaluation(found: "Evaluation") -> str:
    """The table of `imdb-tx eval`."""
    rows = [
        ["reviews", f"{found.num_examples:,}"],
        ["accuracy", f"{100 * found.accuracy:.2f}% (95% interval {100 * found.accuracy_low:.2f} to "
                     f"{100 * found.accuracy_high:.2f})"],
        ["loss", f"{found.loss:.4f}"],
        ["F1", f"{found.f1:.4f}"],
        ["ROC AUC", "undefined: a class is absent" if found.roc_auc is None else f"{found.roc_auc:.4f}"],
    ]  # fmt: skip
    confusion = table(
        ["true \\ predicted", *found.classes],
        [[name, *counts] for name, counts in zip(found.classes, found.confusion, strict=True)],
    )
    return f"{table([found.split, found.checkpoint], rows)}\n\n{confusion}"


def prediction(found: "Prediction") -> str:
    """One line a review; control characters of the text are made visible, not obeyed."""
    text = "".join(c if c.isprintable() else " " for c in found.text[:100])
    return f"{found.label}\t{found.probability:.4f}\t{text}{'...' if len(found.text) > 100 else ''}"
