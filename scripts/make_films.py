"""Makes the table of the films of IMDB's training and unlabelled reviews from the official archive.

    python scripts/make_films.py aclImdb_v1.tar.gz imdb_transformer/data/imdb_films.npy

Line i (from 0) of the archive's `train/urls_{neg,pos,unsup}.txt` names the film of review id i. A text is
left out if its copies are about different films, or if it is in test as well: the table has no text of test.
`imdb_transformer/data/imdb.py` describes the form of the table. Takes 20 s.
"""

import re
import sys
import tarfile

import numpy as np

from imdb_transformer.data.imdb import FILM_BITS, HASH_BITS, words_key

URLS = re.compile(r"aclImdb/train/urls_(neg|pos|unsup)\.txt$")
REVIEW = re.compile(r"aclImdb/(train|test)/(neg|pos|unsup)/(\d+)_\d+\.txt$")
FILM = re.compile(r"http://www\.imdb\.com/title/(tt\d+)/")


def main() -> None:
    urls: dict[str, list[str]] = {}
    reviews: list[tuple[str, int, int]] = []  # folder, id, key of the text
    held_out = set()
    with tarfile.open(sys.argv[1]) as archive:
        for member in archive:
            if match := URLS.match(member.name):
                urls[match[1]] = text_of(archive, member).splitlines()
            elif match := REVIEW.match(member.name):
                key = words_key(text_of(archive, member))
                if match[1] == "test":
                    held_out.add(key)
                else:
                    reviews.append((match[2], int(match[3]), key))
    films: dict[int, set[str]] = {}
    for folder, number, key in reviews:
        match = FILM.match(urls[folder][number])
        assert match is not None, urls[folder][number]
        films.setdefault(key, set()).add(match[1])
    known = {key: min(each) for key, each in films.items() if len(each) == 1 and key not in held_out}
    numbers = {film: number for number, film in enumerate(sorted(set(known.values())))}
    assert len(numbers) < 1 << FILM_BITS
    num_dropped = HASH_BITS + FILM_BITS - 64
    rows = {key >> num_dropped: numbers[film] for key, film in known.items()}
    assert len(rows) == len(known)  # no two texts have one hash
    table = np.array(sorted((key << FILM_BITS) + number for key, number in rows.items()), np.uint64)
    np.save(sys.argv[2], table, allow_pickle=False)
    num_unequal = sum(len(each) > 1 for each in films.values())
    print(
        f"{len(films):,} texts: {num_unequal} about several films, {len(films.keys() & held_out)} in test too"
    )
    print(f"{len(table):,} are in the table, about {len(numbers):,} films")


def text_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    """The text of a file in the archive."""
    file = archive.extractfile(member)
    assert file is not None
    return file.read().decode()


if __name__ == "__main__":
    main()
