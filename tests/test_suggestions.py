"""What a message suggests about a table whose columns have other names."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import openpyxl
import pyarrow as pa
import pytest
from pyarrow import parquet

from imdb_transformer.config import DataConfig
from imdb_transformer.data import sources
from imdb_transformer.data.suggestions import suggested_options
from imdb_transformer.errors import DataError
from imdb_transformer.inference.predicted_tables import open_reviews

HEADER = ("Datum", "Preis (€)", "Titel", "Kommentar", "Sterne")
REMARK = (
    " Without labels, `imdb-tx predict --input FILE` can classify the texts, and "
    '`imdb-tx pretrain --label-column ""` can learn them.'
)
ALL = "--text-column Kommentar --label-column Sterne"


def german_rows(count: int = 60) -> list[tuple[str, ...]]:
    return [
        (f"{i}.10.2025", f"{i},99", f"Föhn {i}", f"Der Föhn {i} läuft leise und ist hübsch.", str(i % 5 + 1))
        for i in range(count)
    ]


def write_csv(path: Path, rows: list[tuple[str, ...]], encoding: str = "cp1252") -> Path:
    content = "\r\n".join(";".join(row) for row in rows).encode(encoding)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["r.csv", "r.csv.gz"])
def test_one_message_names_all_options_that_an_export_of_excel_needs(tmp_path: Path, name: str) -> None:
    path = write_csv(tmp_path / name, [HEADER, *german_rows()])
    with pytest.raises(DataError) as refused:
        sources.read(DataConfig(source=str(path)))
    assert str(refused.value).endswith(f" Perhaps: {ALL} --encoding cp1252")
    columns = {"text_column": "Kommentar", "label_column": "Sterne"}
    reviews = sources.read(DataConfig(source=str(path), encoding="cp1252", **columns))
    assert reviews.classes == ("1", "2", "3", "4", "5")


@pytest.mark.parametrize("name", ["r.csv", "r.json"])
def test_the_encoding_is_suggested_for_a_last_line_without_an_end(tmp_path: Path, name: str) -> None:
    rows = [(f"a plain review, number {i} of a few", i % 2) for i in range(30)]
    rows.append(("a café in Paris, and little else", 1))
    records = [{"body": text, "stars": stars} for text, stars in rows]
    lines = ["body,stars", *(f'"{text}",{stars}' for text, stars in rows)]
    content = json.dumps(records, ensure_ascii=False) if name == "r.json" else "\n".join(lines)
    (tmp_path / name).write_bytes(content.encode("cp1252"))
    shown = suggested_options(tmp_path / name, "utf-8", "text", "label")
    assert shown == " Perhaps: --text-column body --label-column stars --encoding cp1252"


def test_the_columns_of_a_workbook_are_suggested(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    assert book.active is not None
    for row in (HEADER, *german_rows()):
        book.active.append(row)
    book.save(tmp_path / "r.xlsx")
    with pytest.raises(DataError) as refused:
        sources.read(DataConfig(source=str(tmp_path / "r.xlsx")))
    assert str(refused.value).endswith(f" Perhaps: {ALL}")


def test_predict_suggests_a_column_of_text(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "r.csv", [HEADER, *german_rows()], "utf-8")
    with pytest.raises(DataError, match=r"with --text-column\. Perhaps: --text-column Kommentar$"):
        open_reviews(path, "text")


def test_only_missing_columns_are_suggested_with_their_names_quoted(tmp_path: Path) -> None:
    rows = [("my text", "label"), *((text, label) for *_, text, label in german_rows())]
    path = write_csv(tmp_path / "r.csv", rows, "utf-8")
    assert suggested_options(path, "utf-8", "text", "label") == " Perhaps: --text-column 'my text'"
    assert suggested_options(path, "utf-8", "my text", "label") == ""


def test_if_several_columns_may_be_the_label_the_message_asks_which(tmp_path: Path) -> None:
    rows = [(*HEADER, "Farbe"), *((*row, "rot" if i % 3 else "blau") for i, row in enumerate(german_rows()))]
    with pytest.raises(DataError) as refused:
        sources.read(DataConfig(source=str(write_csv(tmp_path / "r.csv", rows, "utf-8"))))
    question = "Which of these is the label: 'Sterne', 'Farbe'?"
    assert str(refused.value).endswith(f" {question} Perhaps: --text-column Kommentar")


def test_no_column_is_suggested_where_several_texts_fit_or_none(tmp_path: Path) -> None:
    two = [("a", "b"), *((f"{text}{i}", f"{text} {i}") for i, (*_, text, _) in enumerate(german_rows()))]
    assert suggested_options(write_csv(tmp_path / "two.csv", two), "cp1252", "text", "label") == REMARK
    few = [HEADER, *german_rows(9)]  # nine rows hold no five classes
    shown = suggested_options(write_csv(tmp_path / "few.csv", few), "cp1252", "text", "label")
    assert shown == " Perhaps: --text-column Kommentar." + REMARK
    (tmp_path / "r.csv").write_bytes(b"a;b\n\x81\n")  # a byte that cp1252 does not have
    assert suggested_options(tmp_path / "r.csv", "utf-8", "text", "label") == ""
    (tmp_path / "empty.csv").touch()
    assert suggested_options(tmp_path / "empty.csv", "utf-8", "text", "label") == ""
    (tmp_path / "r.csv.gz").write_bytes(b"\x1f\x8b torn")
    assert suggested_options(tmp_path / "r.csv.gz", "utf-8", "text", "label") == ""


def test_a_pipe_is_not_read_for_a_suggestion(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "r.csv")
    assert suggested_options(tmp_path / "r.csv", "utf-8", "text", "label") == ""


def test_a_column_with_another_type_than_text_can_be_the_label(tmp_path: Path) -> None:
    lines = [f'{{"body": "{text}", "stars": {stars}, "tags": ["a"]}}' for *_, text, stars in german_rows()]
    (tmp_path / "r.jsonl").write_text("\n".join(lines), encoding="utf-8")
    shown = suggested_options(tmp_path / "r.jsonl", "utf-8", "text", "label")
    assert shown == " Perhaps: --text-column body --label-column stars"


def test_columns_that_python_cannot_hold_are_never_suggested(tmp_path: Path) -> None:
    late = pa.array([253402300800_000_000] * 10, pa.timestamp("us", "Europe/Berlin"))  # in the year 10000
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((10, 2), np.float32))
    texts = [f"a film of which I have seen {i} parts" for i in range(10)]
    table = pa.table({"body": texts, "vector": tensors, "until": late, "stars": [1, 2] * 5})
    parquet.write_table(table, tmp_path / "r.parquet")
    shown = suggested_options(tmp_path / "r.parquet", "utf-8", "text", "label")
    assert shown == " Perhaps: --text-column body --label-column stars"


def test_a_table_without_column_names_is_reported(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "r.csv", german_rows())
    shown = suggested_options(path, "cp1252", "text", "label")
    assert shown == " The first line seems to be a review: it must name the columns."
    write_csv(path, [["a film of two hours that felt like three"], ["good"], ["bad"]])
    assert suggested_options(path, "utf-8", "text") == shown


def test_columns_named_by_questions_are_no_row(tmp_path: Path) -> None:
    names = ("How would you rate our service overall?", "What did you like most about it this year?")
    rows = [(str(i % 5), f"The staff were friendly and helpful, all {i} of them") for i in range(60)]
    advice = f" Perhaps: --text-column '{names[1]}' --label-column '{names[0]}'"
    assert (
        suggested_options(write_csv(tmp_path / "r.csv", [names, *rows]), "utf-8", "text", "label") == advice
    )
    table = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))
    parquet.write_table(table, tmp_path / "r.parquet")
    assert suggested_options(tmp_path / "r.parquet", "utf-8", "text", "label") == advice


def test_columns_of_a_survey_are_no_row(tmp_path: Path) -> None:
    """One without a name, which Excel adds, and one whose cells repeat its name."""
    rows = [
        (f"The room was lovely and quiet, number {i}.", str(i % 2), "Email" * (i % 3 > 0), "")
        for i in range(30)
    ]
    path = write_csv(tmp_path / "r.csv", [("What did you like?", "Score", "Email", ""), *rows])
    shown = suggested_options(path, "utf-8", "text", "label")
    assert shown == " Perhaps: --text-column 'What did you like?' --label-column Score"


def test_a_file_whose_format_differs_from_its_name_is_reported(tmp_path: Path) -> None:
    openpyxl.Workbook().save(tmp_path / "book.xlsx")
    (tmp_path / "book.xlsx").rename(tmp_path / "r.csv")
    with pytest.raises(DataError, match=r"ZIP archive; if it is a workbook of Excel, rename it to \.xlsx\.$"):
        sources.read(DataConfig(source=str(tmp_path / "r.csv")))
    for suffix in ("csv", "jsonl", "json"):
        parquet.write_table(pa.table({"text": ["a"]}), tmp_path / f"r.{suffix}")
        with pytest.raises(DataError, match=r"a Parquet file; rename it to \.parquet\.$"):
            sources.read(DataConfig(source=str(tmp_path / f"r.{suffix}")))
    (tmp_path / "r.jsonl").write_bytes(gzip.compress(b'{"text": "a", "label": 1}'))
    with pytest.raises(DataError, match=r"compressed by gzip; add \.gz to its name"):
        sources.read(DataConfig(source=str(tmp_path / "r.jsonl")))
    for name in ("utf-16-le", "utf-16-be"):
        (tmp_path / "r.csv").write_bytes("text,label\ngood,1\nbad,0\n".encode(name))
        with pytest.raises(DataError, match=f"null bytes; try --encoding {name}"):
            sources.read(DataConfig(source=str(tmp_path / "r.csv")))
        assert sources.read(DataConfig(source=str(tmp_path / "r.csv"), encoding=name)).classes == ("0", "1")
        with pytest.raises(DataError, match="does not start with BOM"):
            sources.read(DataConfig(source=str(tmp_path / "r.csv"), encoding="utf-16"))


def test_a_bad_row_is_reported_with_the_option_that_skips_it(tmp_path: Path) -> None:
    remedy = r"\. To leave such rows out: --bad-rows skip \(data\.bad_rows=skip\)\.$"
    for row, problem in (("a,", "has no label"), ("torn", "another number of fields.*")):
        (tmp_path / "r.csv").write_text(f"text,label\n{row}\ngood,1\nbad,0\n")
        with pytest.raises(DataError, match=f"{problem}{remedy}"):
            sources.read(DataConfig(source=str(tmp_path / "r.csv")))
    (tmp_path / "r.csv").write_bytes(b"text,label\ncaf\xe9,1\n")
    with pytest.raises(DataError, match=r"try --encoding cp1252 \(data\.encoding=cp1252\)\.$"):
        sources.read(DataConfig(source=str(tmp_path / "r.csv")))


def test_the_message_offers_pretraining_only_if_it_found_texts(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps({"data": [{"text": "a film", "label": "pos"}]}))
    with pytest.raises(DataError) as told:
        sources.read(DataConfig(source=str(tmp_path / "r.json")))
    assert "pretrain" not in str(told.value)


def test_the_message_says_that_further_sheets_are_not_read(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append(["about"])  # type: ignore[union-attr]
    book.active.append(["this book"])  # type: ignore[union-attr]
    book.create_sheet().append(["text", "label"])
    book.save(tmp_path / "r.xlsx")
    with pytest.raises(DataError, match=r"Only the first visible sheet is read\."):
        sources.read(DataConfig(source=str(tmp_path / "r.xlsx")))
