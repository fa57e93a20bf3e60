"""The classifier: encoder, maximum over a review's positions, one linear layer to the classes.

Shapes: B batch, L length, D model width, C classes.
"""

import torch
from torch import Tensor, nn

from imdb_transformer.config import ModelConfig
from imdb_transformer.model.encoder import Encoder
from imdb_transformer.model.layers import Linear, drop_words


class Classifier(nn.Module):
    """An encoder-only transformer whose head reads each channel's maximum over the review.

    Word dropout leaves out some of a review's words, in training only.
    """

    def __init__(self, config: ModelConfig, *, vocab_size: int, num_classes: int, num_stars: int = 0) -> None:
        """`num_stars`: number of star ratings that a second head predicts, in training only."""
        super().__init__()
        self.encoder = Encoder(config, vocab_size)
        self.word_dropout = config.word_dropout
        self.head = Linear(config.width, num_classes)
        self.star_head = Linear(config.width, num_stars) if num_stars else None

    def forward(self, ids: Tensor, mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """(B, L) ids and mask (true on tokens) -> (B, C) logits in fp32; `dtype` is the activations'."""
        return self.head(self.features(ids, mask, dtype))

    def features(self, ids: Tensor, mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """(B, L) ids and mask -> (B, D) in fp32, which the heads read."""
        if self.training and self.word_dropout:
            ids, mask = drop_words(ids, mask, self.word_dropout)
        return pool(self.encoder(ids, mask, dtype), mask).float()


def pool(features: Tensor, mask: Tensor) -> Tensor:
    """(B, L, D) -> (B, D), the maximum over tokens. Padding never counts."""
    # A sum, not masked_fill: its gradient costs nothing.
    penalty = torch.zeros_like(mask, dtype=features.dtype).masked_fill_(~mask, -torch.inf)
    features = features + penalty[..., None]
    # `max` also returns the positions, which makes its gradient cheap. Without a gradient `amax` is faster.
    return features.max(dim=1).values if features.requires_grad else features.amax(dim=1)
