"""Makes a model and its training reviews, from a config or from a run to continue.

Teachers are other runs. A classifier learns their mean probabilities for the unlabelled reviews beside the
labels; a linear run may teach, too. This is self-training with soft targets (Hinton et al. 2015, section 2;
Xie et al. 2020, "Noisy Student"). An encoder learns the features of one other encoder.

Shapes: N reviews, C classes.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from imdb_transformer.config import Config
from imdb_transformer.data import corpus, encoded, imdb
from imdb_transformer.data.corpus import Corpus
from imdb_transformer.data.encoded import EncodedSplit, TokenizedCorpus, concatenated
from imdb_transformer.data.reviews import in_chunks
from imdb_transformer.data.tokenizer import Tokenizer, tokenizer_of, tokenizer_of_origin
from imdb_transformer.errors import ConfigError, DataError, RunError, warn
from imdb_transformer.hardware import Hardware
from imdb_transformer.inference.generate import spacing_odds
from imdb_transformer.inference.predictor import CHUNK, Predictor
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.model.language import LanguageModel
from imdb_transformer.store import run
from imdb_transformer.training import starting_weights
from imdb_transformer.training.plan import resolved

SoftLabels = NDArray[np.float32]  # (N, C): teachers' mean probabilities of the unlabelled reviews
FEW_IN_VALIDATION = 100  # with fewer reviews, a warning is given


class Prepared(NamedTuple):
    """A model that is ready to train, its reviews, and what else its run stores."""

    config: Config
    kind: run.Kind
    hardware: Hardware
    corpus: Corpus
    tokenizer: Tokenizer
    soft_labels: SoftLabels | None
    train: EncodedSplit
    validation: EncodedSplit | None
    model: nn.Module


def prepare(
    config: Config, kind: run.Kind, hardware: Hardware, *, teachers: Sequence[Path] = (),
    soft_labels: SoftLabels | None = None, ready: bool = True,
) -> Prepared:  # fmt: skip
    """The reviews of a config and a model for them. Its encoder starts from `train.init_from` if that is set.

    An encoder to start from comes with its tokenizer, and a head is fitted to it. `soft_labels` are the
    teachers' probabilities; without them the teachers predict now. Without `ready` no head is fitted and no
    teacher predicts: enough to plan a training. Raises ConfigError if an encoder cannot learn from the
    teachers. Raises RunError if the encoder or a teacher does not fit the config, is unfinished, or may have
    seen reviews that are held out here.
    """
    if kind == "classifier":
        config.data.check_labelled()
    elif teachers:
        _check_teaches_encoder(config, teachers)
    config = starting_weights.choose_start(config, kind, hardware)
    init_from = Path(config.train.init_from) if config.train.init_from else None
    origins = (*([init_from] if init_from else []), *teachers)
    for path in origins:
        starting_weights.check_finished(path)
    if init_from and kind == "encoder":
        _check_is_encoder(init_from)
    tokenizer = _tokenizer_of_origins(config, kind, init_from, teachers)
    data = encoded.tokenize(config, _splits_read(config, kind, bool(teachers)), tokenizer)
    for path in origins:
        starting_weights.check_saw_nothing_held_out(path, config, data.corpus)
    if kind == "classifier" and teachers:
        _check_classes(teachers, data.corpus.manifest.classes)
        if soft_labels is None:
            soft_labels = labels_of_teachers(teachers, config, data.corpus, ready=ready)
    prepared = _with_model(config, kind, hardware, data, soft_labels, teachers)
    if init_from:
        starting_weights.load_encoder(prepared.model, init_from)
        if isinstance(prepared.model, Classifier) and ready:
            # Not prepared.train: with a teacher, its labels are probabilities.
            starting_weights.fit_head(prepared.model, data.splits["train"], hardware)
    return prepared


def prepare_again(current: run.Run, hardware: Hardware) -> Prepared:
    """The model and the reviews of a run to continue. It does not load weights from a checkpoint.

    Raises RunError if its reviews, or the teacher of an encoder, have changed.
    """
    config, info = current.config, current.info
    stored = corpus.of_run(config.data, info.corpus_hash, current.folder)
    if info.kind == "encoder" and info.teachers:
        starting_weights.check_same_teacher(current)
    soft_labels = soft_labels_of(current)
    splits = _splits_read(config, info.kind, soft_labels is not None)
    data = encoded.encode(config.data, stored, tokenizer_of(current), splits)
    return _with_model(config, info.kind, hardware, data, soft_labels, tuple(map(Path, info.teachers)))


def labels_of_teachers(
    teachers: Sequence[Path], config: Config, stored: Corpus, *, ready: bool = True
) -> SoftLabels:
    """Teachers' mean probabilities for each review of `unsupervised`; without `ready`, equal ones.

    Raises DataError if the corpus has no such reviews.
    """
    has_split = "unsupervised" in stored.manifest.splits
    texts = encoded.rows_of(config.data, stored, "unsupervised").texts if has_split else []
    if not texts:
        raise DataError(f"{config.data.source} has no unlabelled review for a teacher, except held-out ones.")
    if not ready:
        num_classes = len(stored.manifest.classes)
        return np.full((len(texts), num_classes), 1 / num_classes, dtype=np.float32)
    predictor = Predictor.load(*teachers, device=config.train.device)
    parts = [predictor.probabilities(part) for part in in_chunks(texts, CHUNK)]
    return np.concatenate(parts).astype(np.float32)


def soft_labels_of(opened: run.Run) -> SoftLabels | None:
    """The probabilities of a run's teachers, if it had any. Raises RunError for damage."""
    if run.SOFT_LABELS not in opened.info.file_hashes:
        return None
    run.check_file(opened.folder, opened.info, run.SOFT_LABELS)
    return np.asarray(np.load(opened.folder / run.SOFT_LABELS, allow_pickle=False), np.float32)


