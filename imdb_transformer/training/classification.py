"""Training a classifier on labelled reviews: its model, what it reads, and its figure on validation."""

import numpy as np
import torch
from torch import nn

from imdb_transformer.config import Config
from imdb_transformer.data.encoded import EncodedSplit
from imdb_transformer.evaluation.scores import Score, score
from imdb_transformer.hardware import Hardware
from imdb_transformer.inference.transformer import logits_of
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.training.task import Task, classification


def make_model(config: Config, *, vocab_size: int, num_classes: int) -> Classifier:
    """The model of a config with its initial weights, which are a function of the seed."""
    torch.manual_seed(config.train.seed)
    return Classifier(config.model, vocab_size=vocab_size, num_classes=num_classes)


def make_task(
    config: Config, splits: dict[str, EncodedSplit], hardware: Hardware, *, vocab_size: int,
    num_classes: int,
) -> Task:  # fmt: skip
    """Learning the labels of `train`, judged on `validation` where the config holds one out."""
    model = make_model(config, vocab_size=vocab_size, num_classes=num_classes).to(hardware.device)
    objective = classification(config.train.label_smoothing)
    if "validation" not in splits:
        return Task(model, objective, splits["train"], None)
    split = splits["validation"]
    labels = split.labels.astype(np.int64)

    def validate(averaged: nn.Module) -> Score:
        reviews = [split.review(i) for i in range(len(split.labels))]
        return score(logits_of(averaged, reviews, hardware), labels)

    return Task(model, objective, splits["train"], validate)
