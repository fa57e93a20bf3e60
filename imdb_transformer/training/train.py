"""Trains a classifier, or an encoder, to its end. Python users and the commands call it.

Several processes started by `torchrun` call the same functions and train one run together.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path

import torch
from pydantic import BaseModel

from imdb_transformer.config import Config
from imdb_transformer.distributed import process_group
from imdb_transformer.errors import DataWarning, RunError, check_utf8
from imdb_transformer.evaluation.baseline import Yardstick, yardstick_of
from imdb_transformer.evaluation.evaluate import stored_evaluations
from imdb_transformer.evaluation.scores import ClassScore, Score, is_uneven
from imdb_transformer.store import checkpoint, run
from imdb_transformer.store.run import Kind
from imdb_transformer.store.upkeep import prune_run
from imdb_transformer.training import adapt, checkpoints, starting_weights
from imdb_transformer.training.loop import Update
from imdb_transformer.training.prepare import SoftLabels, prepare
from imdb_transformer.training.start import check_unchanged, choose_hardware, run_to_continue, training_steps
from imdb_transformer.training.step import make_learner

Folder = str | PathLike[str]


class TrainingResult(BaseModel):
    """Scores and cost of a run."""

    run: str
    kind: Kind
    best_step: int
    num_steps: int
    validation: Score | None
    per_class: dict[str, ClassScore]
    """on validation, after calibration, if there are many classes or a rare one"""
    yardstick: Yardstick | None
    train_seconds: float
    tokens_per_second: float


def train(
    config: Config | None, folder: Folder, *, teachers: Folder | Sequence[Folder] = (), resume: bool = False
) -> TrainingResult:
    """Trains a classifier to its end, silently. `imdb-tx train` also shows progress and writes `report.html`.

    See `trainings` and `training_steps` for the options and the errors.
    """
    origins = tuple(map(Path, [teachers] if isinstance(teachers, str | PathLike) else teachers))
    return _trained(folder, trainings(config, Path(folder), teachers=origins, resume=resume))


def pretrain(
    config: Config | None, folder: Folder, *, teacher: Folder | None = None, resume: bool = False
) -> TrainingResult:
    """Trains an encoder on text alone, for `train.init_from`; otherwise like `train`.

    With a `teacher`, a run of `pretrain`, it also learns the features of that run's encoder.
    """
    teachers = (Path(teacher),) if teacher else ()
    steps = training_steps(config, Path(folder), "encoder", teachers=teachers, resume=resume)
    return _trained(folder, [(Path(folder), steps)])


def _trained(folder: Folder, runs: Iterable[tuple[Path, Iterator[Update]]]) -> TrainingResult:
    """Takes all steps of the runs. Gives torch's random state back at the end: each step sets it anew."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        for _, steps in runs:
            for _ in steps:
                pass
    return result_of(folder)


def trainings(
    config: Config | None, folder: Path, *, teachers: tuple[Path, ...] = (),
    soft_labels: SoftLabels | None = None, resume: bool = False,
) -> Iterator[tuple[Path, Iterator[Update]]]:  # fmt: skip
    """The runs that training a classifier makes: the folder of each, and its steps (`training_steps`).

    Take all steps of a run before the next run. If an encoder reads the reviews first (`adapt.py`), its run
    is FOLDER-encoder, and the classifier starts from it. If that run was interrupted, it is continued. When
    it is finished, it is pruned. `soft_labels` and `resume` are those of the classifier's run. Raises
    RunError if FOLDER-encoder holds anything else, and what `training_steps` raises.
    """
    chosen = config
    with process_group() as world:
        is_new = world.broadcast(not resume or not (folder / run.INFO).exists())
        if isinstance(config, Config) and is_new:
            configs = world.broadcast(world.on_first(lambda: _configs(config, folder, teachers, world.gpu)))
            assert configs is not None
            chosen, encoder_config = configs
            if encoder_config is not None:
                encoder = _encoder_of(folder)
                yield encoder, training_steps(encoder_config, encoder, "encoder", resume=True)
                world.barrier()  # another process may still read what is deleted
                world.on_first(lambda: prune_run(run.open_run(encoder)))
                chosen = chosen.replaced("train", init_from=str(encoder))
        steps = training_steps(
            chosen, folder, "classifier", teachers=teachers, soft_labels=soft_labels, resume=resume,
            requested=config,
        )  # fmt: skip
        yield folder, steps


def _configs(
    config: Config, folder: Path, teachers: tuple[Path, ...], gpu: int
) -> tuple[Config, Config | None]:
    """The config with the encoder to start from, and that of a run in which it reads the reviews first.

    Raises RunError if a folder is in use, and ResourceError if the disk has no room for the classifier.
    """
    run.check_free(folder)
    config.data.check_labelled()
    hardware = choose_hardware(config, gpu)
    chosen = starting_weights.choose_start(config, "classifier", hardware)
    if not adapt.is_due(config, chosen):
        return chosen, None
    with warnings.catch_warnings(action="ignore", category=DataWarning):  # the classifier's run gives them
        prepared = prepare(chosen, "classifier", hardware, teachers=teachers, ready=False)
    encoder_config = adapt.pretraining_config(prepared)
    _check_usable(_encoder_of(folder), encoder_config)
    learner = make_learner(prepared.model, prepared.config, "classifier", hardware.dtype)
    checkpoints.check_space(folder, learner)  # now, not hours later
    return chosen, encoder_config


def _encoder_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-encoder")


def _check_usable(encoder: Path, config: Config) -> None:
    """Raises RunError unless an encoder's folder is free, or has a run of this config to continue."""
    check_utf8(str(encoder))  # the classifier's config will name it
    if (run.SHIPPED / encoder.name).exists():
        raise RunError(f"{encoder} would have the name of a run of the package; name another --run-dir.")
    if encoder.exists() and not (encoder.is_dir() and not any(encoder.iterdir())):
        try:
            opened, _ = run_to_continue(encoder, "encoder")
            check_unchanged(opened, config, ())
        except RunError:
            raise RunError(
                f"An encoder would be trained in {encoder}, but something else is there. If you began it "
                "with other settings or reviews, continue with them. Or delete it, or name another --run-dir."
            ) from None


def result_of(folder: Folder) -> TrainingResult:
    """The result of a run, from its last checkpoint. `folder` may be its checkpoint `previous`."""
    opened, _ = run.locate(Path(folder))
    per_class = next((each.per_class for each in stored_evaluations(opened, "best-validation")), {})
    is_shown = per_class and is_uneven([each.support for each in per_class.values()])
    name: run.CheckpointName = "best" if opened.info.pruned else run.LAST
    meta = checkpoint.read_meta(opened.checkpoint(name), tokenizer_hash=opened.info.tokenizer_hash)
    counters = checkpoints.counters_of(opened.info.counters or meta.counters)
    return TrainingResult(
        run=str(opened.folder),
        kind=opened.info.kind,
        best_step=counters.best_step,
        num_steps=counters.step,
        validation=counters.best,
        per_class=per_class if is_shown else {},
        yardstick=yardstick_of(opened.folder),
        train_seconds=round(counters.train_seconds, 3),
        tokens_per_second=round(counters.num_tokens / max(counters.step_seconds, 1e-9), 1),
    )
