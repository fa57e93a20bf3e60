"""Files of reviews: read in parts, and written with their predictions."""

import io
import json
import math
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imdb_transformer.config import DataConfig
from imdb_transformer.data import sources
from imdb_transformer.data.reviews import BadRow, refuse
from imdb_transformer.data.rows import iter_lines
from imdb_transformer.data.tables import open_table
from imdb_transformer.errors import ConfigError, DataError
from imdb_transformer.inference import predicted_tables, table_formats
from imdb_transformer.inference.predictor import Prediction, Predictor
from tests.conftest import imdb_tx


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_output_keeps_rows_columns_and_order(predictor: Predictor, tmp_path: Path, suffix: str) -> None:
    table = pa.table({"id": ["3", "1", "007"], "text": ["a good film", 'bad, "very" bad', "two\nlines ☺"]})
    path = tmp_path / f"out{suffix}"
    schema = predicted_tables.output_schema(table.schema)
    predicted = [
        predicted_tables.with_predictions(part, list(predictor(part.column("text").to_pylist())), schema)
        for part in (table[:1], table[1:])
    ]
    table_formats.write_tables(predicted, schema, path)
    out = read_table(path)
    assert out.column_names == ["id", "text", "predicted_label", "probability"]
    assert out.column("text").to_pylist() == table.column("text").to_pylist()
    assert out.column("id").to_pylist() == ["3", "1", "007"]
    assert set(out.column("predicted_label").to_pylist()) <= {"neg", "pos"}


def test_a_table_that_pandas_wrote_by_columns_gets_a_hint(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"text": {"0": "good", "1": "bad"}}')
    _, parts = predicted_tables.open_reviews(tmp_path / "r.json", "text")
    with pytest.raises(DataError, match=r"not text\. Was it written by pandas\? .*orient='records'"):
        list(parts)


def test_an_output_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its name is not UTF-8"):
        table_formats.check_output(tmp_path / os.fsdecode(b"\xe9.csv"), pa.schema({"text": pa.string()}))


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.binary(2), pa.struct([("a", pa.binary())]), pa.dictionary(pa.int8(), pa.binary())],
)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_bytes_are_refused_before_the_work_where_the_format_has_only_text(
    tmp_path: Path, suffix: str, kind: pa.DataType
) -> None:
    schema = pa.schema({"text": pa.string(), "image": kind})
    table_formats.check_output(tmp_path / "out.parquet", schema)
    with pytest.raises(ConfigError, match=r"cannot hold column 'image' \(.*\); write \.parquet"):
        table_formats.check_output(tmp_path / f"out{suffix}", schema)


def test_a_type_that_csv_does_not_have_is_refused_before_the_work(tmp_path: Path) -> None:
    schema = pa.schema({"text": pa.string(), "id": pa.uuid()})
    with pytest.raises(ConfigError, match=r"column 'id' \(.*uuid.*\); write \.jsonl or \.parquet"):
        table_formats.check_output(tmp_path / "out.csv", schema)
    ids = pa.array([b"0123456789abcdef"], pa.uuid())
    table = pa.table({"text": ["good"], "id": ids})
    for suffix in (".jsonl", ".parquet"):
        table_formats.check_output(tmp_path / f"out{suffix}", schema)
        table_formats.write_tables([table], schema, tmp_path / f"out{suffix}")
    assert json.loads((tmp_path / "out.jsonl").read_text())["id"] == str(ids[0].as_py())


def test_numbers_that_json_does_not_have_become_null(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b"], "n": [math.nan, 1.5], "m": [[math.inf], [2.0]]})
    table_formats.write_tables([table], table.schema, tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["n"], row["m"]) for row in rows] == [(None, [None]), (1.5, [2.0])]


def test_a_value_that_a_format_does_not_have_is_refused_before_its_part_is_predicted(
    predictor: Predictor, tmp_path: Path
) -> None:
    table = pa.table(
        {"text": ["good", "bad"], "at": pa.array([0, 400_000_000_000_000_000], pa.timestamp("us"))}
    )
    schema = predicted_tables.output_schema(table.schema)
    for suffix in (".jsonl", ".csv", ".parquet"):
        output = tmp_path / f"out{suffix}"
        written = predicted_tables.write_predictions(
            predictor, [table], table.schema, "text", output, {}, resume=False
        )
        if suffix == ".jsonl":
            with pytest.raises(
                DataError, match=r"\.jsonl cannot hold a value of column 'at'; write \.parquet"
            ):
                list(written)
            assert not predicted_tables.parts_folder(output).exists()
        else:
            assert list(written) == [(True, 2)]
            assert read_table(output).schema.names == schema.names


