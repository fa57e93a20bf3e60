import gzip
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imdb_transformer.config import DataConfig
from imdb_transformer.data import corpus, sources
from imdb_transformer.data.reviews import LabelledText, Reviews, from_label_names, measure
from imdb_transformer.errors import DataError, DataWarning


def read(source: Path | str, **options: str) -> Reviews:
    return sources.read(DataConfig(source=str(source), **options))


def write_csv(folder: Path, texts: list[str], labels: list[str], name: str = "r.csv") -> Path:
    delimiter = "\t" if name.endswith("tsv") else ","
    quoted = ['"' + text.replace('"', '""') + '"' for text in texts]
    rows = [delimiter.join(pair) for pair in zip(quoted, labels, strict=True)]
    (folder / name).write_text("\n".join([f"text{delimiter}label", *rows]) + "\n", encoding="utf-8")
    return folder / name


def write_json(folder: Path, texts: list[str], labels: list[str]) -> Path:
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    (folder / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "r.jsonl"


def write_parquet(folder: Path, texts: list[str], labels: list[str]) -> Path:
    pq.write_table(pa.table({"text": texts, "label": labels}), folder / "r.parquet")
    return folder / "r.parquet"


def write_tsv(folder: Path, texts: list[str], labels: list[str]) -> Path:
    return write_csv(folder, texts, labels, "r.tsv")


@pytest.mark.parametrize("write", [write_csv, write_tsv, write_json, write_parquet])
def test_every_table_format_gives_the_same_reviews_with_classes_of_any_name(
    tmp_path: Path, write: Callable[[Path, list[str], list[str]], Path]
) -> None:
    texts = ["two\nlines, and a comma", 'a "quote"', "ünï ☺", ""]
    reviews = read(write(tmp_path, texts, ["10", "2", "mixed", "2"]))
    assert reviews.classes == ("2", "10", "mixed")
    assert reviews.splits["train"].texts == texts
    assert reviews.splits["train"].labels == [1, 0, 2, 0]
    odd = read(write(tmp_path, texts, ["nan", "10", "2", "inf"]))
    assert odd.classes == ("2", "10", "inf", "nan")


@pytest.mark.parametrize("cut", [5, 40])
def test_damaged_parquet_is_refused_by_name(tmp_path: Path, cut: int) -> None:
    path = write_parquet(tmp_path, ["a", "b"] * 100, ["x", "y"] * 100)
    content = bytearray(path.read_bytes())
    content[cut : cut + 8] = b"\xff" * 8
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"r\.parquet cannot be read"):
        read(path)


def test_jsonl_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_bytes(b'{"text": "caf\xe9", "label": "a"}\n')
    with pytest.raises(DataError, match=r"r\.jsonl.*UTF-8"):
        read(tmp_path / "r.jsonl")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("text,text,label\na,b,x\nc,d,y\n")
    with pytest.raises(DataError, match=r"several columns 'text'; it has: .* Rename the others"):
        read(tmp_path / "r.csv")


def test_quotes_after_a_blank_are_quotes_if_the_header_has_blanks(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text('text, label\n"good, and long", "a b"\n bad, x\n')
    reviews = read(tmp_path / "r.csv")
    assert reviews.classes == ("a b", "x")
    assert reviews.splits["train"].texts == ["good, and long", "bad"]
    (tmp_path / "r.csv").write_text("text,label\n good, x\nbad,y\n")  # blanks that belong to cells
    assert read(tmp_path / "r.csv").splits["train"].texts == [" good", "bad"]
    (tmp_path / "r.csv").write_text('text, label\n "It" is, x\nbad, y\n')
    assert read(tmp_path / "r.csv", label_column=" label").splits["train"].texts == [' "It" is', "bad"]


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("stars,body\n5,good\n1,bad\n")
    reviews = read(path, text_column="body", label_column="stars")
    assert reviews.classes == ("1", "5")
    assert reviews.splits["train"].texts == ["good", "bad"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"text,label\n", "no rows"),
        (b"review,label\na,b\n", "no column 'text'"),
        (b"text,label\na,pos\nb,pos\n", "two classes"),
        (b"text,label\na,pos\nb,\n", "line 3 has no label"),
        (b"text,label\ncaf\xe9,pos\nb,neg\n", "not UTF-8"),
        (gzip.compress(b"text,label\n", mtime=0), r"add \.gz to its name, as in reviews\.csv\.gz"),
        (b'text,label\n"a,pos\nb,neg\n', "line 2 opens a quote that is not closed"),
    ],
)
def test_bad_table_gets_a_sentence_that_names_the_file(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        read(path)
    assert "bad.csv" in str(caught.value)


def test_label_that_train_does_not_have_is_refused_with_its_row(tmp_path: Path) -> None:
    write_csv(tmp_path, ["a", "b"], ["pos", "neg"], "train.csv")
    write_csv(tmp_path, ["a", "b"], ["pos", "meh"], "test.csv")
    with pytest.raises(DataError, match="line 3 has label 'meh'"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nowhere", "there is no file or folder"),
        (".", "not a source"),
        ("notes.md", "end in"),
        ("reviews.csv.zip", r"\.tar\.gz\. Unpack it"),
        ("reviews.xls", r"Save the workbook as \.xlsx"),
        ("reviews.feather", r"Write its rows to a \.parquet file"),
    ],
)
def test_a_path_that_is_not_a_source_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("notes.md", "reviews.csv.zip", "reviews.xls", "reviews.feather"):
        Path(name).write_text("hello")
    with pytest.raises(DataError, match=said):
        read(source)


