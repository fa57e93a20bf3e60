"""`imdb-tx export`: writes a trained model as an ONNX file."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli.options import JsonOption, app


@app.command()
def export(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="A run, or one of its checkpoints.")
    ],
    output: Annotated[
        Path | None, typer.Option(help="The file to write; by default model.onnx in the run.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a trained model as an ONNX file, for other engines.

    predict --run takes the file as well, and needs no torch for it.
    """
    from imdb_transformer.inference.export import export as export_run

    print(f"exporting {path} ...", file=sys.stderr)
    file = export_run(path, output)
    num_bytes = file.stat().st_size
    if as_json:
        print(json.dumps({"file": str(file), "num_bytes": num_bytes}))
    else:
        print(f'{file}: {num_bytes / 2**20:.1f} MiB\nnext: imdb-tx predict --run {file} "some review"')
