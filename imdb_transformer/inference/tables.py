"""Files in, files out: reviews of a text or table file, and predictions beside its columns."""

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet

from imdb_transformer.data.reviews import lines_of
from imdb_transformer.data.tables import TABLE_SUFFIXES, is_table, read_table, text_values
from imdb_transformer.errors import ConfigError, DataError
from imdb_transformer.files import whole_file
from imdb_transformer.inference.predict import Prediction


def read_reviews(path: Path, column: str) -> pa.Table:
    """A table with the reviews of a file in `column`: a table file's rows, or a text file's lines."""
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    if is_table(path):
        table = read_table(path, [column])
        text_values(table, column, path)
        return table
    if path.suffix.lower() != ".txt":
        raise ConfigError(f"--input {path}: its name should end in {', '.join(TABLE_SUFFIXES)} or .txt.")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty.")
    with path.open("rb") as file:
        return pa.table({column: list(lines_of(file, str(path)))})


def check_output(path: Path, table: pa.Table) -> None:
    """Raises ConfigError where `write_predictions` could not write the table to such a file."""
    if not is_table(path):
        raise ConfigError(f"--output {path}: its name should end in one of {', '.join(TABLE_SUFFIXES)}.")
    if not path.parent.is_dir():
        raise ConfigError(f"--output {path}: there is no folder {path.parent}.")
    nested = [field.name for field in table.schema if pa.types.is_nested(field.type)]
    if nested and path.suffix.lower() in (".csv", ".tsv"):
        raise ConfigError(
            f"--output {path}: column {nested[0]!r} holds lists or objects; write .jsonl or .parquet."
        )


def write_predictions(table: pa.Table, predictions: Iterable[Prediction], path: Path) -> None:
    """Writes a table with `predicted_label` and `probability` added, in the format of the file's name."""
    columns: dict[str, list[object]] = {"predicted_label": [], "probability": []}
    for prediction in predictions:
        columns["predicted_label"].append(prediction.label)
        columns["probability"].append(prediction.probability)
    for name, values in columns.items():
        if name in table.column_names:
            table = table.drop_columns(name)
        table = table.append_column(name, pa.array(values))
    suffix = path.suffix.lower()
    with whole_file(path) as temporary:
        if suffix == ".parquet":
            parquet.write_table(table, temporary)
        elif suffix == ".jsonl":
            with temporary.open("w", encoding="utf-8") as file:
                for batch in table.to_batches(max_chunksize=1000):
                    file.writelines(
                        json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in batch.to_pylist()
                    )
        else:
            csv.write_csv(table, temporary, csv.WriteOptions(delimiter="\t" if suffix == ".tsv" else ","))
