"""Writes a run as one ONNX file, which maps ids to log-probabilities.

Shapes: B batch, L length, C classes.
"""

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdb_transformer.data.tokenizer import FILE_NAME, PAD_ID
from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.inference.exported import ABOUT, INPUT, OUTPUT, SUFFIX, TOKENIZER, About
from imdb_transformer.inference.transformer import TransformerModel
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.store import run
from imdb_transformer.store.files import write_whole

OPSET = 20
EXAMPLE = (3, 70)  # batch size and length: numbers that occur nowhere else in the model


def export(path: Path, output: Path | None = None) -> Path:
    """Writes a run, or one of its checkpoints, as an ONNX file; returns its path.

    By default it is in the run, or in runs/NAME for a run of the package. Raises ConfigError and RunError.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ModuleNotFoundError:
        raise ConfigError("Export needs onnx and onnxscript: pip install onnx onnxscript.") from None
    if output is not None and (output.suffix != SUFFIX or not output.parent.is_dir()):
        raise ConfigError(f"--output {output}: its name must end in {SUFFIX}, and its folder must exist.")
    opened, folder = run.locate(path)
    if output is None:
        opened.reports.mkdir(parents=True, exist_ok=True)
        output = opened.reports / f"model{SUFFIX}"
    if opened.info.kind == "linear":
        raise RunError(f"{path} is a linear model; only a transformer can be exported.")
    model = TransformerModel(opened, folder, device="cpu")
    about = About(step=model.step, run=opened.info, config=opened.config)
    (empty_ids,) = model.tokenizer.encode([""])
    graph = _traced(_Graph(model.classifier, model.temperature, int(empty_ids[0])).eval())
    tokenizer_json = (opened.folder / FILE_NAME).read_text(encoding="utf-8")
    onnx.helper.set_model_props(graph, {ABOUT: about.model_dump_json(), TOKENIZER: tokenizer_json})
    write_whole(output, graph.SerializeToString())
    return output


class _Graph(nn.Module):
    """(B, L) ids of any length -> (B, C) calibrated log-probabilities.

    A review without ids, or of padding alone, is the empty text, whose id is `empty_id`.
    """

    def __init__(self, classifier: Classifier, temperature: float, empty_id: int) -> None:
        super().__init__()
        self.classifier, self.temperature, self.empty_id = classifier, temperature, empty_id
        # Windowed attention needs whole groups of twice the radius. Padding makes the graph fit any length.
        self.multiple = 2 * max(1, classifier.encoder.radius)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) -> (B, C)."""
        ids = F.pad(ids, (0, self.multiple - ids.shape[1] % self.multiple), value=PAD_ID)  # one at least
        first = torch.where((ids != PAD_ID).any(1), ids[:, 0], self.empty_id)
        ids = torch.cat([first[:, None], ids[:, 1:]], 1)
        logits = self.classifier(ids, ids != PAD_ID, torch.float32)
        return torch.log_softmax(logits / self.temperature, dim=1)


def _traced(graph: _Graph) -> Any:
    """The graph as an ONNX model of any batch size and length."""
    example = torch.full(EXAMPLE, PAD_ID + 1)
    dynamic = {INPUT: {0: "batch", 1: "length"}}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about packages that are not used
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch's exporter warns about deprecations in torch
        program = torch.onnx.export(
            graph, (example,), dynamo=True, dynamic_shapes=dynamic, opset_version=OPSET,
            input_names=[INPUT], output_names=[OUTPUT], verbose=False,
        )  # fmt: skip
    assert program is not None
    return program.model_proto
