"""Where reviews come from: the hub, a folder in its layout, table files, the official archive, the demo.

`read` looks at what the source is and hands over to one function a kind. Nothing of it stays on
disk, except that `datasets` keeps what it downloads in its own cache.
"""

from pathlib import Path

from imdb_transformer.config import DataConfig
from imdb_transformer.data import archive, demo, hub, tables
from imdb_transformer.data.reviews import Reviews
from imdb_transformer.errors import DataError


def read(config: DataConfig) -> Reviews:
    """All reviews of `config.source`. Raises DataError where it is missing, broken or not labelled."""
    source = config.source
    if source == "demo":
        return demo.reviews()
    if source == "hub":
        return hub.read_hub()
    if archive.is_url(source):
        return archive.read_url(source)
    path = Path(source)
    if not path.exists():
        raise DataError(f"There is no source {source!r}: no such file or folder, and not `hub` or `demo`.")
    if path.is_file():
        return _read_file(path, config)
    if archive.root_of_tree(path):
        return archive.read_tree(path)
    found = tables.tables_by_split(path)
    if "train" in found:
        return tables.read_tables(found, config, origin=str(path))
    return hub.read_folder(path, config)


def _read_file(path: Path, config: DataConfig) -> Reviews:
    if tables.is_table(path):
        return tables.read_tables({"train": path}, config, origin=str(path))
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        return archive.read_archive(path)
    endings = ", ".join((*tables.TABLE_SUFFIXES, ".tar.gz"))
    raise DataError(f"{path} is no source: its name should end in one of {endings}.")
