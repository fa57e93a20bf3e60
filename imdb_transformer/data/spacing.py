"""From ids back to text: where spaces stand.

The tokenizer splits a text at spaces and drops them. So ids do not tell whether two of them are a word or two
words, and it is guessed from how often a space follows the one and precedes the other in some reviews.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from imdb_transformer.data.tokenizer import Tokenizer

NUM_REVIEWS = 2000  # are counted; of IMDB's pairs of words and parts of words, 1.8% are then guessed wrong


def spacing_odds(tokenizer: Tokenizer, texts: Sequence[str]) -> NDArray[np.float32]:
    """(2, V): log odds that a space follows each id, and precedes it. The sum for two ids is naive Bayes."""
    counts = np.zeros((2, 2, tokenizer.vocab_size))  # (follows or precedes, no space or space, id)
    for text in texts[:: max(1, len(texts) // NUM_REVIEWS)]:
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
