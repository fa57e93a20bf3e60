import re
import shutil
from pathlib import Path

import yaml

from imdb_transformer.evaluation.evaluate import evaluate
from imdb_transformer.report.card import card
from imdb_transformer.store import run
from tests.conftest import imdb_tx


def test_eval_on_test_writes_a_model_card_that_the_hub_can_read(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    shutil.copytree(trained, folder)
    assert imdb_tx("eval", folder, "--split", "validation").exit_code == 0
    assert not (folder / "README.md").exists()
    assert imdb_tx("eval", folder).exit_code == 0
    text = (folder / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    told = yaml.safe_load(head)
    assert told["pipeline_tag"] == "text-classification"
    accuracy = evaluate(folder).accuracy
    (result,) = told["model-index"][0]["results"]
    assert result["metrics"][0] == {"type": "accuracy", "value": round(accuracy, 4)}
    assert result["dataset"]["type"] == "own"
    assert f"{100 * accuracy:.2f}%" in body
    assert "On the test split, " in body


def test_a_card_neither_names_folders_nor_contains_markup_of_a_class(trained: Path) -> None:
    opened = run.open_run(trained)
    evaluation = evaluate(trained, "validation").model_copy(update={"classes": ("<b>a|b</b>", "# two")})
    text = card(opened, evaluation)
    assert str(Path(opened.config.data.source).parent) not in text.split("```toml")[0]
    assert "<b>" not in text
    assert "\\<b\\>a\\|b\\</b\\>" in text
    assert re.search(r"^# two", text, re.M) is None
