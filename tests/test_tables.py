"""Tables as spreadsheets and other programs write them, and how bad ones are told."""

import gzip
import io
import json
import math
import os
import re
import threading
import zipfile
from pathlib import Path

import openpyxl
import pyarrow as pa
import pytest
from pyarrow import parquet

from imdb_transformer.config import DataConfig
from imdb_transformer.data import sources
from imdb_transformer.data.tables import open_table
from imdb_transformer.errors import ConfigError, DataError, DataWarning
from tests.conftest import imdb_tx

GERMAN = [("Sehr schön – ein “großer” Film; ja!", "5"), ("Öde,\nleider", "1")]


def rows_of(path: Path, *wanted: str, encoding: str = "utf-8") -> list[dict[str, object]]:
    _, blocks = open_table(path, {name: f"--{name}" for name in wanted or ("text",)}, encoding=encoding)
    return [row for batch, _ in blocks for row in batch.to_pylist()]


def as_csv(delimiter: str) -> str:
    rows = [("text", "stars"), *GERMAN]
    return "".join(f'"{text}"{delimiter}{stars}\r\n' for text, stars in rows)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["r.csv", "r.TSV"])
def test_the_delimiter_is_found(tmp_path: Path, name: str, delimiter: str) -> None:
    (tmp_path / name).write_text(as_csv(delimiter), newline="")
    assert [tuple(row.values()) for row in rows_of(tmp_path / name, "text", "stars")] == GERMAN


def test_a_tsv_file_of_one_column_is_not_split_at_commas(tmp_path: Path) -> None:
    (tmp_path / "r.tsv").write_text("text\ngood film, great plot\nbad, dull, awful\n")
    assert rows_of(tmp_path / "r.tsv") == [{"text": "good film, great plot"}, {"text": "bad, dull, awful"}]


@pytest.mark.parametrize("number", [0, 1])
def test_nan_is_missing_in_a_column_of_texts(tmp_path: Path, number: int) -> None:
    rows = [
        {"text": "good", "city": "Rome"},
        {"text": "bad", "city": "Paris"},
        {"text": "fine", "city": "Bonn"},
    ]
    rows[number]["city"] = float("nan")  # type: ignore[assignment]
    (tmp_path / "r.json").write_text(json.dumps(rows))
    expected = [row | {"city": None} if i == number else row for i, row in enumerate(rows)]
    assert rows_of(tmp_path / "r.json") == expected


def test_most_rows_decide_the_type_of_a_column_and_others_are_bad(tmp_path: Path) -> None:
    values = [404, "good", "bad", 2.5, "fine"]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps({"text": value}) + "\n" for value in values))
    told: list[str] = []
    _, blocks = open_table(tmp_path / "r.jsonl", {"text": ""}, bad_row=told.append)
    assert [row["text"] for batch, _ in blocks for row in batch.to_pylist()] == ["good", "bad", "fine"]
    assert [re.findall(r"line (\d)", problem) for problem in told] == [["1"], ["4"]]


