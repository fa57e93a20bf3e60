import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imdb_transformer.config import ModelConfig
from imdb_transformer.data.tokenizer import MASK_ID, PAD_ID, Tokenizer
from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.inference.explanation import explain
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.inference.transformer import TransformerModel
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.store import run
from tests.conftest import imdb_tx

TEXTS = ["", "good", "An awful, boring film.<br /><br />I left early!", "\0 😀 ünïcode", "word " * 300]


def a_predictor(trained: Path, num_classes: int = 2, **changes: object) -> Predictor:
    """The trained run's predictor with another model, of random weights, in fp32."""
    predictor = Predictor.load(trained)
    model = predictor.models[0]
    assert isinstance(model, TransformerModel)
    config = run.open_run(trained).config.model
    torch.manual_seed(0)
    classifier = Classifier(
        ModelConfig(**{**config.model_dump(), **changes}), vocab_size=model.tokenizer.vocab_size,
        num_classes=num_classes,
    )  # fmt: skip
    if classifier.encoder.embedding.bigrams is not None:
        with torch.no_grad():
            classifier.encoder.embedding.bigrams.weight[1:].normal_(std=0.1)
    model.classifier = classifier.eval()
    model.hardware = model.hardware._replace(dtype=torch.float32)
    model.classes, model.temperature = tuple("abc"[:num_classes]), 2.0
    return Predictor([model])


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("text", TEXTS)
def test_shares_and_bias_add_up_to_the_difference_of_the_logits(
    trained: Path, text: str, num_classes: int
) -> None:
    predictor = a_predictor(trained, num_classes, bigram_buckets=500)
    explained = explain(predictor, text)
    total = sum(word.share for word in explained.words) + explained.bias
    assert total == pytest.approx(explained.logit_difference, abs=1e-3)
    log_probabilities = np.log(predictor.probabilities([text]))[0]
    index = predictor.classes.index
    expected = log_probabilities[index(explained.toward)] - log_probabilities[index(explained.against)]
    assert explained.logit_difference == pytest.approx(expected, abs=1e-3)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=300))
def test_each_word_of_any_text_has_the_index_of_its_first_character(trained: Path, text: str) -> None:
    predictor = Predictor.load(trained)
    explained = explain(predictor, text)
    for word in explained.words:
        assert text[word.start : word.start + len(word.word)] == word.word
    total = sum(word.share for word in explained.words) + explained.bias
    assert total == pytest.approx(explained.logit_difference, abs=1e-3)


def test_each_character_of_a_script_without_blanks_has_a_share(trained: Path) -> None:
    words = explain(Predictor.load(trained), "很好看! good 面白い<br/>หนัง").words
    assert [each.word for each in words] == [*"很好看", "!", "good", *"面白い", *"หนัง"]


def blank_difference(predictor: Predictor, num_ids: int) -> float:
    """The logit difference of a text of embeddings that are zero: padding that is not hidden."""
    (model,) = predictor.models
    assert isinstance(model, TransformerModel)
    ids = torch.full((1, num_ids), PAD_ID)
    with torch.no_grad():
        first, second = model.classifier(ids, ids >= 0)[0].tolist()
    return (second - first) / model.temperature


@pytest.mark.parametrize(("norm", "bigram_buckets"), [("pre", 0), ("post", 0), ("pre", 500)])
def test_integrated_gradients_add_up_to_the_difference_from_a_blank_text(
    trained: Path, norm: str, bigram_buckets: int
) -> None:
    predictor = a_predictor(trained, norm=norm, bigram_buckets=bigram_buckets)
    (model,) = predictor.models
    assert isinstance(model, TransformerModel)
    text = "A good film, with a dull ending."
    explained = explain(predictor, text, method="gradients")
    blank = blank_difference(predictor, len(model.tokenizer.encode([text])[0]))
    assert abs(explained.logit_difference - blank) > 0.01
    total = sum(word.share for word in explained.words)
    assert total == pytest.approx(explained.logit_difference - blank, rel=0.03, abs=0.003)
    assert explained.bias == pytest.approx(blank, abs=0.03)


def test_integrated_gradients_do_not_depend_on_the_mask_embedding(trained: Path) -> None:
    predictor = Predictor.load(trained)
    (model,) = predictor.models
    assert isinstance(model, TransformerModel)
    before = explain(predictor, "a dull film", method="gradients")
    with torch.no_grad():
        model.classifier.encoder.embedding.tokens.weight[MASK_ID] += 1
    assert explain(predictor, "a dull film", method="gradients") == before


def test_spans_point_at_the_characters_of_each_id(trained: Path) -> None:
    config = run.open_run(trained).config.tokenizer
    tokenizer = Tokenizer.load(trained, config)
    text = "The <br /><br />PLOT is good."
    ids, spans = tokenizer.encode_with_spans(text)
    np.testing.assert_array_equal(ids, tokenizer.encode([text])[0])
    spelt = "".join(text[start:end] for start, end in spans).lower()
    assert spelt == "theplotisgood."
    long = "good film " * 200
    ids, spans = tokenizer.encode_with_spans(long)
    assert len(ids) == len(spans) == config.max_length
    assert spans[-1][1] == len(long.rstrip())


def test_explanations_as_text_json_and_html(trained: Path, tmp_path: Path) -> None:
    shown = imdb_tx("predict", "--run", trained, "--explain", "a <b>good</b> film").stdout
    assert "for pos:" in shown
    assert "\x1b" not in shown  # no colours outside a terminal
    page = tmp_path / "why.html"
    answer = imdb_tx("predict", "--run", trained, "--explain", "--json", "--html", page, "a <b>good</b> film")
    explained = json.loads(answer.stdout)["explanation"]
    assert [word["word"] for word in explained["words"]] == ["a", "<b>good</b>", "film"]
    assert "&lt;b&gt;good&lt;/b&gt;" in page.read_text()
    assert "<b>" not in page.read_text()


def test_explaining_a_linear_model_or_a_file_is_refused(trained: Path, linear: Path, tmp_path: Path) -> None:
    shutil.copytree(linear, tmp_path / "nb")
    refused = imdb_tx("predict", "--run", tmp_path / "nb", "--explain", "a film")
    assert isinstance(refused.exception, RunError)
    refused = imdb_tx("predict", "--run", trained, "--explain", "--input", tmp_path / "x.csv")
    assert isinstance(refused.exception, ConfigError)
