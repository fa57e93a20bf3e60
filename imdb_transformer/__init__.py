"""A command-line trainer of an encoder-only transformer with a max-pool head, from scratch, on reviews.

`Predictor` answers from Python:

    from imdb_transformer import Predictor

    predictor = Predictor.load("runs/base")
    predictor("I laughed, I cried.").label  # 'pos'
    [found.probability for found in predictor(["one review", "another"])]
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imdb_transformer.inference.predictor import Predictor

__all__ = ["Predictor"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Loads torch only when someone asks for what needs it: `imdb-tx --help` answers at once."""
    if name == "Predictor":
        from imdb_transformer.inference.predictor import Predictor

        return Predictor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
