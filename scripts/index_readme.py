"""The README for the package index, where a picture of the repository cannot be shown: it is drawn in text.

Builds, such as `pip install`, call `update` (pyproject.toml, `tool.hatch.metadata.hooks.custom`).
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
IN_TEXT = """\
```
review
  |   tokenizer (byte-level BPE)
ids
  |   embedding: one vector for each token
  |
  |   block, repeated N times:
  |     x + attention(norm(x))        each token looks at its neighbours
  |     x + feed-forward(norm(x))     each token by itself
  |
  |   norm
  |   max-pool: the largest value of each channel
  |   linear
probability of each class
```"""


class IndexReadme(MetadataHookInterface):
    """Gives hatchling the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets the README, with its picture drawn in text."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": drawn(text)}


def drawn(readme: str) -> str:
    """A README with its one picture drawn in text. Raises ValueError if it has none or several."""
    text, count = PICTURE.subn(lambda _: IN_TEXT, readme)
    if count != 1:
        raise ValueError(f"README.md has {count} pictures; {Path(__file__).name} draws one")
    return text
