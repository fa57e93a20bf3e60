"""The official archive's layout: one review in each file, in `{train,test}/{pos,neg}` and `train/unsup`.

A folder in this layout may also have `validation`.

The archive is read as a stream and never unpacked, so no member can be written outside a folder. Members are
refused if only an attack or damage can explain them: links, paths with `..`, impossible sizes.
"""

import gzip
import http.client
import io
import re
import tarfile
import urllib.request
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from imdb_transformer.data.layouts import is_hidden, split_of_name, warn_of_unread
from imdb_transformer.data.reviews import (
    SPLIT_ALIASES,
    SPLITS,
    BadRow,
    Reviews,
    RowsBySplit,
    from_label_names,
)
from imdb_transformer.data.rows import encoding_of, undecodable
from imdb_transformer.data.tables import is_table
from imdb_transformer.errors import DataError, is_utf8, reason_of, warn
from imdb_transformer.progress import tracked

# The official archive holds 100,000 reviews, the longest 14 kB, 130 MB in all.
MAX_MEMBER_BYTES = 4 << 20
MAX_TOTAL_BYTES = 4 << 30
MAX_DOWNLOAD_BYTES = 1 << 30
READ_LIMIT = 16 << 20
TIMEOUT_SECONDS = 30

UNLABELLED_FOLDERS = ("unsup", "unsupervised", "unlabelled", "unlabeled")  # the first: the official archive
REVIEW = re.compile(rf"(?:^|/)({'|'.join([*SPLITS, *SPLIT_ALIASES])})/[^/]+/[^/]+\.txt$", re.IGNORECASE)
TEXTS_PER_TABLE = 10  # fewer texts beside a table are not the reviews


def is_url(source: str) -> bool:
    """Whether the source is a web address."""
    return source.startswith(("http://", "https://"))


def read_url(url: str, *, encoding: str, bad_row: BadRow) -> Reviews:
    """Reviews of an archive at a URL; `bad_row` as in `read_tree`."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            content = response.read(MAX_DOWNLOAD_BYTES + 1)
            if len(content) > MAX_DOWNLOAD_BYTES:
                raise DataError(f"{url} sends more than {MAX_DOWNLOAD_BYTES:,} bytes, the limit.")
            if response.length:  # still to come, by the Content-Length
                raise DataError(f"{url} broke off {response.length:,} bytes before its end; try again.")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DataError(f"{url} cannot be fetched: {getattr(error, 'reason', error)}.") from None
    return read_archive(io.BytesIO(content), url, encoding=encoding, bad_row=bad_row)


def read_archive(file: BinaryIO, origin: str, *, encoding: str, bad_row: BadRow) -> Reviews:
    """Reviews of a .tar.gz or .tar, without unpacking it; `bad_row` as in `read_tree`."""
    try:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        stream = _Guarded(gzip.GzipFile(fileobj=file) if is_gzip else file, origin)  # type: ignore[arg-type]
        with tarfile.open(fileobj=stream, mode="r:") as archive:  # type: ignore[call-overload]
            reviews = _collect(_members(archive, stream, origin), origin, encoding, bad_row)
        while stream.read(READ_LIMIT):  # to the end: gzip's checksum comes last
            pass
        return reviews
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        reason = reason_of(error) or "unexpected end"
        raise DataError(f"{origin} is damaged or cut short ({reason}); fetch it again.") from None


class _Guarded:
    """A stream that raises DataError if a reader goes further, or reads more at once, than reviews need."""

    def __init__(self, stream: BinaryIO, origin: str) -> None:
        self.stream, self.origin, self.tell = stream, origin, stream.tell
        self.last_read = b""

    def seek(self, position: int) -> int:
        """The position, which is at most `MAX_TOTAL_BYTES`."""
        if position > MAX_TOTAL_BYTES:
            raise DataError(f"{self.origin} unpacks to more than {MAX_TOTAL_BYTES:,} bytes.")
        return self.stream.seek(position)

    def read(self, size: int = -1) -> bytes:
        """At most `READ_LIMIT` bytes."""
        if not 0 <= size <= READ_LIMIT:
            raise DataError(f"{self.origin}: a member's header is {size:,} bytes long.")
        self.last_read = self.stream.read(size)
        self.seek(self.tell())
        return self.last_read


def root_of_tree(folder: Path, split: str) -> Path | None:
    """The folder with `SPLIT/CLASS/*.txt` below it: `folder` itself or its `aclImdb`."""
    roots = (folder, folder / "aclImdb")
    folders = ((root, path) for root in roots if root.is_dir() for path in sorted(root.iterdir()))
    return next(
        (root for root, path in folders if split_of_name(path) == split and _holds_reviews(path, root)), None
    )


def _holds_reviews(folder: Path, root: Path) -> bool:
    """Whether the folders in a split's folder are classes, and not those of tables with some texts beside."""
    files = list(folder.glob("*/*"))
    texts = [file for file in files if _is_review(file.relative_to(root))]
    num_tables = sum(map(is_table, files))
    if not num_tables:
        return bool(texts)
    return len({file.parent for file in texts}) > 1 and len(texts) >= TEXTS_PER_TABLE * num_tables


