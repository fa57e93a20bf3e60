"""What a corpus is like: the figures that `imdb-tx download` shows."""

from collections import Counter

import numpy as np
from pydantic import BaseModel, ConfigDict

from imdb_transformer.data.reviews import UNLABELLED, Reviews

PERCENTILES = (50, 90, 99, 100)


class SplitStatistics(BaseModel):
    """One split in figures. Rows are counted as the source gives them, before validation is cut."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    split: str
    num_rows: int
    num_by_label: dict[str, int]
    num_empty: int
    num_duplicates: int
    """rows whose text stands earlier in the same split"""
    num_shared: dict[str, int]
    """distinct texts that also stand in another split, by its name"""
    num_with_breaks: int
    """rows with `<br />`"""
    word_percentiles: dict[int, int]
    """words a review, at the 50th, 90th, 99th and 100th percentile"""


def measure(reviews: Reviews) -> list[SplitStatistics]:
    """Statistics of each split."""
    distinct = {name: set(rows.texts) for name, rows in reviews.splits.items()}
    statistics = []
    for name, (texts, labels) in reviews.splits.items():
        num_words = np.array([len(text.split()) for text in texts] or [0])
        names = Counter("unlabelled" if label == UNLABELLED else reviews.classes[label] for label in labels)
        statistics.append(
            SplitStatistics(
                split=name,
                num_rows=len(texts),
                num_by_label=dict(sorted(names.items())),
                num_empty=sum(not text.strip() for text in texts),
                num_duplicates=len(texts) - len(distinct[name]),
                num_shared={
                    other: len(distinct[name] & distinct[other]) for other in distinct if other != name
                },
                num_with_breaks=sum("<br />" in text for text in texts),
                word_percentiles={p: int(np.percentile(num_words, p)) for p in PERCENTILES},
            )
        )
    return statistics
