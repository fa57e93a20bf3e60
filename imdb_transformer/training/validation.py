"""Scores a model in training on the validation split. It never learns that split's text or labels."""

import math

import numpy as np
import torch

from imdb_transformer.data.batches import length_batches
from imdb_transformer.data.encoded import EncodedSplit
from imdb_transformer.errors import DivergedError
from imdb_transformer.evaluation.scores import Score, score
from imdb_transformer.hardware import Hardware
from imdb_transformer.inference.generate import write
from imdb_transformer.inference.transformer import logits_of
from imdb_transformer.model.language import LanguageModel
from imdb_transformer.training.objectives import GUESSES
from imdb_transformer.training.plan import get_batch
from imdb_transformer.training.prepare import Prepared
from imdb_transformer.training.step import Learner, all_finite

SAMPLE_TOKENS = 40
SHARE = 0.15  # of the held-out tokens, masked or guessed; the same for all configs, to compare their losses


def validate(learner: Learner, prepared: Prepared, step: int, lr: float) -> Score | None:
    """The score on validation, if it is held out. Raises DivergedError if it or a weight is not finite.

    A classifier is scored on labels, and an encoder on the tokens that it guesses.
    """
    model, split, validation = learner.averaged, prepared.validation, None
    if split is not None:
        if isinstance(model, LanguageModel):
            validation = token_score(model, prepared.config.pretrain.objective, split, prepared.hardware)
        else:
            reviews = [split.review(i) for i in range(len(split.labels))]
            validation = score(logits_of(model, reviews, prepared.hardware), split.labels.astype(np.int64))
        if not math.isfinite(validation.loss):
            raise DivergedError(f"step {step}, at rate {lr:.3g}, gives validation loss {validation.loss:g}")
    if not all_finite(model):
        raise DivergedError(f"step {step}, at rate {lr:.3g}, gives weights that are not finite")
    return validation


def sample(learner: Learner, prepared: Prepared) -> str:
    """Text that a causal model writes, with noise that never changes. Empty for other models."""
    model = learner.averaged
    if not isinstance(model, LanguageModel) or model.spacing is None:
        return ""
    was_training = model.training
    words = write(model.eval(), prepared.tokenizer, prepared.hardware, num_tokens=SAMPLE_TOKENS)
    text = "".join(words)
    model.train(was_training)
    return text


@torch.inference_mode()
def token_score(model: LanguageModel, objective: str, split: EncodedSplit, hardware: Hardware) -> Score:
    """Accuracy and loss on guessed tokens of a split, over the whole vocabulary. The noise never changes."""
    was_training = model.training
    model.eval()
    generator = torch.Generator(hardware.device).manual_seed(0)
    loss, num_correct, num_guessed = 0.0, 0, 0
    for indices in length_batches(split.lengths):
        batch = get_batch(split, indices, hardware)
        guesses = GUESSES[objective](model, batch, hardware.dtype, SHARE, generator)
        sums = model.full_loss(*guesses)
        loss, num_correct = loss + sums[0].item(), num_correct + int(sums[1])
        num_guessed += guesses[2]
    model.train(was_training)
    return Score(accuracy=num_correct / max(num_guessed, 1), loss=loss / max(num_guessed, 1))
