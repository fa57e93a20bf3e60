"""The files of a folder, and which of them holds which split, by its name."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from imdb_transformer.data import tables
from imdb_transformer.data.reviews import SPLIT_ALIASES, SPLITS
from imdb_transformer.errors import ConfigError, DataError, warn
from imdb_transformer.store import run

HEADER = re.compile(r"\s*---\n.*?\n---", re.DOTALL)  # of a README.md on the hub
DESCRIPTIONS = (
    "config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json", run.INFO,
)  # fmt: skip
"""files that look like tables: five are of `datasets`"""
ADVICE = {
    ".txt": 'Rename a table with tabs to .tsv. Lines without labels: imdb-tx pretrain --label-column ""',
    ".xls": "Save the workbook as .xlsx.",
    **dict.fromkeys(
        (".zip", ".bz2", ".xz", ".7z", ".rar", ".zst"), "Unpack it, and name the file or folder in it."
    ),
    **dict.fromkeys(
        (".arrow", ".feather", ".orc", ".pkl", ".pickle", ".h5"), "Write its rows to a .parquet file."
    ),
}
"""by the ending of a file that is not read"""

READ_SUFFIXES = (*tables.TABLE_SUFFIXES, ".gz", ".txt", "readme.md")
"""of the files that may be read, in lower case"""

LABELLED_SPLITS = ("test", "validation", "train")
ALL = "all"  # labelled splits of one source, together
STORED = ("encoded", "tokenizers")  # in the folder for stored corpora
# A stored corpus, in any folder.
CORPUS, MANIFEST = re.compile(r".*-[0-9a-f]{8}"), "manifest.json"


def split_of_name(path: Path) -> str:
    """The split of `test.csv` and the like; empty for any other name."""
    name = path.name.partition(".")[0].lower()
    split = SPLIT_ALIASES.get(name, name)
    return split if split in SPLITS else ""


def is_hidden(name: str) -> bool:
    """Whether a file is hidden, or one that macOS (`._r.csv`) or Excel (`~$r.xlsx`) made beside another."""
    return name.startswith((".", "~$", "__MACOSX"))


def has_card(folder: Path) -> bool:
    """Whether a folder has a README.md of the hub, whose header assigns files to splits or names classes."""
    path = folder / "README.md"
    if not path.is_file():
        return False
    header = HEADER.match(path.read_text(encoding="utf-8-sig", errors="replace"))
    return header is not None and any(key in header[0] for key in ("\nconfigs:", " class_label:"))


def splits_in_name(path: Path) -> set[str]:
    """The splits that a file's name contains, as in `train-00000-of-00001.parquet` or `testset_2.csv`."""
    words = re.split(r"[^a-z]+", path.name.lower())
    names = [word.removesuffix("set").removesuffix("split").removesuffix("data") for word in words]
    return {SPLIT_ALIASES.get(name, name) for name in names}.intersection(SPLITS)


def splits_below(folder: Path) -> set[str]:
    """The splits that a folder's files are named for; "" for a name that says none."""
    names = (Path(name) for name, _ in files_below(folder, folder) if name.lower().endswith(READ_SUFFIXES))
    return {split_of(name) for name in names if name.suffix != ".md"}


def check_unambiguous(source: str | None) -> None:
    """Raises ConfigError if a source is one of the package, and also a file or folder here."""
    if source in ("hub", "demo") and Path(source).exists():
        raise ConfigError(
            f"{source} is a source of the package, and also a file or folder here. For yours, write "
            f"./{source}. For the other, change to another folder."
        )


def measured_split(source: str | None, split: str | None) -> str:
    """The split to measure: by default test, or all of a `source` that has no other. Raises ConfigError."""
    check_unambiguous(source)
    place = Path(source or "")
    is_folder = source is not None and place.is_dir()
    is_file = source is not None and tables.is_table(place) and not is_folder
    splits = splits_below(place) if is_folder and not has_card(place) else set()
    is_whole = is_file or (bool(splits & {"test", ""}) and not splits & {"train", "validation"})
    if split not in (None, *LABELLED_SPLITS, ALL):
        raise ConfigError(f"No labelled split is called {split!r}: choose test, validation, train or all.")
    if split == ALL and source is None:
        raise ConfigError("The split all is for reviews of another source: imdb-tx eval RUN --source FILE")
    if is_file and split not in (None, ALL):
        raise ConfigError(f"{source} is one file, and has no splits. Leave out --split {split}.")
    return ALL if is_whole and split in (None, "test") else split or "test"


