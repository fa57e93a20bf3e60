"""Writes the predictions of a file of reviews to another file, in bounded memory. Can be resumed."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import feather

from imdb_transformer import __version__
from imdb_transformer.data.tables import BLOCK_BYTES, BLOCK_ROWS
from imdb_transformer.errors import ConfigError, DataError
from imdb_transformer.inference.predictor import Predictor, identity_of
from imdb_transformer.inference.tables import output_schema, with_predictions, write_tables
from imdb_transformer.store.files import whole_file, write_whole
from imdb_transformer.store.locks import locked

CALL = "call.json"


def describe_call(
    predictor: Predictor, paths: Sequence[Path], input_file: Path, reading: Mapping[str, str],
    classes: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Everything that the predictions of a file depend on; `reading` has the options of its format."""
    status = input_file.stat() if input_file.is_file() else None
    return {
        "input": [str(input_file.resolve()), *([status.st_size, status.st_mtime_ns] if status else [])],
        "rows and bytes a part": [BLOCK_ROWS, BLOCK_BYTES],
        # With --bad-rows fail, the parts so far have no bad row, and are the same as with skip.
        **{
            f"--{key.replace('_', '-')}": value
            for key, value in reading.items()
            if (key, value) != ("bad_rows", "fail")
        },
        "run": [identity_of(path) for path in paths],
        "precision": [model.precision for model in predictor.models],
        "--threshold": predictor.threshold,
        "--probabilities": list(classes),
        "version of imdb-tx": __version__,
    }


def write_predictions(
    predictor: Predictor, parts: Iterable[pa.Table], schema: pa.Schema, column: str, output: Path,
    call: dict[str, Any], *, resume: bool, classes: Sequence[str] = (),
) -> Iterator[tuple[bool, int]]:  # fmt: skip
    """Writes the tables of a file with their predictions to `output`.

    The predictions of each part are saved as an Arrow file in a folder beside the output. When all parts are
    done, the output is written from them and the folder is removed. With `resume`, parts that an earlier call
    saved are not predicted again.

    After each part, yields whether it was predicted now, and the number of rows so far. Raises ConfigError if
    the earlier call differed from `call`, RunError if it is still running, and DataError if one of its files
    is damaged.
    """
    out, num_rows, paths = output_schema(schema, classes), 0, []
    with claimed(output, call, resume=resume) as folder:
        for i, part in enumerate(parts):
            paths.append(folder / f"{i:06}.arrow")
            if is_new := not paths[-1].exists():
                predictions = list(predictor(part.column(column).to_pylist()))
                with whole_file(paths[-1]) as temporary:
                    table = with_predictions(part, predictions, out, classes)
                    feather.write_feather(table, temporary, compression="zstd")
            num_rows += part.num_rows
            yield is_new, num_rows
        write_tables((_saved_table(path, out) for path in paths), out, output)
        shutil.rmtree(folder)


@contextmanager
def claimed(output: Path, call: dict[str, Any], *, resume: bool) -> Iterator[Path]:
    """Locks and yields the folder of an output's parts. Without `resume` it deletes them first.

    Raises ConfigError, RunError and DataError, see `write_predictions`.
    """
    folder = parts_folder(output)
    folder.mkdir(exist_ok=True)
    with locked(folder):
        if resume and (folder / CALL).exists():
            try:
                earlier = dict(json.loads((folder / CALL).read_bytes()))
            except (OSError, ValueError, TypeError, RecursionError):
                raise DataError(f"{folder} is damaged; leave out --resume to start over.") from None
            for key, value in earlier.items():
                if call.get(key) != value:
                    raise ConfigError(
                        f"{output} was started with other settings ({key}: {value}, now {call.get(key)}); "
                        "leave out --resume to start over."
                    )
        else:
            for path in folder.iterdir():
                path.unlink()
            write_whole(folder / CALL, json.dumps(call, indent=1).encode())
        yield folder


def parts_folder(output: Path) -> Path:
    """The folder with the parts of an unfinished output."""
    return output.with_name(f".{output.name}.parts")


def _saved_table(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        return feather.read_table(path, memory_map=False).cast(schema)
    except pa.ArrowException:
        raise DataError(f"{path} is damaged; leave out --resume to start over.") from None
