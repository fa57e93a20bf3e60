"""`metrics.jsonl` of a run: one JSON object a step and a validation, in order.

Lines are appended. It is the only file of a run that a crash may leave with half a line at its end.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imdb_transformer.store.files import errors_name, write_whole

FILE_NAME = "metrics.jsonl"


def append(folder: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Adds lines and waits until they are on disk."""
    path = folder / FILE_NAME
    with errors_name(path), path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def drop_after(folder: Path, step: int) -> None:
    """Removes the lines after `step`, and a line that a crash cut. A resumed run logs them again."""
    lines = [json.dumps(line) + "\n" for line in read(folder) if line["step"] <= step]
    write_whole(folder / FILE_NAME, "".join(lines).encode())


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines before the first damaged one."""
    path = folder / FILE_NAME
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines: list[dict[str, Any]] = []
    for each in text.splitlines():
        try:
            line = json.loads(each)
        except (ValueError, RecursionError):  # the latter from deeply nested brackets
            break
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            break
        lines.append(line)
    return lines
