import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from imdb_transformer.config import Config
from imdb_transformer.data.encoded import EncodedSplit, tokenize
from imdb_transformer.inference.transformer import outputs_of
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.training.prepare import make_classifier, prepare
from imdb_transformer.training.starting_weights import INVERSE_PENALTY, NUM_FITTED, fit_head
from tests.in_process import CPU, Tiny, train


def answers(model: Classifier, reviews: EncodedSplit) -> NDArray[np.float32]:
    return outputs_of(model.eval(), [reviews.review(i) for i in range(len(reviews.lengths))], CPU)


def features(model: Classifier, reviews: EncodedSplit) -> NDArray[np.float32]:
    headless = make_classifier(Config(), vocab_size=5, num_classes=2)
    headless.encoder, headless.head = model.encoder, nn.Identity()  # type: ignore[assignment]
    return answers(headless, reviews)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_the_first_head_is_a_logistic_regression_on_the_encoders_features(
    tiny: Tiny, num_classes: int
) -> None:
    config = tiny()
    reviews = tokenize(config, ["train"]).splits["train"]
    labels = np.arange(len(reviews.labels)) % num_classes
    model = make_classifier(config, vocab_size=400, num_classes=num_classes)
    fit_head(model, reviews._replace(labels=labels), CPU)
    expected = make_pipeline(StandardScaler(), LogisticRegression(C=INVERSE_PENALTY, max_iter=500))
    expected.fit(features(model, reviews), labels)
    probabilities = torch.from_numpy(answers(model, reviews)).softmax(1).numpy()
    np.testing.assert_allclose(probabilities, expected.predict_proba(features(model, reviews)), atol=1e-4)


def test_a_head_for_almost_as_many_classes_as_reviews_is_fitted_without_a_warning(tiny: Tiny) -> None:
    config = tiny()
    reviews = tokenize(config, ["train"]).splits["train"]
    num_classes = len(reviews.labels) * 2 // 3
    model = make_classifier(config, vocab_size=400, num_classes=num_classes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_head(model, reviews._replace(labels=np.arange(len(reviews.labels)) % num_classes), CPU)
    assert model.head.weight.any(1).all()


def test_a_class_that_the_probed_reviews_lack_gets_no_weights(tiny: Tiny) -> None:
    config = tiny()
    reviews = tokenize(config, ["train"]).splits["train"]
    labels = np.array([0, 2] * (len(reviews.labels) // 2))
    model = make_classifier(config, vocab_size=400, num_classes=3)
    fit_head(model, reviews._replace(labels=labels), CPU)
    assert not model.head.weight[1].any()
    assert model.head.weight[0].any()
    assert model.head.weight[2].any()
    assert model.head.bias[1] == model.head.bias.min()


def test_a_single_class_leaves_the_head_as_it_is(tiny: Tiny) -> None:
    config = tiny()
    reviews = tokenize(config, ["train"]).splits["train"]
    model = make_classifier(config, vocab_size=400, num_classes=2)
    before = model.head.weight.detach().clone()
    fit_head(model, reviews._replace(labels=np.zeros_like(reviews.labels)), CPU)
    assert torch.equal(model.head.weight, before)


def test_only_a_training_from_an_encoder_starts_with_a_fitted_head(tiny: Tiny, tmp_path: Path) -> None:
    train(tiny(), tmp_path / "encoder", kind="encoder")
    prepared = prepare(tiny(f"train.init_from={tmp_path / 'encoder'}"), "classifier", CPU)
    assert isinstance(prepared.model, Classifier)
    expected = make_classifier(tiny(), vocab_size=400, num_classes=2)
    expected.encoder.load_state_dict(prepared.model.encoder.state_dict())
    assert not torch.equal(expected.head.weight, prepared.model.head.weight)
    fit_head(expected, prepared.train, CPU)
    torch.testing.assert_close(expected.head.weight, prepared.model.head.weight)

    scratch = prepare(tiny(), "classifier", CPU).model
    initial = make_classifier(tiny(), vocab_size=400, num_classes=2)
    assert torch.equal(scratch.get_parameter("head.weight"), initial.head.weight)


def test_the_head_is_fitted_to_the_first_reviews_only(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in a random order, so a large set costs no more than a sample of it."""
    assert NUM_FITTED == 10_000
    config = tiny()
    reviews = tokenize(config, ["train"]).splits["train"]
    monkeypatch.setattr("imdb_transformer.training.starting_weights.NUM_FITTED", 50)
    heads = []
    for labels in (reviews.labels, np.where(np.arange(len(reviews.labels)) < 50, reviews.labels, 0)):
        model = make_classifier(config, vocab_size=400, num_classes=2)
        fit_head(model, reviews._replace(labels=labels), CPU)
        heads.append(model.head.weight)
    assert torch.equal(*heads)
