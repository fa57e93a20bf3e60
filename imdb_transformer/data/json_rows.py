"""Reads rows of JSON lines and of JSON arrays, and finds the types of their columns."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from imdb_transformer.data.rows import UNDECODED, BadRow, Row, undecodable

MAX_NESTING = 100
TEXT_FOR_NULL = {pa.null(): pa.string()}  # later rows may have a text there
JSON_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"')


def read_json(lines: Iterator[str], encoding: str, bad_row: BadRow) -> Iterator[Row]:
    """The objects of JSON lines or of one array. In an array, rows are numbered by object."""
    first_number, first = next(((i, line) for i, line in enumerate(lines, 1) if line.strip()), (1, ""))
    values: Iterable[tuple[int, int, Any]]
    if first.lstrip().startswith("["):
        text = "".join(chain([first], lines))
        array = _parsed(text, encoding)
        values = ((number, len(text) // len(array), value) for number, value in enumerate(array, 1))
    else:
        values = _parsed_lines(enumerate(chain([first], lines), first_number), encoding, bad_row)
    for number, size, value in values:
        if isinstance(value, dict):
            yield number, size, value
        else:
            bad_row(number, 'is not a JSON object such as {"text": ...}')


def _parsed_lines(
    lines: Iterable[tuple[int, str]], encoding: str, bad_row: BadRow
) -> Iterator[tuple[int, int, Any]]:
    for number, line in lines:
        if line.strip():
            try:
                value = _parsed(line, encoding)
            except ValueError as error:
                bad_row(number, str(error))
            else:
                yield number, len(line), value


def _parsed(text: str, encoding: str) -> Any:
    """The value of a JSON text. Raises ValueError with a description of the problem.

    Later steps follow brackets by recursion: a few thousand levels would kill the process.
    """
    if UNDECODED.search(text):
        raise ValueError(undecodable(encoding))
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", JSON_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_NESTING:
            raise ValueError(f"nests lists or objects more than {MAX_NESTING} deep")
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from None


def schema_of(records: Sequence[dict[str, Any]]) -> pa.Schema:
    """A column for each key, with the type of its values: a label may be a number."""
    names = dict.fromkeys(name for cells in records for name in cells)
    return pa.schema([(name, _type_of([cells.get(name) for cells in records])) for name in names])


def check_kept(records: Sequence[dict[str, Any]], schema: pa.Schema, columns: Iterable[str]) -> None:
    """Raises ValueError, or an error of pyarrow, if one of these columns would change a value.

    pyarrow itself cuts 1.9 to 1 in a column of integers, makes true 1.0 in one of other numbers, and drops
    new fields of an object.
    """
    for name in columns:
        kind = schema.field(name).type
        if not pa.types.is_boolean(kind) and any(isinstance(cells.get(name), bool) for cells in records):
            raise ValueError(f"column {name!r} cannot hold its value")
        if pa.types.is_integer(kind) or pa.types.is_nested(kind):
            values = pa.array([cells.get(name) for cells in records])
            try:
                values.cast(kind)
            except pa.ArrowInvalid:
                raise ValueError(f"column {name!r} cannot hold its value") from None
            if _adds_fields(values.type, kind):
                raise ValueError(f"column {name!r} has an additional field")


def _adds_fields(new: pa.DataType, kind: pa.DataType) -> bool:
    """Whether objects of the type `new` have a field that those of a column's type, `kind`, lack."""
    if pa.types.is_list(new) and pa.types.is_list(kind):
        return _adds_fields(new.value_type, kind.value_type)
    if not (pa.types.is_struct(new) and pa.types.is_struct(kind)):
        return False
    known = {field.name: field.type for field in kind}
    return any(
        _adds_fields(field.type, known[field.name])
        if field.name in known
        else not pa.types.is_null(field.type)
        for field in new
    )


def _type_of(values: list[Any]) -> pa.DataType:
    """The type of all values, or else of the first: rows of another type are reported on conversion."""
    try:
        return with_leaves(pa.array(values).type, TEXT_FOR_NULL)
    except (pa.ArrowException, UnicodeError, OverflowError):  # a lone surrogate; over 64 bits
        first = next(value for value in values if value is not None)
        if type(first) is int:
            return pa.int64()
        return pa.string() if isinstance(first, str) else with_leaves(pa.array([first]).type, TEXT_FOR_NULL)


def with_leaves(kind: pa.DataType, replaced: Mapping[pa.DataType, pa.DataType]) -> pa.DataType:
    """The type with other types in place of some, also inside objects and lists."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_leaves(field.type, replaced)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(with_leaves(kind.value_type, replaced))
    return replaced.get(kind, kind)
