"""The official archive's layout: one review a file, in `{train,test}/{pos,neg}` and `train/unsup`.

The archive is read as a stream and never unpacked, so no member can be written outside a folder. Members that
only an attack or damage can explain (links, paths with `..`, impossible sizes) are refused.
"""

import errno
import gzip
import http.client
import re
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from imdb_transformer.data.reviews import NamedColumns, Reviews, from_named_labels
from imdb_transformer.errors import DataError

# The official archive holds 100,000 reviews, the longest 14 kB, 130 MB in all.
MAX_REVIEW_BYTES = 4 << 20
MAX_TOTAL_BYTES = 4 << 30
MAX_MEMBERS = 5_000_000
MAX_DOWNLOAD_BYTES = 4 << 30
READ_LIMIT = 16 << 20
TIMEOUT_SECONDS = 30

REVIEW = re.compile(r"(?:^|/)(train|test)/([^/]+)/[^/]+\.txt$")
UNLABELLED_FOLDER = "unsup"


def is_url(source: str) -> bool:
    """Whether the source is a web address."""
    return source.startswith(("http://", "https://"))


def read_url(url: str) -> Reviews:
    """Reviews of an archive behind a URL, fetched into a temporary file."""
    with tempfile.NamedTemporaryFile(prefix="imdb-tx-", suffix=".tar.gz") as file:
        size = 0
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
                expected = response.headers.get("Content-Length")
                while chunk := response.read(1 << 20):
                    size += file.write(chunk)
                    if size > MAX_DOWNLOAD_BYTES:
                        raise DataError(
                            f"{url} sends more than {MAX_DOWNLOAD_BYTES:,} bytes: no review archive."
                        )
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            reason = getattr(error, "reason", error)
            raise DataError(f"{url} cannot be fetched: {reason}.") from None
        if expected is not None and str(size) != expected:
            raise DataError(f"{url} broke off after {size:,} of {expected} bytes; try again.")
        file.flush()
        return read_archive(Path(file.name), origin=url)


def read_archive(path: Path, *, origin: str = "") -> Reviews:
    """Reviews of a .tar.gz (or .tar) in the official layout, without unpacking it."""
    origin = origin or str(path)
    try:
        with _opened(path, origin) as stream:
            with tarfile.open(fileobj=stream, mode="r:") as archive:  # type: ignore[call-overload]
                reviews = _collect(_members(archive, origin), origin)
            while stream.read(READ_LIMIT):  # to the end: gzip's checksum comes last
                pass
            return reviews
    except PermissionError:
        raise
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        reason = " ".join(str(error).split()) or "unexpected end"
        raise DataError(f"{origin} is damaged or cut short ({reason}); fetch it again.") from None


class _Guarded:
    """A stream that raises DataError if more is read, at once or in total, than a review archive holds."""

    def __init__(self, stream: BinaryIO, origin: str) -> None:
        self.stream, self.origin, self.num_read = stream, origin, 0
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int = -1) -> bytes:
        """At most `READ_LIMIT` bytes."""
        if not 0 <= size <= READ_LIMIT:
            raise DataError(
                f"{self.origin}: a member's header is {size:,} bytes long; a review archive has none."
            )
        content = self.stream.read(size)
        self.num_read += len(content)
        if self.num_read > MAX_TOTAL_BYTES:
            raise _too_large(self.origin)
        return content


def _too_large(origin: str) -> DataError:
    return DataError(f"{origin} unpacks to more than {MAX_TOTAL_BYTES:,} bytes or {MAX_MEMBERS:,} files.")


@contextmanager
def _opened(path: Path, origin: str) -> Iterator[_Guarded]:
    """The tar stream in a file, decompressed if the file is gzip."""
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if is_gzip else path.open("rb") as stream:
        yield _Guarded(stream, origin)  # type: ignore[arg-type]


def root_of_tree(folder: Path) -> Path | None:
    """The folder with `train/CLASS/*.txt` below it: `folder` itself or its `aclImdb`."""
    for root in (folder, folder / "aclImdb"):
        if any(root.glob("train/*/*.txt")):
            return root
    return None


def read_tree(folder: Path) -> Reviews:
    """Reviews of the unpacked archive, or of any `{train,test}/CLASS/*.txt` tree."""
    root = root_of_tree(folder)
    assert root is not None
    paths = sorted(root.glob("t*/*/*.txt"))
    return _collect(((str(path.relative_to(root)), path.read_bytes()) for path in paths), str(folder))


def _members(archive: tarfile.TarFile, origin: str) -> Iterable[tuple[str, bytes]]:
    total = 0
    for number, member in enumerate(archive):
        total += member.size
        if member.issym() or member.islnk() or member.isdev():
            raise DataError(
                f"{origin}: member {member.name!r} is a link or device; a review archive has none."
            )
        if member.name.startswith("/") or ".." in Path(member.name).parts:
            raise DataError(f"{origin}: member {member.name!r} points outside the archive.")
        if number >= MAX_MEMBERS or total > MAX_TOTAL_BYTES:
            raise _too_large(origin)
        if not (member.isfile() and REVIEW.search(member.name)):
            continue
        if member.size > MAX_REVIEW_BYTES:
            raise DataError(f"{origin}: {member.name} has {member.size:,} bytes, too many for a review.")
        file = archive.extractfile(member)
        assert file is not None
        yield member.name, file.read()


def _collect(files: Iterable[tuple[str, bytes]], origin: str) -> Reviews:
    columns: NamedColumns = {}
    for name, content in files:
        match = REVIEW.search(name)
        if match is None:
            continue
        split, folder = match.groups()
        if folder == UNLABELLED_FOLDER:
            split = "unsupervised"
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{origin}: {name} is not UTF-8 (byte {error.start}).") from None
        texts, labels = columns.setdefault(split, ([], []))
        texts.append(text)
        labels.append(folder)
    if not columns:
        raise DataError(f"{origin} holds no train/CLASS/*.txt or test/CLASS/*.txt reviews.")
    return from_named_labels(columns, origin=origin)
