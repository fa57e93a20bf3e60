"""Makes the table of the films of IMDB's training and unlabelled reviews from the official archive.

    python scripts/make_films.py aclImdb_v1.tar.gz imdb_transformer/data/imdb_films.npy

Line i (from 0) of the archive's `train/urls_{neg,pos,unsup}.txt` names the film of review id i. Nothing in
`test/` is read. A text is left out if its copies are about different films.
`imdb_transformer/data/films.py` describes the form of the table. Takes 15 s.
"""

import re
import sys
import tarfile

import numpy as np

from imdb_transformer.data.films import FILM_BITS
from imdb_transformer.data.stars import HASH_BITS, words_key

MEMBER = re.compile(r"aclImdb/train/(?:urls_(neg|pos|unsup)\.txt|(neg|pos|unsup)/(\d+)_\d+\.txt)$")
FILM = re.compile(r"/title/(tt\d+)/")


def main() -> None:
    urls: dict[str, list[str]] = {}
    reviews: list[tuple[str, int, int]] = []  # folder, id, key of the text
    with tarfile.open(sys.argv[1]) as archive:
        for member in archive:
            if match := MEMBER.match(member.name):
                file = archive.extractfile(member)
                assert file is not None
                text = file.read().decode()
                if match[1]:
                    urls[match[1]] = FILM.findall(text)
                else:
                    reviews.append((match[2], int(match[3]), words_key(text)))
    films: dict[int, set[str]] = {}
    for folder, number, key in reviews:
        films.setdefault(key, set()).add(urls[folder][number])
    known = {key: min(each) for key, each in films.items() if len(each) == 1}
    numbers = {film: number for number, film in enumerate(sorted(set(known.values())))}
    assert len(numbers) < 1 << FILM_BITS
    rows = (
        ((key >> (HASH_BITS + FILM_BITS - 64)) << FILM_BITS) + numbers[film] for key, film in known.items()
    )
    table = np.array(sorted(rows), np.uint64)
    np.save(sys.argv[2], table, allow_pickle=False)
    print(f"{len(films):,} texts, {len(films) - len(known)} about several films; {len(numbers):,} films")


if __name__ == "__main__":
    main()
