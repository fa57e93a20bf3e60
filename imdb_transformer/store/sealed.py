"""JSON files that carry their own checksum: a flipped bit is damage, never another value."""

import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from imdb_transformer.store.files import write_whole

SEAL = "sha256"

M = TypeVar("M", bound=BaseModel)


def write_sealed(path: Path, content: BaseModel) -> None:
    """Writes a model's fields, and before them their checksum; whole or not at all."""
    tree = content.model_dump(mode="json")
    write_whole(path, json.dumps({SEAL: _checksum(tree), **tree}, indent=1).encode())


def read_sealed(path: Path, kind: type[M]) -> M:
    """What `write_sealed` wrote; without a checksum, as versions before it wrote.

    Raises OSError where it cannot be read, and ValueError (pydantic's ValidationError is one) where it is
    damaged.
    """
    try:
        tree = json.loads(path.read_bytes())
        if not isinstance(tree, dict):
            raise ValueError("not a JSON object")
        seal = tree.pop(SEAL, None)
        if seal is not None and seal != _checksum(tree):
            raise ValueError("its checksum is wrong")
        return kind.model_validate(tree)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _checksum(tree: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
