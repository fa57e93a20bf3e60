"""Reads tables of reviews in parts, and writes them with their predictions. Writing can be resumed."""

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import feather

from imdb_transformer import __version__
from imdb_transformer.data import layouts, tables
from imdb_transformer.data.reviews import BadRow, refuse
from imdb_transformer.data.suggestions import suggested_options
from imdb_transformer.errors import ConfigError, DataError
from imdb_transformer.inference.predictor import Prediction, Predictor, identity_of
from imdb_transformer.inference.table_formats import check_values, write_tables
from imdb_transformer.store.files import whole_file, write_whole
from imdb_transformer.store.locks import locked

CALL = "call.json"


def open_reviews(
    path: Path, column: str, *, encoding: str = "utf-8", bad_row: BadRow = refuse,
    file: BinaryIO | None = None, keeps_all: bool = True,
) -> tuple[pa.Schema, Iterator[pa.Table]]:  # fmt: skip
    """The columns of a file of reviews, and its rows in tables of at most 2,000 rows.

    In a text file or a pipe each line is a review. In a table, a row without text is a bad row. `bad_row`,
    `file` and `keeps_all` are those of `open_table`. Raises ConfigError and DataError.
    """
    if file is None and not path.exists():
        raise DataError(f"There is no file {path}.")
    if file is None and path.is_dir():
        raise DataError(f"--input {path} is a folder; name a file in it.")
    if file is None and path.is_file() and not tables.is_table(path) and tables.suffix_of(path) != ".txt":
        advice = layouts.ADVICE.get(tables.suffix_of(path), "")
        raise ConfigError(f"--input {path}: its name must end in .txt, {tables.ENDINGS}. {advice}".rstrip())
    hint = {column: "--text-column"}
    try:
        schema, blocks = tables.open_table(
            path, hint, encoding=encoding, bad_row=bad_row, file=file, keeps_all=keeps_all
        )
    except DataError as error:
        suggestion = "" if file else suggested_options(path, encoding, column)
        raise DataError(f"{error}{suggestion}") from None
    whole = tables.with_text(blocks, column, path, bad_row=bad_row, may_be_blank=not tables.is_table(path))
    return schema, (pa.Table.from_batches([batch]) for batch, _ in whole)


def output_schema(schema: pa.Schema, classes: Sequence[str] = ()) -> pa.Schema:
    """The columns of an input, then those of the predictions, which replace columns of the same name.

    Each of `classes` gets a column with its probability.
    """
    added = added_columns(classes)
    return pa.schema([*(field for field in schema if field.name not in added), *added.items()])


def added_columns(classes: Sequence[str]) -> dict[str, pa.DataType]:
    """The columns of the predictions."""
    of_each = {f"probability_{name}": pa.float64() for name in classes}
    return {"predicted_label": pa.string(), "probability": pa.float64(), **of_each}


def with_predictions(
    table: pa.Table, predictions: Sequence[Prediction], out: pa.Schema, classes: Sequence[str] = ()
) -> pa.Table:
    """A table of the input with its predictions, in the columns of `output_schema`."""
    added: dict[str, list[Any]] = {
        "predicted_label": [p.label for p in predictions],
        "probability": [p.probability for p in predictions],
    }
    added |= {f"probability_{name}": [p.probabilities[name] for p in predictions] for name in classes}
    columns = [added[name] if name in added else table.column(name) for name in out.names]
    return pa.table(columns, schema=out)


def describe_call(
    predictor: Predictor, input_file: Path, column: str, encoding: str, classes: Sequence[str]
) -> dict[str, Any]:
    """All that the predictions of a file depend on, except `--bad-rows`: resuming meets a bad row again."""
    status = input_file.stat() if input_file.is_file() else None
    return {
        "input": [str(input_file.resolve()), *([status.st_size, status.st_mtime_ns] if status else [])],
        "rows and bytes a part": [tables.BLOCK_ROWS, tables.BLOCK_BYTES],
        "--text-column": column,
        "--encoding": encoding,
        "run": [identity_of(model) for model in predictor.models],
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
                check_values(part, output.suffix.lower())  # now, not when all is predicted
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
        try:
            yield folder
        finally:
            if not any(folder.glob("*.arrow")):
                shutil.rmtree(folder, ignore_errors=True)


def parts_folder(output: Path) -> Path:
    """The folder with the parts of an unfinished output."""
    return output.with_name(f".{output.name}.parts")


def _saved_table(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        return feather.read_table(path, memory_map=False).cast(schema)
    except pa.ArrowException:
        raise DataError(f"{path} is damaged; leave out --resume to start over.") from None
