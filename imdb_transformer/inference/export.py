"""The same model for other engines: one ONNX file, from ids to log-probabilities.

Shapes: B batch, L length, C classes.
"""

import logging
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from imdb_transformer.data.tokenizer import FILE_NAME, PAD_ID
from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.inference.exported import INPUT, OUTPUT, SUFFIX, TextToIds, metadata
from imdb_transformer.inference.transformer import EncoderModel
from imdb_transformer.model.classifier import Classifier
from imdb_transformer.store import run
from imdb_transformer.store.files import write_whole

Precision = Literal["fp32", "int8"]
OPSET = 20
EXAMPLE = (3, 70)  # a batch and a length that nothing in the model would take for a constant
# Embeddings and n-grams stay as they are: they are looked up, not multiplied.
QUANTIZED = ["MatMul", "Gemm"]


class Export(NamedTuple):
    """What was written."""

    file: str
    precision: Precision
    num_bytes: int


class _Graph(nn.Module):
    """(B, L) ids of any length -> (B, C) calibrated log-probabilities."""

    def __init__(self, classifier: Classifier, temperature: float) -> None:
        super().__init__()
        self.classifier, self.temperature = classifier, temperature
        # Attention works in groups of twice the radius; here a review has whole ones, whatever its length.
        self.multiple = 2 * max(1, classifier.encoder.radius)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) -> (B, C)."""
        ids = F.pad(ids, (0, -ids.shape[1] % self.multiple), value=PAD_ID)
        logits = self.classifier(ids, ids != PAD_ID, torch.float32)
        return torch.log_softmax(logits / self.temperature, dim=1)


def export(path: Path, output: Path | None = None, precision: Precision = "fp32") -> Export:
    """Writes a run, or one of its checkpoints, as an ONNX file, by default into the run.

    Raises ConfigError and RunError.

    `int8`: the matrix products' weights in 8 bits, a scale a row; activations are quantised as they come.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ModuleNotFoundError:
        raise ConfigError("Export needs onnx and onnxscript: pip install 'imdb-tx[onnx]'.") from None
    if output is not None and (output.suffix != SUFFIX or not output.parent.is_dir()):
        raise ConfigError(f"--output {output}: its name should end in {SUFFIX}, in a folder that is there.")
    source, folder = run.locate(path)
    output = output or source.folder / f"model{SUFFIX}"
    if source.info.is_linear:
        raise RunError(f"{path} is a linear model; only a transformer can be exported.")
    model = EncoderModel(source, folder, device="cpu")
    about = TextToIds(classes=source.info.classes, step=model.step, tokenizer=source.config.tokenizer)
    graph = _traced(_Graph(model.classifier, source.temperature_of(folder)).eval())
    if precision == "int8":
        graph = _quantised(graph)
    onnx.helper.set_model_props(
        graph, metadata((source.folder / FILE_NAME).read_text(encoding="utf-8"), about)
    )
    content = graph.SerializeToString()
    write_whole(output, content)
    return Export(str(output), precision, len(content))


def _traced(graph: _Graph) -> Any:
    """The graph as an ONNX model of any batch size and length."""
    example = torch.full(EXAMPLE, PAD_ID + 1)
    dynamic = {INPUT: {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells of packages that we do not use
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch's exporter warns of torch's own deprecations
        program = torch.onnx.export(
            graph, (example,), dynamo=True, dynamic_shapes=dynamic, opset_version=OPSET,
            input_names=[INPUT], output_names=[OUTPUT], verbose=False,
        )  # fmt: skip
    assert program is not None
    return program.model_proto


def _quantised(graph: Any) -> Any:
    """The same with products in 8 bits: weights by row, activations by tensor as they come."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    del graph.graph.value_info[:]  # the exporter's notes of shapes, which the quantiser trips over
    root = logging.getLogger()  # on which the quantiser gives advice
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "int8.onnx"
            quantize_dynamic(
                graph, path, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=QUANTIZED
            )
            return onnx.load(path)
    finally:
        root.setLevel(level)
