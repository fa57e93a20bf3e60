"""A run's tokenizer and encoder: texts to logits."""

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imdb_transformer import hardware
from imdb_transformer.data.batches import ANSWER_TOKENS
from imdb_transformer.data.tokenizer import FILE_NAME, Tokenizer
from imdb_transformer.distributed import ALONE, World
from imdb_transformer.errors import RunError
from imdb_transformer.inference.logits import length_multiple, logits_of
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.store import checkpoint, run


def tokenizer_of(source: run.Run) -> Tokenizer:
    """A run's own tokenizer. Raises RunError where it is damaged, or not the one of training."""
    tokenizer = Tokenizer.load(source.folder, source.config.tokenizer)
    if tokenizer.content_hash != source.info.tokenizer_hash:
        raise RunError(f"{source.folder / FILE_NAME} is not the tokenizer that this run was trained with.")
    return tokenizer


class EncoderModel:
    """The weights of a checkpoint beside the tokenizer of its run."""

    def __init__(self, source: run.Run, folder: Path, *, device: str = "auto", world: World = ALONE) -> None:
        """From a run and one of its checkpoints' folders.

        The processes of `world` share the work, and each gets all answers. Raises RunError where run and
        checkpoint do not fit.
        """
        if source.info.kind == "encoder":
            raise RunError(
                f"{source.folder} was pretrained on text and knows no classes yet; fine-tune it with: "
                f"imdb-tx train --config finetune.toml --init-from {source.folder}"
            )
        # With the threads that there are: those of the run's training say nothing of this process.
        here = source.config.train.model_copy(update={"device": device, "num_threads": 0})
        self.hardware = hardware.choose(here, gpu=world.gpu)
        self.world = world
        self.limit = source.config.tokenizer.max_length
        self.multiple = length_multiple(source.config.model)
        self.tokenizer = tokenizer_of(source)
        meta = checkpoint.read_meta(folder, tokenizer_hash=self.tokenizer.content_hash)
        self.step = meta.step
        num_classes = len(source.info.classes)
        with torch.random.fork_rng(
            devices=[]
        ):  # initial weights are drawn, and the caller's generator stays as it is
            self.classifier = Classifier(
                source.config.model, vocab_size=source.info.vocab_size, num_classes=num_classes
            )
        checkpoint.load_weights(
            self.classifier, checkpoint.load_tensors(folder, checkpoint.MODEL, meta), origin=folder
        )
        self.classifier.to(self.hardware.device).eval()

    @property
    def precision(self) -> str:
        """Of activations: what the hardware is fast in."""
        return self.hardware.precision

    def logits(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, C) logits of texts, one at least."""
        options: dict[str, Any] = {
            "hardware": self.hardware, "batch_tokens": ANSWER_TOKENS, "multiple": self.multiple,
            "world": self.world,
        }  # fmt: skip
        return logits_of(self.classifier, self.tokenizer.encode(texts), **options)

    def without_ngrams(self) -> "EncoderModel":
        """The same encoder without the n-grams beside it; itself where there are none."""
        if self.classifier.ngrams is None:
            return self
        alone = copy(self)
        alone.classifier = copy(self.classifier)  # the weights are shared
        alone.classifier.ngram_weight = 0.0
        return alone
