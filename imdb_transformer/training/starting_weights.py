"""The weights that a training starts with: the encoder of another run, and a head fitted to its features.

Both the choice of an encoder and the head come from linear probes: logistic regressions on the features of a
trained encoder (Alain and Bengio 2017).

Shapes: N reviews, D model width.
"""

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from imdb_transformer.config import Config
from imdb_transformer.data import corpus
from imdb_transformer.data.encoded import EncodedSplit, rows_of, training_splits
from imdb_transformer.data.imdb import UNKNOWN, stars_of
from imdb_transformer.data.reviews import Rows
from imdb_transformer.data.tokenizer import tokenizer_of_origin
from imdb_transformer.errors import RunError
from imdb_transformer.hardware import Hardware
from imdb_transformer.inference.transformer import outputs_of
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.model.encoder import Encoder
from imdb_transformer.model.language import HEAD, LanguageModel
from imdb_transformer.store import checkpoint, run
from imdb_transformer.training.plan import are_short

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

# Rows are in a random order, so the first are a sample.
NUM_CHECKED = 10_000  # for IMDB's reviews among them
NUM_PROBED = 2000  # to choose an encoder by
MARGIN = 0.01  # by which the accuracy of `imdb` must be better
NUM_FITTED = 10_000  # to fit a head to
NUM_FOLDS, INVERSE_PENALTY = 5, 0.01
DROPOUT = 0.1
# With fewer reviews, the weights of `imdb` keep a share: as if they were this many reviews.
FEW_REVIEWS, NUM_FIRST, MAX_FIRST_SHARE = 1500, 100, 0.35
BLOCK = re.compile(r"(?<=^blocks\.)\d+")  # the number in a parameter's name


def check_finished(path: Path) -> None:
    """Raises RunError for an unfinished run, but not for one of its checkpoints."""
    opened, _ = run.locate(path)
    if not run.is_checkpoint(path) and opened.info.status != "finished":
        raise RunError(
            f"{path} is not finished ({opened.info.status}): continue it with --resume, or name one of its "
            f"checkpoints, such as {opened.checkpoint('last')}."
        )


def has_imdb_labels(config: Config, stored: corpus.Corpus) -> bool:
    """Whether a review of training or validation is one of IMDB's labelled training reviews."""
    splits = (rows_of(config.data, stored, name) for name in training_splits(config.data))
    return any((stars_of(rows.texts[:NUM_CHECKED]) != UNKNOWN).any() for rows in splits)


def knows_text(config: Config, stored: corpus.Corpus) -> bool:
    """Whether training starts from `imdb-encoder`, and the reviews are IMDB's, which it has read.

    False if the config says how many epochs to train: a run that continues does not need its encoder.
    """
    if config.train.epochs or not config.train.init_from:
        return False
    folder = run.locate(Path(config.train.init_from))[0].folder
    return folder == run.SHIPPED / run.SHIPPED_ENCODER and has_imdb_labels(config, stored)


def check_saw_nothing_held_out(path: Path, config: Config, stored: corpus.Corpus) -> None:
    """Raises RunError for a run that learnt labels of other reviews, or of those held out here.

    An encoder may come from other reviews: it has seen no label. A classifier of IMDB may, too, if none of
    the reviews here is one of IMDB's.
    """
    opened, _ = run.locate(path)
    is_other = opened.info.corpus_hash != stored.content_hash
    of_imdb = run.open_run(run.of_package(run.SHIPPED_CLASSIFIER)).info
    is_imdbs = opened.info.corpus_hash == of_imdb.corpus_hash
    saw_labels = opened.info.kind != "encoder" and not (is_imdbs and not has_imdb_labels(config, stored))
    if is_other and saw_labels:
        raise RunError(
            f"{path} was trained on other reviews than those of {config.data.source}: it may have seen "
            "what is held out here."
        )
    if not is_other and config.data.held_out_fraction and not opened.config.data.held_out_fraction:
        raise RunError(f"{path} was trained on the validation split, which this config holds out.")


def load_encoder(model: nn.Module, path: Path) -> None:
    """Copies the encoder of a run, or of one of its checkpoints, into `model`.

    A model of pretraining also takes the head of another one. A deeper encoder repeats all blocks of the run
    in turn ("progressive stacking", Gong et al. 2019).
    """
    weights = _copy_encoder(path, model.get_submodule("encoder"))
    if isinstance(model, LanguageModel):
        head = {name: torch.from_numpy(weights[name]) for name in HEAD}
        model.load_state_dict(head, strict=False)


def load_teacher(path: Path) -> Encoder:
    """The encoder of a run of `pretrain`, for another encoder to learn its features. It is not trained."""
    opened, _ = run.locate(path)
    encoder = Encoder(opened.config.model, opened.info.vocab_size)
    _copy_encoder(path, encoder)
    return encoder.eval().requires_grad_(False)


def _copy_encoder(path: Path, encoder: nn.Module) -> checkpoint.Arrays:
    """Copies a run's encoder into another one, and returns all weights of the run."""
    opened, folder = run.locate(path)
    _, weights = checkpoint.read_model(folder, tokenizer_hash=opened.info.tokenizer_hash)
    prefix, num_layers = "encoder.", opened.config.model.num_layers
    stored = {name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)}
    for name in encoder.state_dict():
        repeated = BLOCK.sub(lambda number: str(int(number[0]) % num_layers), name)
        if repeated in stored:
            stored.setdefault(name, stored[repeated])
    checkpoint.load_weights(encoder, stored, origin=folder)
    return weights


