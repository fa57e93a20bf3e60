"""What a word looked at: the weights of one layer and head, over the words of a text.

Shapes: L length, W words.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.inference.transformer import EncoderModel
from imdb_transformer.inference.words import words_of


class Attention(NamedTuple):
    """(W, W) weights: row i is what word i looked at, and adds up to 1."""

    layer: int
    head: int
    words: list[str]
    weights: NDArray[np.float64]

    def record(self) -> dict[str, Any]:
        """Its fields by name, as JSON takes them."""
        return {**self._asdict(), "weights": self.weights.round(6).tolist()}


def attention(predictor: Predictor, text: str, *, layer: int | None = None, head: int = 1) -> Attention:
    """The weights of a layer (the last one, unless said) and head, both counted from 1.

    A word of several pieces looks with the mean of theirs, and is looked at with their sum. Raises RunError
    for what is no single encoder, and ConfigError for a layer or head that is not there.
    """
    model = predictor.models[0]
    if len(predictor.models) > 1 or not isinstance(model, EncoderModel):
        raise RunError(
            "Only one transformer's attention can be shown: this is a linear or exported model, or several."
        )
    encoder = model.classifier.encoder
    blocks, num_heads = encoder.blocks, encoder.config.num_heads
    layer = len(blocks) if layer is None else layer
    for name, number, count in (("layer", layer, len(blocks)), ("head", head, num_heads)):
        if not 1 <= number <= count:
            raise ConfigError(f"There is no {name} {number}: this model has {count}.")
    ids, spans = model.tokenizer.encode_with_spans(text)
    by_id = _weights(model, torch.from_numpy(ids.astype("int64"))[None], layer - 1)[head - 1]
    words, index = words_of(text, spans)
    kept, own = np.unique(index, return_inverse=True)  # not the words that were cut out of a long text
    member = np.eye(len(kept))[own]  # (L, W): one where an id is a piece of a word
    weights = (member / member.sum(0)).T @ by_id @ member
    return Attention(layer, head, [words[i].text for i in kept], weights)


@torch.no_grad()
def _weights(model: EncoderModel, ids: torch.Tensor, layer: int) -> NDArray[np.float64]:
    """(H, L, L) of one layer, in fp32."""
    encoder = model.classifier.encoder
    ids = ids.to(model.hardware.device)
    x, _, rotation = encoder.before(layer, ids, torch.ones_like(ids, dtype=torch.bool), torch.float32)
    block = encoder.block(layer)
    found = block.attention.weights(block.attention_reads(x), rotation, encoder.radius)
    weights: NDArray[np.float64] = found.cpu().double().numpy()
    return weights
