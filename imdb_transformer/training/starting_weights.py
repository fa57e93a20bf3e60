"""Starts a model with the encoder of another run, and checks that the run fits."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import BaseModel
from torch import nn

from imdb_transformer.config import Config
from imdb_transformer.data.corpus import Corpus
from imdb_transformer.data.encoded import rows_of, training_splits
from imdb_transformer.data.stars import UNKNOWN, stars_of
from imdb_transformer.data.tokenizer import Tokenizer, tokenizer_of
from imdb_transformer.errors import RunError
from imdb_transformer.model.language import HEAD, LanguageModel
from imdb_transformer.store import checkpoint, run

NUM_CHECKED = 10_000  # rows are in a random order, so the first are a sample
BLOCK = re.compile(r"(?<=^blocks\.)\d+")  # the number in a parameter's name
# Keys of [model] that may differ between pretraining and fine-tuning: the encoder's weights fit either value.
FREE = {"dropout", "word_dropout", "dropout_mask", "embedding_std"}


def origin(config: Config) -> Path | None:
    """The run, or the checkpoint of one, whose encoder a training starts with."""
    return Path(config.train.init_from) if config.train.init_from else None


def tokenizer_of_origin(path: Path, config: Config) -> Tokenizer:
    """The tokenizer of a run to start from, with this config's length limit.

    Raises RunError if the config asks for another tokenizer, or for an encoder of another size or kind. It is
    called before anything is encoded or predicted.
    """
    opened, _ = run.locate(path)
    if opened.info.kind == "linear":
        raise RunError(f"{path} is a linear model: it has no encoder to start from.")
    tokenizer_of(opened)  # raises RunError if it is damaged
    _check_same(path, "tokenizer", config.tokenizer, opened.config.tokenizer, {"max_length", "tail_length"})
    free = set(FREE)
    if config.model.num_layers % opened.config.model.num_layers == 0:  # its blocks are repeated
        free.add("num_layers")
    _check_same(path, "model", config.model, opened.config.model, free)
    return Tokenizer.load(opened.folder, config.tokenizer)


def check_finished(path: Path) -> None:
    """Raises RunError for an unfinished run, but not for one of its checkpoints."""
    opened, folder = run.locate(path)
    if path != folder and opened.info.status != "finished":
        raise RunError(
            f"{path} is not finished ({opened.info.status}): continue it with --resume, or name one of its "
            f"checkpoints, such as {opened.checkpoint('last')}."
        )


def has_imdb_labels(config: Config, corpus: Corpus) -> bool:
    """Whether a review of training or validation is one of IMDB's labelled training reviews."""
    splits = (rows_of(config.data, corpus, name) for name in training_splits(config.data))
    return any((stars_of(rows.texts[:NUM_CHECKED]) != UNKNOWN).any() for rows in splits)


def check_saw_nothing_held_out(path: Path, config: Config, corpus: Corpus) -> None:
    """Raises RunError for a run that learnt labels of other reviews, or of those held out here.

    An encoder may come from other reviews: it has seen no label. A classifier of IMDB may, too, if none of
    the reviews here is one of IMDB's.
    """
    opened, _ = run.locate(path)
    is_other = opened.info.corpus_hash != corpus.content_hash
    is_imdbs = opened.info.corpus_hash == run.locate(Path("imdb"))[0].info.corpus_hash
    saw_labels = opened.info.kind != "encoder" and not (is_imdbs and not has_imdb_labels(config, corpus))
    if is_other and saw_labels:
        raise RunError(
            f"{path} was trained on other reviews than those of {config.data.source}: it may have seen "
            "what is held out here."
        )
    if not is_other and config.data.held_out_fraction and not opened.config.data.held_out_fraction:
        raise RunError(f"{path} was trained on the validation split, which this config holds out.")


def _check_same(path: Path, section: str, wanted: BaseModel, origin: BaseModel, free: set[str]) -> None:
    values = origin.model_dump()
    for key, value in wanted.model_dump(exclude=free).items():
        if value != values[key]:
            raise RunError(
                f"{path} does not fit: its {section}.{key} is {values[key]!r}, here it is {value!r}. Use its "
                'value, or start from random weights (--set train.init_from="").'
            )


def load_encoder(model: nn.Module, path: Path) -> None:
    """Copies the encoder of a run, or of one of its checkpoints, into `model`.

    A model of pretraining also takes the head of another one. A deeper encoder repeats all blocks of the run
    in turn ("progressive stacking", Gong et al. 2019).
    """
    opened, folder = run.locate(path)
    _, weights = checkpoint.read_model(folder, tokenizer_hash=opened.info.tokenizer_hash)
    prefix, num_layers = "encoder.", opened.config.model.num_layers
    encoder = {name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)}
    submodule = model.get_submodule("encoder")
    for name in submodule.state_dict():
        repeated = BLOCK.sub(lambda number: str(int(number[0]) % num_layers), name)
        if repeated in encoder:
            encoder.setdefault(name, encoder[repeated])
    checkpoint.load_weights(submodule, encoder, origin=folder)
    if isinstance(model, LanguageModel) and opened.info.kind == "encoder":
        head = {name: torch.from_numpy(weights[name]) for name in HEAD}
        model.load_state_dict(head, strict=False)


def origin_hash(config: Config, teachers: Sequence[Path]) -> str:
    """A hash of the checkpoints that a run starts from and learns from; empty if there are none."""
    lines = []
    for role, path in [("start", origin(config)), *(("teacher", teacher) for teacher in teachers)]:
        if path is not None:
            opened, folder = run.locate(path)
            meta = checkpoint.read_meta(folder, tokenizer_hash=opened.info.tokenizer_hash)
            lines.append(f"{role} {meta.file_hashes[checkpoint.MODEL]}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""
