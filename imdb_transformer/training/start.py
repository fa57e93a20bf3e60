"""Starts a run, or continues one that was interrupted: yields its steps from there to its end."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from imdb_transformer import config_file, hardware
from imdb_transformer.config import Config
from imdb_transformer.data import corpus
from imdb_transformer.distributed import process_group
from imdb_transformer.errors import ConfigError, RunError, command_line, warn
from imdb_transformer.model.compiled import CompiledForward, can_be_compiled
from imdb_transformer.model.encoder import Encoder
from imdb_transformer.store import run
from imdb_transformer.store.locks import locked
from imdb_transformer.store.run import Kind
from imdb_transformer.training import checkpoints, starting_weights
from imdb_transformer.training.loop import Update, stop_requests, training_loop
from imdb_transformer.training.prepare import Prepared, SoftLabels, prepare, prepare_again
from imdb_transformer.training.step import make_learner

STEPS_BETWEEN_RELEASES = 10  # of freed memory: keeps pretrain.toml below 1.5 GiB (configs/EXPERIMENTS.md)
TOKENS_TO_COMPILE = 30_000_000  # an estimate: in a shorter training, compiling may take longer than it saves
SAMPLE = 1000  # reviews from which the mean length of a piece is measured


def training_steps(
    config: Config | None, folder: Path, kind: Kind, *, teachers: Sequence[Path] = (),
    soft_labels: SoftLabels | None = None, resume: bool = False, requested: Config | None = None,
) -> Iterator[Update]:  # fmt: skip
    """Starts or continues a run and trains it to its end; yields after each step.

    teachers: runs. Their mean probabilities for the unlabelled reviews serve as labels. An encoder has at
    most one, and learns its features.
    soft_labels: these probabilities, if the teachers have predicted them already.
    resume: continue the run in the folder, or start one if the folder has none. If `config` is None, the run
    keeps its config, and the folder may also be its checkpoint `previous`.
    requested: the caller's config, from which `config` was made; it is compared when the run is continued.

    Raises TypeError, ConfigError, DataError, RunError or ResourceError before the first step; later
    DivergedError, and Interrupted after one of `errors.SIGNALS`.
    """
    if not isinstance(config, Config | None):
        raise TypeError(f"Pass a config, such as load_config('base.toml'), not {config!r}.")
    prepared = None
    with process_group() as world:
        folder = world.broadcast(folder)
        is_new = world.broadcast(not resume or (config is not None and not (folder / run.INFO).exists()))
        if is_new:
            prepared = world.on_first(
                lambda: create_run(config, folder, kind, tuple(teachers), soft_labels, requested, world.gpu)
            )
        opened, checkpoint_name = run_to_continue(folder, kind)
        if not is_new and config is not None:
            check_unchanged(opened, config, teachers)
        if opened.info.status == "finished" and checkpoint_name == run.LAST:
            return
        if prepared is None:
            prepared = prepare_again(opened, choose_hardware(opened.config, world.gpu))
        with locked(opened.folder) if world.is_first else nullcontext(), stop_requests() as stops:
            learner = make_learner(prepared.model, opened.config, kind, prepared.hardware.dtype)
            counters = checkpoints.resume_from(opened, checkpoint_name, learner, world)
            compile_if_long(prepared, world.size)
            for update in training_loop(opened, prepared, learner, counters, world, stops):
                yield update
                if update.step % STEPS_BETWEEN_RELEASES == 0 and prepared.hardware.device.type == "cpu":
                    hardware.release_freed_memory()


def create_run(
    config: Config | None, folder: Path, kind: Kind, teachers: tuple[Path, ...] = (),
    soft_labels: SoftLabels | None = None, requested: Config | None = None, gpu: int = 0,
) -> Prepared:  # fmt: skip
    """Creates a run in `folder`, with the model's initial weights as its first checkpoint.

    Raises RunError if the folder is in use, and ResourceError if the disk has no room for the checkpoints.
    """
    if config is None:
        raise ConfigError("A new run needs a config; only a run that is resumed has one.")
    run.check_free(folder)
    chosen = choose_hardware(config, gpu)
    prepared = prepare(config, kind, chosen, teachers=teachers, soft_labels=soft_labels)
    sample = corpus.read_split(prepared.corpus, "train").texts[:SAMPLE]  # rows are in a random order
    if init_from := prepared.config.train.init_from:
        usual = run.locate(Path(init_from))[0].info.characters_per_piece
        if prepared.tokenizer.knows_few_words(sample, usual):
            warn(
                f"the encoder of {init_from} knows few words of these reviews. A linear model may be more "
                "accurate; `imdb-tx baseline` fits one"
            )
    learner = make_learner(prepared.model, prepared.config, kind, chosen.dtype)
    checkpoints.check_space(folder, learner)
    tokenizer = prepared.tokenizer
    with run.create(
        folder, prepared.config, kind=kind, hardware=chosen.describe(), soft_labels=prepared.soft_labels,
        classes=prepared.corpus.manifest.classes, corpus_hash=prepared.corpus.content_hash,
        save_vocabulary=tokenizer.save, vocab_size=tokenizer.vocab_size,
        tokenizer_hash=tokenizer.content_hash,
        characters_per_piece=tokenizer.characters_per_piece(sample),
        requested_hash=config_file.hash_of(requested or config),
        origin_hash=starting_weights.origin_hash(prepared.config, teachers),
        teachers=tuple(map(_recorded, teachers)),
    ) as new:  # fmt: skip
        checkpoints.save_checkpoint(new, run.LAST, learner, checkpoints.Counters())
    return prepared


def run_to_continue(path: Path, kind: Kind) -> tuple[run.Run, run.CheckpointName]:
    """The run and the checkpoint to continue from. `path` is the run, or its checkpoint `last` or `previous`.

    Raises RunError if the run is of another kind.
    """
    opened, _ = run.locate(path)
    name = path.name if run.is_checkpoint(path) else run.LAST
    if opened.is_shipped:
        raise RunError(
            f"{path} comes with the package and is finished. A new run can start from it: --init-from {path}"
        )
    if name == "best":
        raise RunError(f"{path} has only weights to predict with. To continue, name the run.")
    if opened.info.kind != kind:
        hint = "it is finished"
        if command := run.COMMANDS.get(opened.info.kind):
            hint = f"continue it with: {command_line(command, '--resume', opened.folder)}"
        raise RunError(f"{opened.folder} was made by another command; {hint}.")
    return opened, run.PREVIOUS if name == run.PREVIOUS else run.LAST


def check_unchanged(opened: run.Run, config: Config, teachers: Sequence[Path]) -> None:
    """Raises RunError if a run has another config, other origins or other reviews."""
    stored = corpus.ensure(config.data)
    try:
        has_other_origin = starting_weights.origin_hash(opened.config, teachers) != opened.info.origin_hash
    except RunError:  # an encoder or teacher that has been deleted is not another one
        has_other_origin = tuple(map(_recorded, teachers)) != opened.info.teachers
    was_requested = opened.info.requested_hash == config_file.hash_of(config)
    differences = {
        "with another config": opened.config != config and not was_requested,
        "of another encoder or --teacher": has_other_origin,
        "on other reviews": stored.content_hash != opened.info.corpus_hash,
    }
    for difference, exists in differences.items():
        if exists:
            raise RunError(f"{opened.folder} is a run {difference}; name another --run-dir.")


def _recorded(teacher: Path) -> str:
    """How a run names its teacher: by its absolute path, or by the name of a run of the package."""
    with suppress(RunError):
        if run.locate(teacher)[0].is_shipped:
            return str(teacher)
    return str(teacher.resolve())


def compile_if_long(prepared: Prepared, num_processes: int) -> None:
    """Compiles the encoder's blocks, if they can be, in a long training on a GPU.

    Each process has its share of a batch, and at most one review more. With the objective "contrastive", the
    halves of reviews have up to a ninth more padding. Warns if `torch.compile` does not work.
    """
    config, encoder = prepared.config, prepared.model.encoder
    assert isinstance(encoder, Encoder)
    num_trained = config.train.epochs * prepared.train.lengths.sum()
    is_long = prepared.hardware.device.type == "cuda" and num_trained >= TOKENS_TO_COMPILE
    if not (is_long and can_be_compiled(config.model)):
        return
    if problem := hardware.compiling_problem(prepared.hardware.device):
        warn(f"torch.compile does not work here ({problem}): training goes on without it, more slowly")
        return
    batch_tokens = config.train.batch_tokens // num_processes
    batch_tokens += config.tokenizer.max_length if num_processes > 1 else 0
    batch_tokens += batch_tokens // 9 if config.pretrain.objective == "contrastive" else 0
    encoder.forward = CompiledForward(encoder, batch_tokens)  # type: ignore[method-assign]


def choose_hardware(config: Config, gpu: int) -> hardware.Hardware:
    """The hardware that a config asks for. On a CPU it also makes the process keep freed memory."""
    chosen = hardware.choose(config.train, gpu=gpu)
    if chosen.device.type == "cpu":
        hardware.keep_freed_memory()
    return chosen
