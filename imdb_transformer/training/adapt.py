"""An encoder of the package first reads reviews that are new to it, and then a classifier starts from it.

This is task-adaptive pretraining (Gururangan et al. 2020, "Don't Stop Pretraining", section 4).
"""

from imdb_transformer import config_file
from imdb_transformer.config import Config
from imdb_transformer.data import corpus
from imdb_transformer.store import run
from imdb_transformer.training.plan import steps_per_epoch
from imdb_transformer.training.prepare import Prepared
from imdb_transformer.training.starting_weights import has_imdb_labels

RECIPE = "adapt.toml"
ADAPT_STEPS, ADAPT_EPOCHS = 600, 6  # at most; steps are of the classifier's batches


def is_due(requested: Config, chosen: Config) -> bool:
    """Whether `auto` in the requested config became `imdb-encoder`, for reviews that are not IMDB's."""
    if requested.train.init_from != run.AUTO:
        return False
    is_encoder = chosen.train.init_from == str(run.of_package(run.SHIPPED_ENCODER))
    return is_encoder and not has_imdb_labels(chosen, corpus.ensure(chosen.data))


def pretraining_config(prepared: Prepared) -> Config:
    """The config of an encoder that reads the reviews of a classifier, which then starts from it.

    It has the settings of adapt.toml in the package, but the seed and the hardware of the classifier's
    config, and no dropout. It reads as many reviews as about `ADAPT_STEPS` of the classifier's batches
    have, in at most `ADAPT_EPOCHS` epochs, and in no more epochs than the classifier. Unlabelled reviews
    count, too.
    """
    config, options, splits = prepared.config, prepared.config.train, prepared.corpus.manifest.splits
    num_reviews = sum(splits[name].num_rows for name in ("train", "unsupervised") if name in splits)
    share = min(1.0, len(prepared.train.lengths) / num_reviews)  # a student reads the unlabelled ones, too
    epochs = ADAPT_STEPS / steps_per_epoch(prepared.train, options.batch_tokens)
    epochs = min(epochs, ADAPT_EPOCHS, options.epochs)
    recipe = config_file.load(config_file.shipped()[RECIPE]).replaced(
        "train", init_from=options.init_from, epochs=max(1, round(share * epochs)),
        seed=options.seed, precision=options.precision, device=options.device,
    )  # fmt: skip
    config = config.replaced("model", dropout=0.0, word_dropout=0.0)
    return config.model_copy(update={"train": recipe.train, "pretrain": recipe.pretrain})
