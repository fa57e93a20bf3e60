"""A few hundred damaged files of each kind; scripts/reliability.py reads 100,000 of each."""

from pathlib import Path

import pytest

from imdb_transformer.errors import USER_ERRORS
from tests import fuzz


@pytest.mark.parametrize("kind", range(4))
def test_damaged_files_raise_only_errors_of_the_package(tmp_path: Path, kind: int) -> None:
    name, reader, seeds = list(fuzz.readers(tmp_path))[kind]
    for seed in seeds:
        if name != "config":  # the second of those is broken on purpose
            assert reader(seed) is not None
    for case in range(500):
        content = fuzz.mutated(seeds, case)
        try:
            reader(content)
        except USER_ERRORS:
            continue