def with_soft_labels(train: EncodedSplit, unlabelled: EncodedSplit, soft_labels: SoftLabels) -> EncodedSplit:
    """Train, then the unlabelled reviews with the teacher's labels; all labels are (N, C) probabilities."""
    hard = np.eye(soft_labels.shape[1], dtype=np.float32)[train.labels]
    return concatenated([train._replace(labels=hard), unlabelled._replace(labels=soft_labels)])


def make_classifier(config: Config, *, vocab_size: int, num_classes: int) -> Classifier:
    """A classifier with its initial weights, which are a function of the seed."""
    torch.manual_seed(config.train.seed)
    num_stars = len(imdb.STARS) if config.train.star_weight else 0
    return Classifier(config.model, vocab_size=vocab_size, num_classes=num_classes, num_stars=num_stars)


def _check_is_encoder(path: Path) -> None:
    """Raises RunError for a classifier: labels that it learnt would be in an encoder that starts from it."""
    if run.locate(path)[0].info.kind != "encoder":
        raise RunError(
            f"{path} has learnt labels. An encoder must have seen none, because any classifier may start "
            "from it. Name a run of `imdb-tx pretrain`."
        )


def _check_classes(teachers: Sequence[Path], classes: Sequence[str]) -> None:
    for teacher in teachers:
        if (known := run.locate(teacher)[0].info.classes) != classes:
            shown = ", ".join(known), ", ".join(classes)
            raise RunError(
                f"{teacher} cannot teach here: its classes are {shown[0]}, here they are {shown[1]}."
            )


def _check_teaches_encoder(config: Config, teachers: Sequence[Path]) -> None:
    if len(teachers) > 1:
        raise ConfigError(f"An encoder learns from one --teacher; {len(teachers)} were named.")
    if (objective := config.pretrain.objective) != "masked":
        raise ConfigError(f'--teacher needs pretrain.objective = "masked", not "{objective}".')
    opened, _ = run.locate(teachers[0])
    if opened.info.kind != "encoder":
        raise RunError(
            f"{teachers[0]} is a {opened.info.kind} run; an encoder learns from a run of `pretrain`."
        )
    if (objective := opened.config.pretrain.objective).startswith("causal"):
        raise RunError(
            f'{teachers[0]} has the objective "{objective}": it reads in one direction and cannot teach here.'
        )


