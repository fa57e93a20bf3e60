"""`train` and `pretrain`: a config becomes a run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imdb_transformer.cli import launch
from imdb_transformer.cli.options import (
    DEFAULT_CONFIG,
    ConfigOption,
    JsonOption,
    RunDirOption,
    SetOption,
    app,
    new_run_dir,
)
from imdb_transformer.errors import ConfigError
from imdb_transformer.report import summaries

if TYPE_CHECKING:
    from imdb_transformer.store.run import Kind
    from imdb_transformer.training.loop import TrainingResult

ResumeOption = Annotated[Path | None, typer.Option("--resume", help="Continue this run; takes no config.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what it would cost; train nothing.")]


@app.command()
def train(
    context: typer.Context,
    config: ConfigOption = DEFAULT_CONFIG,
    overrides: SetOption = None,
    run_dir: RunDirOption = None,
    resume: ResumeOption = None,
    init_from: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Start with the encoder of this run.")
    ] = None,
    teacher: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="Learn unlabelled reviews too, as this run sees them. Repeatable."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Train so many runs, one a seed, and show their spread.")
    ] = 1,
    test: Annotated[
        bool,
        typer.Option("--test", help="With --seeds: evaluate each on test too, once the recipe is fixed."),
    ] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a classifier; download and tokenize first where that is not done yet."""
    if resume is not None:
        _go_on(context, resume, "classifier", as_json=as_json)
        return
    if test and seeds == 1:
        raise ConfigError("--test needs --seeds, 2 or more; `imdb-tx eval` measures a single run.")
    if dry_run and seeds > 1:
        raise ConfigError("--dry-run shows what one run costs: leave out --seeds.")
    origin = launch.Origin(init_from, tuple(teacher or ()))
    if seeds == 1:
        _begin(config, overrides, run_dir, "classifier", origin, dry_run=dry_run, as_json=as_json)
    else:
        _train_seeds(config, overrides, run_dir, origin, seeds, test=test, as_json=as_json)


@app.command()
def pretrain(
    context: typer.Context,
    config: ConfigOption = "pretrain.toml",
    overrides: SetOption = None,
    run_dir: RunDirOption = None,
    resume: ResumeOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train an encoder on the text of training and unlabelled reviews alone, for train --init-from."""
    if resume is not None:
        _go_on(context, resume, "encoder", as_json=as_json)
    else:
        _begin(config, overrides, run_dir, "encoder", launch.Origin(), dry_run=dry_run, as_json=as_json)


def _train_seeds(
    name: str, overrides: list[str] | None, run_dir: Path | None, origin: launch.Origin, num_seeds: int, *,
    test: bool, as_json: bool,
) -> None:  # fmt: skip
    from imdb_transformer import config_file
    from imdb_transformer.distributed import joined
    from imdb_transformer.training.seeds import summarise

    config = config_file.load(name, overrides or ())
    with joined() as world:
        base = run_dir or Path("runs") / Path(name).stem
        results = launch.train_seeds(config, base, origin, num_seeds, world)
        if world.is_first:
            summary = summarise(results, test=test)
            print(summary.model_dump_json() if as_json else summaries.seeds(summary))


def _begin(
    name: str, overrides: list[str] | None, run_dir: Path | None, kind: "Kind", origin: launch.Origin, *,
    dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    from imdb_transformer import config_file
    from imdb_transformer.distributed import joined

    config = config_file.load(name, overrides or ())
    folder = run_dir or new_run_dir(Path(name).stem)
    with joined() as world:
        result = launch.begin(config, folder, kind, origin, world, dry_run=dry_run, as_json=as_json)
        if result is not None and world.is_first:
            _show(result, as_json=as_json)


def _go_on(context: typer.Context, folder: Path, kind: "Kind", *, as_json: bool) -> None:
    from imdb_transformer.distributed import joined

    given = {name for name in context.params if _is_given(context, name)}
    if given - {"resume", "as_json"}:
        raise ConfigError("--resume continues a run with its own config; only --json can be given beside it.")
    with joined() as world:
        result = launch.go_on(folder, kind, world)
        if world.is_first:
            _show(result, as_json=as_json)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _show(result: "TrainingResult", *, as_json: bool) -> None:
    print(json.dumps(result.model_dump()) if as_json else summaries.result(result))