@pytest.mark.parametrize("declared", ["sep=;\r\n", '"sep=;"\n'])
def test_the_delimiter_may_be_declared_as_excel_does(tmp_path: Path, declared: str) -> None:
    (tmp_path / "r.csv").write_text(declared + "text;a,b,c\ngood;1\n")
    assert rows_of(tmp_path / "r.csv") == [{"text": "good", "a,b,c": "1"}]
    (tmp_path / "r.csv").write_text(declared + "text;a,b,c\ngood;1;2\n")
    with pytest.raises(DataError, match="line 3 has another number of fields"):
        rows_of(tmp_path / "r.csv")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("cp1252", "cp1252"),
        ("utf-8-sig", "utf-8"),
        ("utf-8-sig", "cp1252"),
        ("utf-16", "utf-8"),
        ("utf-32", "utf-8"),
        ("utf-16-le", "utf-16-le"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_file_in_a_windows_encoding_is_read(tmp_path: Path, written: str, name: str, zipped: bool) -> None:
    """A byte order mark needs no option."""
    content = as_csv(";").encode(written)
    path = tmp_path / ("r.csv.gz" if zipped else "r.csv")
    path.write_bytes(gzip.compress(content) if zipped else content)
    assert [tuple(row.values()) for row in rows_of(path, encoding=name)] == GERMAN


def test_a_wrong_encoding_is_reported_with_its_line_and_the_option(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes("text;stars\ngut;1\nschön;2\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"r\.csv: line 3 is not UTF-8; .*--encoding cp1252"):
        rows_of(path)
    path.write_bytes("täxt;stars\ngut;1\n".encode("cp1252"))
    with pytest.raises(DataError, match="line 1 is not UTF-8"):
        rows_of(path)
    for unknown in ("cp125", "hex"):
        with pytest.raises(ConfigError, match=f"'{unknown}' is not an encoding"):
            rows_of(path, encoding=unknown)


def test_old_line_ends_are_line_ends(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_bytes(b"text\rone\rtwo\r")
    assert rows_of(tmp_path / "r.csv") == [{"text": "one"}, {"text": "two"}]


def test_the_first_sheet_of_a_workbook_is_read_as_text(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in [["text", "stars"], ["good", 5], [None, None], ["bad", 1.0], ["none", None]]:
        book.active.append(row)  # type: ignore[union-attr]
    book.save(tmp_path / "r.xlsx")
    assert rows_of(tmp_path / "r.xlsx") == [
        {"text": "good", "stars": "5"}, {"text": "bad", "stars": "1"}, {"text": "none", "stars": ""},
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"r\.xlsx: row 5 has no label"):
        sources.read(DataConfig(source=str(tmp_path / "r.xlsx"), label_column="stars"))
    (tmp_path / "r.xlsx").write_text("no zip")
    with pytest.raises(DataError, match="cannot be read as XLSX: it is not a workbook"):
        rows_of(tmp_path / "r.xlsx")


def test_control_characters_in_a_workbook_are_read_and_errors_are_empty_cells(tmp_path: Path) -> None:
    errors = ("#N/A", "#VALUE!", "#REF!", "#DIV/0!", "#NAME?", "#NUM!", "#NULL!")
    book = openpyxl.Workbook()
    assert book.active is not None
    for row in [
        ("text", "stars"),
        ("two_x000D_\nlines_x1234__x005F_x000D_", 5),
        *(("bad", error) for error in errors),
    ]:
        book.active.append(row)
    book.active.append(("#N/A", 1))
    book.active.append(("A text may be #N/A", 1))
    book.save(tmp_path / "r.xlsx")
    first, *others, last_but_one, last = rows_of(tmp_path / "r.xlsx")
    assert first == {"text": "two\r\nlines_x1234__x000D_", "stars": "5"}
    assert others == [{"text": "bad", "stars": ""}] * len(errors)
    assert last_but_one == {"text": "", "stars": "1"}
    assert last == {"text": "A text may be #N/A", "stars": "1"}


def test_rows_beyond_the_size_that_a_workbook_states_are_read(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    assert book.active is not None
    for row in (("text", "stars"), ("good", 5), ("bad", 1)):
        book.active.append(row)
    book.save(tmp_path / "whole.xlsx")
    for size in (b"A1", b"A1:B2"):
        with (
            zipfile.ZipFile(tmp_path / "whole.xlsx") as whole,
            zipfile.ZipFile(tmp_path / "r.xlsx", "w") as other,
        ):
            for name in whole.namelist():
                content = whole.read(name)
                other.writestr(
                    name, re.sub(rb'<dimension ref="[^"]*"', b'<dimension ref="%s"' % size, content)
                )
        assert rows_of(tmp_path / "r.xlsx") == [
            {"text": "good", "stars": "5"},
            {"text": "bad", "stars": "1"},
        ]


@pytest.mark.parametrize("numbers", [(1, 2**70, 3), (2**70, 1, 3), (0.5, 2**54 + 1, 2.5)])
def test_a_row_with_a_number_that_its_column_cannot_hold_is_a_bad_row(
    tmp_path: Path, numbers: tuple[float, ...]
) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("".join(f'{{"text": "t", "n": {number}}}\n' for number in numbers))
    line = numbers.index(max(numbers)) + 1
    with pytest.raises(DataError, match=f"line {line} does not fit the table's columns"):
        rows_of(path)
    reported: list[str] = []
    _, blocks = open_table(path, {"text": "--text"}, bad_row=reported.append)
    others = [number for number in numbers if number != max(numbers)]
    assert [row["n"] for batch, _ in blocks for row in batch.to_pylist()] == others
    assert len(reported) == 1


@pytest.mark.parametrize("numbers", [(1, 2**63, 3), (2**64 - 1, 2**63, 3)])
def test_whole_numbers_of_64_bits_without_a_sign_are_kept(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    (tmp_path / "r.jsonl").write_text("".join(f'{{"text": "t", "id": {number}}}\n' for number in numbers))
    assert [row["id"] for row in rows_of(tmp_path / "r.jsonl")] == [*numbers]


def test_an_empty_cell_of_a_single_column_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("\ntext\na\n\n\nb\n\n\n")
    assert [row["text"] for row in rows_of(tmp_path / "r.csv")] == ["a", "", "", "b"]
    (tmp_path / "r.csv").write_text("text,id\na,1\n\nb,2\n")
    assert [row["text"] for row in rows_of(tmp_path / "r.csv")] == ["a", "b"]
    book = openpyxl.Workbook()
    for row in ([], ["text"], ["a"], [], ["b"], []):
        book.active.append(row)
    book.active["A9"].font = openpyxl.styles.Font(bold=True)  # a cell without a value
    book.save(tmp_path / "r.xlsx")
    assert [row["text"] for row in rows_of(tmp_path / "r.xlsx")] == ["a", "", "b"]


def test_a_workbook_whose_first_sheet_is_blank_says_that_only_this_one_is_read(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.create_sheet("data").append(["text"])
    book.save(tmp_path / "r.xlsx")
    with pytest.raises(DataError, match=r"is empty, or has only bad rows\. Only the first visible sheet"):
        rows_of(tmp_path / "r.xlsx")


def test_the_first_visible_sheet_of_a_workbook_is_read(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.sheet_state = "hidden"
    sheet = book.create_sheet("data")
    for row in (["text"], ["good"]):
        sheet.append(row)
    book.save(tmp_path / "r.xlsx")
    assert [row["text"] for row in rows_of(tmp_path / "r.xlsx")] == ["good"]


def test_formulas_without_a_value_are_counted(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["text", "n", "m"], ["good", "=1+1", 3], ["bad", "=1+2", "=2*2"]):
        book.active.append(row)
    book.save(tmp_path / "r.xlsx")
    with pytest.warns(DataWarning, match=r"r\.xlsx: 3 empty cells have formulas without a value\."):
        rows = rows_of(tmp_path / "r.xlsx")
    assert rows == [{"text": "good", "n": "", "m": "3"}, {"text": "bad", "n": "", "m": ""}]


@pytest.mark.parametrize(("kind", "value"), [("str", ""), ("e", "#N/A"), ("n", "3")])
def test_a_formula_whose_value_is_an_empty_text_or_an_error_has_a_value(
    tmp_path: Path, kind: str, value: str
) -> None:
    book = openpyxl.Workbook()
    for row in (["text", "n"], ["good", "=1+2"]):
        book.active.append(row)
    book.save(tmp_path / "r.xlsx")
    with zipfile.ZipFile(tmp_path / "r.xlsx") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    written = parts[sheet].decode()
    parts[sheet] = re.sub(
        r'<c r="B2"[^>]*><f>(.*?)</f><v ?/?>(</v>)?',
        rf'<c r="B2" t="{kind}"><f>\1</f><v>{value}</v>',
        written,
    ).encode()
    assert parts[sheet].decode() != written
    with zipfile.ZipFile(tmp_path / "r.xlsx", "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    assert rows_of(tmp_path / "r.xlsx") == [{"text": "good", "n": "3" if kind == "n" else ""}]  # no warning


def test_a_quote_that_is_escaped_by_a_backslash_is_reported_with_the_right_way(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text('text,label\n"he said \\"hi\\" ok",pos\n')
    with pytest.raises(DataError, match=r'line 2 is not CSV \(.*\); in a quoted cell, write a quote as ""'):
        rows_of(tmp_path / "r.csv")


@pytest.mark.parametrize("other", ['"A3"', "[1]", '{"a": 1}'])
@pytest.mark.parametrize("name", ["r.jsonl", "r.json"])
def test_a_value_that_is_no_number_among_whole_numbers_is_a_bad_row(
    tmp_path: Path, name: str, other: str
) -> None:
    ids = ["1", "2", other, "4"]
    lines = [f'{{"text": "t", "id": {value}}}' for value in ids]
    (tmp_path / name).write_text("\n".join(lines) if name == "r.jsonl" else f"[{','.join(lines)}]")
    told = list[str]()
    _, blocks = open_table(tmp_path / name, {"text": ""}, bad_row=told.append)
    assert [row["id"] for batch, _ in blocks for row in batch.to_pylist()] == [1, 2, 4]
    assert len(told) == 1
    assert "3 does not fit the table's columns (column 'id' cannot hold its value)" in told[0]


def test_json_lines_that_are_lists_are_refused_with_the_right_way(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('["a", "b"]\n["c", "d"]\n')
    with pytest.raises(
        DataError, match=r"Extra data: line 2 .*; if each line is a row, write it as an object"
    ):
        rows_of(tmp_path / "r.jsonl")
    (tmp_path / "r.jsonl").write_text('[{"text": "good"}]]')
    with pytest.raises(DataError, match=r"is not JSON \(Extra data: [^;]*\)\.$"):
        rows_of(tmp_path / "r.jsonl")


def test_a_cut_utf16_file_is_called_by_its_encoding(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_bytes("text,label\na,x\n".encode("utf-16") + b"\0")
    with pytest.raises(DataError, match="is not utf-16 after line 2"):
        rows_of(tmp_path / "r.csv")


def test_json_may_be_an_array_or_lines(tmp_path: Path) -> None:
    rows = [{"text": "good", "n": 1}, {"text": "bad", "n": 2}]
    (tmp_path / "r.json").write_text("\n" + json.dumps(rows, indent=1))
    assert rows_of(tmp_path / "r.json") == rows
    (tmp_path / "r.json").write_text("\n".join(map(json.dumps, rows)))
    assert rows_of(tmp_path / "r.json") == rows
    (tmp_path / "r.json").write_text("[]")
    with pytest.raises(DataError, match="empty"):
        rows_of(tmp_path / "r.json")


def test_a_later_row_of_a_pipe_with_other_types_or_columns_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("imdb_transformer.data.tables.BLOCK_ROWS", 2)
    lines = [
        '{"text": "a"}',
        '{"text": "b"}',
        '{"text": "c", "more": 1}',
        '{"text": 5}',
        '{"text": "\\ud800"}',
    ]
    pipe, told = io.BytesIO("\n".join(lines).encode()), list[str]()
    _, blocks = open_table(Path("r.jsonl"), {"text": ""}, bad_row=told.append, file=pipe)
    assert [text for batch, _ in blocks for text in batch.column("text").to_pylist()] == ["a", "b"]
    assert [line.split(": ")[1][:6] for line in told] == ["line 3", "line 4", "line 5"]


@pytest.mark.parametrize(
    "content", ['{\n "text": "good"\n}', '{"a": [\n{"text": "good"}\n]}', '{"text": "good"},']
)
def test_the_advice_about_json_lines_says_that_an_object_is_on_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.jsonl").write_text(content)
    with pytest.raises(
        DataError, match=r"line 1 is not JSON .*; write each object on one line, without a comma"
    ):
        rows_of(tmp_path / "r.jsonl")
    (tmp_path / "r.jsonl").write_text('{"text": "cut",\n{"text": "good"}')
    told = list[str]()
    _, blocks = open_table(tmp_path / "r.jsonl", {"text": ""}, bad_row=told.append)
    assert [text for batch, _ in blocks for text in batch.column("text").to_pylist()] == ["good"]
    assert len(told) == 1


@pytest.mark.parametrize("is_packed", [False, True])
def test_the_columns_of_a_json_file_hold_the_values_of_all_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_packed: bool
) -> None:
    monkeypatch.setattr("imdb_transformer.data.tables.BLOCK_ROWS", 2)
    lines = [
        '{"text": "a", "price": 10, "style": {"Format:": "DVD"}}',
        '{"text": "b", "price": 12}',
        '{"text": "c", "price": 9.5, "style": {"Color:": "red"}, "image": ["x.png"]}',
        '{"text": "d", "price": "cheap"}',
    ]
    path = tmp_path / ("r.jsonl.gz" if is_packed else "r.jsonl")
    content = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(content) if is_packed else content)
    told: list[str] = []
    _, blocks = open_table(path, {"text": ""}, bad_row=told.append)
    rows = [row for batch, _ in blocks for row in batch.to_pylist()]
    assert [(row["text"], row["price"]) for row in rows] == [("a", 10.0), ("b", 12.0), ("c", 9.5)]
    assert [row["image"] for row in rows] == [None, None, ["x.png"]]
    assert rows[2]["style"] == {"Format:": None, "Color:": "red"}
    assert told == [f"{path}: line 4 does not fit the table's columns (column 'price' cannot hold its value)"]


LARGE = 2**60 + 1


@pytest.mark.parametrize(
    ("numbers", "stored"),
    [
        ([2**63 + 5, 2**63 + 7, 5], [2**63 + 5, 2**63 + 7, 5]),  # without a sign
        ([5, 6, 2**63 + 5], [5, 6, 2**63 + 5]),
        ([LARGE, LARGE, 0.5, LARGE], [LARGE, LARGE, LARGE]),  # a float could not hold the others
        ([LARGE, LARGE, math.nan, math.nan], [LARGE, LARGE, None, None]),
        ([math.nan, math.nan, "a", "b"], [None, None, "a", "b"]),
        ([1, 2, math.nan, 0.5], [1.0, 2.0, None, 0.5]),
        ([[], ["x"], 3, 3], [[], ["x"]]),
        ([True, False, 1], [True, False]),
    ],
)
def test_a_json_file_keeps_numbers_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: list[object], stored: list[object]
) -> None:
    monkeypatch.setattr("imdb_transformer.data.tables.BLOCK_ROWS", 2)
    lines = [json.dumps({"text": "t", "n": number}) for number in numbers]
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    told: list[str] = []
    _, blocks = open_table(tmp_path / "r.jsonl", {"text": ""}, bad_row=told.append)
    values = [n for batch, _ in blocks for n in batch.column("n").to_pylist()]
    assert [None if value != value else value for value in values] == stored
    assert len(told) == len(numbers) - len(stored)


def test_the_rows_before_the_damage_of_a_json_file_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imdb_transformer.data.tables.BLOCK_ROWS", 2)
    monkeypatch.setattr("imdb_transformer.data.rows.READ_BYTES", 100)
    lines = "".join(f'{{"text": "{i} {os.urandom(40).hex()}"}}\n' for i in range(2000))
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(gzip.compress(lines.encode())[:-5000])
    texts: list[str] = []
    _, blocks = open_table(path, {"text": ""})
    with pytest.raises(DataError, match="cannot be read as JSONL"):
        texts.extend(text for batch, _ in blocks for text in batch.column("text").to_pylist())
    assert len(texts) > 500
    assert texts[:1] == [json.loads(lines.split("\n")[0])["text"]]


def test_keys_that_are_ids_do_not_all_become_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imdb_transformer.data.tables.BLOCK_ROWS", 2)
    monkeypatch.setattr("imdb_transformer.data.json_rows.MAX_COLUMNS", 3)
    lines = [json.dumps({"text": "t", f"key{i}": 1, "votes": {f"user{i}": 1}}) for i in range(8)]
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    told: list[str] = []
    schema, blocks = open_table(tmp_path / "r.jsonl", {"text": ""}, bad_row=told.append)
    assert schema.names == ["text", "key0", "votes", "key1"]
    assert schema.field("votes").type.num_fields == 2
    assert sum(len(batch) for batch, _ in blocks) == 2
    assert len(told) == 6


def test_a_label_that_gets_decimals_late_in_a_json_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imdb_transformer.data.tables.BLOCK_ROWS", 2)
    labels = (1, 2, 1, 1.5, 2)
    lines = [f'{{"text": "t{i}", "label": {label}}}' for i, label in enumerate(labels)]
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    reviews = sources.read(DataConfig(source=str(tmp_path / "r.jsonl")))
    assert reviews.classes == ("1", "1.5", "2")
    assert reviews.splits["train"].labels == [0, 2, 0, 1, 2]


def test_all_missing_columns_are_reported_together_before_any_row(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(b"Review ,Label\na,b,c\n\xff\n")
    with pytest.raises(DataError) as refused:
        sources.read(DataConfig(source=str(path)))
    assert "no columns 'text' and 'label'; it has: 'Review ', 'Label'." in str(refused.value)
    options = "--text-column (data.text_column) and --label-column (data.label_column)"
    assert f"Choose them with {options}." in str(refused.value)


def test_bad_rows_of_training_are_left_out_with_a_warning_of_ten_lines(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(b"text,label\ngood,1\nbad,0.0\n" + b"torn\n" * 12 + b"caf\xe9,1\nnone,\nfine,1.00\n")
    with pytest.raises(DataError, match=r"r\.csv: line 4 has another number of fields"):
        sources.read(DataConfig(source=str(path)))
    with pytest.warns(DataWarning) as told:
        reviews = sources.read(DataConfig(source=str(path), bad_rows="skip"))
    assert reviews.classes == ("0", "1")
    assert reviews.splits["train"].texts == ["good", "bad", "fine"]
    assert told[0].filename == __file__  # the caller's file, not one of the package
    first, *others = str(told[0].message).splitlines()
    assert "14" in first
    assert len(others) == 10
    assert others[0] == f"{path}: line 4 has another number of fields than the header (1, not 2)"


def test_a_label_that_is_no_class_of_train_can_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\n")
    (tmp_path / "test.csv.gz").write_bytes(gzip.compress(b"text,label\nc,x\nd,z\n"))
    with pytest.warns(DataWarning, match="line 3 has label 'z'"):
        reviews = sources.read(DataConfig(source=str(tmp_path), bad_rows="skip"))
    assert reviews.splits["test"].texts == ["c"]


def test_bad_rows_are_counted_and_ten_of_them_are_reported(linear: Path, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("text\n" + "torn,row\n" * 25 + "a good film\n")
    options = ("--input", tmp_path / "r.csv", "--bad-rows", "skip")
    *notes, count = imdb_tx("predict", "--run", linear, *options).stderr.splitlines()
    assert [note.split(": ")[2].split(" has")[0] for note in notes] == [f"line {i}" for i in range(2, 12)]
    assert count == "skipped rows: 25"


@pytest.mark.parametrize("name", ["pipe", "pipe.csv"])
def test_a_pipe_is_read_like_a_file(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    writer = threading.Thread(target=(tmp_path / name).write_text, args=("text\ngood\nbad\n",))
    writer.start()
    texts = [row["text"] for row in rows_of(tmp_path / name)]
    writer.join()
    assert texts == (["good", "bad"] if name.endswith("csv") else ["text", "good", "bad"])


def test_a_pipe_of_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pipe.parquet"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)  # neither side waits for the other to open
    with pytest.raises(DataError, match="as PARQUET: it is a pipe, and this format needs a file"):
        open_table(path, {"text": ""})
    os.close(writer)


def test_lines_of_a_pipe_are_passed_on_when_it_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    has_first = threading.Event()

    def write() -> None:
        with (tmp_path / "pipe").open("w") as pipe:
            print("one\ntwo\nthr", end="", file=pipe, flush=True)
            assert has_first.wait(60)
            print("ee", file=pipe)

    writer = threading.Thread(target=write)
    writer.start()
    _, blocks = open_table(tmp_path / "pipe", {"text": ""})
    assert next(blocks)[0].column("text").to_pylist() == ["one", "two"]
    has_first.set()
    assert next(blocks)[0].column("text").to_pylist() == ["three"]
    writer.join()


def test_lines_before_a_bad_one_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_bytes(b"one\ncaf\xe9\ntwo\n")
    _, blocks = open_table(tmp_path / "r.txt", {"text": ""})
    assert next(blocks)[0].column("text").to_pylist() == ["one"]
    with pytest.raises(DataError, match="line 2 is not UTF-8"):
        next(blocks)


@pytest.mark.parametrize(
    "later", ['{"text": "c", "n": 1.5}', '{"text": "c", "n": 2, "of": {"a": 1, "b": 2}}']
)
def test_a_later_row_of_a_pipe_whose_values_its_column_cannot_hold_is_reported(
    monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    """A label of 1.5 is not cut to 1, and no field is lost."""
    monkeypatch.setattr("imdb_transformer.data.tables.BLOCK_ROWS", 2)
    lines = [
        '{"text": "a", "n": 1, "of": {"a": 1}}',
        '{"text": "b", "n": 2}',
        later,
        '{"text": "d", "n": 3.0}',
    ]
    pipe, told = io.BytesIO("\n".join(lines).encode()), list[str]()
    _, blocks = open_table(Path("r.jsonl"), {"text": ""}, bad_row=told.append, file=pipe)
    assert [n for batch, _ in blocks for n in batch.column("n").to_pylist()] == [1, 2, 3]
    assert len(told) == 1
    assert "line 3 does not fit the table's columns (column '" in told[0]


@pytest.mark.parametrize(
    ("first", "later"), [("1", "true"), ("1.5", "true"), ("[1.5]", "[true]"), ("1", '"a"')]
)
def test_a_value_of_another_type_is_not_converted_and_its_column_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, later: str
) -> None:
    monkeypatch.setattr("imdb_transformer.data.tables.BLOCK_ROWS", 1)
    (tmp_path / "r.jsonl").write_text(f'{{"text": "a", "n": {first}}}\n{{"text": "b", "n": {later}}}\n')
    problem = r"line 2 does not fit the table's columns \(column 'n' cannot hold its value\)"
    with pytest.raises(DataError, match=problem):
        rows_of(tmp_path / "r.jsonl")


def test_a_quote_that_swallows_rows_between_tabs_is_reported(tmp_path: Path) -> None:
    (tmp_path / "r.tsv").write_text('label\ttext\na\tfine\nb\t"Oh", he said\na\tno end"\nb\tdull\n')
    (tmp_path / "s.tsv").write_text('label\ttext\na\tfine\nb\t"Oh, he said\na\tno end"\nb\tdull\n')
    for name in ("r.tsv", "s.tsv"):
        with pytest.raises(DataError, match="line 3"):
            rows_of(tmp_path / name)
    (tmp_path / "t.tsv").write_text('label\ttext\na\t"two\nlines"\n')
    assert rows_of(tmp_path / "t.tsv") == [{"label": "a", "text": "two\nlines"}]
    (tmp_path / "t.csv").write_text('text;label\n"Great;\n&amp; good.";a\n')
    assert rows_of(tmp_path / "t.csv") == [{"text": "Great;\n&amp; good.", "label": "a"}]


def test_a_value_that_training_does_not_read_may_change_its_type(tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "label": i % 2, "price": 1, "of": {}} for i in range(2000)]
    rows.append({"text": "late", "label": 1, "price": 4.5, "of": {"a": 1}})
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "late" in sources.read(DataConfig(source=str(tmp_path / "r.jsonl"))).splits["train"].texts


@pytest.mark.parametrize("number", [0, 3])
def test_a_list_of_mixed_types_is_named_and_training_does_not_read_it(tmp_path: Path, number: int) -> None:
    rows = [{"text": f"t{i}", "label": i % 2, "meta": [i]} for i in range(20)]
    rows[number]["meta"] = [1, {"b": 2}]
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    splits = sources.read(DataConfig(source=str(path))).splits
    assert f"t{number}" in splits["train"].texts
    with pytest.raises(DataError, match=rf"line {number + 1} does not fit .* \(column 'meta' cannot hold"):
        rows_of(path)
    reported: list[str] = []
    _, blocks = open_table(path, {"text": "--text"}, bad_row=reported.append)
    assert [row for batch, _ in blocks for row in batch.to_pylist()] == [*rows[:number], *rows[number + 1 :]]
    assert len(reported) == 1


def test_predictions_that_are_printed_need_no_other_column(linear: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"text": "a good film", "meta": [1, {"b": 2}]}\n')
    assert imdb_tx("predict", "--run", linear, "--input", path).exit_code == 0
    refused = imdb_tx("predict", "--run", linear, "--input", path, "--output", tmp_path / "out.jsonl")
    assert "line 1 does not fit the table's columns (column 'meta'" in str(refused.exception)


def test_a_column_that_training_does_not_read_may_appear_late(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": f"t{i}", "label": i % 2} for i in range(2000)]
    rows.append({"text": "late", "label": 1, "extra": "x"})
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "late" in sources.read(DataConfig(source=str(tmp_path / "r.jsonl"))).splits["train"].texts


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_a_label_has_the_digits_of_its_own_precision(tmp_path: Path, kind: pa.DataType) -> None:
    labels = pa.array([2.7, 4.0, float("nan"), None]).cast(kind, safe=False)
    parquet.write_table(pa.table({"text": list("abcd"), "label": labels}), tmp_path / "r.parquet")
    with pytest.warns(DataWarning, match="rows left out: 2"):
        reviews = sources.read(DataConfig(source=str(tmp_path / "r.parquet"), bad_rows="skip"))
    assert reviews.classes == ("2.7", "4")


def test_a_whole_number_written_with_a_point_fits_whole_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imdb_transformer.data.tables.BLOCK_ROWS", 1)
    values = ['{"n": [1]}', '{"n": [2.0]}', '{"m": null}']
    lines = [f'{{"text": "{i}", "of": {value}}}' for i, value in enumerate(values)]
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    assert [row["text"] for row in rows_of(tmp_path / "r.jsonl")] == ["0", "1", "2"]


def test_if_all_rows_are_bad_the_message_does_not_say_that_there_are_none(tmp_path: Path) -> None:
    for name, content in (("r.csv", "text,label\na\nb\n"), ("r.jsonl", "1\n2\n")):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=r"has only bad rows|no rows that can be read"):
            sources.read(DataConfig(source=str(tmp_path / name), bad_rows="skip"))
