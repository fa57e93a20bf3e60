"""`tensorboard/` of a run: the numbers of metrics.jsonl, for TensorBoard (`train.tensorboard`)."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imdb_transformer.errors import ConfigError

FILE_NAME = "tensorboard/events.out.tfevents"  # TensorBoard looks for a name with "tfevents"


def check_installed() -> None:
    """Raises ConfigError if TensorBoard is not installed."""
    try:
        import tensorboard  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError(
            "train.tensorboard needs TensorBoard, which is not installed: pip install 'imdb-tx[tensorboard]'."
        ) from None


def append(folder: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Adds the numbers of lines of metrics; those of a validation are `validation/accuracy` and so on."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    path = folder / FILE_NAME
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        for line in lines:
            scores = {f"validation/{name}": score for name, score in line.get("validation", {}).items()}
            numbers = {
                name: value for name, value in (line | scores).items() if isinstance(value, int | float)
            }
            step = numbers.pop("step")
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
            event = Event(wall_time=time.time(), step=step, summary=Summary(value=values))
            RecordWriter(file).write(event.SerializeToString())


def write_again(folder: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Replaces the file. A resumed run has dropped lines, and a crash may have cut the file's last record."""
    check_installed()
    (folder / FILE_NAME).unlink(missing_ok=True)
    append(folder, lines)
