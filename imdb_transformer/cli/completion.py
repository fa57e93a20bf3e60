"""What a shell completes: configs, their keys, and runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUNS = Path("runs")


def config_names() -> list[str]:
    """The shipped configs."""
    from imdb_transformer.config_file import shipped

    return sorted(shipped())


def config_keys() -> list[str]:
    """`section.key=` of each key."""
    from imdb_transformer.config import Config

    return [f"{section}.{key}=" for section, values in Config().model_dump().items() for key in values]


def complete_keys(start: str) -> list[str]:
    """The keys that start so. A single one comes twice: bash would add a space to it."""
    keys = [key for key in config_keys() if key.startswith(start)]
    return [*keys, f"{keys[0]}VALUE"] if len(keys) == 1 else keys


def run_names(refused: tuple[str, ...] = (), *, shipped: bool = True) -> list[str]:
    """The folders below runs/ and the runs of the package, except those of refused kinds."""
    from imdb_transformer.store.run import SHIPPED

    folders = [(str(path.parent), path) for path in sorted(RUNS.glob("*/run.json"))]
    if shipped:
        folders += [(path.parent.name, path) for path in sorted(SHIPPED.glob("*/run.json"))]
    return [name for name, path in folders if _kind(path) not in refused]


def _kind(path: Path) -> object:
    """The kind in a run.json; None if it cannot be read. The command then says what is wrong."""
    try:
        return json.loads(path.read_bytes())["kind"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def run_path(text: str) -> Path:
    """The run, checkpoint or exported file of this path. `base` means runs/base if there is no run `base`."""
    for path in (Path(text), RUNS / text):
        if path.is_file() or (path / "run.json").exists() or (path / "checkpoint.json").exists():
            return path
    return Path(text)


def takes_run(*refused: str, shipped: bool = True) -> Any:
    """Keywords of an argument or an option that takes a run, except of some kinds, or of the package."""
    names = _starting_with(lambda: run_names(refused, shipped=shipped))
    return {"metavar": "RUN", "parser": run_path, "autocompletion": names}


def _starting_with(names: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


complete_configs = _starting_with(config_names)