def test_a_folder_that_save_to_disk_wrote_is_refused_with_advice(tmp_path: Path) -> None:
    split = datasets.Dataset.from_dict({"text": ["good", "bad"], "label": ["pos", "neg"]})
    split.save_to_disk(tmp_path / "split")
    datasets.DatasetDict(train=split, test=split).save_to_disk(tmp_path / "splits")
    for name in ("split", "splits"):
        with pytest.raises(
            DataError, match=r"no tables .* save_to_disk wrote it; write each split by to_parquet"
        ):
            read(tmp_path / name)


def test_a_list_of_columns_that_is_cut_says_so(tmp_path: Path) -> None:
    for num_columns, said in ((12, r"'c11'\. Choose"), (13, r"'c11', …\. Choose")):
        path = tmp_path / f"{num_columns}.csv"
        path.write_text(",".join(f"c{i}" for i in range(num_columns)) + "\n")
        with pytest.raises(DataError, match=said):
            read(path)


def test_a_folder_with_one_table_is_read_as_that_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.csv").write_bytes("text;label\nschön;5\nöde;1\n".encode("cp1252"))
    (tmp_path / "README.md").write_text("my reviews")
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    write_csv(Path("data"), ["a corpus of an earlier training"], ["1"], "train.csv")
    assert read(".", encoding="cp1252").splits["train"].texts == ["schön", "öde"]
    with pytest.raises(DataError, match=r"mine\.csv: line 2 is not UTF-8"):
        read(".")


def test_no_table_is_read_as_two_splits(tmp_path: Path) -> None:
    write_csv(tmp_path, ["a", "b"], ["pos", "neg"], "train_test.csv")
    assert {name: rows.texts for name, rows in read(tmp_path).splits.items()} == {"train": ["a", "b"]}
    write_csv(tmp_path, ["c", "d"], ["pos", "neg"], "reviews-train.csv")
    with pytest.warns(DataWarning, match=r"not read: train_test\.csv\."):
        assert read(tmp_path).splits["train"].texts == ["c", "d"]


def write_splits(folder: Path, *names: str) -> dict[str, list[str]]:
    """Tables of two classes, and the texts that a reader must get from each."""
    texts = {}
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        texts[name] = [f"good {name}", f"bad {name}"]
        write_csv(folder, texts[name], ["pos", "neg"], name)
    return texts


@pytest.mark.parametrize("data_dir", [".", "elsewhere"])
def test_a_folder_may_name_the_split_of_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_dir: str
) -> None:
    texts = write_splits(tmp_path, "train/a.csv", "train/train_b.csv", "test/a.csv", "reviews_unsup.csv")
    monkeypatch.chdir(tmp_path)
    splits = read(".", data_dir=data_dir).splits
    assert splits["train"].texts == texts["train/a.csv"] + texts["train/train_b.csv"]
    assert splits["test"].texts == texts["test/a.csv"]
    assert splits["unsupervised"].texts == texts["reviews_unsup.csv"]


