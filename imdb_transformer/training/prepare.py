"""From a config, or from a run that goes on, to the task that the loop trains."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.config import Config
from imdb_transformer.data import corpus, encoded
from imdb_transformer.data.encoded import PRETRAINING_SPLITS, EncodedSplit, TokenizedCorpus
from imdb_transformer.errors import RunError
from imdb_transformer.hardware import Hardware
from imdb_transformer.inference.transformer import tokenizer_of
from imdb_transformer.store import run
from imdb_transformer.training import classification, distillation, pretrain, starting_weights
from imdb_transformer.training.task import Task

SoftLabels = NDArray[np.float32] | None


class Prepared(NamedTuple):
    """All that a new run starts with."""

    config: Config
    kind: run.Kind
    data: TokenizedCorpus
    soft_labels: SoftLabels
    task: Task


def prepare(
    config: Config, kind: run.Kind, hardware: Hardware, *, init_from: Path | None = None,
    teachers: Sequence[Path] = (), soft_labels: SoftLabels = None,
) -> Prepared:  # fmt: skip
    """Corpus, tokenizer, encoded splits, what the teachers say, and the task of a new run.

    An encoder to start from brings its tokenizer along. `soft_labels`: what these teachers said of the same
    reviews to another run; without them they are asked. Raises RunError where the encoder does not fit the
    config, or where it or a teacher is not finished or may have seen what this run holds out.
    """
    origins = (*([init_from] if init_from else []), *teachers)
    for path in origins:
        starting_weights.check_finished(path)
    tokenizer = starting_weights.tokenizer_of_origin(init_from, config) if init_from else None
    data = encoded.tokenize(config, _reads(config, kind, bool(teachers)), tokenizer)
    for path in origins:
        starting_weights.check_saw_nothing_held_out(path, config, data.corpus)
    soft = soft_labels
    if teachers and soft is None:
        soft = distillation.soft_labels(teachers, config, data.corpus)
    classes = data.corpus.manifest.classes
    task = _task(config, kind, data.splits, soft, hardware, data.tokenizer.vocab_size, len(classes))
    if init_from:
        starting_weights.load_encoder(task.model, init_from)
    return Prepared(config, kind, data, soft, task)


def prepare_again(current: run.Run, hardware: Hardware) -> Task:
    """The task of a run that goes on, with its own tokenizer. Raises RunError if its reviews changed."""
    config, info = current.config, current.info
    stored, _ = corpus.ensure(config.data, known=info.corpus_hash)
    if stored.content_hash != info.corpus_hash:
        raise RunError(
            f"{current.folder} was begun on other reviews than those of {config.data.source} today."
        )
    soft = run.soft_labels_of(current)
    reads = _reads(config, info.kind, soft is not None)
    splits = encoded.encode(config.data, stored, tokenizer_of(current), reads)
    return _task(config, info.kind, splits, soft, hardware, info.vocab_size, len(info.classes))


def _reads(config: Config, kind: run.Kind, has_teacher: bool) -> tuple[str, ...]:
    if kind == "encoder":
        return PRETRAINING_SPLITS
    return (*encoded.training_splits(config.data), *(["unsupervised"] if has_teacher else []))


def _task(
    config: Config, kind: run.Kind, splits: dict[str, EncodedSplit], soft: SoftLabels, hardware: Hardware,
    vocab_size: int, num_classes: int,
) -> Task:  # fmt: skip
    if kind == "encoder":
        return pretrain.make_task(config, splits, hardware, vocab_size=vocab_size)
    if soft is not None:
        learnt = distillation.with_soft_labels(splits["train"], splits["unsupervised"], soft)
        splits = {**splits, "train": learnt}
    return classification.make_task(config, splits, hardware, vocab_size=vocab_size, num_classes=num_classes)