def _tokenizer_of_origins(
    config: Config, kind: run.Kind, init_from: Path | None, teachers: Sequence[Path]
) -> Tokenizer | None:
    """The tokenizer of the run to start from, or else of the teacher of an encoder; None without them."""
    tokenizer = tokenizer_of_origin(init_from, config) if init_from else None
    if kind == "classifier" or not teachers:
        return tokenizer
    of_teacher = tokenizer_of_origin(teachers[0], config, as_teacher=True)
    if tokenizer and tokenizer.content_hash != of_teacher.content_hash:
        raise RunError(f"{teachers[0]} cannot teach here: {init_from} has another tokenizer.")
    return of_teacher


def _splits_read(config: Config, kind: run.Kind, has_teacher: bool) -> tuple[str, ...]:
    unlabelled = kind == "encoder" or has_teacher
    return (*encoded.training_splits(config.data), *(["unsupervised"] if unlabelled else []))


def _with_model(
    config: Config, kind: run.Kind, hardware: Hardware, data: TokenizedCorpus, soft_labels: SoftLabels | None,
    teachers: Sequence[Path],
) -> Prepared:  # fmt: skip
    """The model for encoded reviews. An encoder, and a student, learn training and unlabelled reviews."""
    model: nn.Module
    splits, vocab_size = data.splits, data.tokenizer.vocab_size
    train, validation = splits["train"], splits.get("validation")
    if kind == "encoder":
        train = encoded.pretraining_text(config, data)
        spacing, knows_text = None, False
        if config.pretrain.objective == "causal":
            texts = encoded.rows_of(config.data, data.corpus, "train").texts
            spacing = torch.from_numpy(spacing_odds(data.tokenizer, texts))
        teacher = starting_weights.load_teacher(teachers[0]).to(hardware.device) if teachers else None
        counts = torch.from_numpy(np.bincount(train.ids, minlength=vocab_size)).float()
        torch.manual_seed(config.train.seed)
        model = LanguageModel(config.model, config.pretrain, counts=counts, spacing=spacing, teacher=teacher)
    else:
        if validation is not None and (num_reviews := len(validation.lengths)) < FEW_IN_VALIDATION:
            points = 98 / math.sqrt(num_reviews)  # half of a 95% interval about 50%
            warn(f"validation has only {num_reviews} reviews: accuracy on it may be {points:.0f} points off")
        if soft_labels is not None:
            train = with_soft_labels(train, splits["unsupervised"], soft_labels)
        config, train = _with_stars(config, data.corpus, train)
        model = make_classifier(config, vocab_size=vocab_size, num_classes=len(data.corpus.manifest.classes))
        knows_text = soft_labels is None and starting_weights.knows_text(config, data.corpus)
    config, model = resolved(config, train, knows_text=knows_text), model.to(hardware.device)
    return Prepared(
        config, kind, hardware, data.corpus, data.tokenizer, soft_labels, train, validation, model
    )


def _with_stars(config: Config, stored: Corpus, train: EncodedSplit) -> tuple[Config, EncodedSplit]:
    """`train` with the stars of its reviews. If none are known, the config gets `star_weight` 0 instead."""
    if not config.train.star_weight:
        return config, train
    known = imdb.stars_of(encoded.rows_of(config.data, stored, "train").texts)
    if (known == imdb.UNKNOWN).all():
        warn("none of these reviews has a star rating of IMDB to learn: train.star_weight is 0 in this run")
        return config.replaced("train", star_weight=0.0), train
    unlabelled = len(train.lengths) - len(known)
    return config, train._replace(stars=np.pad(known, (0, unlabelled), constant_values=imdb.UNKNOWN))