def test_a_date_that_csv_would_spell_as_an_error_is_refused() -> None:
    far = pa.array([0, 10**18], pa.timestamp("us"))
    with pytest.raises(DataError, match=r"\.csv cannot hold a value of column 'at'"):
        table_formats.check_values(pa.table({"at": far}), ".csv")
    with pytest.raises(DataError, match=r"\.csv cannot hold a value of column 'at'"):
        table_formats.check_values(pa.table({"at": far.cast(pa.timestamp("us", "UTC"))}), ".csv")
    message = pa.array(["<value out of range: 1>"])  # a text may say so
    table_formats.check_values(pa.table({"text": message, "at": far[:1]}), ".csv")
    table_formats.check_values(pa.table({"at": far}), ".parquet")


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string_view()),
        pa.large_list(pa.string_view()),
        pa.list_(pa.string_view(), 1),
    ],
    ids=str,
)
def test_a_categorical_column_may_be_the_text_and_lists_may_hold_views(
    tmp_path: Path, kind: pa.DataType
) -> None:
    texts = pa.array(["good", "bad", "good"]).dictionary_encode()
    lists = pa.array([["x"], None, ["y"]], kind)
    pq.write_table(pa.table({"text": texts, "tags": lists}), tmp_path / "r.parquet")
    _, parts = predicted_tables.open_reviews(tmp_path / "r.parquet", "text")
    table = pa.concat_tables(parts)
    assert table.column("text").to_pylist() == ["good", "bad", "good"]
    assert table.column("tags").to_pylist() == [["x"], None, ["y"]]


def test_maps_may_hold_views(tmp_path: Path) -> None:
    tags = pa.array([[("a", "x")], [], None], pa.map_(pa.string(), pa.string_view()))
    pq.write_table(pa.table({"text": ["good", "bad", "fine"], "tags": tags}), tmp_path / "r.parquet")
    _, parts = predicted_tables.open_reviews(tmp_path / "r.parquet", "text")
    assert pa.concat_tables(parts).column("tags").to_pylist() == [[("a", "x")], [], None]


def read_table(path: Path) -> pa.Table:
    schema, blocks = open_table(path, {"text": "--text-column"})
    return pa.Table.from_batches([batch for batch, _ in blocks], schema)


