"""Names in the folder `runs` of the working directory: one that is free, and the newest run's."""

from pathlib import Path

from imdb_transformer.errors import RunError
from imdb_transformer.store.files import read_json
from imdb_transformer.store.run import INFO, RunInfo


def unused_name(name: str, runs: Path = Path("runs")) -> Path:
    """A folder below `runs` that is not there yet: NAME, NAME-2, NAME-3 and so on."""
    candidate, number = runs / name, 1
    while candidate.exists():
        number += 1
        candidate = runs / f"{name}-{number}"
    return candidate


def newest_finished(runs: Path = Path("runs")) -> Path:
    """The folder of the classifier that finished last. Raises RunError where there is none.

    A linear baseline, the number to beat, is taken only where no encoder has been trained.
    """
    finished = []
    for path in runs.glob(f"*/{INFO}"):
        try:
            info = read_json(path, RunInfo)
        except (OSError, ValueError):
            continue  # a broken run is no candidate; naming it with --run says what is wrong
        if info.status == "finished" and info.kind != "encoder":  # which knows no classes
            finished.append((not info.is_linear, info.ended, path.parent))
    if not finished:
        raise RunError(
            f"There is no finished run under {runs}/ yet; `imdb-tx train` makes one, or name it with --run."
        )
    return max(finished)[-1]
