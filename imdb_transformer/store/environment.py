"""Where and by what a run was made: hardware, versions, command line."""

import platform
import sys
from importlib import metadata
from typing import Any

VERSIONED = ("imdb-tx", "torch", "tokenizers", "datasets", "numpy", "scikit-learn", "safetensors", "pyarrow")


def describe(hardware: str) -> dict[str, Any]:
    """What `environment.json` holds."""
    versions = {}
    for name in VERSIONED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a checkout that is not installed
            versions[name] = "not installed"
    return {
        "command": sys.argv,
        "hardware": hardware,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
    }
