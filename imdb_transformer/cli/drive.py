"""What `train` and `pretrain` share: a task is prepared, then the loop is driven with a progress bar."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from imdb_transformer.display import making
from imdb_transformer.errors import RunError

if TYPE_CHECKING:  # heavy: imported in the functions
    from imdb_transformer.config import Config
    from imdb_transformer.hardware import Hardware
    from imdb_transformer.run import Kind, Run
    from imdb_transformer.training.loop import TrainingResult
    from imdb_transformer.training.preparation import Prepared
    from imdb_transformer.training.task import Task

COMMANDS = {"encoder": "train", "pretrained": "pretrain"}


class Origin(NamedTuple):
    """Other runs that a run starts from: the encoder's weights, and who labels the unlabelled reviews."""

    init_from: Path | None = None
    teachers: tuple[Path, ...] = ()


def begin(
    config: "Config",
    folder: Path,
    kind: "Kind",
    origin: Origin,
    *,
    dry_run: bool = False,
    as_json: bool = False,
) -> "TrainingResult | None":
    """A new run, trained to its end; a dry run only says what that would cost."""
    from imdb_transformer import hardware, run
    from imdb_transformer.training import initial, loop
    from imdb_transformer.training.preparation import prepare

    run.check_free(folder)
    chosen = hardware.choose(config.train)
    print(f"preparing {config.data.source} ...", file=sys.stderr)
    prepared = prepare(config, kind, chosen, teachers=origin.teachers)
    if origin.init_from is not None:
        initial.load_encoder(prepared.task.model, origin.init_from, config, prepared.data.tokenizer)
    if dry_run:
        _show_cost(prepared, chosen, as_json=as_json)
        return None
    initial.fit_ngrams(prepared.task.model, prepared.data.splits["train"], config)
    return _drive(lambda: loop.start(folder, prepared, chosen), prepared.task, chosen)


def go_on(folder: Path, kind: "Kind") -> "TrainingResult":
    """A run that was interrupted, trained to its end."""
    from imdb_transformer import hardware, run
    from imdb_transformer.training.preparation import prepare_again

    opened = run.open_run(folder)
    if opened.info.kind != kind:
        command = COMMANDS.get(opened.info.kind)
        hint = f"continue it with: imdb-tx {command} --resume {folder}" if command else "it is finished"
        raise RunError(f"{folder} was made by another command; {hint}.")
    chosen = hardware.choose(opened.config.train)
    print(f"preparing {opened.config.data.source} ...", file=sys.stderr)
    return _drive(lambda: opened, prepare_again(opened, chosen), chosen)


def train_seeds(config: "Config", base: Path, origin: Origin, num_seeds: int) -> "list[TrainingResult]":
    """A run a seed, in BASE-seed-N; those that an interrupted earlier call began go on."""
    from imdb_transformer import run
    from imdb_transformer.training import loop

    results = []
    for seed in range(config.train.seed, config.train.seed + num_seeds):
        own = config.model_copy(update={"train": config.train.model_copy(update={"seed": seed})})
        folder = base.with_name(f"{base.name}-seed-{seed}")
        if not (folder / run.INFO).exists():
            result = begin(own, folder, "encoder", origin)
            assert result is not None
        else:
            opened = run.open_run(folder)
            if opened.config != own:
                raise RunError(f"{folder} is a run with another config; name another --run-dir.")
            done = opened.info.status == "finished"
            result = loop.result_of(opened) if done else go_on(folder, "encoder")
        results.append(result)
    return results


def _show_cost(prepared: "Prepared", hardware: "Hardware", *, as_json: bool) -> None:
    from imdb_transformer import config_file
    from imdb_transformer.training.estimate import estimate

    config = prepared.config
    validation = prepared.data.splits.get("validation")
    num_tokens = int(validation.lengths.sum()) if validation else 0
    cost = estimate(config, prepared.task, hardware, num_validation_tokens=num_tokens)
    if as_json:
        print(json.dumps({"config": config.model_dump(), "estimate": cost.model_dump()}))
    else:
        print(f"{config_file.dump(config)}\n{making.estimate(cost)}")


def _drive(start: Callable[[], "Run"], task: "Task", hardware: "Hardware") -> "TrainingResult":
    from tqdm import tqdm

    from imdb_transformer.evaluation.calibration import calibrate
    from imdb_transformer.training import loop
    from imdb_transformer.training.interruption import stop_request

    bar: Any  # tqdm is generic in its stub and not at run time
    with stop_request() as stop, tqdm(unit="step", file=sys.stderr, disable=None, dynamic_ncols=True) as bar:
        opened = start()
        bar.write(f"training in {opened.folder} on {hardware.describe()}", file=sys.stderr)
        for update in loop.train(opened, task, hardware, stop):
            if not bar.n:  # a resumed run's earlier steps took none of this bar's time
                bar.initial = bar.n = update.step - 1
            bar.total = update.num_steps
            bar.set_postfix_str(making.postfix(update), refresh=False)
            bar.update()
            if update.saved:
                bar.write(making.progress(update), file=sys.stderr)
    calibrate(opened.folder)
    return loop.result_of(opened)
