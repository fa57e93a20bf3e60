"""Whether a run has read such words as a text has. The tokenizer spells unknown words in small pieces."""

from collections.abc import Sequence
from pathlib import Path

from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.store import run

# Of the training reviews' characters a piece. An English review of a camera has 0.9 of IMDB's, 1% of IMDB's
# own reviews 0.86 or less, French 0.7, German 0.55, Chinese 0.1.
LEAST_SHARE = 0.7


def unfamiliar(predictor: Predictor, paths: Sequence[Path], texts: Sequence[str]) -> list[str]:
    """The texts that are spelt in much smaller pieces than the training reviews of one of the runs."""
    indices: set[int] = set()
    for path, model in zip(paths, predictor.models, strict=True):
        tokenizer = getattr(model, "tokenizer", None)
        if tokenizer is not None and not path.is_file():  # an exported file does not say
            usual = run.locate(path)[0].info.characters_per_piece
            lengths = [tokenizer.characters_per_piece([text]) for text in texts]
            indices |= {i for i, length in enumerate(lengths) if length < LEAST_SHARE * usual}
    return [texts[i] for i in sorted(indices)]
