"""Trains a run to its end, a new one or one that was interrupted. Python users and the commands call it.

Several processes started by `torchrun` call the same function and train one run together.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from os import PathLike
from pathlib import Path

from pydantic import BaseModel

from imdb_transformer import config_file, hardware
from imdb_transformer.config import Config
from imdb_transformer.data import corpus
from imdb_transformer.distributed import process_group
from imdb_transformer.errors import ConfigError, DataError, ResourceError, RunError, command_line, warn
from imdb_transformer.evaluation.baseline import Yardstick, yardstick_of
from imdb_transformer.evaluation.evaluate import measured
from imdb_transformer.evaluation.scores import ClassScore, Score
from imdb_transformer.store import checkpoint, metrics, run
from imdb_transformer.store.locks import locked
from imdb_transformer.store.run import Kind
from imdb_transformer.training import checkpoints, starting_weights
from imdb_transformer.training.adapt import adapt_encoder
from imdb_transformer.training.loop import Update, stop_requests, training_loop
from imdb_transformer.training.prepare import Prepared, SoftLabels, prepare, prepare_again
from imdb_transformer.training.step import make_learner

STEPS_BETWEEN_RELEASES = 10  # of freed memory: keeps pretrain.toml below 1.5 GiB (configs/EXPERIMENTS.md)
SAMPLE = 1000  # reviews from which the mean length of a piece is measured

UNKNOWN_WORDS = (
    "the encoder of {} knows few words of these reviews. A linear model may be more accurate; `imdb-tx "
    "baseline` fits one"
)

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
    """Trains a classifier to its end, silently; `imdb-tx train` does the same and shows its progress.

    See `training_steps` for the options and the errors.
    """
    for _ in training_steps(config, folder, "classifier", teachers=teachers, resume=resume):
        pass
    return result_of(folder)


def pretrain(config: Config | None, folder: Folder, *, resume: bool = False) -> TrainingResult:
    """Trains an encoder on text alone, for `train.init_from`; otherwise like `train`."""
    for _ in training_steps(config, folder, "encoder", resume=resume):
        pass
    return result_of(folder)


def training_steps(
    config: Config | None, folder: Folder, kind: Kind, *, teachers: Folder | Sequence[Folder] = (),
    soft_labels: SoftLabels = None, resume: bool = False,
) -> Iterator[Update]:  # fmt: skip
    """Starts or continues a run and trains it to its end; yields after each step.

    teachers: a run, or several. Their probabilities for the unlabelled reviews serve as labels.
    soft_labels: these probabilities, if the teachers have predicted them already.
    resume: continue the run in the folder, or start one if the folder has none. If `config` is None, the run
    keeps its config, and the folder may also be its checkpoint `previous`.

    Raises TypeError, ConfigError, DataError, RunError or ResourceError before the first step; later
    DivergedError, and Interrupted after Ctrl-C or SIGTERM.
    """
    if not isinstance(config, Config | None):
        raise TypeError(f"Pass a config, such as load_config('base.toml'), not {config!r}.")
    origins = tuple(map(Path, [teachers] if isinstance(teachers, str | PathLike) else teachers))
    with process_group() as world:
        path = world.broadcast(Path(folder))
        begins = world.broadcast(not resume or (config is not None and not (path / run.INFO).exists()))
        prepared = problem = None
        if begins and world.is_first:
            try:
                prepared = begin(config, path, kind, origins, soft_labels, gpu=world.gpu)
            except (ConfigError, DataError, RunError, ResourceError) as error:
                problem = error
        if (problem := world.broadcast(problem)) is not None:
            raise problem
        opened, begin_from = run_to_continue(path, kind)
        if not begins and config is not None:
            check_unchanged(opened, config, origins)
        if opened.info.status == "finished" and begin_from == run.LAST:
            return
        prepared = prepared or prepare_again(opened, choose_hardware(opened.config, world.gpu))
        chosen = prepared.hardware
        with locked(opened.folder) if world.is_first else nullcontext(), stop_requests() as stops:
            learner = make_learner(prepared.model, opened.config, kind, chosen.dtype)
            counters = checkpoints.resume_from(opened, begin_from, learner, world)
            for update in training_loop(opened, prepared, learner, counters, world, stops):
                yield update
                if update.step % STEPS_BETWEEN_RELEASES == 0 and chosen.device.type == "cpu":
                    hardware.release_freed_memory()


def begin(
    config: Config | None, folder: Path, kind: Kind, teachers: tuple[Path, ...], soft_labels: SoftLabels, *,
    gpu: int,
) -> Prepared:  # fmt: skip
    """Creates a run in `folder`, with the model's initial weights as its first checkpoint.

    Raises RunError if the folder is in use, ResourceError if the disk has no room for the checkpoints, and
    ConfigError if TensorBoard is asked for and missing.
    """
    if config is None:
        raise ConfigError("A new run needs a config; only a run that is resumed has one.")
    run.check_free(folder)
    if config.train.tensorboard:
        metrics.check_tensorboard()
    chosen = choose_hardware(config, gpu)
    prepared = prepare(config, kind, chosen, teachers=teachers, soft_labels=soft_labels)
    sample = corpus.read_split(prepared.corpus, "train").texts[:SAMPLE]  # rows are in a random order
    length = prepared.tokenizer.characters_per_piece(sample)
    if init_from := prepared.config.train.init_from:
        usual = run.locate(Path(init_from))[0].info.characters_per_piece
        if kind == "classifier" and prepared.tokenizer.knows_few_words(sample, usual):
            warn(UNKNOWN_WORDS.format(init_from))
    if kind == "classifier" and prepared.config.train.adapt_share:
        adapt_encoder(prepared)
    learner = make_learner(prepared.model, prepared.config, kind, chosen.dtype)
    checkpoints.check_space(folder, learner)
    run.create(
        folder,
        prepared.config,
        kind=kind,
        vocabulary=prepared.tokenizer,
        classes=prepared.corpus.manifest.classes,
        corpus_hash=prepared.corpus.content_hash,
        hardware=chosen.describe(),
        soft_labels=prepared.soft_labels,
        characters_per_piece=length,
        requested_hash=config_file.hash_of(config),
        origin_hash=starting_weights.origin_hash(prepared.config, teachers),
        teachers=tuple(str(path if run.locate(path)[0].is_shipped else path.resolve()) for path in teachers),
        fill=lambda new: checkpoints.save_checkpoint(new, run.LAST, learner, checkpoints.Counters()),
    )
    return prepared


def run_to_continue(path: Path, kind: Kind) -> tuple[run.Run, run.CheckpointName]:
    """The run and the checkpoint to continue from. `path` is the run, or its checkpoint `previous`.

    Raises RunError if the run is of another kind.
    """
    from_previous = path.name == run.PREVIOUS and run.is_checkpoint(path)
    opened = run.open_run(path.parent.parent if from_previous else path)
    if opened.is_shipped:
        raise RunError(
            f"{path} comes with the package and is finished. A new run can start from it: --init-from {path}"
        )
    if opened.info.kind != kind:
        hint = "it is finished"
        if command := run.COMMANDS.get(opened.info.kind):
            hint = f"continue it with: {command_line(command, '--resume', opened.folder)}"
        raise RunError(f"{opened.folder} was made by another command; {hint}.")
    return opened, run.PREVIOUS if from_previous else run.LAST


def check_unchanged(opened: run.Run, config: Config, teachers: tuple[Path, ...]) -> None:
    """Raises RunError if a run has another config, other origins or other reviews."""
    stored = corpus.ensure(config.data)
    origin_hash = starting_weights.origin_hash(opened.config, teachers)
    was_requested = opened.info.requested_hash == config_file.hash_of(config)
    differences = {
        "with another config": opened.config != config and not was_requested,
        "of another encoder or --teacher": opened.info.origin_hash != origin_hash,
        "on other reviews": stored.content_hash != opened.info.corpus_hash,
    }
    for difference, exists in differences.items():
        if exists:
            raise RunError(f"{opened.folder} is a run {difference}; name another --run-dir.")


def choose_hardware(config: Config, gpu: int) -> hardware.Hardware:
    """The hardware that a config asks for. On a CPU it also makes the process keep freed memory."""
    chosen = hardware.choose(config.train, gpu=gpu)
    if chosen.device.type == "cpu":
        hardware.keep_freed_memory()
    return chosen


def result_of(folder: Folder) -> TrainingResult:
    """The result of a run, from its last checkpoint. `folder` may be its checkpoint `previous`."""
    opened, _ = run.locate(Path(folder))
    name: run.CheckpointName = "best" if opened.info.pruned else run.LAST
    meta = checkpoint.read_meta(opened.checkpoint(name), tokenizer_hash=opened.info.tokenizer_hash)
    counters = checkpoints.counters_of(opened.info.counters or meta.counters)
    return TrainingResult(
        run=str(opened.folder),
        kind=opened.info.kind,
        best_step=counters.best_step,
        num_steps=counters.step,
        validation=counters.best,
        per_class=next((each.per_class for each in measured(opened, "best-validation")), {}),
        yardstick=yardstick_of(opened.folder),
        train_seconds=round(counters.train_seconds, 3),
        tokens_per_second=round(counters.num_tokens / max(counters.step_seconds, 1e-9), 1),
    )
