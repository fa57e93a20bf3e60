"""Puts a trained encoder or classifier into the package, with its matrices in 8 bits, and checks it.

    imdb-tx pretrain --config large.toml  # on a GPU, and all others, too
    imdb-tx pretrain --config large-contrast.toml
    imdb-tx pretrain --config distil.toml --teacher runs/large-contrast
    imdb-tx pretrain --config contrast.toml --set train.init_from=runs/distil --set train.epochs=3 \\
        --set train.batch_tokens=65536 --set train.lr=3e-3
    python scripts/ship.py imdb-encoder runs/contrast
    imdb-tx train --config large-labels.toml --seeds 3
    imdb-tx train --config base.toml --run-dir runs/student --teacher runs/former-imdb \\
        --teacher runs/large-labels-seed-0 --teacher runs/large-labels-seed-1 \\
        --teacher runs/large-labels-seed-2
    python scripts/ship.py imdb runs/student

The first of the four teachers is the `imdb` that was in the package before. `imdb` started from an earlier
`imdb-encoder`, whose teacher was large.toml's encoder.

The runs must be finished. Their configs lose what belongs to this machine: the source becomes `hub`, the
folder of the data its default, and the run that they started from and the teachers have the names of these
commands.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imdb_transformer import config_file
from imdb_transformer.config import DataConfig
from imdb_transformer.data import corpus, encoded
from imdb_transformer.data.tokenizer import FILE_NAME
from imdb_transformer.evaluation.baseline import write_yardstick
from imdb_transformer.evaluation.scores import score
from imdb_transformer.inference.predictor import load_model
from imdb_transformer.store import checkpoint, run
from imdb_transformer.store.files import sha256_of, write_json

MAX_BYTES = 16 << 20  # of both together
MAX_LOSS_ADDED = 0.0005
GROUP = 64  # numbers that share a factor
LARGEST = 127
ORIGINS = {"imdb-encoder": "runs/distil", "imdb": "imdb-encoder"}


def main(name: str, origin: Path) -> None:
    """Writes the run into the package, and compares a classifier with the original."""
    ship(origin, name)
    size = sum(path.stat().st_size for path in run.SHIPPED.rglob("*") if path.is_file())
    print(f"{run.SHIPPED}: {size / 2**20:.2f} MiB")
    if size > MAX_BYTES:
        sys.exit(f"That is more than {MAX_BYTES / 2**20:.0f} MiB.")
    if run.open_run(run.SHIPPED / name).info.kind == "classifier":
        compare(origin, run.SHIPPED / name)


def ship(origin: Path, name: str) -> None:
    """Copies the best checkpoint of a run, quantized, into the package."""
    opened, folder = run.locate(origin)
    if opened.info.status != "finished":
        sys.exit(f"{origin} is not finished.")
    target = run.SHIPPED / name
    target.mkdir(parents=True, exist_ok=True)
    config = opened.config.model_copy(update={"data": DataConfig()})
    config = config.replaced("train", init_from=ORIGINS[name])
    (target / run.CONFIG).write_text(config_file.dump(config), encoding="utf-8")
    (target / FILE_NAME).write_bytes((opened.folder / FILE_NAME).read_bytes())
    meta = checkpoint.read_meta(folder, tokenizer_hash=opened.info.tokenizer_hash)
    arrays = checkpoint.load_arrays(folder, checkpoint.MODEL, meta)
    checkpoint.save(
        target / "checkpoints" / "best", step=meta.step, counters=meta.counters,
        tokenizer_hash=meta.tokenizer_hash, model=quantized(arrays),
    )  # fmt: skip
    hashes = {file: sha256_of(target / file) for file in (run.CONFIG, FILE_NAME)}
    teachers = tuple(f"runs/{Path(teacher).name}" for teacher in opened.info.teachers)
    changes = {"file_hashes": hashes, "teachers": teachers}
    write_json(target / run.INFO, opened.info.model_copy(update=changes))


def quantized(arrays: checkpoint.Arrays) -> dict[str, NDArray[Any]]:
    """The arrays, with each matrix as integers (int8) and factors (fp32), one for each 64 columns of a row.

    64 neighbours become whole numbers from -127 to 127 and one factor (symmetric quantisation: Jacob et al.
    2018, section 2.1, with zero as zero). Rows of another length than a multiple of 64 have one factor each.
    """
    result: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        result[name] = array
        if array.ndim == 2:
            width = array.shape[1] if array.shape[1] % GROUP else GROUP
            groups = array.reshape(len(array), -1, width)
            factors = np.maximum(abs(groups).max(2), np.finfo(np.float32).tiny * LARGEST) / LARGEST
            result[name] = np.round(groups / factors[..., None]).astype(np.int8).reshape(array.shape)
            result[name + checkpoint.FACTORS] = factors.astype(np.float32)
    return result


def compare(classifier: Path, copy: Path) -> None:
    """Stops if 8 bits add more than 0.0005 to the log loss on validation. Compares the copy with `nb`.

    Accuracy decides nothing here: one of validation's 2,500 reviews is 0.04 points. Both scores are printed.
    """
    opened, shipped = run.locate(classifier)[0], run.open_run(copy)
    rows = encoded.rows_of(opened.config.data, corpus.ensure(opened.config.data), "validation")
    labels = np.array(rows.labels)
    logits = [load_model(path).logits(rows.texts) / shipped.info.temperature for path in (classifier, copy)]
    scores = [score(each, labels) for each in logits]
    for name, each in zip(("original", "quantized"), scores, strict=True):
        print(f"{name}: {each} on validation", flush=True)
    before, after = (each.argmax(1) == labels for each in logits)
    print(f"lost {np.sum(before & ~after)}, won {np.sum(~before & after)} of {len(labels):,} reviews")
    if scores[1].loss > scores[0].loss + MAX_LOSS_ADDED:
        sys.exit("8 bits cost too much.")
    write_yardstick(shipped._replace(config=opened.config), logits[1], labels)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
