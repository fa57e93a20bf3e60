"""Predictions of a long file, which can be interrupted and resumed.

The predictions of each part of the input are saved as an Arrow file in the folder `.NAME.parts` beside the
output. When all parts are done, the output is written from them and the folder is removed.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import feather

from imdb_transformer import __version__
from imdb_transformer.data.reviews import CHUNK_CHARACTERS
from imdb_transformer.errors import ConfigError, DataError
from imdb_transformer.inference.predictor import CHUNK, Predictor, identity_of
from imdb_transformer.inference.tables import output_schema, with_predictions, write_tables
from imdb_transformer.store.files import whole_file, write_whole
from imdb_transformer.store.locks import locked

CALL = "call.json"


def describe_call(
    predictor: Predictor, paths: Sequence[Path], input_file: Path, column: str, bad_rows: str
) -> dict[str, Any]:
    """All that the predictions of a file depend on."""
    status = input_file.stat()
    return {
        "input": [str(input_file.resolve()), status.st_size, status.st_mtime_ns],
        "rows and characters a part": [CHUNK, CHUNK_CHARACTERS],
        "text column": column,
        "--bad-rows": bad_rows,
        "run": [identity_of(path) for path in paths],
        "precision": [model.precision for model in predictor.models],
        "version of imdb-tx": __version__,
    }


def write_predictions(
    predictor: Predictor, parts: Iterable[pa.Table], schema: pa.Schema, column: str, output: Path,
    call: dict[str, Any], *, resume: bool,
) -> Iterator[tuple[bool, int]]:  # fmt: skip
    """Writes the tables of a file with their predictions to `output`.

    Yields after each part whether it was predicted now, and the number of rows done. Raises ConfigError,
    DataError and RunError, see `begun` and `finish`.
    """
    out = output_schema(schema)
    num_rows = 0
    with begun(output, call, resume=resume) as num_done:
        for i, part in enumerate(parts):
            is_new = i >= num_done
            if is_new:
                predictions = list(predictor(part.column(column).to_pylist()))
                keep(output, i, with_predictions(part, predictions, out))
            num_rows += part.num_rows
            yield is_new, num_rows
        finish(output, out)


@contextmanager
def begun(output: Path, call: dict[str, Any], *, resume: bool) -> Iterator[int]:
    """Gives the number of parts that an earlier call has saved; without `resume` they are deleted.

    `call` is what the predictions depend on. Raises ConfigError if the earlier one differs, and RunError if
    it is still at work.
    """
    folder = parts_folder(output)
    folder.mkdir(exist_ok=True)
    with locked(folder):
        if resume and (folder / CALL).exists():
            _check_same(call, output)
        else:
            for path in folder.iterdir():
                path.unlink()
            write_whole(folder / CALL, json.dumps(call, indent=1).encode())
        yield len(list(_parts(folder)))


def _check_same(call: dict[str, Any], output: Path) -> None:
    folder = parts_folder(output)
    try:
        earlier = dict(json.loads((folder / CALL).read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        raise DataError(f"{folder} is damaged; leave out --resume to start over.") from None
    for key, value in call.items():
        if earlier.get(key) != value:
            raise ConfigError(
                f"{output} was begun with other settings ({key}: {earlier.get(key)}, now {value}); "
                "leave out --resume to start over."
            )


def keep(output: Path, index: int, table: pa.Table) -> None:
    """Saves the predictions of a part of the input."""
    with whole_file(_part(parts_folder(output), index)) as temporary:
        feather.write_feather(table, temporary, compression="zstd")


def finish(output: Path, schema: pa.Schema) -> int:
    """Writes the output from its parts, then deletes them; returns its number of rows. Raises DataError."""
    folder = parts_folder(output)

    def tables() -> Iterator[pa.Table]:
        for path in _parts(folder):
            try:
                yield feather.read_table(path, memory_map=False).cast(schema)
            except pa.ArrowException:
                raise DataError(f"{path} is damaged; leave out --resume to start over.") from None

    num_rows = write_tables(tables(), schema, output)
    shutil.rmtree(folder)
    return num_rows


def parts_folder(output: Path) -> Path:
    """The folder with the parts of an unfinished output."""
    return output.with_name(f".{output.name}.parts")


def _part(folder: Path, index: int) -> Path:
    return folder / f"{index:06}.arrow"


def _parts(folder: Path) -> Iterator[Path]:
    """The saved parts, in order, up to the first one that is missing."""
    index = 0
    while (path := _part(folder, index)).exists():
        yield path
        index += 1
