"""`metrics.jsonl` of a run: one JSON object for each step and each validation, in order.

Lines are appended, so a crash may leave half a line at the end. If TensorBoard is installed, the numbers are
also written for it, into `tensorboard/`.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from imdb_transformer.store.files import errors_name, write_whole

FILE_NAME = "metrics.jsonl"
EVENTS = "tensorboard/events.out.tfevents"  # TensorBoard looks for a name with "tfevents"


def append(folder: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Adds lines and waits until they are on disk."""
    path = folder / FILE_NAME
    with errors_name(path), path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    _append_events(folder, lines)


def drop_after(folder: Path, step: int) -> None:
    """Removes the lines after `step`, and a line that a crash cut. A resumed run logs them again."""
    lines = [line for line in read(folder) if line["step"] <= step]
    write_whole(folder / FILE_NAME, "".join(json.dumps(line) + "\n" for line in lines).encode())
    _append_events(folder, lines, mode="wb")


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines without the damaged ones."""
    return [line for line in parsed(folder) if line is not None]


def parsed(folder: Path) -> list[dict[str, Any] | None]:
    """The lines, with None for each damaged one."""
    path = folder / FILE_NAME
    return [_parsed(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):  # the latter from deeply nested brackets
        return None
    return values if isinstance(values, dict) and isinstance(values.get("step"), int) else None


def _append_events(folder: Path, lines: Sequence[dict[str, Any]], mode: Literal["ab", "wb"] = "ab") -> None:
    """Writes the numbers for TensorBoard; those of a validation are `validation/accuracy` and so on."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except Exception:  # it is missing, or does not fit protobuf: TypeError, or protobuf's VersionError
        return
    path = folder / EVENTS
    path.parent.mkdir(exist_ok=True)
    with errors_name(path), path.open(mode) as file:
        for line in lines:
            scores = {f"validation/{name}": score for name, score in line.get("validation", {}).items()}
            numbers = {
                name: value for name, value in (line | scores).items() if isinstance(value, int | float)
            }
            step = numbers.pop("step")
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
            event = Event(wall_time=time.time(), step=step, summary=Summary(value=values))
            RecordWriter(file).write(event.SerializeToString())
