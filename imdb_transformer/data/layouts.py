"""The files of a folder, and which of them holds which split, by its name."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from imdb_transformer.data import tables
from imdb_transformer.data.reviews import SPLIT_ALIASES, SPLITS
from imdb_transformer.errors import DataError
from imdb_transformer.store import run

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
    """Whether a folder has a README.md like those on the hub, whose header may assign files to splits."""
    path = folder / "README.md"
    return path.is_file() and path.read_bytes()[:3] == b"---"


def splits_named(path: Path) -> set[str]:
    """The splits whose names a file's name contains, as in `train-00000-of-00001.parquet`."""
    words = [SPLIT_ALIASES.get(word, word) for word in re.split(r"[^a-z]+", path.name.lower())]
    return {*words}.intersection(SPLITS)


def is_test_alone(folder: Path) -> bool:
    """Whether the names in a folder say that it has reviews of test, and none to train on."""
    names = set().union(*(splits_named(path) for path in folder.iterdir() if not is_hidden(path)))
    return "test" in names and not names & {"train", "validation"}


def tables_by_split(folder: Path, loose: Sequence[Path], data_dir: Path) -> dict[str, Path]:
    """The table files by split: `test.csv` and the like, or else one `reviews_test.csv` for each split.

    Other layouts are left to `datasets`: Parquet files with longer names, and several files of a split.
    """
    files: dict[str, Path] = {}
    for path in loose:
        if split := split_of_name(path):
            if split in files:
                raise DataError(f"{folder} has two files for {split}: {files[split].name} and {path.name}.")
            files[split] = path
    if files or has_card(folder):
        return files
    pairs = [(split, path) for path in loose for split in splits_named(path)]
    files = dict(pairs)
    is_parquet = all(tables.suffix_of(path) == ".parquet" for path in loose)
    has_more = any("/" in name and tables.is_table(Path(name)) for name, _ in files_below(folder, data_dir))
    return {} if is_parquet or has_more or not len(files) == len(pairs) == len({*files.values()}) else files


def files_by_split(folder: Path, data_dir: Path) -> dict[str, list[str]] | None:
    """The files of each split, if `datasets` cannot find them by itself; or None.

    It does not know the name `unsupervised`, and would also read what is stored below the folder. Raises
    DataError if a file's name contains several splits: `datasets` would read it as each of them.
    """
    files: dict[str, list[str]] = {}
    names = sorted(name for name, _ in files_below(folder, data_dir) if tables.is_table(Path(name)))
    for name in names:
        splits = splits_named(Path(name))
        if len(splits) > 1:
            several = " and ".join(sorted(splits, key=SPLITS.index))
            raise DataError(f"{folder / name} is called {several}. Rename it to the one that it holds.")
        for split in splits:
            files.setdefault(split, []).append(name)
    if data_dir.resolve().is_relative_to(folder.resolve()):
        return files or {"train": names}
    return files if "unsupervised" in files else None


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
