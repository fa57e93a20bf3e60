"""`predict --input`: a file of reviews, part by part, into a file or onto the terminal."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from imdb_transformer.cli import answers
from imdb_transformer.errors import Interrupted
from imdb_transformer.report import terminal

if TYPE_CHECKING:  # heavy: imported in the functions
    from imdb_transformer.inference.predictor import Predictor


class Table(NamedTuple):
    """What is to become of a file of reviews."""

    input_file: Path
    output: Path | None
    column: str
    skip_bad: bool
    resume: bool


def predict_file(paths: list[Path], table: Table, *, as_json: bool) -> None:
    """What a file's reviews are: written to --output, or printed."""
    from tqdm import tqdm

    from imdb_transformer.inference import tables  # with pyarrow, which a review as an argument does not need

    skip = (lambda what: print(f"skipped: {what}", file=sys.stderr)) if table.skip_bad else None
    schema, parts = tables.open_reviews(table.input_file, table.column, skip=skip)
    if table.output is not None:
        tables.check_output(table.output, schema)
    predictor = answers.load(paths)
    disable = None if table.output else True
    screen = terminal.beneath(sys.stderr)
    with tqdm(unit=" reviews", file=screen, disable=disable, dynamic_ncols=True) as bar:
        if table.output is not None:
            _write(predictor, paths, table, schema, parts, bar, as_json=as_json)
            return
        for part in parts:
            predictions = predictor(part.column(table.column).to_pylist())
            answers.show(predictions, as_json=as_json, flush=False)


def _write(
    predictor: "Predictor", paths: list[Path], table: Table, schema: Any, parts: Iterator[Any], bar: Any,
    *, as_json: bool,
) -> None:  # fmt: skip
    from imdb_transformer.inference import restart, tables

    output = table.output
    assert output is not None
    out = tables.output_schema(schema)
    call = _call(paths, table, predictor)
    num_kept = 0
    with restart.begun(output, call, resume=table.resume) as num_done:
        try:
            for i, part in enumerate(parts):
                if i >= num_done:
                    predictions = list(predictor(part.column(table.column).to_pylist()))
                    restart.keep(output, i, tables.with_predictions(part, predictions, out))
                    bar.update(part.num_rows)
                else:  # took none of this bar's time
                    bar.initial = bar.n = num_kept + part.num_rows
                num_kept += part.num_rows
        except Interrupted as stopped:
            raise Interrupted(
                f"{stopped} {num_kept:,} predictions are kept; the same command with --resume goes on.",
                exit_code=stopped.exit_code,
            ) from None
        num_rows = restart.finish(output, out)
    if as_json:
        print(json.dumps({"output": str(output), "num_rows": num_rows}))
    print(f"{num_rows:,} predictions written to {output}", file=sys.stderr)


def _call(paths: list[Path], table: Table, predictor: "Predictor") -> dict[str, Any]:
    """What the predictions of a file depend on."""
    from imdb_transformer import __version__
    from imdb_transformer.data.reviews import CHUNK_CHARACTERS
    from imdb_transformer.inference.predictor import CHUNK, identity_of

    about = table.input_file.stat()
    return {
        "input": [str(table.input_file.resolve()), about.st_size, about.st_mtime_ns],
        "rows and characters a part": [CHUNK, CHUNK_CHARACTERS],
        "text column": table.column,
        "--bad-rows": "skip" if table.skip_bad else "fail",
        "run": [identity_of(path) for path in paths],
        "precision": [model.precision for model in predictor.models],
        "version of imdb-tx": __version__,
    }
