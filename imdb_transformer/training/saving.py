"""What a run keeps: its counters, which score is best, and the checkpoints `best` and `last`."""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from imdb_transformer import checkpoint, run
from imdb_transformer.config import Config
from imdb_transformer.errors import RunError
from imdb_transformer.evaluation.evaluate import Score
from imdb_transformer.training.step import Learner, restore, training_state


class Counters(BaseModel):
    """How far a run has come; with the tensors of `last`, all that the next step depends on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int = 0
    best_step: int = 0
    best: Score | None = None
    num_evals_since_best: int = 0
    num_tokens: int = 0
    step_seconds: float = 0.0
    train_seconds: float = 0.0


def judged(best_by: str, counters: Counters, validation: Score | None) -> Counters:
    """The counters after a validation. Only a strictly better score is best; a tie keeps the earlier one."""
    if validation is None or counters.best is None or best_by == "last":
        better = True
    elif best_by == "accuracy":
        better = validation.accuracy > counters.best.accuracy
    else:
        better = validation.loss < counters.best.loss
    if better:
        changes: dict[str, Any] = {"best": validation, "best_step": counters.step, "num_evals_since_best": 0}
    else:
        changes = {"num_evals_since_best": counters.num_evals_since_best + 1}
    return counters.model_copy(update=changes)


def out_of_patience(config: Config, counters: Counters) -> bool:
    return 0 < config.train.patience <= counters.num_evals_since_best


def save_best(current: run.Run, learner: Learner, counters: Counters) -> None:
    checkpoint.save(
        current.checkpoint("best"),
        step=counters.step,
        counters=counters.model_dump(),
        tokenizer_hash=current.info.tokenizer_hash,
        model=learner.averaged.state_dict(),
    )


def save_last(current: run.Run, learner: Learner, counters: Counters) -> None:
    checkpoint.save(
        current.checkpoint("last"),
        step=counters.step,
        counters=counters.model_dump(),
        tokenizer_hash=current.info.tokenizer_hash,
        model=learner.averaged.state_dict(),
        training=training_state(learner),
    )


def restore_last(current: run.Run, learner: Learner) -> Counters:
    """Puts the learner and the metrics where `last` was saved. Raises RunError where that cannot be."""
    folder = current.checkpoint("last")
    meta = checkpoint.read_meta(folder, tokenizer_hash=current.info.tokenizer_hash)
    weights = checkpoint.load_tensors(folder, checkpoint.MODEL, meta)
    checkpoint.load_weights(learner.averaged, weights, origin=folder)
    state = checkpoint.load_tensors(folder, checkpoint.TRAINING, meta)
    checkpoint.check_same(training_state(learner), state, origin=folder)
    counters = counters_of(meta)
    restore(learner, weights, state, step=meta.step)
    run.drop_metrics_after(current, meta.step)
    return counters


def counters_of(meta: checkpoint.Checkpoint) -> Counters:
    """The counters of a checkpoint. Raises RunError where another version of the program wrote others."""
    try:
        return Counters.model_validate(meta.counters)
    except ValidationError:
        raise RunError("The checkpoint's counters are not those of this version of imdb-tx.") from None