def origin_hash(config: Config, teachers: Sequence[Path]) -> str:
    """The hashes of the checkpoints that a run starts from and learns from; empty if there are none."""
    origins = (("start", config.train.init_from), *(("teacher", str(each)) for each in teachers))
    return ", ".join(_origin(role, path) for role, path in origins if path)


def _origin(role: str, path: str) -> str:
    opened, folder = run.locate(Path(path))
    meta = checkpoint.read_meta(folder, tokenizer_hash=opened.info.tokenizer_hash)
    return f"{role} {meta.file_hashes[checkpoint.MODEL]}"


def check_same_teacher(opened: run.Run) -> None:
    """Raises RunError if the teacher of an encoder has been deleted or replaced since its run began."""
    teacher = opened.info.teachers[0]
    try:
        is_same = _origin("teacher", teacher) in opened.info.origin_hash
    except RunError:
        is_same = False
    if not is_same:
        raise RunError(
            f"{opened.folder} learns from {teacher}, which is missing or has changed. Put it back to "
            "continue."
        )


def choose_start(config: Config, kind: run.Kind, hardware: Hardware) -> Config:
    """Replaces `auto` by the run to start from, and may raise dropout and `first_share`.

    The run is `imdb-encoder` for pretraining, and for reviews that include one whose label `imdb` learnt. For
    others a probe decides: `imdb` also learnt IMDB's labels, and forgot some of the text that `imdb-encoder`
    knows. If the probe hardly prefers `imdb`, training from `imdb-encoder` ends with a lower loss
    (configs/EXPERIMENTS.md). Reviews that are not IMDB's get at least `DROPOUT` if they are short or few,
    because they are soon memorised, or if `imdb` is not chosen, because much in them is new to the encoder.
    If they are few and short, and `imdb` is chosen, the average of the weights keeps a share of its weights.
    """
    if config.train.init_from != run.AUTO:
        return config
    chosen, imdb = run.of_package(run.SHIPPED_ENCODER), run.of_package(run.SHIPPED_CLASSIFIER)
    dropout, first_share = config.model.dropout, config.train.first_share
    stored = corpus.ensure(config.data)
    if kind == "classifier" and not has_imdb_labels(config, stored):
        rows = rows_of(config.data, stored, "train")
        accuracy = {path: probe_accuracy(path, config, rows, hardware) for path in (chosen, imdb)}
        if accuracy[imdb] > accuracy[chosen] + MARGIN:
            chosen = imdb
        sample = tokenizer_of_origin(chosen, config).encode(rows.texts[:NUM_PROBED])
        is_new, is_short = chosen != imdb, are_short([len(ids) for ids in sample])
        is_few = (num_reviews := len(rows.texts)) < FEW_REVIEWS
        if is_new or is_short or is_few:
            dropout = max(dropout, DROPOUT)
        if is_few and is_short and not is_new and config.train.ema_decay:
            first_share = max(first_share, min(MAX_FIRST_SHARE, NUM_FIRST / num_reviews))
    config = config.replaced("train", init_from=str(chosen), first_share=first_share)
    return config.replaced("model", dropout=dropout)


def probe_accuracy(path: Path, config: Config, rows: Rows, hardware: Hardware) -> float:
    """Accuracy, over five folds, of a logistic regression on the features of a run's encoder.

    It is 0 if fewer than two classes have a review for each fold.
    """
    from sklearn.model_selection import cross_val_score

    labels = rows.labels[:NUM_PROBED]
    common = {label for label, count in Counter(labels).items() if count >= NUM_FOLDS}
    if len(common) < 2:
        return 0.0
    texts = [text for text, label in zip(rows.texts, labels, strict=False) if label in common]
    tokenizer = tokenizer_of_origin(path, config)
    model = Classifier(config.model, vocab_size=tokenizer.vocab_size, num_classes=2)
    load_encoder(model, path)
    model.to(hardware.device).eval()
    features = outputs_of(model.features, tokenizer.encode(texts), hardware)
    truth = np.array([label for label in labels if label in common])
    return float(cross_val_score(_regression(), features, truth, cv=NUM_FOLDS).mean())


@torch.no_grad()
def fit_head(model: Classifier, train: EncodedSplit, hardware: Hardware) -> None:
    """Sets the head to a logistic regression on the encoder's features of the reviews.

    The gradients of a random head would distort these features (Kumar et al. 2022, "Fine-tuning can distort
    pretrained features"). A class that is absent from the first `NUM_FITTED` reviews gets zeros,
    and the lowest bias of the others.
    """
    labels = train.labels[:NUM_FITTED]
    if len(set(labels)) < 2:
        return
    reviews = [train.review(i) for i in range(len(labels))]
    features = outputs_of(model.eval().features, reviews, hardware)
    with warnings.catch_warnings(action="ignore"):  # of classes that are many for so few reviews
        scaler, regression = (step for _, step in _regression().fit(features, labels).steps)
    slopes = regression.coef_ / scaler.scale_
    intercepts = regression.intercept_ - slopes @ scaler.mean_
    if len(regression.classes_) == 2:  # scikit-learn gives the log-odds of the second class
        slopes, intercepts = np.stack([-slopes[0], slopes[0]]) / 2, np.array([-1, 1]) * intercepts / 2
    model.head.weight.zero_()
    model.head.bias.fill_(float(intercepts.min()))
    model.head.weight[regression.classes_] = torch.from_numpy(slopes).float().to(hardware.device)
    model.head.bias[regression.classes_] = torch.from_numpy(intercepts).float().to(hardware.device)


def _regression() -> "Pipeline":
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=INVERSE_PENALTY, max_iter=500))