def texts_of(path: Path, column: str = "text", bad_row: BadRow = refuse) -> list[str]:
    _, parts = predicted_tables.open_reviews(path, column, bad_row=bad_row)
    return [text for part in parts for text in part.column(column).to_pylist()]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_bad_rows_are_reported_by_number_and_can_be_skipped(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"r{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table({"text": ["one", None, "three"]}), path)
        bad = ["row 2 has no 'text'"]
    elif suffix == ".jsonl":
        path.write_text('{"text": "one"}\n{"text": null}\n{"text":\n[]\n{"text": "three"}\n{"text": 4}\n')
        bad = [
            "line 3 is not JSON",
            "line 4 is not a JSON object",
            "line 6 does not fit",
            "line 2 has no 'text'",
        ]
    else:
        tab = "," if suffix == ".csv" else "\t"
        path.write_text(f'id{tab}text\n1{tab}"one"\n2{tab}two{tab}torn\n\n3{tab}"three\n3"\n4{tab}\n5\n')
        bad = ["line 3 has another number of fields", "line 8 has", "line 7 has no 'text'"]
    told: list[str] = []
    assert [text.split()[0] for text in texts_of(path, bad_row=told.append)] == ["one", "three"]
    assert len(told) == len(bad)
    for sentence, start in zip(told, bad, strict=True):
        assert sentence.startswith(f"{path}: {start}")
    with pytest.raises(DataError, match=re.escape(bad[0])):
        texts_of(path)


def test_rows_swallowed_by_an_open_quote_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("id,text\n1,one\n2,,two\n3,\n" + '4,four,"open\n' + "5,five\n" * 9)
    told: list[str] = []
    assert texts_of(path, bad_row=told.append) == ["one"]
    assert told == [
        f"{path}: line 3 has another number of fields than the header (3, not 2)",
        f"{path}: line 5 opens a quote that is not closed; its quotes go on to line 14",
        f"{path}: line 4 has no 'text'",
    ]


def test_json_is_written_as_it_was_read(tmp_path: Path) -> None:
    """Dates stay text, and what is missing in the first rows may be text in later ones."""
    rows: list[dict[str, object]] = [
        {"text": "one", "day": "2024-05-01", "note": None, "in": {"at": "2024-05-01T10:00:00"}},
        {"text": "two", "day": "2024-05-02", "note": "late", "in": {"at": None}},
    ]  # fmt: skip
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    schema, parts = predicted_tables.open_reviews(path, "text")
    table_formats.write_tables(parts, schema, tmp_path / "out.jsonl")
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == rows


def test_a_column_may_be_empty_in_the_first_block_and_text_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imdb_transformer.data.tables.BLOCK_ROWS", 2)
    path = tmp_path / "r.jsonl"
    notes = [None, None, None, "late"]
    path.write_text("".join(json.dumps({"text": "x" * 60, "note": note}) + "\n" for note in notes))
    _, parts = predicted_tables.open_reviews(path, "text")
    assert [note for part in parts for note in part.column("note").to_pylist()] == notes


def test_a_large_file_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"text": [f"review {i}" for i in range(25_000)]}), path)
    _, parts = predicted_tables.open_reviews(path, "text")
    sizes = [part.num_rows for part in parts]
    assert sum(sizes) == 25_000
    assert max(sizes) <= 2000


@pytest.mark.parametrize("suffix", [".parquet", ".txt"])
def test_long_rows_are_read_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr("imdb_transformer.data.tables.BLOCK_BYTES", 100_000)
    texts = [f"{i} " * 2_000 for i in range(300)]
    path = tmp_path / f"r{suffix}"
    if suffix == ".txt":
        path.write_text("\n".join(texts))
    else:
        pq.write_table(pa.table({"text": texts}), path)
    _, parts = predicted_tables.open_reviews(path, "text")
    read = [part.column("text").to_pylist() for part in parts]
    assert [text for part in read for text in part] == texts
    assert max(sum(map(len, part)) for part in read) < 200_000


