"""Makes the table of the star ratings of IMDB's training reviews from the official archive.

    python scripts/make_stars.py aclImdb_v1.tar.gz imdb_transformer/data/imdb_stars.npy

The archive names a labelled review `ID_STARS.txt`. Only the names in `train/` are read. A text is left out
if its copies in train have different stars, or if it is in test as well: the table has no text of test.
`imdb_transformer/data/imdb.py` describes the form of the table. Takes 10 s.
"""

import re
import sys
import tarfile
from collections import Counter

import numpy as np

from imdb_transformer.data.imdb import words_key

MEMBER = re.compile(r"aclImdb/(train|test)/(neg|pos)/\d+_(\d+)\.txt$")


def main() -> None:
    stars: dict[int, set[int]] = {}
    held_out = set()
    with tarfile.open(sys.argv[1]) as archive:
        for member in archive:
            if match := MEMBER.match(member.name):
                file = archive.extractfile(member)
                assert file is not None
                key = words_key(file.read().decode())
                if match[1] == "test":
                    held_out.add(key)
                else:
                    assert int(match[3]) in {"neg": (1, 2, 3, 4), "pos": (7, 8, 9, 10)}[match[2]]
                    stars.setdefault(key, set()).add(int(match[3]))
    known = {key: min(each) for key, each in stars.items() if len(each) == 1 and key not in held_out}
    table = np.array(sorted((key << 4) + star for key, star in known.items()), np.uint64)
    np.save(sys.argv[2], table, allow_pickle=False)
    num_unequal = sum(len(each) > 1 for each in stars.values())
    print(
        f"{len(stars):,} texts: {num_unequal} with unequal stars, {len(stars.keys() & held_out)} in test too"
    )
    print(f"{len(table):,} are in the table: {dict(sorted(Counter(known.values()).items()))}")


if __name__ == "__main__":
    main()
