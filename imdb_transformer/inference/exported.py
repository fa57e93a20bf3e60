"""Predicts with an exported model: an ONNX file, run by onnxruntime without torch.

The file is complete. It holds the graph, which maps ids to log-probabilities, and the tokenizer.
`inference/export.py` writes it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from imdb_transformer.config import Config
from imdb_transformer.data.batches import in_order, length_batches, pad
from imdb_transformer.data.tokenizer import PAD_ID, Tokenizer
from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.progress import tracked
from imdb_transformer.store.run import RunInfo

SUFFIX = ".onnx"
INPUT, OUTPUT = "ids", "log_probabilities"
ABOUT, TOKENIZER = "imdb_tx", "tokenizer.json"  # entries of the file's metadata
MAX_BYTES = 2 << 30  # what the format itself can hold
EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
ERRORS_ONLY = 3  # onnxruntime's severities


class About(BaseModel, extra="forbid", frozen=True):
    """The rest of the metadata: what other programs and `eval` need besides graph and tokenizer."""

    step: int
    run: RunInfo
    """with the names of the classes"""
    config: Config
    """with the length limit of a review"""


class ExportedModel:
    """A graph from ids to log-probabilities, its tokenizer and its classes."""

    precision = "fp32"

    def __init__(self, session: Any, tokenizer: Tokenizer, about: About) -> None:
        self.session, self.tokenizer, self.about = session, tokenizer, about
        self.classes, self.step = about.run.classes, about.step
        self.temperature = 1.0  # the graph's output is calibrated

    @classmethod
    def load(cls, path: Path) -> Self:
        """The model in an exported file. Raises RunError, and ConfigError without onnxruntime."""
        try:
            import onnxruntime
        except ModuleNotFoundError:
            raise ConfigError(
                f"{path} needs onnxruntime, which is not installed: pip install onnxruntime."
            ) from None
        if path.stat().st_size > MAX_BYTES:
            raise RunError(f"{path} is too large for an exported model.")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = ERRORS_ONLY + 1
        try:
            # The graph must not read other files: onnxruntime looks for them in a folder that does not exist.
            options.add_session_config_entry(EXTERNAL_FOLDER, str(path.parent / "no-such-folder"))
            session = onnxruntime.InferenceSession(
                path.read_bytes(), options, providers=["CPUExecutionProvider"]
            )
            entries = session.get_modelmeta().custom_metadata_map
            about = About.model_validate_json(entries[ABOUT])
            tokenizer = Tokenizer(entries[TOKENIZER], about.config.tokenizer)
        except (KeyError, ValidationError):
            raise RunError(f"{path} was not made by this version's imdb-tx export.") from None
        except OSError:
            raise
        except RunError as error:
            raise RunError(f"{path} is damaged: {error}") from None
        except Exception as error:  # onnxruntime's errors derive from Exception alone
            raise RunError(f"{path} is not an ONNX model: {' '.join(str(error).split())[:120]}.") from None
        loaded = cls(session, tokenizer, about)
        loaded._check_graph(path)
        return loaded

    def _check_graph(self, path: Path) -> None:
        """Raises RunError if the graph does not accept every id, or gives another number of classes."""
        ids = np.array([[PAD_ID + 1, self.tokenizer.vocab_size - 1]])
        try:
            num_classes = self._run(ids).shape[1:]
        except Exception as error:  # as above
            reason = " ".join(str(error).split())[:120]
            raise RunError(f"{path} is damaged: its graph does not fit its tokenizer ({reason}).") from None
        if num_classes != (len(self.classes),):
            raise RunError(
                f"{path} is damaged: it names {len(self.classes)} classes, and its graph's output is of "
                f"size {num_classes}."
            )

    def logits(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, C) calibrated log-probabilities of texts, one at least; they serve as logits."""
        reviews = self.tokenizer.encode(texts)
        batches = length_batches(np.array([len(review) for review in reviews]))
        rows = [
            self._run(pad([reviews[i] for i in indices]))
            for indices in tracked(batches, "predicting, batch", len(batches))
        ]
        return in_order(rows, batches)

    def _run(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """(B, L) -> (B, C)."""
        (log_probabilities,) = self.session.run([OUTPUT], {INPUT: ids})
        return log_probabilities
