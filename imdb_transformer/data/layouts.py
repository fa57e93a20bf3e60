"""The files of a folder, and which of them holds which split, by its name."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from imdb_transformer.data import tables
from imdb_transformer.data.reviews import SPLIT_ALIASES, SPLITS
from imdb_transformer.errors import DataError
from imdb_transformer.store import run

MAX_HEADER_BYTES = 1 << 20
HEADER = re.compile(rb"---\r?\n.*?\n---", re.DOTALL)  # of a README.md on the hub

READ_SUFFIXES = (*tables.TABLE_SUFFIXES, ".gz", ".txt", "readme.md")
"""of the files that may be read, in lower case"""

# In the folder for stored corpora: corpora, encoded splits, tokenizers, and what is hidden.
STORED = re.compile(r"\..*|encoded|tokenizers|.*-[0-9a-f]{8}")


def split_of_name(path: Path) -> str:
    """The split of `test.csv` and the like; empty for any other name."""
    name = path.name.partition(".")[0].lower()
    split = SPLIT_ALIASES.get(name, name)
    return split if split in SPLITS else ""


def is_unlabelled_text(path: Path) -> bool:
    """Whether a file is `unsupervised.txt`, with a review on each line."""
    return path.suffix.lower() == ".txt" and split_of_name(path) == "unsupervised"


def is_hidden(path: Path) -> bool:
    """Whether a file is hidden, or one that macOS (`._r.csv`) or Excel (`~$r.xlsx`) made beside another."""
    return path.name.startswith((".", "~$"))


def has_card(folder: Path) -> bool:
    """Whether a folder has a README.md like those on the hub, whose header assigns files to splits."""
    path = folder / "README.md"
    if not path.is_file():
        return False
    with path.open("rb") as file:
        header = HEADER.match(file.read(MAX_HEADER_BYTES))
    return header is not None and b"\nconfigs:" in header[0]


def splits_named(path: Path) -> set[str]:
    """The splits whose names a file's name contains, as in `train-00000-of-00001.parquet`."""
    words = [SPLIT_ALIASES.get(word, word) for word in re.split(r"[^a-z]+", path.name.lower())]
    return {*words}.intersection(SPLITS)


def is_test_alone(folder: Path) -> bool:
    """Whether the names in a folder say that it has reviews of test, and none to train on."""
    names = set().union(*(splits_named(path) for path in folder.iterdir() if not is_hidden(path)))
    return "test" in names and not names & {"train", "validation"}


def tables_by_split(folder: Path, data_dir: Path) -> dict[str, list[Path]]:
    """The tables of each split. Under "" are those whose names say no split, or several.

    A table's split is in its name, or else in the name of a folder that it is in. `train.csv` alone is train,
    even if there is a `train-old.csv`. If the folder itself has `train.csv` or the like, or only tables
    without a split, those in its subfolders are left out.
    """
    names = [Path(name) for name, _ in files_below(folder, data_dir)]
    names = [name for name in names if not any(map(is_hidden, map(Path, name.parts)))]
    tables_below = [name for name in names if tables.is_table(name)]
    top = [
        name for name in names if len(name.parts) == 1 and (name in tables_below or is_unlabelled_text(name))
    ]
    exact = {split: [name for name in top if split_of_name(name) == split] for split in SPLITS}
    for split, alike in exact.items():
        if len(alike) > 1:
            raise DataError(f"{folder} has two files for {split}: {alike[0]} and {alike[1]}.")
    has_exact = any(exact[split] for split in SPLITS if split != "unsupervised")
    is_unnamed = top and not any(map(splits_named, top))
    files: dict[str, list[Path]] = {}
    for name in top if has_exact or is_unnamed else sorted({*top, *tables_below}):
        split = split_of(name)
        if has_exact and exact.get(split) and name not in exact[split]:  # `train-old.csv`
            split = ""
        files.setdefault(split, []).append(folder / name)
    return files


def split_of(name: Path) -> str:
    """The split of a file by its name, or else by the folders in its path; empty if unknown.

    >>> split_of(Path("test/part-0.csv")), split_of(Path("train_test.csv"))
    ('test', '')
    """
    splits = next(filter(None, map(splits_named, map(Path, reversed(name.parts)))), set())
    return splits.pop() if len(splits) == 1 else ""


def files_below(folder: Path, data_dir: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Each file below a folder: its path from there, and its status. Links are followed.

    What is stored in `data_dir`, which may be the folder or in it, is left out, and so are runs.
    """
    store, seen = os.path.realpath(data_dir), set()
    for place, folder_names, file_names in os.walk(folder, followlinks=True):
        target = os.path.realpath(place)
        if target in seen or run.INFO in file_names:  # a link may lead to a folder that contains it
            folder_names.clear()
            continue
        seen.add(target)
        if target == store:
            for names in (folder_names, file_names):
                names[:] = [name for name in names if not STORED.fullmatch(name)]
        folder_names.sort()
        for name in sorted(file_names):
            file = f"{place}/{name}"  # no Path for each of 100,000 files
            status = os.stat(file, follow_symlinks=os.path.exists(file))  # noqa: PTH110, PTH116 - a broken link
            yield file[len(str(folder)) + 1 :], status
