"""`imdb-tx export` and `verify`: write a run as an ONNX file, and check a run's files."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli import options
from imdb_transformer.cli.options import app
from imdb_transformer.errors import RunError

Source = Annotated[
    Path, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="A run, or one of its checkpoints.")
]


@app.command()
def export(
    path: Source,
    output: Annotated[Path | None, typer.Option(help="The file; by default model.onnx in the run.")] = None,
    as_json: options.Json = False,
) -> None:
    """Write a trained model as an ONNX file, for other engines.

    predict --run takes the file as well, and needs no torch for it.
    """
    from imdb_transformer.inference.export import export as export_run

    print(f"exporting {path} ...", file=sys.stderr)
    file = export_run(path, output)
    num_bytes = file.stat().st_size
    text = f'{file}: {num_bytes / 2**20:.1f} MiB\nnext: imdb-tx predict --run {file} "some review"'
    print(json.dumps({"file": str(file), "num_bytes": num_bytes}) if as_json else text)


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    as_json: options.Json = False,
) -> None:
    """Check every file of a run against its checksum."""
    from imdb_transformer.store.verify import verify as verify_run

    problems = verify_run(path)
    parts = {part: problem or "ok" for part, problem in problems.items()}
    text = "\n".join(f"{part}: {state}" for part, state in parts.items())
    print(json.dumps({"run": str(path), "parts": parts}) if as_json else text)
    damaged = [part for part, problem in problems.items() if problem]
    if damaged:
        raise RunError(f"{path} is damaged: {', '.join(damaged)}.")
