"""The changes that scripts/mutation.py tries, and the tests that it refuses."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mutmut", reason="needs the extra `mutation`")
pytest.importorskip("coverage", reason="needs the extra `mutation`")

from scripts import mutation
from scripts.mutants import lines_in_functions, mutants_of

SOURCE = '''"""A file with 2 + 2 words."""
Pair = tuple[int, int]


def larger(x: tuple[int, int], by: int = 1) -> int:
    """Adds 1."""
    if x[0] > 3:
        raise ValueError("more than 3")
    return x[1] + by
'''


def test_mutants_change_what_runs_and_leave_words_and_types_alone(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    mutants = mutants_of(tmp_path, "a.py", sample=0, seed=0)
    assert {mutant.diff.splitlines()[-1].strip("+ ") for mutant in mutants} == {
        "def larger(x: tuple[int, int], by: int = 2) -> int:",
        "if x[1] > 3:", "if x[0] >= 3:", "if x[0] > 4:",
        "raise ValueError(None)",
        "return x[2] + by", "return x[1] - by",
    }  # fmt: skip
    assert [mutant.lines[-1] for mutant in mutants] == [5, 7, 7, 7, 8, 9, 9]
    sample = mutants_of(tmp_path, "a.py", sample=3, seed=0)
    assert len(sample) == 3
    assert set(sample) < set(mutants)


def test_lines_outside_of_functions_are_tried_with_all_tests_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    assert lines_in_functions(SOURCE) == {6, 7, 8, 9}
    mutants = mutants_of(tmp_path, "a.py", sample=0, seed=0)
    lines = {"5": ["one"], "7": ["one"], "8": ["one"], "9": ["two"]}
    watched = {"costs": {"one": 2.0, "two": 1.0}, "lines": {"a.py": lines}}
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    chosen = mutation.tests_of(mutants, [watched], budget=10)
    of_line = {mutant.lines[-1]: list(chosen[mutant.key]) for mutant in mutants}
    assert of_line == {5: ["two", "one"], 7: ["one"], 8: ["one"], 9: ["two"]}


def test_a_test_that_fails_on_the_unchanged_code_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(file: str, told: Path, _: Path) -> int:
        told.write_text(json.dumps({"costs": {}, "lines": {}, "failed": [f"{file}::test_sum"]}))
        return 0

    def at_once(trees: list[Path], jobs: Iterable[tuple[str, Callable[[Path], int]]]) -> Iterator[Any]:
        return ((file, trees[0], work(trees[0])) for file, work in jobs)

    monkeypatch.setattr(mutation, "BUILD", tmp_path)
    monkeypatch.setattr(mutation, "record", record)
    monkeypatch.setattr(mutation, "at_once", at_once)
    with pytest.raises(SystemExit, match=r"fail on the unchanged code:\s+tests/test_mutation.py::test_sum"):
        mutation.executed([tmp_path], ["test_mutation.py"])
    assert not list(tmp_path.iterdir())  # the next command watches them again
    monkeypatch.setattr(mutation, "record", lambda *_: 1)
    with pytest.raises(SystemExit, match=r"pytest ended before .*tests/test_mutation.py"):
        mutation.executed([tmp_path], ["test_mutation.py"])