def tables_by_split(folder: Path, data_dir: Path) -> dict[str, list[Path]]:
    """The tables of each split. Under "" are those whose paths say no split, or several.

    Beside `test.csv`, `test-old.csv` has no split. Beside `train.csv`, no such longer name has one. If the
    folder itself has `train.csv`, or only tables that say no split, the tables of subfolders are left out.
    """
    names = [Path(name) for name, _ in files_below(folder, data_dir) if is_read(Path(name))]
    top = [name for name in names if len(name.parts) == 1]
    has_train = "train" in map(split_of_name, top)
    labelled = [name for name in top if split_of_name(name) != "unsupervised"]
    says_nothing = labelled and not any(map(splits_in_name, labelled))
    chosen = top if has_train or says_nothing else names
    short: dict[tuple[Path, str], Path] = {}
    for name in chosen:
        split = split_of_name(name)
        if split and (other := short.setdefault((name.parent, split), name)) != name:
            raise DataError(f"{folder} has two files for {split}: {other} and {name}.")
    files: dict[str, list[Path]] = {}
    for name in chosen:
        split = split_of(name)
        if not split_of_name(name) and {(name.parent, "train"), (name.parent, split)} & short.keys():
            split = ""
        files.setdefault(split, []).append(folder / name)
    return files


def advice_on_arrow(folder: Path) -> str:
    """What to do with a folder that `datasets` wrote by `save_to_disk`; empty for any other folder."""
    if not any(folder.glob("**/*.arrow")):
        return ""
    return " save_to_disk wrote it; write each split by to_parquet instead, such as train.parquet."


def warn_of_unread(folder: Path, files: Iterable[Path], reason: str) -> None:
    """Names the files of a folder that are not read, if there are any."""
    if names := ", ".join(sorted(str(path.relative_to(folder)) for path in files)):
        warn(f"{folder}: not read: {names:.200}. {reason}")


def is_read(name: Path) -> bool:
    """Whether a file in a folder is a table, or `unsupervised.txt`, with a review on each line."""
    if tables.is_table(name):
        return name.name not in DESCRIPTIONS
    return len(name.parts) == 1 and name.suffix.lower() == ".txt" and split_of_name(name) == "unsupervised"


def split_of(name: Path) -> str:
    """The split that a file's path says: `test` or `test.csv` first, then longer names. Empty if unknown.

    >>> split_of(Path("test/part-0.csv")), split_of(Path("train_test.csv"))
    ('test', '')
    """
    parts = [Path(part) for part in reversed(name.parts)]
    if short := next(filter(None, map(split_of_name, parts)), ""):
        return short
    splits = next(filter(None, map(splits_in_name, parts)), set())
    return splits.pop() if len(splits) == 1 else ""


def files_below(folder: Path, data_dir: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Each file below a folder: its path from there, and its status. Links are followed.

    Hidden files and folders, stored corpora, runs and imdb-tx's folders in `data_dir` are left out. The last
    may be the folder or in it. A link to a folder below is left out, too: its target is there.
    """
    store, root, seen = os.path.realpath(data_dir), os.path.realpath(folder), set()
    for place, folder_names, file_names in os.walk(folder, followlinks=True):
        target = os.path.realpath(place)
        is_corpus = CORPUS.fullmatch(place) and MANIFEST in file_names
        is_output = place != str(folder) and (is_corpus or run.INFO in file_names)
        if target in seen or is_output:  # a link may lead to a folder that contains it
            folder_names.clear()
            continue
        seen.add(target)
        left_out = STORED if target == store else ()
        visible = sorted(name for name in folder_names if not (is_hidden(name) or name in left_out))
        folder_names[:] = [name for name in visible if not _leads_below(Path(place, name), root)]
        for name in sorted(name for name in file_names if not is_hidden(name)):
            file = f"{place}/{name}"  # no Path for each of 100,000 files
            status = os.stat(file, follow_symlinks=os.path.exists(file))  # noqa: PTH110, PTH116 - a broken link
            yield file[len(str(folder)) + 1 :], status


def files_read(source: Path, data_dir: Path) -> list[tuple[str, int, int, int]]:
    """Name, size, mtime and ctime of the file that is read, or of each file below a folder that may be read.

    Programs can set a file's mtime, but not its ctime.
    """
    reads_all = source.is_file() or has_card(source)  # `datasets` knows more formats
    listed = [(source.name, source.stat())] if source.is_file() else files_below(source, data_dir)
    return [
        (name, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        for name, status in listed
        if reads_all or name.lower().endswith(READ_SUFFIXES)  # a log in the folder may change
    ]


def _leads_below(path: Path, folder: str) -> bool:
    """Whether a path is a link to something below a folder that is not hidden there."""
    if not path.is_symlink():
        return False
    target = path.resolve()
    return target.is_relative_to(folder) and not any(map(is_hidden, target.relative_to(folder).parts))
