"""`metrics.jsonl` of a run: a JSON object a step and a validation, in order.

Lines are appended to it. It is the one file of a run that a crash may leave with half a line at its end.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imdb_transformer.store.files import naming, write_whole

FILE_NAME = "metrics.jsonl"


def append(folder: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Adds lines and waits until they are on disk."""
    path = folder / FILE_NAME
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def drop_after(folder: Path, step: int) -> None:
    """Forgets what was logged after `step`, and a line that a crash cut: a resumed run logs it again."""
    kept = [line for line in read(folder) if line["step"] <= step]
    write_whole(folder / FILE_NAME, "".join(json.dumps(line) + "\n" for line in kept).encode())


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines that are whole; one that a crash cut short ends them."""
    lines: list[dict[str, Any]] = []
    path = folder / FILE_NAME
    if path.exists():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):  # the latter from brackets in brackets
                break
            if not isinstance(line, dict) or not isinstance(line.get("step"), int):
                break
            lines.append(line)
    return lines
