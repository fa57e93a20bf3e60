"""`imdb-tx export`: writes a run as an ONNX file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli import options, screen
from imdb_transformer.errors import command_line

RUN_HELP = "A run, or one of its checkpoints."
Exported = Annotated[Path, typer.Argument(help=RUN_HELP, **options.takes_run("encoder", "linear"))]
OUTPUT_HELP = "The file to write.  [default: model.onnx in the run]"
Output = Annotated[Path | None, typer.Option(metavar="FILE", help=OUTPUT_HELP)]


@options.for_trained_runs("""imdb-tx export runs/base
imdb-tx export runs/base --output sentiment.onnx""")
def export(path: Exported, output: Output = None, as_json: options.Json = False) -> None:
    """Write a trained model as an ONNX file, for other programs.

    `imdb-tx predict --run FILE` reads it without torch.
    """
    from imdb_transformer.inference.export import export as export_run

    screen.note(f"exporting {path} ...")
    file = export_run(path, output)
    num_bytes = file.stat().st_size
    following = command_line("predict", "--run", file, "some review")
    text = f"{file}: {num_bytes / 2**20:.1f} MiB\nnext: {following}"
    screen.show(json.dumps({"file": str(file), "num_bytes": num_bytes}) if as_json else text)
