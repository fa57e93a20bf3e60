import functools
import gzip
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imdb_transformer.config import DataConfig
from imdb_transformer.data import archive, hub, sources
from imdb_transformer.data.reviews import Reviews
from imdb_transformer.errors import DataError

FILES = {
    "aclImdb/train/pos/0_9.txt": "Lovely.",
    "aclImdb/train/pos/1_8.txt": "A fine film.<br /><br />Go.",
    "aclImdb/train/neg/0_1.txt": "Dull.",
    "aclImdb/train/unsup/0_0.txt": "It has a dog.",
    "aclImdb/test/pos/0_10.txt": "Great.",
    "aclImdb/test/neg/0_2.txt": "Awful ☹.",
    "aclImdb/train/urls_pos.txt": "not a review",
}


def read(source: Path | str, **options: str) -> Reviews:
    return sources.read(DataConfig(source=str(source), **options))


def make_archive(path: Path, *extra: tarfile.TarInfo, files: dict[str, str] = FILES) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            content = text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in extra:
            archive.addfile(info, io.BytesIO(b"\0" * info.size) if info.isfile() else None)
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, target
    return info


def as_sets(reviews: Reviews) -> dict[str, set[tuple[str, int]]]:
    return {name: set(zip(*rows, strict=True)) for name, rows in reviews.splits.items()}


def write_tree(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_archive_and_extracted_folder_give_the_same_reviews(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree")
    archive = read(make_archive(tmp_path / "tiny.tar.gz"))
    assert as_sets(archive) == as_sets(read(tree)) == as_sets(read(tree / "aclImdb"))
    assert archive.classes == ("neg", "pos")
    assert as_sets(archive)["train"] == {("Lovely.", 1), ("A fine film.<br /><br />Go.", 1), ("Dull.", 0)}
    assert as_sets(archive)["unsupervised"] == {("It has a dog.", -1)}


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (member("aclImdb/train/pos/../../../../evil.txt"), "outside"),
        (member("/etc/train/pos/evil.txt"), "outside"),
        (member("aclImdb/train/pos/2_9.txt", tarfile.SYMTYPE, target="/etc/passwd"), "link"),
        (member("aclImdb/train/pos/2_9.txt", tarfile.LNKTYPE, target="../../etc/passwd"), "link"),
        (member("aclImdb/train/pos/2_9.txt", size=5 << 20), "too many"),
    ],
)
def test_archive_members_that_attack_are_refused_and_nothing_is_written(
    tmp_path: Path, extra: tarfile.TarInfo, said: str
) -> None:
    archive = make_archive(tmp_path / "evil.tar.gz", extra)
    with pytest.raises(DataError, match=said):
        read(archive)
    assert [path.name for path in tmp_path.iterdir()] == ["evil.tar.gz"]


def test_archive_whose_header_asks_for_gigabytes_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 3 << 30
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT) + b"a" * 10_000)
    with pytest.raises(DataError, match="header"):
        read(path)


def test_archive_of_too_many_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_TOTAL_BYTES", 40)
    with pytest.raises(DataError, match="unpacks to more than 40 bytes"):
        read(make_archive(tmp_path / "tiny.tar.gz"))


def test_archive_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    whole = make_archive(tmp_path / "whole.tar.gz").read_bytes()
    path = tmp_path / "cut.tar.gz"
    for size in [*range(0, len(whole), 37), len(whole) - 4, len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"cut\.tar\.gz"):
            read(path)


def test_archive_with_a_review_that_is_not_utf8_names_it(tmp_path: Path) -> None:
    tree = write_tree(tmp_path)
    (tree / "aclImdb/train/neg/7_1.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"train/neg/7_1\.txt is not UTF-8"):
        read(tree)


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
    with pytest.raises(DataError, match="several columns 'text'"):
        read(tmp_path / "r.csv")


@pytest.mark.parametrize("url", ["http://[bad/x", "http://host:abc/a.tar.gz", "http://127.0.0.1:9/a.tar.gz"])
def test_a_url_that_gives_nothing_is_refused_by_name(url: str) -> None:
    with pytest.raises(DataError, match="cannot be fetched"):
        read(url)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of a server on this machine that gives the files of `tmp_path`."""
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_archive_behind_a_url_is_the_archive(tmp_path: Path, served: str) -> None:
    path = make_archive(tmp_path / "tiny.tar.gz")
    assert read(f"{served}/tiny.tar.gz") == read(path)
    with pytest.raises(DataError, match="File not found"):
        read(f"{served}/none.tar.gz")


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
        (b"text,label\na,pos\nb,\n", "row 2 of train has no label"),
        (b"text,label\ncaf\xe9,pos\nb,neg\n", "not UTF-8"),
        (b'text,label\n"a,pos\nb,neg\n', "CSV"),
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
    with pytest.raises(DataError, match="row 2 of test has label 'meh'"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("source", "said"), [("nowhere", "no such file"), (".", "no source"), ("notes.md", "end in one of")]
)
def test_what_is_no_source_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.md").write_text("hello")
    with pytest.raises(DataError, match=said):
        read(source)


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
    monkeypatch.setattr(hub, "HUB_NAME", str(folder))
    assert read("hub") == local
    assert local.classes == ("neg", "pos")
    assert local.splits["unsupervised"].labels == [-1, -1]


def test_hub_out_of_reach_says_what_works_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError, match="--source demo"):
        read("hub")


def test_demo_is_the_same_each_time_balanced_and_without_shared_texts() -> None:
    first, second = read("demo"), read("demo")
    assert first == second
    sets = {name: set(rows.texts) for name, rows in first.splits.items()}
    assert sum(map(len, sets.values())) == len(set().union(*sets.values())) == 12_000
    assert sum(first.splits["train"].labels) == sum(first.splits["test"].labels) == 1500
