"""Turns texts into logits with the tokenizer and the classifier of a run.

Shapes: N reviews, B batch, L length, D model width, C classes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from imdb_transformer import hardware
from imdb_transformer.data.batches import BATCH_TOKENS, EncodedReview, in_order, length_batches, pad
from imdb_transformer.data.tokenizer import PAD_ID, tokenizer_of
from imdb_transformer.errors import RunError
from imdb_transformer.hardware import Hardware
from imdb_transformer.inference.plain import check_predicts
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.progress import tracked
from imdb_transformer.store import checkpoint, run


class TransformerModel:
    """The classifier of a checkpoint, with the tokenizer of its run."""

    def __init__(self, opened: run.Run, folder: Path, *, device: str = "auto", exact: bool = False) -> None:
        """From a run and the folder of one of its checkpoints. Raises RunError if they do not fit.

        With `exact` it computes in fp32, even if bf16 is faster. `auto` is a GPU if there is one, unless the
        run was trained with `device = "cpu"`.
        """
        check_predicts(opened, folder)
        self.origin, self.checkpoint = opened, folder
        if device == "auto" and opened.config.train.device == "cpu":
            device = "cpu"
        changes = {"device": device} | ({"precision": "fp32"} if exact else {})
        self.hardware = hardware.choose(opened.config.train.model_copy(update=changes))
        self.precision = self.hardware.precision
        self.tokenizer = tokenizer_of(opened)
        self.classes, self.temperature = opened.info.classes, opened.temperature_of(folder)
        self.step, weights = checkpoint.read_model(folder, tokenizer_hash=opened.info.tokenizer_hash)
        with torch.random.fork_rng(devices=[]):  # initial weights must not change the caller's generator
            self.classifier = Classifier(
                opened.config.model, vocab_size=opened.info.vocab_size, num_classes=len(self.classes)
            )
        used = {name: array for name, array in weights.items() if not name.startswith("star_head.")}
        checkpoint.load_weights(self.classifier, used, origin=folder)
        self.classifier.to(self.hardware.device).eval()

    def logits(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, C) logits of one or more texts."""
        return outputs_of(self.classifier, self.tokenizer.encode(texts), self.hardware)


@torch.inference_mode()
def outputs_of(
    compute: Callable[[Tensor, Tensor, torch.dtype], Tensor],
    reviews: Sequence[EncodedReview], hardware: Hardware,
) -> NDArray[np.float32]:  # fmt: skip
    """What a model computes for one or more encoded reviews, in batches of like length.

    A classifier in evaluation mode computes (N, C) logits, and its `features` (N, D) features.
    """
    lengths = np.array([len(review) for review in reviews])
    batches = length_batches(lengths, batch_tokens=BATCH_TOKENS[hardware.device.type])
    rows = []
    for indices in tracked(batches, "predicting, batch", len(batches)):
        ids = torch.from_numpy(pad([reviews[i] for i in indices])).to(hardware.device)
        rows.append(compute(ids, ids != PAD_ID, hardware.dtype).cpu().numpy())
    return in_order(rows, batches)


class CalibratedClassifier(nn.Module):
    """The classifier as it is exported: (B, L) ids of any length -> (B, C) calibrated log-probabilities.

    A review without ids, or of padding alone, is the empty text, whose id is `empty_id`.
    """

    def __init__(self, classifier: Classifier, temperature: float, empty_id: int) -> None:
        super().__init__()
        self.classifier, self.temperature, self.empty_id = classifier, temperature, empty_id
        # Windowed attention needs whole groups of twice the radius. Padding makes the graph fit any length.
        self.multiple = 2 * max(1, classifier.encoder.config.radius)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) -> (B, C)."""
        num_added = self.multiple - ids.shape[1] % self.multiple  # one at least
        ids = F.pad(ids, (0, num_added), value=PAD_ID)
        first = torch.where((ids != PAD_ID).any(1), ids[:, 0], self.empty_id)
        ids = torch.cat([first[:, None], ids[:, 1:]], 1)
        logits = self.classifier(ids, ids != PAD_ID, torch.float32)
        return torch.log_softmax(logits / self.temperature, dim=1)


def only_transformer(models: Sequence[object]) -> TransformerModel:
    """The single model of a predictor. Raises RunError for several, a linear model or an exported file."""
    if len(models) == 1 and isinstance(models[0], TransformerModel):
        return models[0]
    raise RunError(
        "--explain and --attention take one run of `imdb-tx train`. They take no second run, no linear model "
        "and no exported file."
    )
