"""Writes text with a causal language model: each token is sampled from the model's prediction.

Shapes: L length, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imdb_transformer import hardware
from imdb_transformer.config import Config
from imdb_transformer.config_file import set_options
from imdb_transformer.data.batches import pad
from imdb_transformer.data.tokenizer import MASK_ID, PAD_ID, Tokenizer, tokenizer_of
from imdb_transformer.errors import ConfigError, RunError, command_line
from imdb_transformer.hardware import Hardware
from imdb_transformer.model.language import LanguageModel
from imdb_transformer.store import checkpoint, run

# Counted to place spaces. Of the gaps between words and parts of words in IMDB, 1.8% are then wrong.
SPACING_REVIEWS = 2000


def load(path: Path) -> tuple[LanguageModel, Tokenizer, Hardware]:
    """The causal model of a run or checkpoint, and its tokenizer. Raises RunError for any other model."""
    opened, folder = run.locate(path)
    config = opened.config
    if opened.info.kind != "encoder" or config.pretrain.objective != "causal":
        recipes = {"hub": ("--config", "pretrain.toml"), "demo": ("--config", "demo.toml")}
        reviews = recipes.get(config.data.source, (config.data.source,))
        excluded = {"source", "data_dir", "held_out_fraction"}
        sets = [] if config.data.source in recipes else set_options(config, Config(), {"data": excluded})
        advised = command_line("pretrain", *reviews, *sets, "--set", "pretrain.objective=causal")
        problem = f"{path} cannot write text: it was not trained to guess the next token."
        raise RunError(f"{problem} To make such a run: {advised}")
    chosen = hardware.choose(config.train.model_copy(update={"device": "auto"}))
    tokenizer, size = tokenizer_of(opened), opened.info.vocab_size
    with torch.random.fork_rng(devices=[]):  # initial weights must not change the caller's generator
        spacing = torch.zeros(2, size)
        model = LanguageModel(config.model, config.pretrain, counts=torch.ones(size), spacing=spacing)
    _, weights = checkpoint.read_model(folder, tokenizer_hash=opened.info.tokenizer_hash)
    checkpoint.load_weights(model, weights, origin=folder)
    return model.to(chosen.device).eval(), tokenizer, chosen


def generated_words(
    model: LanguageModel, tokenizer: Tokenizer, hardware: Hardware, prompt: str = "", *, num_tokens: int,
    temperature: float = 1.0, top_k: int = 0, seed: int = 0,
) -> Iterator[str]:  # fmt: skip
    """The prompt, then the words that the model writes after it. Joined, they are the text.

    The same arguments give the same text. A `temperature` of 0 takes the likeliest token each time. `top_k`
    samples from the k likeliest (0: from all). The model reads as many tokens as a review may have.
    """
    if not 0 <= temperature < math.inf:
        raise ConfigError(f"The temperature must be a finite number, 0 or more, not {temperature:g}.")
    generator = torch.Generator().manual_seed(seed)
    assert model.spacing is not None
    follows, precedes = model.spacing.cpu()
    ids = tokenizer.encode([prompt], whole=True)[0].tolist() if prompt.strip() else []
    yield prompt
    word: list[int] = []  # the pieces that are not written yet
    for _ in range(num_tokens):
        drawn = draw(next_logits(model, ids, tokenizer.max_length, hardware), temperature, top_k, generator)
        if ids and follows[ids[-1]] + precedes[drawn] > 0:
            yield tokenizer.spelling(word)
            if word or not prompt[-1:].isspace():
                yield " "
            word = []
        word.append(drawn)
        ids.append(drawn)
    yield tokenizer.spelling(word)


@torch.inference_mode()
def next_logits(model: LanguageModel, ids: list[int], max_length: int, hardware: Hardware) -> Tensor:
    """(V,) logits of the token after `ids`, on the CPU. The model reads the last ones, after `[MASK]`."""
    read = [MASK_ID, *ids[max(0, len(ids) - max_length + 1) :]]
    padded = torch.from_numpy(pad([np.array(read, np.uint32)])).to(hardware.device)
    last = torch.tensor([len(read) - 1], device=hardware.device)
    features = model.encoder(padded, padded != PAD_ID, hardware.dtype, last, direction=1)
    return model.logits(features)[0].cpu()


def draw(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    """A random id with the probabilities softmax(logits / temperature), of the `top_k` likeliest if not 0."""
    if not temperature:
        return int(logits.argmax())
    if top_k:
        logits = logits.masked_fill(logits < logits.topk(min(top_k, len(logits))).values[-1], -torch.inf)
    weights = ((logits - logits.max()).double() / temperature).softmax(0)
    return int(torch.multinomial(weights, 1, generator=generator))


def spacing_odds(tokenizer: Tokenizer, texts: Sequence[str]) -> NDArray[np.float32]:
    """(2, V): log odds that a space follows each id, and that one precedes it.

    Their sum for two ids is naive Bayes. Text that a model writes needs them: the tokenizer drops spaces, so
    two ids may be one word or two.
    """
    counts = np.zeros((2, 2, tokenizer.vocab_size))  # (follows or precedes, no space or space, id)
    for text in texts[:: max(1, len(texts) // SPACING_REVIEWS)]:
        ids, spans = tokenizer.encode_with_spans(text)
        starts, ends = np.array(spans).T
        has_space = (starts[1:] > ends[:-1]).astype(int)
        np.add.at(counts[0], (has_space, ids[:-1]), 1)
        np.add.at(counts[1], (has_space, ids[1:]), 1)
    num_without, num_with = 1 + counts[0].sum(1)
    share = num_with / (num_with + num_without)
    odds = np.log(counts[:, 1] + share) - np.log(counts[:, 0] + 1 - share)
    odds[0] -= np.log(share) - np.log(1 - share)  # the prior, which both have
    return odds.astype(np.float32)
