"""Where the corpus of a source is stored, and whether the source has changed."""

import hashlib
import os
import re
from pathlib import Path

from imdb_transformer.config import DataConfig
from imdb_transformer.data import archive
from imdb_transformer.data.holdout import share_of

MANIFEST = "manifest.json"


def other_folders(config: DataConfig) -> list[Path]:
    """The folders of a source's former corpora. If the source is not found from here, those of all others."""
    usual = corpus_folder(config)
    is_gone = is_local(config) and not Path(config.source).exists()
    pattern = "[!.]*" if is_gone else f"{usual.name}-*"
    return [path.parent for path in usual.parent.glob(f"{pattern}/{MANIFEST}") if path.parent != usual]


def former_folder(folder: Path, content_hash: str) -> Path:
    """Where a stored corpus is kept when another one replaces it."""
    return folder.with_name(f"{folder.name}-{content_hash[:8]}")


def corpus_folder(config: DataConfig) -> Path:
    """The folder of a source's stored corpus. Its name depends on every setting that changes the content."""
    place = str(Path(config.source).resolve()) if is_local(config) else config.source
    settings: tuple[object, ...] = (config.text_column, config.label_column, share_of(config))
    if (config.encoding, config.bad_rows) != ("utf-8", "fail"):
        settings += (config.encoding, config.bad_rows)
    key = hashlib.sha256(repr((place, *settings)).encode()).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(place).name.split(".")[0]) or "corpus"
    return Path(config.data_dir) / f"{name}-{key}"


def is_local(config: DataConfig) -> bool:
    """Whether the source is a file or folder."""
    return config.source not in ("hub", "demo") and not archive.is_url(config.source)


def fingerprint_of(config: DataConfig) -> str:
    """A hash that changes when a local source's files change. Empty if there are no local files."""
    path = Path(config.source).resolve()
    if not (is_local(config) and path.exists()):
        return ""
    stored = Path(config.data_dir).resolve()
    stats = [path.name, path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else []
    for folder, folder_names, file_names in os.walk(path):
        folder_names[:] = sorted(name for name in folder_names if Path(folder, name) != stored)
        for name in sorted(file_names):
            status = os.stat(f"{folder}/{name}", follow_symlinks=False)  # noqa: PTH116 - 100,000 files: no Path each
            stats += [folder[len(str(path)) :], name, status.st_size, status.st_mtime_ns]
    return hashlib.sha256(repr(stats).encode()).hexdigest()
