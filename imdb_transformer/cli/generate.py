"""`imdb-tx generate`: a causal language model writes text."""

import json
from pathlib import Path
from typing import Annotated

import typer

from imdb_transformer.cli import options, screen

CAUSAL_HELP = "A run of pretrain with pretrain.objective=causal, or a checkpoint of one."
_causal = options.takes_run("classifier", "linear", shipped=False)
Causal = Annotated[Path, typer.Argument(help=CAUSAL_HELP, **_causal)]
Prompt = Annotated[str, typer.Argument(metavar="TEXT", help="What the text begins with.", show_default=False)]
TEMPERATURE_HELP = "Below 1: prefer likely words. 0: take the likeliest."
TopK = Annotated[int, typer.Option(min=0, metavar="K", help="Sample from the K likeliest tokens; 0: all.")]
SEED_HELP = "A different seed gives a different text."
SAMPLES_HELP = "Number of texts, with this seed and the next ones."


@options.for_trained_runs("""imdb-tx generate runs/causal "This film"
imdb-tx generate runs/causal --temperature 0.7 --num-samples 3""")
def generate(
    path: Causal,
    prompt: Prompt = "",
    num_tokens: Annotated[int, typer.Option(min=1, max=100_000, metavar="N", help="Tokens to write.")] = 100,
    temperature: Annotated[float, typer.Option(min=0, max=1e6, metavar="T", help=TEMPERATURE_HELP)] = 0.8,
    top_k: TopK = 0,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, metavar="N", help=SEED_HELP)] = 0,
    num_samples: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help=SAMPLES_HELP)] = 1,
    as_json: options.Json = False,
) -> None:
    """Write text with a causal language model. It appears word by word; Ctrl-C stops it."""
    from imdb_transformer.inference.generate import generated_words, load

    loaded = load(path)
    with screen.until_reader_leaves():
        for number in range(seed, seed + num_samples):
            words = generated_words(
                *loaded, prompt, num_tokens=num_tokens, temperature=temperature, top_k=top_k, seed=number
            )
            if as_json:
                print(json.dumps({"seed": number, "text": "".join(words)}))
                continue
            try:
                for word in words:
                    print(word, end="", flush=True)
            finally:
                print()
