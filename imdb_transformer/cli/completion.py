"""What a shell completes: configs, their keys, and runs."""

import json
from pathlib import Path
from typing import Any

RUNS = Path("runs")


def complete_configs(start: str) -> list[str]:
    """The shipped configs whose names begin with `start`."""
    from imdb_transformer.config_file import shipped

    return [name for name in sorted(shipped()) if name.startswith(start)]


def config_keys() -> list[str]:
    """`section.key=` of each key."""
    from imdb_transformer.config import Config

    return [f"{section}.{key}=" for section, values in Config().model_dump().items() for key in values]


def complete_keys(start: str) -> list[str]:
    """The keys that begin with `start`. A single one comes twice: bash would add a space to it."""
    keys = [key for key in config_keys() if key.startswith(start)]
    return [*keys, f"{keys[0]}VALUE"] if len(keys) == 1 else keys


def _kind(path: Path) -> object:
    """The kind in a run.json; None if it cannot be read. The command then says what is wrong."""
    try:
        return json.loads(path.read_bytes())["kind"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def run_path(text: str) -> Path:
    """The run, checkpoint or exported file of this path. `base` means runs/base if there is no run `base`."""
    for path in (Path(text), RUNS / text):
        is_of_run = path.parent.name == "checkpoints" and (path.parents[1] / "run.json").exists()
        if path.is_file() or (path / "run.json").exists() or is_of_run:
            return path
    return Path(text)


def takes_run(*refused: str, shipped: bool = True) -> Any:
    """Keywords for typer of an argument or option that takes a run.

    Completion leaves out runs of the `refused` kinds and, without `shipped`, the runs of the package.
    """

    def complete(start: str) -> list[str]:
        from imdb_transformer.store.run import SHIPPED

        runs = [(str(path.parent), path) for path in sorted(RUNS.glob("*/run.json"))]
        if shipped:
            runs += [(path.parent.name, path) for path in sorted(SHIPPED.glob("*/run.json"))]
        return [name for name, path in runs if name.startswith(start) and _kind(path) not in refused]

    return {"metavar": "RUN", "parser": run_path, "autocompletion": complete}
