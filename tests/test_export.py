"""An exported file answers as its run does, without torch."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from imdb_transformer import progress
from imdb_transformer.data import demo, tokenizer
from imdb_transformer.errors import ConfigError, RunError
from imdb_transformer.evaluation.evaluate import evaluate
from imdb_transformer.inference.export import ABOUT, export
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.inference.transformer import TransformerModel
from imdb_transformer.store import run
from tests.conftest import imdb_tx, write_jsonl
from tests.test_predict import ODD_TEXTS


def exact(trained: Path) -> Predictor:
    """The run's predictor in fp32, as the exported file computes."""
    predictor = Predictor.load(trained, device="cpu")
    (model,) = predictor.models
    assert isinstance(model, TransformerModel)
    model.hardware = model.hardware._replace(dtype=torch.float32)
    return predictor


def test_an_exported_file_gives_the_same_probabilities(trained: Path, exported: Path) -> None:
    texts = [*ODD_TEXTS, *demo.reviews().splits["test"].texts[:990]]
    probabilities = Predictor.load(exported).probabilities(texts)
    np.testing.assert_allclose(probabilities, exact(trained).probabilities(texts), atol=1e-4)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)


def test_a_run_of_the_package_is_exported_beside_your_runs(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imdb_transformer.inference.export._traced", lambda _: onnx.load(exported))
    monkeypatch.chdir(tmp_path)
    assert export(Path("imdb")) == Path("runs/imdb/model.onnx")
    assert (tmp_path / "runs/imdb/model.onnx").exists()


def test_a_checkpoint_is_exported_beside_the_best_one(
    trained: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    monkeypatch.setattr("imdb_transformer.inference.export._traced", lambda _: onnx.load(exported))
    assert export(folder) == folder / "model.onnx"
    assert export(folder / "checkpoints" / "last") == folder / "model-last.onnx"


def test_an_export_to_a_full_disk_keeps_the_old_file_and_can_be_repeated(
    trained: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imdb_transformer.inference.export._traced", lambda _: onnx.load(exported))
    path = tmp_path / "model.onnx"
    path.write_bytes(b"the former file")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            export(trained, path)
    assert [item.name for item in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_bytes() == b"the former file"
    export(trained, path)
    assert Predictor.load(path).classes == ("neg", "pos")


def test_a_post_norm_model_with_full_attention_is_exported(trained: Path, tmp_path: Path) -> None:
    config = trained / "config.toml"
    overrides = ("model.radius=0", "model.norm='post'", "model.positions='sinusoidal'", "train.epochs=1")
    sets = [word for change in overrides for word in ("--set", change)]
    trained_so = imdb_tx("train", "--config", config, *sets, "--run-dir", tmp_path / "r")
    assert trained_so.exit_code == 0, trained_so.output
    export(tmp_path / "r", tmp_path / "m.onnx")
    texts = ["", "a good film", "an awful, dull film " * 40, "good " * 11]
    probabilities = Predictor.load(tmp_path / "m.onnx").probabilities(texts)
    np.testing.assert_allclose(probabilities, exact(tmp_path / "r").probabilities(texts), atol=1e-4)


def test_three_classes_windows_bigrams_and_calibration_are_exported(trained: Path, tmp_path: Path) -> None:
    rows = [(f"{word} film {i}", word) for i in range(40) for word in ("good", "dull", "odd")]
    write_jsonl(tmp_path / "r.jsonl", [text for text, _ in rows], [label for _, label in rows])
    overrides = (
        f'data.source="{tmp_path / "r.jsonl"}"', f'data.data_dir="{tmp_path / "data"}"', "train.epochs=1",
        "model.positions='none'", "model.radius=3", "model.bigram_buckets=500",
    )  # fmt: skip
    sets = [word for change in overrides for word in ("--set", change)]
    folder = tmp_path / "r"
    imdb_tx("train", "--config", trained / "config.toml", *sets, "--run-dir", folder)
    run.open_run(folder).write_info(temperature=0.25)  # far from 1: the tiny model is hardly sure of anything
    assert export(folder) == folder / "model.onnx"
    predictor = Predictor.load(folder / "model.onnx")
    assert predictor.classes == ("dull", "good", "odd")
    texts = [*(text for text, _ in rows), "", "an awful, dull film " * 40]
    np.testing.assert_allclose(predictor.probabilities(texts), exact(folder).probabilities(texts), atol=1e-4)
    ours, files = evaluate(folder), evaluate(folder / "model.onnx")
    assert files.raw.loss == pytest.approx(ours.raw.loss, rel=0.02)
    assert files.loss == pytest.approx(ours.loss, rel=0.02)
    assert abs(ours.raw.loss - ours.loss) > 0.05 * ours.loss


def test_a_graph_with_external_data_is_refused(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = onnx.load(exported)
    onnx.save(graph, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin")
    assert (tmp_path / "weights.bin").stat().st_size > 1000
    with pytest.raises(RunError, match=r"m\.onnx"):
        Predictor.load(tmp_path / "m.onnx")


def test_an_impossible_output_path_is_refused_before_the_work(trained: Path, tmp_path: Path) -> None:
    for output in (tmp_path / "m.bin", tmp_path / "none" / "m.onnx"):
        with pytest.raises(ConfigError, match=output.name):
            export(trained, output)


def test_predict_runs_an_exported_file_without_torch(exported: Path) -> None:
    program = (
        "import sys; from imdb_transformer.cli import app; "
        f"app(['predict', '--run', {str(exported)!r}, 'a good film'], standalone_mode=False); "
        "sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith((b"pos\t", b"neg\t"))


def test_an_exported_file_and_a_few_texts_do_not_ignore_the_device(exported: Path, trained: Path) -> None:
    assert Predictor.load(exported, device="cpu")("a good film").label in ("neg", "pos")
    with pytest.raises(ConfigError, match="is an exported file, which predicts on the CPU"):
        Predictor.load(exported, device="cuda")
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        Predictor.load(trained, device="cuda", few=True)


@pytest.fixture
def changed(exported: Path, tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """Gives a copy of the exported file with other metadata."""

    def copy(entries: dict[str, str]) -> Path:
        graph = onnx.load(exported)
        onnx.helper.set_model_props(graph, entries)
        onnx.save(graph, tmp_path / "changed.onnx")
        return tmp_path / "changed.onnx"

    return copy


def entries_of(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def test_an_exported_tokenizer_over_the_size_limit_is_refused(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "MAX_FILE_BYTES", 1000)
    with pytest.raises(RunError, match=r"tokenizer\.json is too large"):
        Predictor.load(exported)


def test_the_axes_of_the_graph_have_names(exported: Path) -> None:
    graph = onnx.load(exported).graph
    ((ids,), (output,)) = graph.input, graph.output
    assert [axis.dim_param for axis in ids.type.tensor_type.shape.dim] == ["batch", "length"]
    rows, classes = output.type.tensor_type.shape.dim
    assert rows.dim_param == "batch"
    assert classes.dim_value == 2


def test_a_review_without_ids_is_the_empty_text(trained: Path, exported: Path) -> None:
    session = onnxruntime.InferenceSession(exported)
    expected = exact(trained).probabilities("")
    for shape in ((1, 0), (3, 0), (2, 5), (1, 1), (2, 40)):
        (output,) = session.run(None, {"ids": np.zeros(shape, np.int64)})
        np.testing.assert_allclose(np.exp(output), np.tile(expected, (shape[0], 1)), atol=1e-4)


def test_the_documented_call_from_another_program_gives_the_same_probabilities(
    exported: Path, tmp_path: Path
) -> None:
    readme = (Path(__file__).parent.parent / "imdb_transformer/cli/README.md").read_text(encoding="utf-8")
    (example,) = (each for each in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "onnxr" in each)
    assert "imdb_transformer" not in example
    shutil.copy(exported, tmp_path / "model.onnx")
    texts = ["I laughed, I cried.", "", "a long film " * 200]
    example = example.replace("runs/base/model.onnx", str(tmp_path / "model.onnx"))
    example = re.sub(r"texts = .*", f"texts = {texts!r}", example)
    seen: dict[str, object] = {}
    exec(example, seen)
    assert seen["classes"] == ["neg", "pos"]
    np.testing.assert_allclose(
        seen["probabilities"], Predictor.load(exported).probabilities(texts), atol=1e-4
    )


def test_an_exported_file_is_evaluated_as_its_run_is(trained: Path, exported: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    shutil.copy(exported, tmp_path / "model.onnx")
    scores = [json.loads(imdb_tx("eval", tmp_path / name, "--json").stdout) for name in ("run", "model.onnx")]
    assert scores[0]["accuracy"] == scores[1]["accuracy"]
    assert scores[0]["loss"] == pytest.approx(scores[1]["loss"], abs=0.01)  # bf16 and fp32
    assert scores[1]["checkpoint"].startswith("model.onnx (step ")
    assert json.loads((tmp_path / "evaluation" / "model.onnx-test.json").read_text()) == {
        key: value for key, value in scores[1].items() if key != "baselines"
    }
    assert "model.onnx" in (tmp_path / "evaluation" / "model.onnx-test.html").read_text()


def test_an_exported_file_is_compared_with_its_run(trained: Path, exported: Path) -> None:
    comparison = json.loads(imdb_tx("compare", trained, exported, "--split", "validation", "--json").stdout)
    assert comparison["differences"] == {}
    assert comparison["pairs"][0]["difference"] == 0


def test_every_kind_of_model_reports_its_progress(
    trained: Path, linear: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works: list[tuple[str, int | None]] = []

    def watch(items: Iterable[Any], work: str, total: int | None) -> Iterator[Any]:
        for item in items:
            works.append((work, total))
            yield item

    texts = demo.reviews().splits["test"].texts[:20]
    whole = Predictor.load(linear).probabilities(texts)
    monkeypatch.setattr(progress, "watch", watch)
    monkeypatch.setattr("imdb_transformer.inference.linear.PART", 8)
    in_parts, _, _ = (Predictor.load(path).probabilities(texts) for path in (linear, exported, trained))
    assert works == [("predicting, part", 3)] * 3 + [("predicting, batch", 1)] * 2
    assert whole.tolist() == in_parts.tolist()


def test_the_column_of_an_exported_files_reviews_is_known(
    exported: Path, changed: Callable[[dict[str, str]], Path], tmp_path: Path
) -> None:
    entries = entries_of(exported)
    about = json.loads(entries[ABOUT])
    about["config"]["data"]["text_column"] = "body"
    (tmp_path / "r.csv").write_text("body,text\na good film,other\n")
    path = changed(entries | {ABOUT: json.dumps(about)})
    assert imdb_tx("predict", "--run", path, "--input", tmp_path / "r.csv").stdout.endswith("\ta good film\n")


def test_an_exported_file_of_the_demo_warns_that_it_knows_a_toy_grammar(
    exported: Path, changed: Callable[[dict[str, str]], Path]
) -> None:
    assert "toy grammar" not in imdb_tx("predict", "--run", exported, "a good film").stderr
    entries = entries_of(exported)
    about = json.loads(entries[ABOUT])
    about["config"]["data"]["source"] = "demo"
    predicted = imdb_tx("predict", "--run", changed(entries | {ABOUT: json.dumps(about)}), "a good film")
    assert "toy grammar" in predicted.stderr
    assert "toy grammar" not in predicted.stdout


def test_a_file_that_is_not_an_exported_model_is_refused(
    linear: Path, exported: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    content = exported.read_bytes()
    for bad in (b"", b"not a model", content[: len(content) // 2]):
        path.write_bytes(bad)
        with pytest.raises(RunError, match=r"m\.onnx"):
            Predictor.load(path)
    stranger = onnx.load_from_string(content)
    del stranger.metadata_props[:]
    onnx.save(stranger, path)
    with pytest.raises(RunError, match="not exported by this version of imdb-tx"):
        Predictor.load(path)
    shutil.copytree(linear, tmp_path / "nb")
    with pytest.raises(RunError, match="linear"):
        export(tmp_path / "nb", path)
    before = set(Path().glob("runs/*"))
    with pytest.raises(RunError, match="encoder"):
        export(run.of_package("imdb-encoder"))
    assert set(Path().glob("runs/*")) == before
    refused = imdb_tx("predict", "--run", exported, "--explain", "a film")
    assert isinstance(refused.exception, RunError)
