"""A causal run writes text, and decoding finds the spaces that ids do not have."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from imdb_transformer.config import Config, TokenizerConfig
from imdb_transformer.data import demo
from imdb_transformer.data.tokenizer import MASK_ID, PAD_ID, Tokenizer
from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.inference.generate import draw, generated_words, load, next_logits, spacing_odds
from imdb_transformer.model.language import LanguageModel
from imdb_transformer.report.summaries import progress
from imdb_transformer.training.start import training_steps
from tests.conftest import imdb_tx
from tests.in_process import train
from tests.tiny import TINY_MODEL

TEXTS = demo.reviews().splits["train"].texts
TOKENIZER = Tokenizer.train(TEXTS[:500], TokenizerConfig(vocab_size=600, max_length=256, tail_length=64))


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """A finished run of a causal model."""
    folder = tmp_path_factory.mktemp("causal")
    path = folder / "tiny.toml"
    path.write_text(f'[data]\nsource = "{source}"\ndata_dir = "{folder / "data"}"\n' + TINY_MODEL)
    options = ("train.epochs=1", "train.evals_per_epoch=1", "train.batch_tokens=4096")
    sets = [word for option in (*options, "pretrain.objective=causal") for word in ("--set", option)]
    result = imdb_tx("pretrain", "--config", path, "--run-dir", folder / "run", *sets)
    assert result.exit_code == 0, result.output
    return folder / "run"


def test_spaces_stand_where_reviews_have_them() -> None:
    odds = spacing_odds(TOKENIZER, TEXTS[:500])
    has_space, is_guessed = [], []
    for text in TEXTS[500:700]:
        ids, spans = TOKENIZER.encode_with_spans(text)
        has_space += [later[0] > earlier[1] for earlier, later in itertools.pairwise(spans)]
        is_guessed += [odds[0, first] + odds[1, second] > 0 for first, second in itertools.pairwise(ids)]
    assert 0.1 < np.mean(has_space) < 0.9
    assert np.mean(np.array(has_space) == is_guessed) > 0.98


def test_the_odds_of_spaces_follow_from_counts() -> None:
    """Of the pairs of ids in "a b." and "a b", two have a space and one has none."""
    tokenizer = Tokenizer.train(["a b."], TokenizerConfig(vocab_size=300, max_length=8, tail_length=0))
    odds = spacing_odds(tokenizer, ["a b.", "a b"])
    a, b, dot = (int(tokenizer.encode([text])[0][0]) for text in ("a", "b", "."))
    share = 3 / 5  # of spaces, with one more of each kind
    prior = np.log(share / (1 - share))
    assert odds[0, a] == pytest.approx(np.log((2 + share) / (1 - share)) - prior, rel=1e-5)
    assert odds[1, b] == pytest.approx(np.log((2 + share) / (1 - share)), rel=1e-5)
    assert odds[0, b] + odds[1, dot] < prior < odds[0, a] + odds[1, b]
    assert odds[0, 0] + odds[1, 1] == pytest.approx(prior, rel=1e-5)  # ids that do not occur


@given(st.lists(st.integers(2, 599), max_size=30))
def test_the_spelling_of_any_ids_is_whole_utf_8(ids: list[int]) -> None:
    spelt = TOKENIZER.spelling(ids)
    assert "\ufffd" not in spelt
    assert spelt.encode().decode() == spelt


def test_an_incomplete_utf8_character_is_left_out() -> None:
    ids = TOKENIZER.encode(["é"], whole=True)[0].tolist()
    assert len(ids) == 2
    assert TOKENIZER.spelling(ids) == "é"
    assert TOKENIZER.spelling(ids[:1]) == ""


def test_the_same_seed_writes_the_same_text_and_another_seed_another(causal: Path) -> None:
    loaded = load(causal)
    first, again = ("".join(generated_words(*loaded, "This film", num_tokens=30, seed=3)) for _ in range(2))
    assert first == again
    assert first.startswith("This film ")
    assert first != "".join(generated_words(*loaded, "This film", num_tokens=30, seed=4))


def test_the_next_token_is_guessed_as_in_training(causal: Path) -> None:
    """From `[MASK]` and the tokens before; of a long text from as many as a review has."""
    model, tokenizer, hardware = load(causal)
    (ids,) = tokenizer.encode([TEXTS[0] * 5], whole=True)
    for read in ([], ids[:20].tolist(), ids.tolist()):
        inputs = torch.tensor([[MASK_ID, *read[-63:]]])  # of 64
        features = model.encoder(inputs, inputs != PAD_ID, hardware.dtype, direction=1)
        expected = model.logits(features[0, -1:])[0]
        logits = next_logits(model, read, tokenizer.max_length, hardware)
        torch.testing.assert_close(logits, expected, atol=1e-2, rtol=1e-2)  # activations may be bf16


def test_special_pieces_are_never_written(causal: Path) -> None:
    model, tokenizer, hardware = load(causal)
    logits = next_logits(model, [], tokenizer.max_length, hardware)
    assert logits[[PAD_ID, MASK_ID]].tolist() == [-torch.inf] * 2
    generator = torch.Generator().manual_seed(0)
    drawn = {draw(logits, 100.0, 0, generator) for _ in range(2000)}
    assert not drawn & {PAD_ID, MASK_ID}
    assert len(drawn) > 100


def test_draws_follow_temperature_and_top_k() -> None:
    logits = torch.tensor([1.0, 2.0, 0.0, -torch.inf])
    generator = torch.Generator().manual_seed(0)

    def shares(temperature: float, top_k: int) -> torch.Tensor:
        drawn = torch.tensor([draw(logits, temperature, top_k, generator) for _ in range(3000)])
        return torch.bincount(drawn, minlength=4) / 3000

    for temperature in (0.5, 1.0, 2.0):
        expected = (logits / temperature).softmax(0)
        torch.testing.assert_close(shares(temperature, 0), expected, atol=0.04, rtol=0)
    expected = torch.cat([logits[:2].softmax(0), torch.zeros(2)])
    torch.testing.assert_close(shares(1.0, 2), expected, atol=0.04, rtol=0)
    assert shares(0.0, 0)[1] == 1
    assert shares(1e-40, 0)[1] == 1
    assert shares(1e-46, 0)[1] == 1  # zero in fp32
    assert draw(logits, 1.0, 99, generator) != 3


def test_no_second_space_follows_a_prompt_that_ends_with_one(causal: Path) -> None:
    loaded = load(causal)
    texts = ["".join(generated_words(*loaded, "The film ", num_tokens=5, seed=seed)) for seed in range(10)]
    assert not any(text.startswith("The film  ") for text in texts)


def test_a_temperature_without_bound_is_refused_before_anything_is_printed(causal: Path) -> None:
    ended = imdb_tx("generate", causal, "--temperature", "inf")
    assert (ended.exit_code, ended.stdout) == (2, "")


@pytest.mark.parametrize("temperature", [float("nan"), float("inf"), -1.0])
def test_an_invalid_temperature_is_refused(causal: Path, temperature: float) -> None:
    with pytest.raises(ConfigError, match="0 or more"):
        next(generated_words(*load(causal), num_tokens=1, temperature=temperature))


def test_the_command_writes_texts(causal: Path) -> None:
    command = ("generate", causal, "This film", "--num-tokens", 12, "--num-samples", 2, "--seed", 5)
    shown = imdb_tx(*command)
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("This film") for line in lines)
    records = [json.loads(line) for line in imdb_tx(*command, "--json").stdout.splitlines()]
    assert records == [{"seed": 5 + i, "text": line} for i, line in enumerate(lines)]


def test_ctrl_c_stops_with_what_is_written(causal: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "imdb_transformer",
        "generate",
        str(causal),
        "A",
        "--num-tokens",
        "100000",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)
    assert process.stdout is not None
    try:
        first = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert first.startswith(b"A ")
    assert rest.endswith(b"\n")
    assert process.returncode == 128 + signal.SIGINT
    assert b"Traceback" not in told


def test_a_run_that_is_not_causal_is_refused_with_the_command_that_makes_one(
    encoder: Path, trained: Path, source: Path
) -> None:
    imdbs = "--config pretrain.toml"
    for path, reviews in ((encoder, source), (trained, source), ("imdb", imdbs), ("imdb-encoder", imdbs)):
        refused = imdb_tx("generate", path, "This film").exception
        assert isinstance(refused, RunError)
        assert f"imdb-tx pretrain {reviews} --set pretrain.objective=causal" in str(refused)


def test_the_advised_command_reads_the_table_as_the_run_did(
    tiny: Callable[..., Config], source: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "own"))
    for path in folder.iterdir():
        path.write_text(path.read_text().replace('"text":', '"body":').replace('"label":', '"stars":'))
    columns = ("data.text_column=body", "data.label_column=stars", "data.bad_rows=skip")
    opened = train(tiny(f"data.source={folder}", "train.epochs=1", *columns), tmp_path / "run")
    sets = " ".join(f"--set {column}" for column in columns)
    refused = str(imdb_tx("generate", opened.folder, "This film").exception)
    assert f"imdb-tx pretrain {folder} {sets} --set pretrain.objective=causal" in refused


def test_a_sample_is_shown_at_each_validation_and_only_of_causal_models(
    tiny: Callable[..., Config], tmp_path: Path
) -> None:
    options = ("train.epochs=1", "train.batch_tokens=4096")
    for objective in ("causal", "denoise"):
        config = tiny(*options, f"pretrain.objective={objective}")
        updates = list(training_steps(config, tmp_path / objective, "encoder"))
        assert sum(update.saved for update in updates) == 2
        for update in updates:
            assert bool(update.sample) == (update.saved and objective == "causal")
        assert ("it writes: " in progress(updates[-1])) == (objective == "causal")


def test_the_spacing_is_kept_with_the_weights(causal: Path) -> None:
    model, tokenizer, _ = load(causal)
    assert isinstance(model, LanguageModel)
    assert model.spacing is not None
    (dot,), (film,) = (tokenizer.encode([text])[0] for text in (".", "film"))
    assert model.spacing[0, film] + model.spacing[1, dot] < 0 < model.spacing[0, dot] + model.spacing[1, film]
