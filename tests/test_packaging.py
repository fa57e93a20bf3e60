"""What pyproject says of the package is true, and the README's picture exists."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from scripts.index_readme import IndexReadme, drawn

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def imported() -> set[str]:
    """The top names of all imports in the package."""
    names: set[str] = set()
    for path in (ROOT / "imdb_transformer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


def plain(requirement: str) -> str:
    return re.split(r"[<>=!~\[; ]", requirement)[0].lower().replace("_", "-")


def test_every_imported_package_is_declared_and_no_other() -> None:
    required = {plain(each) for each in PROJECT["dependencies"]}
    extras = PROJECT["optional-dependencies"]
    optional = {plain(each) for each in (*extras["onnx"], *extras["excel"], *extras["tensorboard"])}
    names = imported() - set(sys.stdlib_module_names) - {"imdb_transformer"}
    of_name = packages_distributions()
    distributions = {
        plain(of_name[name][0]) for name in names if plain(of_name[name][0]) not in optional - required
    }
    assert distributions == required


def test_each_picture_of_the_readme_is_in_the_repository_and_is_described_in_words() -> None:
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", (ROOT / "README.md").read_text())
    assert pictures
    for description, path in pictures:
        assert len(description) > 20  # where the picture is not shown
        assert ElementTree.parse(ROOT / path).getroot().tag.endswith("svg")


def test_the_picture_is_drawn_in_text_for_the_package_index() -> None:
    metadata: dict[str, Any] = {}
    IndexReadme(str(ROOT), {}).update(metadata)
    assert metadata["readme"]["content-type"] == "text/markdown"
    before, _, after = metadata["readme"]["text"].partition("max-pool: the largest value of each channel")
    assert before.count("```") == 1
    assert "![" not in before + after
    assert (ROOT / "README.md").read_text().endswith(after[-5000:])
    for readme in ("no picture", "![a](b) ![c](d)"):
        with pytest.raises(ValueError, match="draws one"):
            drawn(readme)


def test_classifiers_name_the_systems_and_the_pythons_from_the_lowest_on() -> None:
    classifiers = PROJECT["classifiers"]
    assert any(each.startswith("Operating System :: ") for each in classifiers)
    pythons = [each.rsplit(" ", 1)[1] for each in classifiers if re.search(r":: 3\.\d+$", each)]
    assert f">={pythons[0]}" == PROJECT["requires-python"]
