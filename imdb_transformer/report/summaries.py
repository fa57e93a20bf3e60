"""Results of commands as text: each function returns the lines to print."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imdb_transformer.errors import RunError, command_line, one_line
from imdb_transformer.report.layout import TableRow, duration, markdown_table, percent, text_table

if TYPE_CHECKING:  # heavy modules, which only the types need
    from imdb_transformer.config import TokenizerConfig, TrainConfig
    from imdb_transformer.data.corpus import Corpus
    from imdb_transformer.data.encoded import TokenizedCorpus
    from imdb_transformer.evaluation.baseline import Baseline, Yardstick
    from imdb_transformer.evaluation.scores import ClassScore, Score
    from imdb_transformer.training.estimate import Estimate
    from imdb_transformer.training.loop import Update
    from imdb_transformer.training.train import TrainingResult

DEMO_NOTE = "note: the demo's model knows a toy grammar and nothing about real reviews."
MAX_CLASSES = 20  # in a table


def corpus(stored: "Corpus") -> str:
    """What `imdb-tx download` prints: statistics of each split, and where the corpus is stored."""
    manifest = stored.manifest
    figures = manifest.statistics
    splits = [each.split for each in figures]
    labels = dict.fromkeys(label for each in figures for label in each.num_by_label)
    rows: list[list[object]] = [
        ["rows", *(each.num_rows for each in figures)],
        *([label, *(each.num_by_label.get(label, 0) for each in figures)] for label in labels),
        ["empty", *(each.num_empty for each in figures)],
        ["duplicates", *(each.num_duplicates for each in figures)],
        *([f"also in {name}", *(each.num_shared.get(name, 0) for each in figures)] for name in splits),
        ["with <br />", *(percent(each.num_with_breaks, each.num_rows, 1) for each in figures)],
    ]
    for name, percentile in (("median words", 50), ("90% have up to", 90), ("99%", 99), ("all", 100)):
        rows.append([name, *(each.word_percentiles[percentile] for each in figures)])
    sizes = ", ".join(f"{name} {split.num_rows:,}" for name, split in manifest.splits.items())
    official = "IMDB as its authors published it (checksums match)"
    kind = official if manifest.is_imdb else "not the official IMDB"
    state = "imported" if stored.is_new else "already stored, verified"
    end = f"{kind}; content {stored.content_hash[:16]}\n{state}: {stored.folder}\n({sizes})"
    return f"{text_table(['', *splits], rows)}\n\n{end}"


def tokenized(result: "TokenizedCorpus", config: "TokenizerConfig") -> str:
    """What `imdb-tx tokenize` prints: the vocabulary, and what the length limit cuts."""
    header = ["split", "reviews", "tokens", "per review", "reviews cut", "", "tokens cut", ""]
    rows = []
    for name, split in result.splits.items():
        r = split.report
        rows.append([
            name, r.num_reviews, r.num_tokens, f"{r.num_tokens / max(r.num_reviews, 1):.1f}",
            r.num_reviews_cut, percent(r.num_reviews_cut, r.num_reviews, 1),
            r.num_tokens_cut, percent(r.num_tokens_cut, r.num_tokens, 1),
        ])  # fmt: skip
    head = config.max_length - config.tail_length
    return (
        f"vocabulary: {result.tokenizer.vocab_size:,} pieces (byte-level BPE)\n"
        f"length limit: {config.max_length} tokens; a longer review keeps its first {head} and its last "
        f"{config.tail_length}\n\n{text_table(header, rows)}"
    )


def estimate(cost: "Estimate", options: "TrainConfig") -> str:
    """What `imdb-tx train --dry-run` prints after the config."""
    reviews = ", ".join(f"{name} {count:,}" for name, count in cost.num_reviews.items())
    parts = "\n".join(f"  {name:<13}{count:>12,}" for name, count in cost.parameters.items())
    resident = cost.resident_bytes
    counts = (cost.adapt_epochs, options.epochs)
    adapt_epochs, epochs = (f"{count} epoch{'s' * (count > 1)}" for count in counts)
    adapted = f"adaptation        {adapt_epochs} of guessing masked tokens, in a run before this one\n"
    process = "" if resident is None else f"; about {resident / 2**20:,.0f} MiB for the whole process"
    return (
        f"parameters\n{parts}\n"
        f"reviews           {reviews}\n"
        f"{adapted * bool(cost.adapt_epochs)}"
        f"batches           of at most {options.batch_tokens:,} tokens; {epochs}\n"
        f"learning rate     up to {options.lr:g} in {options.warmup_fraction:.0%} of the steps, then "
        f"{options.schedule}\n"
        f"tokens per epoch  {cost.tokens_per_epoch:,}\n"
        f"steps             {cost.steps_per_epoch:,g} per epoch, {cost.num_steps:,} in all\n"
        f"compute           {cost.flops:.2e} FLOPs\n"
        f"memory            {cost.memory_bytes / 2**20:,.0f} MiB for weights, moments and activations"
        f"{process}\n"
        f"time              about {duration(cost.seconds)} on {cost.hardware}\n"
        "nothing was trained"
    )


def progress(update: "Update") -> str:
    """A line about a checkpoint: its scores on validation or, without validation, the losses of its step.

    For a causal model, a second line shows text that it wrote.
    """
    validation = update.validation
    if validation is not None:
        kinds = {"masked_accuracy": "held-out masked", "token_accuracy": "held-out token"}
        kind = next((kinds[name] for name in update.result.metrics if name in kinds), "validation")
        scores = f"{kind} accuracy {percent(validation.accuracy)}  loss {validation.loss:.4f}"
    else:
        losses = {"loss": update.result.loss, **update.result.metrics}
        scores = "  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in losses.items())
    sample = f"\n  it writes: {one_line(update.sample)}" if update.sample else ""
    return f"step {update.step:>6,} of {update.num_steps:,}  epoch {update.epoch + 1}  {scores}{sample}"


def result(ended: "TrainingResult") -> str:
    """The last lines of a training: the run, its score, and the next command."""
    cost = f"training took {duration(ended.train_seconds)}, {ended.tokens_per_second:,.0f} tokens/s"
    if ended.kind == "encoder":
        from imdb_transformer.inference.plain import finetuning_command
        from imdb_transformer.store.run import open_run

        following = finetuning_command(open_run(Path(ended.run)))
        return (
            f"{ended.run}: {ended.num_steps:,} step{'s' * (ended.num_steps > 1)}\n{cost}\nnext: {following}"
        )
    lines = [f"{ended.run}: {_score(ended.validation)}, at step {ended.best_step:,}"]
    if ended.per_class and ended.validation and ended.validation.f1 is not None:
        lines.append(classes(ended.per_class, ended.validation.f1))
    if ended.yardstick is not None:
        lines.append(yardstick(ended.yardstick, ended.run))
    return "\n".join([*lines, cost, f"next: {_evaluation_command(ended.run)}"])


def classes(per_class: "Mapping[str, ClassScore]", f1: float) -> str:
    """Macro F1 and a table of the classes; if there are many, of those with the lowest F1."""
    worst = sorted(per_class, key=lambda name: per_class[name].f1)[:MAX_CLASSES]
    many = f" (below: the {MAX_CLASSES} of {len(per_class)} classes with the lowest F1)"
    which = many if len(worst) < len(per_class) else ""
    table = {name: each for name, each in per_class.items() if name in worst}  # in the order of the classes
    return f"macro F1 {f1:.4f}{which}\n{text_table(*class_table(table))}"


def class_table(per_class: "Mapping[str, ClassScore]") -> tuple[Sequence[str], Sequence[TableRow]]:
    """The scores of each class."""
    rows = [
        (name, f"{each.precision:.4f}", f"{each.recall:.4f}", f"{each.f1:.4f}", each.support)
        for name, each in per_class.items()
    ]
    return ("class", "precision", "recall", "F1", "support"), rows


def yardstick_line(comparison: "Yardstick") -> str:
    """The accuracy of the linear model, and the difference to the run's."""
    points = [100 * value for value in (comparison.difference, comparison.low, comparison.high)]
    return (
        f"a linear model (nb) has {percent(comparison.accuracy)} on the same reviews; the run minus the "
        f"linear model: {points[0]:+.2f} points (95% interval {points[1]:+.2f} to {points[2]:+.2f})"
    )


