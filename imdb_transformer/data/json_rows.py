"""Reads rows of JSON lines and of JSON arrays, and finds the types of their columns."""

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import pyarrow as pa

from imdb_transformer.data.rows import UNDECODED, Report, Row, undecodable
from imdb_transformer.errors import DataError

MAX_NESTING = 100
MAX_COLUMNS = 1000  # that rows after the first ones may add up to: keys may be ids
MAX_EXACT = 2**53  # the largest integer to which all smaller ones are floats, too
TEXT_FOR_NULL = {pa.null(): pa.string()}  # later rows may have a text there
ON_LINES = "; write each object on one line, without a comma after it, or all of them as a list: [...]"
NO_LISTS = '; if each line is a row, write it as an object such as {"text": ...}, not as a list'
JSON_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""also one that is cut: otherwise each escaped quote in it would start another search to the end"""


def read_json(lines: Iterator[str], encoding: str, report: Report) -> Iterator[Row]:
    """The objects of JSON lines or of one array. In an array, rows are numbered by object."""
    first_number, first = next(((i, line) for i, line in enumerate(lines, 1) if line.strip()), (1, ""))
    values: Iterable[tuple[int, Any]]
    if first.lstrip().startswith("["):
        values = enumerate(_parsed("".join(chain([first], lines)), encoding), 1)
    else:
        values = _parsed_lines(enumerate(chain([first], lines), first_number), encoding, report)
    for number, value in values:
        if isinstance(value, dict):
            yield number, value
        else:
            report(number, 'is not a JSON object such as {"text": ...}')


def _parsed_lines(
    lines: Iterable[tuple[int, str]], encoding: str, report: Report
) -> Iterator[tuple[int, Any]]:
    for number, line in lines:
        if line.strip():
            try:
                value = _parsed(line, encoding)
            except ValueError as error:
                goes_on = line.lstrip().startswith("{") and line.rstrip()[-1] in "{[,"
                report(number, f"{error}{ON_LINES if goes_on else ''}")
            else:
                yield number, value


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
        is_list, rest = text.lstrip().startswith("["), text[getattr(error, "pos", len(text)) :]
        goes_on = is_list and rest.lstrip().startswith("[")  # a list after a list
        raise ValueError(f"is not JSON ({error}){NO_LISTS if goes_on else ''}") from None


def schema_of(parts: Iterable[list[Row]], wanted: Iterable[str] | None) -> pa.Schema:
    """The columns of rows, with types that hold the values of all parts.

    If no type does, a column has the type of the parts before. Columns that are not `wanted` are empty,
    unless that is None. Names after the first `MAX_COLUMNS` are left out, except those of the first part.
    If a part cannot be read, the columns are those of the parts before.
    """
    kinds: dict[str, pa.DataType] = {}
    large: set[str] = set()  # columns of integers that a float would change
    for number, part in enumerate(_until_error(parts)):
        for name in dict.fromkeys(name for _, cells in part for name in cells):
            if number and name not in kinds and len(kinds) >= MAX_COLUMNS:
                continue
            cells_of = (cells.get(name) for _, cells in part if wanted is None or name in wanted)
            values = [None if value != value else value for value in cells_of]  # NaN is missing
            kind = type_of(values)
            if pa.types.is_integer(kind) and any(
                abs(value) > MAX_EXACT for value in values if isinstance(value, int)
            ):
                large.add(name)
            if not (name in large and pa.types.is_floating(kind)):
                kinds[name] = _wider(kinds.get(name, pa.null()), kind)
    return pa.schema([(name, with_leaves(kind, TEXT_FOR_NULL)) for name, kind in kinds.items()])


def _until_error(parts: Iterable[list[Row]]) -> Iterator[list[Row]]:
    with suppress(OSError, EOFError, zlib.error, ValueError, DataError):  # reported when the rows are read
        yield from parts


def _wider(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """The type that holds the values of both, such as numbers with decimals; or the first."""
    if {first, second} == {pa.int64(), pa.uint64()}:  # pyarrow would choose int64
        return pa.uint64()
    both = [pa.schema([("column", kind)]) for kind in (first, second)]
    try:
        kind = pa.unify_schemas(both, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return first
    return first if pa.types.is_struct(kind) and kind.num_fields > MAX_COLUMNS else kind


def type_of(values: list[Any]) -> pa.DataType:
    """The type of all values, or else of most of them: rows with others are reported on conversion."""
    are_integers = all(isinstance(value, int) for value in values if value is not None)
    for kind in (None, pa.uint64()) if are_integers else (None,):  # hashes have 64 bits without a sign
        with suppress(pa.ArrowException, UnicodeError, OverflowError):  # mixed; a lone surrogate; too large
            return pa.array(values, kind).type
    values = [value for value in values if value is not None]
    kinds = Counter(with_leaves(type_of([value]), TEXT_FOR_NULL) for value in values if len(values) > 1)
    return kinds.most_common(1)[0][0] if kinds else pa.null()


def column_of(values: list[Any], field: "pa.Field[Any]") -> pa.Array:
    """The values as a column that keeps them. Raises ValueError that names the column."""
    problem = f"column {field.name!r} cannot hold its value"
    if not pa.types.is_floating(field.type):
        values = [None if each != each else each for each in values]  # NaN is a missing text or label
    try:
        column = pa.array(values, field.type)
    except (pa.ArrowException, TypeError, OverflowError):
        raise ValueError(problem) from None
    if not pa.types.is_string(field.type) and not all(map(_is_unchanged, values, column.to_pylist())):
        raise ValueError(problem)
    return column


def _is_unchanged(value: Any, stored: Any) -> bool:
    """Whether a column has stored a value as it is; a field that an object lacks may be stored as null.

    pyarrow itself cuts 1.9 to 1 in a column of integers, makes true 1.0 in one of other numbers, and drops
    new fields of an object.
    """
    if isinstance(value, dict) and isinstance(stored, dict):
        return all(each is None or _is_unchanged(each, stored.get(name)) for name, each in value.items())
    if isinstance(value, list) and isinstance(stored, list):
        return all(map(_is_unchanged, value, stored))
    is_nan = value != value
    return is_nan or (value == stored and isinstance(value, bool) == isinstance(stored, bool))


def type_problem(kind: pa.DataType, wanted: str) -> str:
    """Says that a column of this type has no texts or labels. Objects may be columns that pandas wrote."""
    hint = " Was it written by pandas? Then use orient='records'." if pa.types.is_struct(kind) else ""
    return f"holds {kind!s:.60}, not {wanted}.{hint}"


def with_leaves(kind: pa.DataType, replaced: Mapping[pa.DataType, pa.DataType]) -> pa.DataType:
    """The type with other types in place of some, also inside objects and lists."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_leaves(field.type, replaced)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(with_leaves(kind.value_type, replaced))
    if pa.types.is_large_list(kind):
        return pa.large_list(with_leaves(kind.value_type, replaced))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(with_leaves(kind.value_type, replaced), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(*(with_leaves(each, replaced) for each in (kind.key_type, kind.item_type)))
    return replaced.get(kind, kind)
