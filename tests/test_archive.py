import functools
import gzip
import http.server
import io
import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from imdb_transformer.config import DataConfig
from imdb_transformer.data import archive, sources
from imdb_transformer.data.reviews import Reviews
from imdb_transformer.errors import DataError, DataWarning
from tests.test_sources import read

FILES = {
    "aclImdb/train/pos/0_9.txt": "Lovely.",
    "aclImdb/train/pos/1_8.txt": "A fine film.<br /><br />Go.",
    "aclImdb/train/neg/0_1.txt": "Dull.",
    "aclImdb/train/unsup/0_0.txt": "It has a dog.",
    "aclImdb/test/pos/0_10.txt": "Great.",
    "aclImdb/test/neg/0_2.txt": "Awful ☹.",
    "aclImdb/train/urls_pos.txt": "not a review",
}


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


def test_an_archive_may_have_another_encoding(tmp_path: Path) -> None:
    content = "caf\xe9".encode("cp1252")
    path = make_archive(tmp_path / "r.tar.gz")
    with tarfile.open(path) as former, tarfile.open(tmp_path / "other.tar.gz", "w:gz") as archive:
        for info in former.getmembers():
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    config = DataConfig(source=str(tmp_path / "other.tar.gz"), encoding="cp1252")
    assert set(sources.read(config).splits["train"].texts) == {"caf\xe9"}
    with pytest.raises(DataError, match="is not UTF-8; if Windows wrote it, try --encoding cp1252"):
        sources.read(config.model_copy(update={"encoding": "utf-8"}))


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


@pytest.mark.parametrize("name", ["unsupervised", "Unlabelled", "unlabeled"])
def test_a_folder_of_train_may_say_that_it_has_no_labels(tmp_path: Path, name: str) -> None:
    tree = write_tree(tmp_path / "tree") / "aclImdb"
    (tree / "train/unsup").rename(tree / "train" / name)
    reviews = read(tree)
    assert reviews.classes == ("neg", "pos")
    assert as_sets(reviews)["unsupervised"] == {("It has a dog.", -1)}