def yardstick(comparison: "Yardstick", folder: str) -> str:
    """How a run compares with a linear model. If that model or the mean of both is better, how to use it."""
    from imdb_transformer.store.upkeep import unused

    line, fit = yardstick_line(comparison), ("baseline", "--config", f"{folder}/config.toml")
    if comparison.together is not None:
        linear = unused(Path(f"{folder}-nb"))
        predict = command_line("predict", "--run", folder, "--run", linear, "a text")
        commands = f"  {command_line(*fit, '--run-dir', linear)}\n  {predict}"
        return f"{line}\nThe mean of both is better: {percent(comparison.together)}. To use it:\n{commands}"
    if comparison.difference >= 0:
        return line
    is_better = "is better" if comparison.high < 0 else "may be better"
    return f"{line}\nThe linear model {is_better} here. To fit it: {command_line(*fit)}"


def seeds(summary: Mapping[str, Any]) -> str:
    """What `imdb-tx train --seeds` prints: a Markdown table, one row for each run, and the next command."""
    names = {
        "validation %": "validation_accuracy",
        "test %": "test_accuracy",
        "clean test %": "clean_test_accuracy",
    }
    known = {name: spread for name, key in names.items() if (spread := summary[key]) is not None}
    row = {"n": f"{len(summary['runs'])} seeds"}
    row |= {name: f"{100 * spread['mean']:.2f} ± {100 * spread['sd']:.2f}" for name, spread in known.items()}
    if summary["test_accuracy"]:
        row["test %"] += f" ({', '.join(f'{100 * value:.2f}' for value in summary['test_accuracy']['each'])})"
        eces = [summary[kind]["mean"] for kind in ("raw_ece", "calibrated_ece")]
        row["ECE %"] = ", ".join(f"{100 * ece:.2f}" for ece in eces)
    row["training time"] = duration(summary["train_seconds"])
    row["tokens/s"] = f"{summary['tokens_per_second']:,.0f}"
    if summary["yardstick_accuracy"]:
        known["nb on validation %"] = summary["yardstick_accuracy"]
    columns = [[f"{100 * value:.2f}" for value in spread["each"]] for spread in known.values()]
    rows = list(zip(summary["runs"], *columns, strict=True))
    following = command_line("compare", *summary["runs"])
    tables = f"{markdown_table([*row], [[*row.values()]])}\n\n{text_table(['run', *known], rows)}"
    return f"{tables}\nnext: {following}"


