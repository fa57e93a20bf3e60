"""The changes that scripts/mutation.py tries."""

from pathlib import Path

import pytest

pytest.importorskip("mutmut", reason="needs the extra `mutation`")

from scripts.mutants import mutants_of

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
