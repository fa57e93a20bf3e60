"""`imdb-tx export`, `imdb-tx verify` and `imdb-tx runs`: a run as a file, its files, and all runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli import options, screen
from imdb_transformer.errors import ConfigError, RunError, command_line

RUN_HELP = "A run, or one of its checkpoints."
Exported = Annotated[Path, typer.Argument(help=RUN_HELP, **options.takes_run("encoder", "linear"))]
OUTPUT_HELP = "The file to write.  [default: model.onnx in the run]"
Output = Annotated[Path | None, typer.Option(metavar="FILE", help=OUTPUT_HELP)]
Verified = Annotated[Path, typer.Argument(help="A run's folder.", **options.takes_run())]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the runs.")]
PRUNE_HELP = "Delete the checkpoints last and previous of finished runs."
Prune = Annotated[bool, typer.Option("--prune", help=PRUNE_HELP)]


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


@options.for_trained_runs("""imdb-tx verify runs/base
imdb-tx verify base --json""")
def verify(path: Verified, as_json: options.Json = False) -> None:
    """Check the config, tokenizer and checkpoints of a run against their checksums."""
    from imdb_transformer.store import upkeep

    parts = {part: problem or "ok" for part, problem in upkeep.verify(path).items()}
    text = "\n".join(f"{part}: {state}" for part, state in parts.items())
    print(json.dumps({"run": str(path), "parts": parts}) if as_json else text)
    if damaged := [part for part, state in parts.items() if state != "ok"]:
        raise RunError(f"{path} is damaged: {', '.join(damaged)}.")


@options.for_trained_runs("""imdb-tx runs
imdb-tx runs --prune""")
def runs(folder: Folder = options.RUNS, prune: Prune = False, as_json: options.Json = False) -> None:
    """List runs, and say how to continue those that were interrupted.

    Pruned runs can still predict and be evaluated. They cannot be trained further.
    """
    from imdb_transformer.report import summaries
    from imdb_transformer.store import upkeep

    if folder != options.RUNS and not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}.")
    if prune:
        for path, freed in upkeep.prune(folder):
            screen.note(f"{path}: {freed / 2**20:,.1f} MiB freed")
    listed = upkeep.runs_in(folder)
    if num_unread := len(upkeep.run_files(folder)) - len(listed):
        screen.note(f"note: runs that cannot be read: {num_unread}. `imdb-tx verify RUN` says why.")
    records = [each.model_dump() for each in listed]
    screen.show(json.dumps(records) if as_json else summaries.runs(listed, folder))