def baseline(fitted: "Baseline") -> str:
    """What `imdb-tx baseline` prints: the run, its score, and the next command."""
    model = f"{fitted.weighting}, {fitted.num_ngrams:,} n-grams"
    following = _evaluation_command(fitted.run)
    return f"{fitted.run}: {model}; {_score(fitted.validation)}\nnext: {following}"


def runs(listed: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """What `imdb-tx runs` prints: a table, commands that continue runs, and the runs of the package."""
    from imdb_transformer.store.run import COMMANDS, INFO, SHIPPED

    package = f"in the package: {', '.join(sorted(path.parent.name for path in SHIPPED.glob(f'*/{INFO}')))}"
    if not listed:
        return f"no runs in {folder}; `imdb-tx train` makes one\n{package}"
    header = ["run", "started (UTC)", "reviews", "kind", "status", "validation", "MiB"]
    rows = [
        [
            each["run"], each["started"][:16].replace("T", " "), Path(each["source"]).name,
            each["kind"], each["status"],
            "-" if each["validation_accuracy"] is None else percent(each["validation_accuracy"]),
            round(each["num_bytes"] / 2**20),
        ]
        for each in listed
    ]  # fmt: skip
    unfinished = [
        f"{each['run']} stopped at step {each['step']:,}\n"
        f"next: {command_line(COMMANDS[each['kind']], '--resume', each['run'])}"
        for each in listed
        if each["status"] in ("interrupted", "killed") and each["kind"] in COMMANDS
    ]
    return "\n".join([text_table(header, rows), *unfinished, package])


def _score(score: "Score | None") -> str:
    if score is None:
        return "no validation split"
    return f"validation accuracy {percent(score.accuracy)}, loss {score.loss:.4f}"


def _evaluation_command(folder: str) -> str:
    """The command that evaluates a run, on validation or other reviews if its own have no test split."""
    from imdb_transformer.data import corpus
    from imdb_transformer.store import run

    with suppress(RunError):
        opened = run.open_run(Path(folder))
        config = opened.config.data
        stored = corpus.find_stored(config, opened.info.corpus_hash)
        if stored and "test" not in stored.manifest.splits:
            other = ("--split", "validation") if config.held_out_fraction else ("--source", "labelled.csv")
            return command_line("eval", folder, *other)
    return command_line("eval", folder)