def test_a_split_may_be_named_exactly_and_another_in_a_longer_name(tmp_path: Path) -> None:
    texts = write_splits(tmp_path, "reviews_train.csv", "test.csv", "test-old.csv", "below/train.csv")
    texts |= write_splits(tmp_path, "unsupervised.csv")
    with pytest.warns(DataWarning, match=r"not read: test-old\.csv\."):
        splits = read(tmp_path).splits
    assert splits["train"].texts == texts["reviews_train.csv"] + texts["below/train.csv"]
    assert splits["test"].texts == texts["test.csv"]
    texts |= write_splits(tmp_path, "train.csv")
    with pytest.warns(DataWarning, match=r"not read: reviews_train\.csv, test-old\.csv\."):
        splits = read(tmp_path).splits
    assert splits["train"].texts == texts["train.csv"]
    assert splits["test"].texts == texts["test.csv"]


@pytest.mark.parametrize(
    "names",
    [
        ("training.csv", "testing.csv"),
        ("data/training_set.csv", "data/eval-0.csv"),
        ("train/test-drive.csv", "test/train-set.csv"),
        ("default/train/0.csv", "default/test/0.csv"),
        ("trainset.csv", "testset.csv"),
        ("data/TrainingData.csv", "data/testdataset2.csv"),
    ],
)
def test_the_split_of_a_table_is_in_its_path(tmp_path: Path, names: tuple[str, str]) -> None:
    texts = write_splits(tmp_path, *names)
    (tmp_path / "dataset_infos.json").write_text("{}")
    splits = read(tmp_path).splits
    assert {name: rows.texts for name, rows in splits.items()} == {
        "train": texts[names[0]], "test": texts[names[1]],
    }  # fmt: skip


def test_what_is_no_table_of_a_split_is_refused_or_left_out(tmp_path: Path) -> None:
    (tmp_path / "unsupervised.txt").write_text("one\ntwo\n")
    with pytest.raises(DataError, match="no train split; it has: unsupervised"):
        read(tmp_path)
    texts = write_splits(tmp_path, "reviews.csv", "conf/settings.json")
    assert read(tmp_path).splits["train"].texts == texts["reviews.csv"]
    write_splits(tmp_path, "train/train.csv", "train/train.json")
    (tmp_path / "reviews.csv").unlink()
    with pytest.raises(DataError, match=r"two files for train: train/train\.csv and train/train\.json"):
        read(tmp_path)


def test_a_link_to_the_folder_of_a_split_is_followed(tmp_path: Path) -> None:
    texts = write_splits(tmp_path, "data/train/a.csv", "data/test/a.csv", ".cache/dev/a.csv")
    (tmp_path / "data" / "validation").symlink_to("../.cache/dev")
    (tmp_path / "run.json").write_text("{}")
    splits = read(tmp_path).splits
    assert splits["train"].texts == texts["data/train/a.csv"]
    assert splits["validation"].texts == texts[".cache/dev/a.csv"]


@pytest.mark.parametrize("link", ["all", "test/more"])
def test_a_link_to_a_folder_below_is_not_followed(tmp_path: Path, link: str) -> None:
    texts = write_splits(tmp_path, "train/a.csv", "test/b.csv")
    (tmp_path / link).symlink_to(tmp_path / "train")
    splits = read(tmp_path).splits
    assert (splits["train"].texts, splits["test"].texts) == (texts["train/a.csv"], texts["test/b.csv"])


@pytest.mark.parametrize("mark", ["", "\ufeff", "\n"])
def test_the_card_says_which_file_is_which_split(tmp_path: Path, mark: str) -> None:
    texts = write_splits(tmp_path, "a.csv", "b.csv", "valid.csv")
    blocks = "  - split: train\n    path: b.csv\n  - split: test\n    path: a.csv\n"
    header = f"{mark}---\nconfigs:\n- config_name: x\n  data_files:\n{blocks}---\n"
    (tmp_path / "README.md").write_text(header)
    splits = read(tmp_path).splits
    assert (splits["train"].texts, splits["test"].texts) == (texts["b.csv"], texts["a.csv"])


