"""The number to beat, beside a run's own: linear models that were fitted on the same reviews."""

from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from imdb_transformer.errors import DataError, RunError
from imdb_transformer.evaluation.evaluate import evaluate_split, figures_file
from imdb_transformer.evaluation.figures import Evaluation
from imdb_transformer.store import run


def linear_baselines(path: Path, split: str, *, data_dir: str | None = None) -> dict[str, Evaluation]:
    """By folder, the figures of the linear runs that lie next to a run and were fitted on the same reviews.

    One that has not been measured on this split yet is measured now, which takes seconds. A broken neighbour
    is not this run's matter: it is left out.
    """
    opened, _ = run.locate(path)
    found = {}
    for info in sorted(opened.folder.parent.glob(f"*/{run.INFO}")):
        with suppress(RunError, DataError, OSError):
            other = run.open_run(info.parent)
            if (
                other.folder != opened.folder
                and other.info.is_linear
                and other.info.status == "finished"
                and other.info.corpus_hash == opened.info.corpus_hash
                and other.config.data.validation == opened.config.data.validation
            ):
                found[str(other.folder)] = _figures(other.folder, split, data_dir)
    return found


def _figures(folder: Path, split: str, data_dir: str | None) -> Evaluation:
    try:
        return Evaluation.model_validate_json(figures_file(folder, f"best-{split}").read_bytes())
    except (OSError, ValidationError):  # not measured, or by another version
        return evaluate_split([folder], split, data_dir=data_dir)[0]
