"""How deep the lists and objects of a JSONL file nest, before a parser reads it.

pyarrow parses JSON by recursion: some thousand brackets in brackets end the process.
"""

import re
from pathlib import Path

from imdb_transformer.errors import DataError

MAX_NESTING = 100
JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"')


def check_nesting(path: Path, *, max_line_bytes: int) -> None:
    """Raises DataError where brackets nest deeper than `MAX_NESTING`, or a line is too long."""
    depth = 0
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(max_line_bytes + 1), b""), 1):
            if len(line) > max_line_bytes:
                raise DataError(f"{path}: line {number} has more than {max_line_bytes:,} bytes.")
            for bracket in re.findall(rb"[\[\]{}]", JSON_STRING.sub(b"", line)):
                depth += 1 if bracket in b"[{" else -1
                if depth > MAX_NESTING:
                    raise DataError(
                        f"{path}: line {number} nests lists or objects more than {MAX_NESTING} deep."
                    )