def test_no_split_of_a_card_replaces_another_and_unknown_ones_are_named(tmp_path: Path) -> None:
    write_splits(tmp_path, "a.csv", "b.csv", "c.csv")

    def write_card(*splits: str) -> None:
        pairs = zip(splits, "abc", strict=True)
        blocks = "".join(f"  - split: {split}\n    path: {name}.csv\n" for split, name in pairs)
        (tmp_path / "README.md").write_text(f"---\nconfigs:\n- config_name: x\n  data_files:\n{blocks}---\n")

    write_card("train", "test", "eval")
    with pytest.raises(DataError, match="two splits for test; one of them is 'eval'"):
        read(tmp_path)
    write_card("train", "test", "holdout")
    with pytest.warns(DataWarning, match="not read: the split 'holdout'"):
        assert [*read(tmp_path).splits] == ["train", "test"]


def test_numbers_have_the_class_names_of_the_table_before(tmp_path: Path) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    table = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)
    table.to_parquet(tmp_path / "train-0.parquet")
    for name in ("train-1.parquet", "test-0.parquet"):
        pq.write_table(pa.table({"text": ["c", "d"], "label": [1, 0]}), tmp_path / name)
    reviews = read(tmp_path)
    assert reviews.classes == ("neg", "pos")
    assert reviews.splits["train"].labels == [0, 1, 1, 0]
    assert reviews.splits["test"].labels == [1, 0]


def test_each_part_of_a_split_keeps_its_own_class_names(tmp_path: Path) -> None:
    """Two files may number the same classes differently."""
    for i, classes in enumerate((["bad", "good"], ["good", "bad"])):
        features = datasets.Features(
            {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=classes)}
        )
        table = datasets.Dataset.from_dict({"text": [f"{i}a", f"{i}b"], "label": [0, 1]}, features=features)
        table.to_parquet(tmp_path / f"train-0000{i}-of-00002.parquet")
    reviews = read(tmp_path)
    assert reviews.classes == ("bad", "good")
    assert reviews.splits["train"].texts == ["0a", "0b", "1a", "1b"]
    assert reviews.splits["train"].labels == [0, 1, 1, 0]


def test_parts_of_a_table_follow_the_rules_of_one_table(tmp_path: Path) -> None:
    """Labels and texts stay as they are written, an empty part counts for nothing, errors name the file."""
    (tmp_path / "part-0.csv").write_text("text;label\nNone;01\nNA;true\n")
    (tmp_path / "part-1.csv").write_text("")
    (tmp_path / "part-1.json").write_text("[]")
    (tmp_path / "part-2.csv").write_text("text;label\nc;1.50\ntorn\n")
    (tmp_path / "._part-0.csv").write_bytes(b"\0\5")
    with pytest.raises(DataError, match=r"part-2\.csv: line 3"):
        read(tmp_path)
    with pytest.warns(DataWarning, match="rows left out: 1"):
        reviews = read(tmp_path, bad_rows="skip")
    assert reviews.splits["train"].texts == ["None", "NA", "c"]
    assert reviews.classes == ("01", "1.50", "true")


def test_a_folder_of_tables_without_train_is_refused_by_their_names(tmp_path: Path) -> None:
    write_csv(tmp_path, ["a", "b"], ["pos", "neg"], "b.csv")
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(DataError, match=r"none is called train: a\.csv, b\.csv"):
        read(tmp_path)
    (tmp_path / "b.csv").rename(tmp_path / "test.csv")
    with pytest.raises(DataError, match="no train split; it has: test"):
        read(tmp_path)


def test_the_parts_of_a_table_are_read_together(tmp_path: Path) -> None:
    write_csv(tmp_path, ["a", "b"], ["pos", "neg"], "part-00000-0b1c-c000.csv")
    write_csv(tmp_path, ["c"], ["pos"], "part-00001-0b1c-c000.csv")
    (tmp_path / "_SUCCESS").write_text("")
    assert read(tmp_path).splits["train"].texts == ["a", "b", "c"]


def test_a_damaged_file_in_the_hubs_layout_gets_a_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = write_hub_layout(tmp_path / "imdb")
    damaged = folder / "plain_text" / "train-00000-of-00001.parquet"
    damaged.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match=r"`datasets` cannot load .* Perhaps name one of its tables"):
        read(folder)
    (folder / "README.md").unlink()
    with pytest.raises(DataError, match="cannot be read as PARQUET"):
        read(folder)
    assert "Traceback" not in capfd.readouterr().err


def test_parts_that_are_all_empty_are_refused(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"part-{i}.csv").write_text("")
    with pytest.raises(DataError, match=r"part-0\.csv has no rows that can be read"):
        read(tmp_path)


