"""A trainer of an encoder-only transformer with a max-pool head, from scratch, on reviews.

From Python:

    from imdb_transformer import Predictor, evaluate, load_config, train

    train(load_config("scratch.toml", ["train.seed=1"]), "runs/mine")
    evaluate("runs/mine").accuracy
    predictor = Predictor.load("runs/mine")
    predictor("I laughed, I cried.").label  # 'pos'
    predictor.probabilities(["one review", "another"])  # one row per review, one column per class
    for prediction in predictor(many_reviews): ...  # a stream: as many as you like
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imdb_transformer.config_file import load as load_config
    from imdb_transformer.evaluation.evaluate import evaluate
    from imdb_transformer.inference.predictor import Predictor
    from imdb_transformer.training.train import pretrain, train

__all__ = ["Predictor", "evaluate", "load_config", "pretrain", "train"]
__version__ = "0.1.0"

_WHERE = {
    "Predictor": "inference.predictor.Predictor",
    "evaluate": "evaluation.evaluate.evaluate",
    "load_config": "config_file.load",
    "pretrain": "training.train.pretrain",
    "train": "training.train.train",
}


def __getattr__(name: str) -> Any:
    """Imports a name on its first use. `imdb-tx --help` stays quick, because it does not import torch."""
    if name in _WHERE:
        module, _, attribute = _WHERE[name].rpartition(".")
        return getattr(import_module(f"{__name__}.{module}"), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Also lists the names that are imported on their first use."""
    return sorted([*globals(), *__all__])
