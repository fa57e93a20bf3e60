"""Makes the list of IMDB's canonical validation split from the official archive.

    python scripts/make_validation.py aclImdb_v1.tar.gz > imdb_transformer/data/imdb_validation.txt

Takes films in the order of the SHA-256 of their title id, each with all of its training reviews, as long
as neither class passes 1,250: about 2,500 reviews, half of each class, from films that no remaining
training review is about. A film is passed over when one of its texts also stands under another film.
Reads the archive's `train/urls_{neg,pos}.txt`, whose line i (from 0) names the film of review id i, and
no file of the test split. Prints 16 hex digits of the SHA-256 of each chosen text, sorted. Takes 10 s.
"""

import re
import sys
import tarfile
from collections import defaultdict
from hashlib import sha256

TARGET = 1250  # of each class: a tenth of train
MEMBER = re.compile(r"aclImdb/train/(?:urls_(neg|pos)\.txt|(neg|pos)/(\d+)_\d+\.txt)$")


def main() -> None:
    films: dict[str, list[str]] = {}
    texts: dict[tuple[str, int], bytes] = {}
    with tarfile.open(sys.argv[1]) as archive:
        for member in archive:
            match = MEMBER.match(member.name)
            if not match:
                continue
            file = archive.extractfile(member)
            assert file is not None
            content = file.read()
            if match[1]:
                films[match[1]] = [url.split("/")[4] for url in content.decode().split()]
            else:
                texts[match[2], int(match[3])] = content
    reviews = defaultdict(list)  # film -> (class, text hash)
    films_of_text = defaultdict(set)
    for (label, number), content in texts.items():
        film, digest = films[label][number], sha256(content).hexdigest()
        reviews[film].append((label, digest))
        films_of_text[digest].add(film)
    chosen: list[str] = []
    counts = {"neg": 0, "pos": 0}
    for film in sorted(reviews, key=lambda name: sha256(name.encode()).hexdigest()):
        add = {label: sum(other == label for other, _ in reviews[film]) for label in counts}
        fits = all(counts[label] + add[label] <= TARGET for label in counts)
        if fits and all(len(films_of_text[digest]) == 1 for _, digest in reviews[film]):
            chosen += [digest for _, digest in reviews[film]]
            counts = {label: counts[label] + add[label] for label in counts}
    print(
        f"# IMDB's validation split: {counts['neg']} neg, {counts['pos']} pos; see scripts/make_validation.py"
    )
    print("\n".join(sorted({digest[:16] for digest in chosen})))


if __name__ == "__main__":
    main()