def write_hub_layout(folder: Path) -> Path:
    """The layout of the hub's stanfordnlp/imdb: Parquet files by split, class names in a README's header."""
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    (folder / "plain_text").mkdir(parents=True)
    blocks = []
    for split, labels in (("train", [0, 1, 1]), ("test", [1, 0]), ("unsupervised", [-1, -1])):
        rows = {"text": [f"{split} {i}" for i in range(len(labels))], "label": labels}
        table = datasets.Dataset.from_dict(rows, features=features)
        table.to_parquet(folder / "plain_text" / f"{split}-00000-of-00001.parquet")
        blocks.append(f"  - split: {split}\n    path: plain_text/{split}-*\n")
    header = (
        "---\nconfigs:\n- config_name: plain_text\n  default: true\n  data_files:\n"
        + "".join(blocks)
        + "---\n"
    )
    (folder / "README.md").write_text(header)
    return folder


def test_hub_layout_is_read_as_the_hub_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    folder = write_hub_layout(tmp_path / "imdb")
    local = read(folder)
    monkeypatch.setattr(sources, "HUB_NAME", str(folder))
    assert read("hub") == local
    assert local.classes == ("neg", "pos")
    assert local.splits["unsupervised"].labels == [-1, -1]


def test_unlabelled_reviews_are_read_without_a_readme_too(tmp_path: Path) -> None:
    folder = write_hub_layout(tmp_path / "imdb")
    expected = read(folder)
    (folder / "README.md").unlink()
    assert read(folder) == expected
    for path in (folder / "plain_text").iterdir():
        path.rename(folder / path.name.replace("unsupervised", "unsup"))
    assert read(folder) == expected


def test_an_unreachable_hub_gives_an_error_that_lists_what_works_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError, match="use the source demo"):
        read("hub")


def test_demo_is_the_same_each_time_balanced_and_without_shared_texts() -> None:
    first, second = read("demo"), read("demo")
    assert first == second
    sets = {name: set(rows.texts) for name, rows in first.splits.items()}
    assert sum(map(len, sets.values())) == len(set().union(*sets.values())) == 12_000
    assert sum(first.splits["train"].labels) == sum(first.splits["test"].labels) == 1500


def labelled_texts(*labels: str | None) -> list[LabelledText]:
    """A text with each label."""
    return [(f"text {i}", label, f"r.csv: row {i + 1}") for i, label in enumerate(labels)]


def test_classes_that_differ_only_in_spelling_give_a_warning() -> None:
    labels = ["pos", "Pos", "neg", "po s", "Straße", "STRASSE", "meh"]
    rows = {"train": labelled_texts(*labels)}
    with pytest.warns(
        DataWarning, match=r"written: 'Pos', 'po s', 'pos'; 'STRASSE', 'Straße'\. If"
    ) as caught:
        assert len(from_label_names(rows, "r.csv").classes) == 7
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_label_names(rows, "r.csv", classes=["pos", "Pos", "neg", "po s", *labels[4:]])
        from_label_names({"train": labelled_texts("pos", "neg")}, "r.csv")


def test_a_class_that_may_be_a_missing_label_gives_a_warning() -> None:
    rows = {"train": labelled_texts("nan", "none", "pos")}
    with pytest.warns(DataWarning, match="'nan' is learnt as a class. If it means that a label is missing"):
        assert from_label_names(rows, "r.csv").classes == ("nan", "none", "pos")


def test_a_test_split_without_labels_is_told_if_its_rows_are_left_out() -> None:
    rows = {"train": labelled_texts("neg", "pos"), "test": labelled_texts(None, None)}
    left_out: list[str] = []
    with pytest.raises(DataError, match=r"no review of test has a label of train\. To train without test"):
        from_label_names(rows, "folder", bad_row=left_out.append)
    assert len(left_out) == 2


def test_classes_that_look_the_same_give_a_warning() -> None:
    labels = ["caf\u00e9", "cafe\u0301", "pos", "pos\u200b", "1", "\uff11", "neg"]
    rows = {"train": labelled_texts(*labels)}
    with pytest.warns(
        DataWarning, match=r"written: '1', '１'; 'cafe\u0301', 'caf\u00e9'; 'pos', 'pos\\u200b'\. If"
    ):
        assert len(from_label_names(rows, "r.csv").classes) == 7


