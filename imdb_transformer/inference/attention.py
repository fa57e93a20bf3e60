"""What each word of a text attended to: the attention weights of one layer and head, by words.

Shapes: L length, W words.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imdb_transformer.errors import ConfigError
from imdb_transformer.inference.explanation import words_of
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.inference.transformer import TransformerModel, only_transformer
from imdb_transformer.model.encoder import Encoder
from imdb_transformer.model.windows import by_position


class Attention(NamedTuple):
    """(W, W) weights. Row i says how much word i attended to each word; it sums to 1."""

    layer: int
    head: int
    words: list[str]
    weights: NDArray[np.float64]

    def record(self) -> dict[str, Any]:
        """Its fields by name, as JSON takes them."""
        return {**self._asdict(), "weights": self.weights.round(6).tolist()}


def attention(predictor: Predictor, text: str, *, layer: int | None = None, head: int = 1) -> Attention:
    """The weights of a layer (by default the last) and head, both counted from 1.

    If a word has several pieces, its row is the mean of their rows and its column the sum of their columns.
    Raises RunError unless the predictor is a single transformer, and ConfigError if it has no such layer or
    head.
    """
    model = only_transformer(predictor.models)
    encoder = model.classifier.encoder
    num_layers, num_heads = len(encoder.blocks), encoder.config.num_heads
    layer = num_layers if layer is None else layer
    for name, number, count in (("layer", layer, num_layers), ("head", head, num_heads)):
        if not 1 <= number <= count:
            raise ConfigError(f"There is no {name} {number}: this model has {count}.")
    return _heads_of(model, text, layer)[head - 1]


def all_heads(predictor: Predictor, text: str) -> list[Attention]:
    """The weights of every layer and head, in their order. Raises RunError as `attention` does."""
    model = only_transformer(predictor.models)
    layers = range(1, len(model.classifier.encoder.blocks) + 1)
    return [head for layer in layers for head in _heads_of(model, text, layer)]


def _heads_of(model: TransformerModel, text: str, layer: int) -> list[Attention]:
    """The weights of each head of a layer."""
    ids, spans = model.tokenizer.encode_with_spans(text)
    on_device = torch.from_numpy(ids.astype(np.int64)).to(model.hardware.device)
    words, index = words_of(text, spans)
    visible, word_of = np.unique(index, return_inverse=True)  # words cut out of a long text have no id
    member = np.eye(len(visible))[word_of]  # (L, W): 1 if the id is a piece of the word
    names, mean = [words[i][0] for i in visible], (member / member.sum(0)).T
    by_id = weights_of(model.classifier.encoder, on_device, layer).cpu().double().numpy()
    return [Attention(layer, head, names, mean @ each @ member) for head, each in enumerate(by_id, 1)]


@torch.no_grad()
def weights_of(encoder: Encoder, ids: Tensor, layer: int) -> Tensor:
    """(L,) ids of a review -> (H, L, L): the attention weights of a layer, counted from 1, in fp32."""
    seen: list[Tensor] = []
    block = encoder.blocks[layer - 1]
    hook = block.get_submodule("attention.weights").register_forward_hook(lambda *call: seen.append(call[2]))
    try:
        encoder(ids[None], torch.ones_like(ids[None], dtype=torch.bool), torch.float32)
    finally:
        hook.remove()
    return by_position(seen[0], len(ids))