def read_tree(root: Path, classes: Sequence[str], *, encoding: str, bad_row: BadRow) -> Reviews:
    """Reviews of a `{train,validation,test}/CLASS/*.txt` tree, such as the unpacked archive.

    `bad_row` is called for each file that is not in the encoding, or in a class that train lacks. If it
    returns, the file is left out. With `classes` the split `train` may be missing.
    """
    for folder in root.iterdir():
        is_unlabelled = folder.name.lower() in UNLABELLED_FOLDERS and folder.is_dir()
        if is_unlabelled and any(file.suffix.lower() == ".txt" for file in folder.iterdir()):
            warn(f"{root}: not read: {folder.name}/*.txt. To learn them, move them to train/unsup")
    splits = [folder for folder in root.iterdir() if split_of_name(folder)]
    paths, others = [], []
    # A class may be a link to a folder, which "**" alone would not follow.
    for path in sorted(path for folder in splits for part in ("*", "*/**/*") for path in folder.glob(part)):
        name = path.relative_to(root)
        # Directly in a split's folder, the archive has lists of its files.
        is_beside = (len(name.parts) > 2 or is_table(path)) and not any(map(is_hidden, name.parts))
        if len(name.parts) == 3 and _is_review(name):
            paths.append(path)
        elif is_beside and path.is_file():
            others.append(path)
    warn_of_unread(root, others, "In the folder of a split, only CLASS/*.txt is read.")
    files = ((path.relative_to(root).as_posix(), _content(path)) for path in paths)
    return _collect(files, str(root), encoding, bad_row, classes, num_files=len(paths))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} is a link to a file that does not exist.") from None


def _is_review(name: Path) -> bool:
    """Whether a file of a tree holds a review. macOS and Jupyter add hidden files and folders."""
    return REVIEW.search(name.as_posix()) is not None and not any(map(is_hidden, name.parts))


def _members(archive: tarfile.TarFile, stream: _Guarded, origin: str) -> Iterator[tuple[str, bytes]]:
    """The path and the content of each review."""
    for member in archive:
        if member.issym() or member.islnk() or member.isdev():
            raise DataError(f"{origin}: member {member.name!r} is a link or device.")
        name = Path(member.name)
        if name.is_absolute() or ".." in name.parts:
            raise DataError(f"{origin}: member {member.name!r} points outside the archive.")
        if member.isfile() and _is_review(name):
            if member.size > MAX_MEMBER_BYTES:
                raise DataError(f"{origin}: {member.name} has {member.size:,} bytes, too many for a review.")
            yield name.as_posix(), archive.extractfile(member).read()  # type: ignore[union-attr]
    if stream.last_read != bytes(tarfile.BLOCKSIZE):  # tarfile also stops at a damaged header
        raise tarfile.ReadError("there is no end mark after the last member")


def _collect(
    files: Iterable[tuple[str, bytes]], origin: str, encoding: str, bad_row: BadRow,
    classes: Sequence[str] = (), num_files: int | None = None,
) -> Reviews:  # fmt: skip
    rows: RowsBySplit = {}
    names: dict[str, str] = {}  # of the folder of each split
    for path, content in tracked(files, "reading file", num_files):
        split, folder = path.split("/")[-3:-1]
        if not is_utf8(folder):
            raise DataError(f"{origin}: the name of the folder {folder} is not UTF-8. Rename it.")
        used = encoding_of(content, encoding)
        try:
            text = content.decode(used)
        except UnicodeDecodeError:
            bad_row(f"{origin}: {path} {undecodable(used)}")
            continue
        name, split = split, split_of_name(Path(split))
        if (other := names.setdefault(split, name)) != name:
            raise DataError(f"{origin} has two folders for {split}: {other} and {name}.")
        split = "unsupervised" if folder.lower() in UNLABELLED_FOLDERS else split
        rows.setdefault(split, []).append((text, folder, f"{origin}: {path}"))
    if not rows:
        raise DataError(f"{origin} holds no train/CLASS/*.txt or test/CLASS/*.txt reviews.")
    return from_label_names(rows, origin, classes, bad_row=bad_row)