def test_equal_numbers_that_are_several_classes_give_a_warning() -> None:
    rows = {"train": labelled_texts("4.50", "1", "4.5", "nan")}
    with pytest.warns(DataWarning, match=r"written: '4\.5', '4\.50'\. If"):
        assert len(from_label_names(rows, "r.csv").classes) == 4


def test_long_numbers_that_differ_in_the_last_digit_are_different_classes() -> None:
    rows = {"train": labelled_texts("12345678901234567891", "12345678901234567890")}
    assert from_label_names(rows, "r.csv").classes == ("12345678901234567890", "12345678901234567891")


def test_statistics_list_classes_in_the_order_of_the_classes() -> None:
    rows = {"train": labelled_texts("10", "2", "1"), "test": labelled_texts("10", "1")}
    train, test = measure(from_label_names(rows, "r.csv"))
    assert list(train.num_by_label.items()) == [("1", 1), ("2", 1), ("10", 1)]
    assert list(test.num_by_label.items()) == [("1", 1), ("10", 1)]


def test_tables_with_a_split_in_their_names_follow_the_rules_of_tables(tmp_path: Path) -> None:
    (tmp_path / "reviews_train.csv").write_text("text;label\na;02100\nb;NA\ntorn\n")
    (tmp_path / "reviews_test.csv").write_text("text;label\nc;02100\n")
    with pytest.raises(DataError, match=r"reviews_train\.csv: line 4"):
        read(tmp_path)
    with pytest.warns(DataWarning, match="rows left out: 1"):
        reviews = read(tmp_path, bad_rows="skip")
    assert reviews.classes == ("02100", "NA")
    assert reviews.splits["test"].texts == ["c"]


