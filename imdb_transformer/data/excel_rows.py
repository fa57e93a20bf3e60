"""Reads the rows of an Excel workbook with openpyxl."""

import re
import warnings
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import islice, zip_longest
from typing import Any, BinaryIO
from zipfile import ZipFile

from imdb_transformer.data.rows import Report, Row
from imdb_transformer.errors import ConfigError, warn

ESCAPED = re.compile("_x(005F|00[01][0-9A-Fa-f])_")
"""how Excel writes a control character, such as _x000D_, and an underscore before such a code"""
FORMULA = re.compile(rb"<(\w+:)?f[ />]")  # in the XML of a sheet


def read_excel(file: BinaryIO, origin: object, report: Report) -> tuple[list[str], Iterator[Row]]:
    """The column names in the first row of the first visible sheet, and the rows. All cells become text."""
    cells, num_empty = _read_sheet(file)
    if num_empty:
        warn(
            f"{origin}: {num_empty:,} empty cells have formulas without a value. Open the workbook in Excel "
            "and save it"
        )
    numbered = enumerate(cells, 1)
    names = next((row for _, row in numbered if any(row)), [])
    while names and not names[-1]:
        names.pop()

    def rows() -> Iterator[Row]:
        for number, row in numbered:
            if not any(row) and len(names) > 1:
                continue
            if any(row[len(names) :]):
                report(number, f"has more cells than the header, which has {len(names)}")
            else:
                yield number, dict(zip_longest(names, row[: len(names)], fillvalue=""))

    return names, rows()


def _read_sheet(file: BinaryIO) -> tuple[list[list[str]], int]:
    """The text of the cells, by row, and the number of those whose formula has no value.

    Excel stores the value of each formula. Programs that do not compute it leave it out.
    """
    try:
        from openpyxl import load_workbook
    except ModuleNotFoundError:
        raise ConfigError(
            "An .xlsx file needs openpyxl, which is not installed: pip install openpyxl."
        ) from None
    with warnings.catch_warnings(action="ignore"):  # about styles and rules that openpyxl does not know
        try:
            sheet = _first_sheet(load_workbook(file, read_only=True, data_only=True))
            cells = [[_as_text(cell) for cell in row] for row in sheet.iter_rows()]
            while cells and not any(cells[-1]):
                cells.pop()
            num_empty = 0
            if _has_formulas(file):
                books = (
                    load_workbook(file, read_only=True, data_only=computed) for computed in (False, True)
                )
                formulas, values = (_first_sheet(book).iter_rows() for book in books)
                num_empty = sum(map(_num_without_value, formulas, islice(values, len(cells))))
        except Exception as error:  # of zip, XML or openpyxl
            raise ValueError(f"it is not a workbook ({error})") from None
    return cells, num_empty


def _first_sheet(workbook: Any) -> Any:
    """The first visible sheet, or else the first one."""
    sheets = workbook.worksheets
    sheet = next((each for each in sheets if each.sheet_state == "visible"), sheets[0])
    sheet.reset_dimensions()  # some programs write a size that leaves rows out
    return sheet


def _has_formulas(file: BinaryIO) -> bool:
    """Whether a workbook may have formulas. To find their cells, all of it is read twice more."""
    with ZipFile(file) as archive:
        sheets = (name for name in archive.namelist() if name.startswith("xl/worksheets/"))
        return any(FORMULA.search(archive.read(name)) for name in sheets)


def _num_without_value(formulas: Sequence[Any], values: Sequence[Any]) -> int:
    """How many formulas of a row have no value. An empty text and an error are values, of other types."""
    pairs = zip(formulas, values, strict=False)
    return sum(f.data_type == "f" and cell.value is None and cell.data_type == "n" for f, cell in pairs)


def _as_text(cell: Any) -> str:
    """The text of a cell of Excel. It is empty if the cell has an error such as #N/A."""
    value = None if cell.data_type == "e" else cell.value
    if isinstance(value, str):
        return ESCAPED.sub(lambda code: chr(int(code[1], 16)), value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.isoformat() if isinstance(value, date) else "" if value is None else str(value)
