"""Pretrains an encoder on the training reviews before it learns their labels.

This is task-adaptive pretraining (Gururangan et al. 2020, "Don't Stop Pretraining", section 4).
"""

from pathlib import Path

from imdb_transformer import config_file, progress
from imdb_transformer.config import Config
from imdb_transformer.errors import DivergedError
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.training import starting_weights
from imdb_transformer.training.plan import get_batch, make_plan
from imdb_transformer.training.prepare import Prepared, make_language_model
from imdb_transformer.training.step import make_learner, train_step

RECIPE = "adapt.toml"


def adapt_encoder(prepared: Prepared) -> None:
    """Pretrains a classifier's encoder for `adapt_epochs` of its config, and fits the head to it.

    The result depends on the config and the reviews alone, on a CPU bit for bit. Raises DivergedError.
    """
    pretraining, classifier = pretraining_of(prepared), prepared.model
    assert isinstance(classifier, Classifier)
    config, hardware = pretraining.config, prepared.hardware
    learner = make_learner(pretraining.model, config, "encoder", hardware.dtype)
    plan = make_plan(config, prepared.train)
    try:
        for step, (_, indices) in progress.tracked(enumerate(plan.batches), "adapting", plan.num_steps):
            train_step(learner, get_batch(prepared.train, indices, hardware), step, plan.num_steps)
    except DivergedError as error:
        without = f"To train without it: --init-from {config.train.init_from}"
        raise DivergedError(f"The adaptation diverged: {error}. {without}") from None
    classifier.encoder.load_state_dict(learner.model.get_submodule("encoder").state_dict())
    starting_weights.fit_head(classifier, prepared.train, hardware)


def pretraining_of(prepared: Prepared) -> Prepared:
    """The same reviews, and a language model with the encoder that the classifier starts from."""
    config = pretraining_config(prepared.config)
    model = make_language_model(config, prepared.train, vocab_size=prepared.tokenizer.vocab_size)
    starting_weights.load_encoder(model, Path(config.train.init_from))
    return prepared._replace(
        config=config, kind="encoder", model=model.to(prepared.hardware.device), validation=None
    )


def pretraining_config(config: Config) -> Config:
    """The package's adapt.toml for the reviews and the model of another config."""
    recipe, options = config_file.load(config_file.shipped()[RECIPE]), config.train
    train = recipe.train.model_copy(update={
        "init_from": options.init_from, "epochs": options.adapt_epochs, "seed": options.seed,
        "precision": options.precision, "device": options.device,
    })  # fmt: skip
    model = config.model.model_copy(update={"dropout": 0.0, "word_dropout": 0.0})
    return config.model_copy(update={"train": train, "model": model, "pretrain": recipe.pretrain})