def test_rows_that_were_left_out_are_named_before_an_error_that_may_come_from_them(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("text,label\na,x\nb,x\nno label\n")
    with (
        pytest.warns(DataWarning, match=r"rows left out: 1(.|\n)*line 4"),
        pytest.raises(DataError, match="train has only 'x'"),
    ):
        read(tmp_path / "r.csv", bad_rows="skip")


def test_a_header_with_a_long_name_is_shortened_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(f"{'word ' * 40_000},label\na,x\n")
    with pytest.raises(DataError, match="has no column 'text'; it has: 'word") as refused:
        read(tmp_path / "r.csv")
    assert len(str(refused.value)) < 1000


def test_tables_that_are_not_read_are_named(tmp_path: Path) -> None:
    write_splits(tmp_path, "train.csv", "train-old.csv", "unlabeled.csv")
    with pytest.warns(DataWarning, match=r"not read: train-old\.csv, unlabeled\.csv"):
        assert [*read(tmp_path).splits] == ["train"]


def test_class_folders_may_have_validation_and_another_encoding(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        for name in ("pos", "neg"):
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "1.txt").write_bytes(f"{split} {name} caf\xe9".encode("cp1252"))
    reviews = sources.read(DataConfig(source=str(tmp_path), encoding="cp1252"))
    assert sorted(reviews.splits["validation"].texts) == ["dev neg café", "dev pos café"]
    assert {name: len(rows.texts) for name, rows in reviews.splits.items()} == {
        "train": 2, "validation": 2, "test": 2,
    }  # fmt: skip
    with pytest.raises(
        DataError, match=r"dev/neg/1\.txt is not UTF-8; if Windows wrote it, try --encoding cp1252"
    ):
        sources.read(DataConfig(source=str(tmp_path)))
    (tmp_path / "dev" / "neg" / "1.txt").write_text("plain")
    (tmp_path / "train" / "neg" / "2.txt").write_text("plain, too")
    (tmp_path / "train" / "pos" / "2.txt").write_text("and this")
    with pytest.warns(DataWarning, match="rows left out: 5"):
        read = sources.read(DataConfig(source=str(tmp_path), bad_rows="skip"))
    assert read.splits["train"].texts == ["plain, too", "and this"]


def test_class_folders_take_the_names_of_splits_that_tables_take(tmp_path: Path) -> None:
    for path in ("Training/neg/1.TXT", "Training/pos/2.txt", "evaluation/neg/3.txt", "evaluation/pos/4.txt"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    unlabelled = tmp_path / "Training" / "unsupervised" / "5.txt"
    unlabelled.parent.mkdir()
    unlabelled.write_text("none")
    (tmp_path / "val.csv").write_text("text,label\ngood,pos\n")
    with pytest.warns(DataWarning, match=r"not read: val\.csv\. train/CLASS folders are read instead"):
        reviews = read(tmp_path)
    assert reviews.classes == ("neg", "pos")
    assert {name: rows.texts for name, rows in reviews.splits.items()} == {
        "train": ["Training/neg/1.TXT", "Training/pos/2.txt"], "unsupervised": ["none"],
        "test": ["evaluation/neg/3.txt", "evaluation/pos/4.txt"],
    }  # fmt: skip


def test_two_class_folders_of_a_split_are_refused(tmp_path: Path) -> None:
    for path in ("train/neg/1.txt", "train/pos/2.txt", "test/neg/3.txt", "eval/pos/4.txt"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    with pytest.raises(DataError, match="has two folders for test: eval and test"):
        read(tmp_path)


def test_tables_of_a_folder_are_read_although_a_folder_of_texts_is_called_as_a_split(tmp_path: Path) -> None:
    write_splits(tmp_path, "train.csv", "test.csv")
    for number in "12":
        (tmp_path / "training" / number).mkdir(parents=True)
        (tmp_path / "training" / number / "log.txt").write_text("a log")
    assert read(tmp_path).splits.keys() == {"train", "test"}
    (tmp_path / "data").mkdir()
    texts = write_splits(tmp_path / "data", "Train/a/x.csv", "Test/a/x.csv")
    (tmp_path / "data" / "Train" / "a" / "notes.txt").write_text("a note")
    assert read(tmp_path / "data").splits["train"].texts == texts["Train/a/x.csv"]


def test_a_byte_order_mark_is_no_text_and_decides_the_encoding(tmp_path: Path) -> None:
    contents = {"pos/1": "\ufeffgut, schön".encode(), "pos/2": b"fine", "neg/1": "öde".encode("utf-16")}
    for name, content in contents.items():
        (tmp_path / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / f"{name}.txt").write_bytes(content)
    for encoding in ("utf-8", "ascii"):
        assert sorted(read(tmp_path, encoding=encoding).splits["train"].texts) == [
            "fine",
            "gut, schön",
            "öde",
        ]
    (tmp_path / "train" / "neg" / "1.txt").write_bytes("öde".encode("utf-16")[:-1])
    with pytest.raises(DataError, match=r"neg/1\.txt is not UTF-16\. "):
        read(tmp_path)


@pytest.mark.parametrize("names", [("false", "true"), ("False", "True"), ("FALSE", "TRUE")])
def test_booleans_are_the_classes_that_other_tables_call_so(names: tuple[str, str]) -> None:
    rows: list[LabelledText] = [
        ("a", True, "r 1"),
        ("b", False, "r 2"),
        ("c", "True", "r 3"),
        ("d", "false", ""),
    ]
    assert from_label_names({"train": rows}, "r", names).splits["train"].labels == [1, 0, 1, 0]


def test_classes_of_booleans_are_called_as_in_written_tables(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"], "label": [True, False]}), tmp_path / "r.parquet")
    assert read(tmp_path / "r.parquet").classes == ("false", "true")
    assert read(write_csv(tmp_path, ["a", "b"], ["True", "False"])).classes == ("False", "True")


def test_a_label_that_python_cannot_hold_is_refused(tmp_path: Path) -> None:
    late = pa.array([253402300800_000_000, 0], pa.timestamp("us", "Europe/Berlin"))  # in the year 10000
    pq.write_table(pa.table({"text": ["a", "b"], "label": late}), tmp_path / "r.parquet")
    with pytest.raises(DataError, match="column 'label' has a value that cannot be read"):
        read(tmp_path / "r.parquet")


def test_a_text_file_beside_tables_may_hold_the_unlabelled_reviews(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\ngood,1\nbad,0\n")
    (tmp_path / "unsupervised.txt").write_text("one\ntwo\n")
    (tmp_path / "._train.csv").write_bytes(b"\0\5")
    (tmp_path / "test.xls").write_text("old")
    with pytest.warns(DataWarning, match=r"not read: test\.xls\."):
        splits = sources.read(DataConfig(source=str(tmp_path))).splits
    assert splits["unsupervised"].texts == ["one", "two"]
    (tmp_path / "test.xls").unlink()
    (tmp_path / "train.csv").rename(tmp_path / "reviews.csv")
    assert sources.read(DataConfig(source=str(tmp_path))).splits == splits


def test_tables_of_a_folder_that_differ_in_their_columns_are_not_sent_from_one_to_the_other(
    tmp_path: Path,
) -> None:
    rows = "".join(f"the staff of hotel number {i} were kind,{i % 2}\n" for i in range(30))
    (tmp_path / "train.csv").write_text(f"text,label\n{rows}")
    for header in ("review,label", "text,id"):
        (tmp_path / "test.csv").write_text(f"{header}\n{rows}")
        with pytest.raises(DataError, match="must have the same column names") as refused:
            sources.read(DataConfig(source=str(tmp_path)))
        assert "Perhaps" not in str(refused.value)


def test_labels_that_are_bytes_or_objects_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"], "label": [b"x", b"y"]}), tmp_path / "r.parquet")
    with pytest.raises(DataError, match="'label' holds binary, not labels"):
        sources.read(DataConfig(source=str(tmp_path / "r.parquet")))
    (tmp_path / "r.json").write_text('{"text": {"0": "good"}, "label": {"0": 1}}')
    with pytest.raises(DataError, match="Was it written by pandas"):
        sources.read(DataConfig(source=str(tmp_path / "r.json")))


def test_a_label_that_is_nan_is_missing(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('[{"text": "a", "label": 1.0}, {"text": "b", "label": NaN}]')
    pq.write_table(pa.table({"text": ["a", "b"], "label": [1.0, float("nan")]}), tmp_path / "r.parquet")
    for name in ("r.json", "r.parquet"):
        with pytest.raises(DataError, match="row 2 has no label"):
            read(tmp_path / name)


def test_labels_of_less_precise_floats_are_named_by_their_shortest_form(tmp_path: Path) -> None:
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        labels = pa.array([1e-4, 4.1], pa.float64()).cast(kind)
        pq.write_table(pa.table({"text": ["a", "b"], "label": labels}), tmp_path / "r.parquet")
        assert read(tmp_path / "r.parquet").classes == ("0.0001", "4.1")


def test_bad_rows_of_the_hubs_layout_can_be_left_out(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", None, "c", "d"], "label": ["x", "y", "", "y"]})
    pq.write_table(table, tmp_path / "train-00000-of-00001.parquet")
    with pytest.raises(DataError, match="row 2 has no 'text'"):
        read(tmp_path)
    with pytest.warns(DataWarning, match=r"left out: 2(.|\n)*parquet: row 3 has no label"):
        assert read(tmp_path, bad_rows="skip").splits["train"].texts == ["a", "d"]


def test_a_view_of_text_in_parquet_is_text(tmp_path: Path) -> None:
    views = pa.array(["a", "b"], pa.string_view())
    pq.write_table(pa.table({"text": views, "label": views}), tmp_path / "r.parquet")
    assert read(tmp_path / "r.parquet").splits["train"].texts == ["a", "b"]


def test_a_view_of_bytes_in_parquet_is_kept_as_bytes(tmp_path: Path) -> None:
    columns = {"text": ["a", "b"], "label": ["a", "b"], "image": pa.array([b"1", b"2"], pa.binary_view())}
    pq.write_table(pa.table(columns), tmp_path / "r.parquet")
    assert read(tmp_path / "r.parquet").splits["train"].texts == ["a", "b"]


def test_lines_of_a_text_file_are_reviews_without_labels(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("a good film\na bad one\n")
    assert read(tmp_path / "r.txt", label_column="").splits["train"].texts == ["a good film", "a bad one"]
    with pytest.raises(DataError, match="Lines without labels: imdb-tx pretrain"):
        read(tmp_path / "r.txt")


@pytest.mark.parametrize("content", ["\n\n\n", "the same\n" * 20])
def test_texts_without_labels_that_are_all_equal_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.txt").write_text(content)
    config = DataConfig(source=str(tmp_path / "r.txt"), data_dir=str(tmp_path / "data"), label_column="")
    with pytest.raises(
        DataError, match="too few different texts in each class: its validation split would be"
    ):
        corpus.ensure(config)


def test_a_type_in_a_message_is_shortened(tmp_path: Path) -> None:
    columns = {"text": {str(i): "a" for i in range(999)}, "label": {str(i): 1 for i in range(999)}}
    (tmp_path / "r.json").write_text(json.dumps(columns))
    with pytest.raises(DataError) as refused:
        read(tmp_path / "r.json")
    assert len(str(refused.value)) < 300
