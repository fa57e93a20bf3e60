"""A long prediction that can be stopped and goes on: what is done is kept beside the output until all is.

Each part of the input that was predicted is an Arrow file of its own, whatever the output's format, in a
folder `.NAME.parts`; the output is put together from them at the end.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import feather

from imdb_transformer.errors import ConfigError, DataError
from imdb_transformer.files import whole_file, write_whole
from imdb_transformer.inference.tables import write_tables

CALL = "call.json"


def begin(output: Path, call: dict[str, Any], *, resume: bool) -> int:
    """The number of parts that an earlier call left; none, and none are left, where that is not resumed.

    `call` is what the predictions depend on. Raises ConfigError where the earlier one differs.
    """
    folder = parts_folder(output)
    description = json.dumps(call, indent=1).encode()
    if folder.exists() and resume:
        try:
            earlier = dict(json.loads((folder / CALL).read_bytes()))
        except (OSError, ValueError, TypeError):
            raise DataError(f"{folder} is damaged; without --resume {output} is predicted anew.") from None
        for key, value in call.items():
            if earlier.get(key) != value:
                raise ConfigError(
                    f"{output} was begun with another {key} ({earlier.get(key)}, now {value}); "
                    "without --resume it is predicted anew."
                )
        return len(list(_parts(folder)))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_whole(folder / CALL, description)
    return 0


def keep(output: Path, index: int, table: pa.Table) -> None:
    """Keeps the predictions of a part of the input."""
    with whole_file(_part(parts_folder(output), index)) as temporary:
        feather.write_feather(table, temporary, compression="zstd")


def finish(output: Path, schema: pa.Schema) -> int:
    """Puts the output together from its parts, which go; gives its number of rows. Raises DataError."""
    folder = parts_folder(output)

    def tables() -> Iterator[pa.Table]:
        for path in _parts(folder):
            try:
                yield feather.read_table(path, memory_map=False).cast(schema)
            except pa.ArrowException:
                raise DataError(f"{path} is damaged; without --resume {output} is predicted anew.") from None

    num_rows = write_tables(tables(), schema, output)
    shutil.rmtree(folder)
    return num_rows


def parts_folder(output: Path) -> Path:
    """Where the parts of an unfinished output lie."""
    return output.with_name(f".{output.name}.parts")


def _part(folder: Path, index: int) -> Path:
    return folder / f"{index:06}.arrow"


def _parts(folder: Path) -> Iterator[Path]:
    """The parts that are there, in order, up to the first that is not."""
    index = 0
    while (path := _part(folder, index)).exists():
        yield path
        index += 1