def test_equal_rows_that_parquet_stores_once_are_read_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their file does not tell how large they are."""
    monkeypatch.setattr("imdb_transformer.data.tables.BLOCK_BYTES", 100_000)
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"text": ["a" * 5_000] * 5_000}), path)
    assert path.stat().st_size < 50_000
    _, parts = predicted_tables.open_reviews(path, "text")
    sizes = [part.nbytes for part in parts]
    assert sum(sizes) > 25_000_000
    assert max(sizes) < 700_000


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv", ".txt"])
def test_a_text_over_the_size_limit_is_reported_by_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    for module in ("tables", "rows"):
        monkeypatch.setattr(f"imdb_transformer.data.{module}.MAX_REVIEW_BYTES", 1_000)
    texts, path = ["a", "b" * 970, "c" * 1_001], tmp_path / f"r{suffix}"
    where = "row 3" if suffix == ".parquet" else "line 4" if suffix == ".csv" else "line 3"
    if suffix == ".txt":
        path.write_text("\n".join(texts))
    else:
        schema = pa.schema({"text": pa.string(), "label": pa.string()})
        table = pa.table({"text": texts, "label": ["x", "y", "x"]}, schema=schema)
        table_formats.write_tables([table], schema, path)
        with pytest.raises(DataError, match=rf"r\{suffix}: {where} has more than 1,000 bytes"):
            sources.read(DataConfig(source=str(path)))
    with pytest.raises(DataError, match=rf"r\{suffix}: {where} has more than 1,000 bytes"):
        texts_of(path)


def test_a_json_list_on_one_line_may_be_longer_than_a_review(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imdb_transformer.data.rows.MAX_REVIEW_BYTES", 1_000)
    path, texts = tmp_path / "r.json", [f"review number {i}" for i in range(100)]
    path.write_text(json.dumps([{"text": text} for text in texts]))
    assert texts_of(path) == texts


def test_a_line_without_an_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imdb_transformer.data.rows.MAX_REVIEW_BYTES", 1_000)
    monkeypatch.setattr("imdb_transformer.data.rows.READ_BYTES", 100)
    stream = io.BytesIO(b"a" * 1_000_000)
    with pytest.raises(DataError, match="standard input: line 1 has more than 1,000 bytes"):
        list(iter_lines(stream, "utf-8", "standard input"))
    assert stream.tell() <= 1_100


def test_input_may_be_lines_or_a_table(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_bytes(b"\xef\xbb\xbffirst\r\n\nthird \xe2\x98\x83")
    assert texts_of(tmp_path / "r.txt") == [
        "first",
        "",
        "third ☃",
    ]
    (tmp_path / "r.jsonl").write_text(json.dumps({"body": "one"}) + "\n")
    assert texts_of(tmp_path / "r.jsonl", "body") == ["one"]


def test_bad_input_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_bytes(b"fine\ncaf\xe9\n")
    with pytest.raises(DataError, match=r"r\.txt: line 2 is not UTF-8"):
        texts_of(tmp_path / "r.txt")
    (tmp_path / "r.csv").write_bytes(b"")
    with pytest.raises(DataError, match="empty"):
        texts_of(tmp_path / "r.csv")
    with pytest.raises(DataError, match="no file"):
        texts_of(tmp_path / "none.csv")
    pq.write_table(pa.table({"text": ["a", None]}), tmp_path / "r.parquet")
    with pytest.raises(DataError, match="row 2 has no 'text'"):
        texts_of(tmp_path / "r.parquet")
    with pytest.raises(ConfigError, match=r"\.csv"):
        table_formats.check_output(tmp_path / "out.xls", pa.schema({}))
    with pytest.raises(ConfigError, match="no folder"):
        table_formats.check_output(tmp_path / "none" / "out.csv", pa.schema({}))
    with pytest.raises(ConfigError, match="several columns ''"):
        table_formats.check_output(
            tmp_path / "out.csv", pa.schema([("text", pa.string()), *[("", pa.string())] * 2])
        )
    with pytest.raises(ConfigError, match=r"'tags' \(list<.*; write \.jsonl or \.parquet"):
        table_formats.check_output(tmp_path / "out.csv", pa.table({"tags": [["a"]]}).schema)


TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(str.strip), min_size=1, max_size=8
)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
@given(texts=TEXTS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_survives_writing_and_reading(tmp_path: Path, suffix: str, texts: list[str]) -> None:
    path = tmp_path / f"o{suffix}"
    table = pa.table({"id": [str(i) for i in range(len(texts))], "text": texts})
    out = predicted_tables.output_schema(table.schema)
    predictions = [Prediction("pos", 0.5 + i / 100, text, {}) for i, text in enumerate(texts)]
    table_formats.write_tables([predicted_tables.with_predictions(table, predictions, out)], out, path)
    assert texts_of(path) == texts
    read = read_table(path)
    assert read.column("id").to_pylist() == table.column("id").to_pylist()
    assert [float(p) for p in read.column("probability").to_pylist()] == [p.probability for p in predictions]


def test_a_formula_is_text(trained: Path, tmp_path: Path) -> None:
    formula = '=HYPERLINK("http://example.org","a good film")'
    quoted = formula.replace('"', '""')
    (tmp_path / "r.csv").write_text(f'id,text\n=1+1,"{quoted}"\n')
    answer = imdb_tx("predict", "--run", trained, "--input", tmp_path / "r.csv", "--json")
    assert json.loads(answer.stdout)["text"] == formula


def test_columns_that_the_predictions_replace_are_named(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("text,probability,mine\na good film,1,2\n")
    output = ("--input", tmp_path / "r.csv", "--output", tmp_path / "o.csv")
    told = imdb_tx("predict", "--run", trained, *output).stderr
    assert "replace these columns of the input: probability\n" in told
    assert (tmp_path / "o.csv").read_text().startswith('"text","mine","predicted_label","probability"')
    refused = imdb_tx("predict", "--run", trained, *output, "--text-column", "probability").exception
    assert isinstance(refused, ConfigError)
    assert "would replace the reviews: rename their column 'probability'" in str(refused)