@pytest.mark.parametrize("name", ["unsup", "unlabeled"])
def test_unlabelled_reviews_in_a_folder_of_their_own_are_announced_as_not_read(
    tmp_path: Path, name: str
) -> None:
    tree = write_tree(tmp_path / "tree") / "aclImdb"
    (tree / "train/unsup").rename(tree / name)
    with pytest.warns(DataWarning, match=rf"not read: {name}/\*\.txt\. .* move them to train/unsup$"):
        assert "unsupervised" not in as_sets(read(tree))


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
def test_malicious_archive_members_are_refused_and_nothing_is_written(
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


def test_an_archive_with_data_after_its_end_is_refused_before_all_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_archive(tmp_path / "bomb.tar.gz")
    with path.open("ab") as file:
        for _ in range(200):
            file.write(gzip.compress(b"\0" * 100_000))
        file.write(b"no gzip, which is never reached")
    monkeypatch.setattr(archive, "MAX_TOTAL_BYTES", 1_000_000)
    monkeypatch.setattr(archive, "READ_LIMIT", 50_000)
    with pytest.raises(DataError, match=r"bomb\.tar\.gz unpacks to more than 1,000,000 bytes"):
        read(path)


def test_archive_whose_headers_alone_are_too_many_bytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_archive(tmp_path / "names.tar.gz", member("a/" * 40_000))
    monkeypatch.setattr(archive, "MAX_TOTAL_BYTES", 50_000)
    with pytest.raises(DataError, match="unpacks to more than 50,000 bytes"):
        read(path)


def test_archive_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    whole = make_archive(tmp_path / "whole.tar.gz").read_bytes()
    path = tmp_path / "cut.tar.gz"
    for size in [*range(0, len(whole), 37), len(whole) - 4, len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"cut\.tar\.gz"):
            read(path)


@pytest.mark.parametrize("damaged", [True, False])
def test_archive_without_gzip_that_ends_early_is_refused(tmp_path: Path, damaged: bool) -> None:
    path = tmp_path / "r.tar"
    path.write_bytes(gzip.decompress(make_archive(tmp_path / "r.tar.gz").read_bytes()))
    assert as_sets(read(path)) == as_sets(read(tmp_path / "r.tar.gz"))
    content, third = path.read_bytes(), 4 * tarfile.BLOCKSIZE  # each member has a header and a block
    path.write_bytes(content[:third] + b"\xff" * 512 + content[third + 512 :] if damaged else content[:third])
    with pytest.raises(DataError, match=r"damaged or cut short \(there is no end mark"):
        read(path)


def test_archive_with_a_review_that_is_not_utf8_names_it(tmp_path: Path) -> None:
    tree = write_tree(tmp_path)
    (tree / "aclImdb/train/neg/7_1.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"train/neg/7_1\.txt is not UTF-8"):
        read(tree)


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


def class_folders(folder: Path, number: int) -> Path:
    """Some reviews in `train/pos` and `train/neg`."""
    for name in ("pos", "neg"):
        (folder / "train" / name).mkdir(parents=True)
        for i in range(number):
            (folder / "train" / name / f"{i}.txt").write_text(f"{name} film {i}")
    return folder


@pytest.mark.parametrize(
    "unread",
    [
        "train/pos/notes.csv",
        "train/neg/2020/1.txt",
        "train/meh/2020/1.txt",
        "train/pos/1.md",
        "test/test.csv",
    ],
)
def test_files_of_class_folders_that_are_no_reviews_are_named(tmp_path: Path, unread: str) -> None:
    folder = class_folders(tmp_path, 6)
    (folder / unread).parent.mkdir(parents=True, exist_ok=True)
    (folder / unread).write_text("text,label\nfine,good\nbad,bad\n")
    with pytest.warns(DataWarning, match=rf"not read: {unread}\. .* only CLASS/\*\.txt is read"):
        reviews = sources.read(DataConfig(source=str(folder)))
    assert reviews.classes == ("neg", "pos")
    assert len(reviews.splits["train"].texts) == 12


def test_a_class_may_be_a_link_to_a_folder(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "reviews", 4)
    (folder / "train/pos").rename(tmp_path / "elsewhere")
    (folder / "train/pos").symlink_to(tmp_path / "elsewhere")
    reviews = sources.read(DataConfig(source=str(folder)))
    assert reviews.classes == ("neg", "pos")
    assert len(reviews.splits["train"].texts) == 8


def test_a_review_that_is_a_broken_link_is_called_so(tmp_path: Path) -> None:
    folder = class_folders(tmp_path, 2)
    (folder / "train/pos/broken.txt").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"broken\.txt is a link to a file that does not exist\."):
        sources.read(DataConfig(source=str(folder)))


@pytest.mark.parametrize("number", [1, 4])
def test_few_texts_beside_a_table_are_not_the_reviews(tmp_path: Path, number: int) -> None:
    folder = class_folders(tmp_path, number)
    lines = "".join(f"{i} good,a\n{i} bad,b\n" for i in range(9))
    (folder / "train/pos/part.csv").write_text(f"text,label\n{lines}")
    assert sources.read(DataConfig(source=str(folder))).classes == ("a", "b")


def test_texts_in_one_folder_beside_a_table_are_not_the_reviews(tmp_path: Path) -> None:
    folder = class_folders(tmp_path, 20)
    shutil.rmtree(folder / "train/neg")
    lines = "".join(f"{i} good,a\n{i} bad,b\n" for i in range(9))
    (folder / "train/pos/part.csv").write_text(f"text,label\n{lines}")
    assert sources.read(DataConfig(source=str(folder))).classes == ("a", "b")


def test_a_folder_whose_texts_are_all_deeper_says_where_they_belong(tmp_path: Path) -> None:
    (tmp_path / "train/pos/2020").mkdir(parents=True)
    (tmp_path / "train/pos/2020/1.txt").write_text("good")
    with pytest.raises(DataError, match=r"it has no train/CLASS/\*\.txt files and no tables"):
        sources.read(DataConfig(source=str(tmp_path)))


def test_a_class_folder_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = class_folders(tmp_path, 2)
    other = Path(os.fsdecode(os.fsencode(folder / "train") + b"/\xe9t"))
    other.mkdir()
    (other / "1.txt").write_text("fine")
    with pytest.raises(DataError, match=r"the name of the folder .* is not UTF-8\. Rename it\."):
        sources.read(DataConfig(source=str(folder)))


def test_hidden_files_and_folders_are_no_reviews(tmp_path: Path) -> None:
    """macOS adds `._0_9.txt` to archives, and Jupyter a folder."""
    hidden = {
        "aclImdb/train/pos/._0_9.txt": "\0\5",
        "aclImdb/train/.ipynb_checkpoints/0.txt": "a copy",
        "__MACOSX/train/pos/0.txt": "another",
    }
    plain = read(make_archive(tmp_path / "plain.tar.gz"))
    both = make_archive(tmp_path / "both.tar.gz", files=hidden | FILES)
    assert read(both) == plain
    for name, text in (hidden | FILES).items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    assert as_sets(read(tmp_path / "tree")) == as_sets(plain)


def test_reviews_of_an_archive_in_another_encoding_can_be_left_out(tmp_path: Path) -> None:
    files = FILES | {"aclImdb/train/neg/1_1.txt": "Bad."}
    path = make_archive(tmp_path / "r.tar.gz", files=files)
    content = gzip.decompress(path.read_bytes()).replace(b"Dull", b"D\xfcll")
    path.write_bytes(gzip.compress(content))
    with pytest.warns(DataWarning, match=r"rows left out: 1(.|\n)*neg/0_1\.txt is not UTF-8"):
        reviews = read(path, bad_rows="skip")
    assert "Bad." in reviews.splits["train"].texts
    assert len(reviews.splits["train"].texts) == 3


def test_a_member_in_a_folder_called_dot_is_read(tmp_path: Path) -> None:
    files = {**FILES, "aclImdb/./train/pos/./7_9.txt": "Fine."}
    assert "Fine." in read(make_archive(tmp_path / "a.tar.gz", files=files)).splits["train"].texts


def test_a_review_whose_class_train_lacks_is_reported_by_its_file_and_can_be_left_out(tmp_path: Path) -> None:
    path = make_archive(tmp_path / "a.tar.gz", files={**FILES, "aclImdb/test/meh/1_5.txt": "So-so."})
    with pytest.raises(DataError, match=r"test/meh/1_5\.txt has label 'meh'; the classes are neg, pos\."):
        read(path)
    with pytest.warns(DataWarning, match="rows left out: 1"):
        assert read(path, bad_rows="skip").splits["test"].texts == ["Great.", "Awful ☹."]
