"""`train` and `baseline`: a config becomes a run."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from imdb_transformer import display
from imdb_transformer.cli.options import DEFAULT_CONFIG, ConfigOption, JsonOption, SetOption, app
from imdb_transformer.errors import ConfigError

BaselineKind = Literal["nb", "tfidf"]


@app.command()
def train(
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", help="A config file, or a shipped one; by default demo.toml."),
    ] = None,
    overrides: SetOption = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default a new one in runs/.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue this run; takes no config.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it would cost; train nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a model; download and tokenize first where that is not done yet."""
    from imdb_transformer import config_file, hardware, run
    from imdb_transformer.data import tokenized
    from imdb_transformer.training import loop

    if resume is not None:
        if config or overrides or run_dir or dry_run:
            raise ConfigError("--resume continues a run with its own config: it goes with --json only.")
        opened = run.open_run(resume)
        chosen = hardware.choose(opened.config.train)
        print(f"preparing {opened.config.data.source} ...", file=sys.stderr)
        splits = loop.splits_of(opened)
        _train(lambda: opened, splits, chosen, as_json=as_json)
        return
    name = config or DEFAULT_CONFIG
    resolved = config_file.load(name, overrides or ())
    folder = run_dir or run.new_folder(Path(name).stem)
    run.check_free(folder)
    chosen = hardware.choose(resolved.train)
    print(f"preparing {resolved.data.source} ...", file=sys.stderr)
    data = tokenized.tokenize(resolved, tokenized.training_splits(resolved.data))
    if dry_run:
        _show_cost(resolved, data, chosen, as_json=as_json)
    else:
        _train(lambda: loop.start(folder, resolved, data, chosen), data.splits, chosen, as_json=as_json)


def _show_cost(config: Any, data: Any, hardware: Any, *, as_json: bool) -> None:
    from imdb_transformer import config_file
    from imdb_transformer.training.estimate import estimate

    num_classes = len(data.corpus.manifest.classes)
    cost = estimate(
        config, data.splits, hardware, vocab_size=data.tokenizer.vocab_size, num_classes=num_classes
    )
    if as_json:
        print(json.dumps({"config": config.model_dump(), "estimate": cost.model_dump()}))
    else:
        print(f"{config_file.dump(config)}\n{display.estimate(cost)}")


def _train(begin: Callable[[], Any], splits: Any, hardware: Any, *, as_json: bool) -> None:
    """Drives the loop with a progress bar, and prints how the run ended."""
    from tqdm import tqdm

    from imdb_transformer.training import loop
    from imdb_transformer.training.interruption import stop_request

    with stop_request() as stop, tqdm(unit="step", file=sys.stderr, disable=None, dynamic_ncols=True) as bar:
        opened = begin()
        bar.write(f"training in {opened.folder} on {hardware.describe()}", file=sys.stderr)
        for update in loop.train(opened, splits, hardware, stop):
            if not bar.n:  # a resumed run's earlier steps took none of this bar's time
                bar.initial = bar.n = update.step - 1
            bar.total = update.num_steps
            bar.set_postfix_str(display.postfix(update), refresh=False)
            bar.update()
            if update.validation is not None:
                bar.write(display.validation(update), file=sys.stderr)
    result = loop.result_of(opened)
    print(json.dumps(result.model_dump()) if as_json else display.result(result))


@app.command()
def baseline(
    config: ConfigOption = "base.toml",
    overrides: SetOption = None,
    kind: Annotated[BaselineKind, typer.Option(help="NB-weighted trigrams, or TF-IDF of bigrams.")] = "nb",
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default a new one in runs/.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a linear model on the same reviews: the number to beat."""
    from imdb_transformer import config_file, run
    from imdb_transformer.evaluation.baseline import make_baseline

    resolved = config_file.load(config, overrides or ())
    folder = run_dir or run.new_folder(f"baseline-{kind}")
    print(f"fitting {kind} on {resolved.data.source} ...", file=sys.stderr)
    made = make_baseline(folder, resolved, kind)
    print(made.model_dump_json() if as_json else display.baseline(made))
