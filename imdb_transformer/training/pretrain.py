"""Self-supervised training: an encoder learns from the text of training and unlabelled reviews.

It never sees a label, validation or test; a text that also stands in one of those two is not among the
unlabelled reviews of a stored corpus (`data/holdout.py`).
"""

import numpy as np
import torch

from imdb_transformer.config import Config
from imdb_transformer.data.encoded import EncodedSplit, joined
from imdb_transformer.data.tokenizer import MASK_ID, PAD_ID
from imdb_transformer.hardware import Hardware
from imdb_transformer.model.masked import MaskedLanguageModel
from imdb_transformer.training.task import Task, self_supervision


def make_task(
    config: Config, splits: dict[str, EncodedSplit], hardware: Hardware, *, vocab_size: int
) -> Task:
    """Learning the text of all of `splits`; nothing is held out to judge it by."""
    text = joined(list(splits.values()))
    counts = torch.from_numpy(np.bincount(text.ids, minlength=vocab_size)).float()
    torch.manual_seed(config.train.seed)
    model = MaskedLanguageModel(
        config.model, config.pretrain, mask_id=MASK_ID, special_ids=(PAD_ID, MASK_ID), counts=counts
    )
    objective = self_supervision(config.pretrain.mask_fraction)
    return Task(model.to(hardware.device), objective, text, None)
