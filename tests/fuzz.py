"""Readers of files, and files to damage: for tests/test_fuzz.py and scripts/reliability.py."""

import io
import json
import random
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import torch
from pyarrow import parquet
from safetensors.torch import save

from imdb_transformer import config_file
from imdb_transformer.config import Config
from imdb_transformer.data.archive import read_archive
from imdb_transformer.data.reviews import refuse
from imdb_transformer.data.tables import open_table
from imdb_transformer.store import checkpoint
from imdb_transformer.store.files import sha256_of

Reader = Callable[[bytes], object]

CONFIG = config_file.dump(Config()).encode()
YAML = b"train:\n  lr: 3e-4\n  epochs: 2\nmodel: {width: 64, norm: post}\ndata:\n- source\n"
ROWS = [{"text": 'a good, "film"\n=1+1', "label": "pos"}, {"text": "dull \u2603", "label": "neg"}]
SPLICES = [
    b"",
    b"\0",
    b"\xff" * 8,
    b"{",
    b'"',
    b"[" * 50,
    b"=cmd()",
    b"\n",
    b",",
    b"9" * 30,
    b"../",
    b"\x80\x04.",
]


def readers(folder: Path) -> Iterator[tuple[str, Reader, list[bytes]]]:
    """(name, what reads bytes, whole files of that kind): configs, tables, archives and checkpoints."""
    folder = Path(tempfile.mkdtemp(dir=folder))

    def config(content: bytes) -> object:
        path = folder / ("c.toml" if len(content) % 2 else "c.yaml")
        path.write_bytes(content)
        return config_file.load(str(path))

    def table(content: bytes) -> object:
        suffix = ".parquet" if content[:3] == b"PAR" else ".jsonl" if content[:1] == b"{" else ".csv"
        path = folder / f"t{suffix}"
        path.write_bytes(content)
        schema, blocks = open_table(path, {"text": "--text-column"})
        return schema, list(blocks)

    def archive(content: bytes) -> object:
        return read_archive(io.BytesIO(content), "a.tar", encoding="utf-8", bad_row=refuse)

    def tensors(content: bytes) -> object:
        """As an attacker would: the checksums are right."""
        (folder / checkpoint.MODEL).write_bytes(content)
        meta = checkpoint.Checkpoint(
            step=1, counters={}, tokenizer_hash="t",
            file_hashes={checkpoint.MODEL: sha256_of(folder / checkpoint.MODEL)},
        )  # fmt: skip
        loaded = checkpoint.load_arrays(folder, checkpoint.MODEL, meta)
        model = torch.nn.Linear(3, 2)
        checkpoint.load_weights(model, loaded, origin=folder)
        return model

    yield "config", config, [CONFIG, YAML]
    yield "table", table, _tables()
    yield "archive", archive, [_archive()]
    yield "checkpoint", tensors, [save({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})]


def mutated(seeds: list[bytes], case: int) -> bytes:
    """A file with a few bytes flipped, cut out, put in or doubled; a function of the case's number."""
    generator = random.Random(case)
    content = bytearray(generator.choice(seeds))
    for _ in range(generator.choice([1, 1, 2, 6])):
        i = generator.randrange(len(content) + 1)
        j = min(len(content), i + generator.randint(1, 20))
        match generator.randrange(4):
            case 0 if content:
                content[i % len(content)] ^= 1 << generator.randrange(8)
            case 1:
                del content[i:j]
            case 2:
                content[i:i] = generator.choice(SPLICES)
            case _:
                content[i:i] = content[i:j]
    return bytes(content)


def _tables() -> list[bytes]:
    columns = pa.table({key: [row[key] for row in ROWS] for key in ("text", "label")})
    packed = io.BytesIO()
    parquet.write_table(columns, packed)
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    return [b'text,label\n"a ""good"", film",pos\n=1+1,neg\n', lines, packed.getvalue()]


def _archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("train/pos/1_9.txt", "train/neg/2_1.txt", "test/pos/3_8.txt"):
            member = tarfile.TarInfo(f"aclImdb/{name}")
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    return packed.getvalue()
