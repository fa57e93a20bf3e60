"""Runs as ONNX files: writing one, and predicting with it by onnxruntime, without torch.

A file is complete. It holds the graph, which maps ids to log-probabilities, and the tokenizer.
"""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from imdb_transformer.config import Config
from imdb_transformer.data.batches import in_order, length_batches, pad
from imdb_transformer.data.tokenizer import FILE_NAME, PAD_ID, Tokenizer
from imdb_transformer.errors import ConfigError, RunError, reason_of
from imdb_transformer.progress import tracked
from imdb_transformer.store import run
from imdb_transformer.store.files import check_writable, write_whole
from imdb_transformer.store.run import RunInfo

if TYPE_CHECKING:
    from imdb_transformer.inference.transformer import CalibratedClassifier

SUFFIX = ".onnx"
INPUT, OUTPUT = "ids", "log_probabilities"
ABOUT, TOKENIZER = "imdb_tx", "tokenizer.json"  # entries of the file's metadata
OPSET = 20
EXAMPLE = (3, 70)  # batch size and length: numbers that occur nowhere else in the model
EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"


class About(BaseModel, extra="forbid", frozen=True):
    """The metadata that other programs and `eval` need besides graph and tokenizer."""

    step: int
    run: RunInfo  # with the names of the classes
    config: Config  # with the length limit of a review
    temperature: float  # by which the graph divides its logits


def export(path: Path, output: Path | None = None) -> Path:
    """Writes a run, or one of its checkpoints, as an ONNX file; returns its path.

    By default it is model.onnx in the run, or in runs/NAME for a run of the package. For another checkpoint
    than `best` it is called after it, such as model-last.onnx. Raises ConfigError and RunError.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ModuleNotFoundError:
        raise ConfigError("Export needs onnx and onnxscript: pip install onnx onnxscript.") from None
    from imdb_transformer.inference.transformer import CalibratedClassifier, TransformerModel

    if output is not None:
        check_writable("--output", output, [SUFFIX])
    opened, folder = run.locate(path)
    if opened.info.kind == "linear":
        raise RunError(f"{path} is a linear model; only a transformer can be exported.")
    model = TransformerModel(opened, folder, device="cpu")
    if output is None:
        opened.reports.mkdir(parents=True, exist_ok=True)
        output = opened.reports / f"model{'' if folder.name == 'best' else f'-{folder.name}'}{SUFFIX}"
    about = About(step=model.step, run=opened.info, config=opened.config, temperature=model.temperature)
    (empty_ids,) = model.tokenizer.encode([""])
    graph = _traced(CalibratedClassifier(model.classifier, model.temperature, int(empty_ids[0])).eval())
    tokenizer_json = (opened.folder / FILE_NAME).read_text(encoding="utf-8")
    onnx.helper.set_model_props(graph, {ABOUT: about.model_dump_json(), TOKENIZER: tokenizer_json})
    write_whole(output, graph.SerializeToString())
    return output


def _traced(classifier: "CalibratedClassifier") -> Any:
    """The classifier as an ONNX graph for any batch size and length."""
    import torch

    example = torch.full(EXAMPLE, PAD_ID + 1)
    dynamic = {INPUT: {0: "batch", 1: "length"}}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about packages that are not used
    with warnings.catch_warnings(action="ignore"), torch.no_grad():  # of deprecations in torch's exporter
        program = torch.onnx.export(
            classifier, (example,), dynamo=True, dynamic_shapes=dynamic, opset_version=OPSET,
            input_names=[INPUT], output_names=[OUTPUT], verbose=False,
        )  # fmt: skip
    assert program is not None
    return program.model_proto


class ExportedModel:
    """The model in an exported file."""

    precision = "fp32"

    def __init__(self, path: Path) -> None:
        """Opens an exported file. Raises RunError, and ConfigError without onnxruntime."""
        try:
            import onnxruntime
        except ModuleNotFoundError:
            raise ConfigError(
                f"{path} needs onnxruntime, which is not installed: pip install onnxruntime."
            ) from None
        options, content = onnxruntime.SessionOptions(), path.read_bytes()
        options.log_severity_level = 4  # fatal errors only
        # The graph must not read other files: onnxruntime looks for them in a folder that does not exist.
        options.add_session_config_entry(EXTERNAL_FOLDER, str(path.parent / "no-such-folder"))
        try:
            self.session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            entries = self.session.get_modelmeta().custom_metadata_map
            about = About.model_validate_json(entries[ABOUT])
            self.tokenizer = Tokenizer(entries[TOKENIZER], about.config.tokenizer)
        except (KeyError, ValidationError):
            raise RunError(f"{path} was not exported by this version of imdb-tx.") from None
        except RunError as error:
            raise RunError(f"{path} is damaged: {error}") from None
        except Exception as error:  # onnxruntime's errors derive from Exception alone
            raise RunError(f"{path} is not an ONNX model: {reason_of(error, 120)}.") from None
        self.origin, self.checkpoint = run.Run(path.parent, about.config, about.run), path
        self.classes, self.step, self.temperature = about.run.classes, about.step, about.temperature

    def logits(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, C) logits of one or more texts, each up to a constant."""
        reviews = self.tokenizer.encode(texts)
        batches = length_batches(np.array([len(review) for review in reviews]))
        rows = [
            self.session.run([OUTPUT], {INPUT: pad([reviews[i] for i in indices])})[0]  # (B, C)
            for indices in tracked(batches, "predicting, batch", len(batches))
        ]
        return in_order(rows, batches) * np.float32(self.temperature)  # the graph has divided by it
