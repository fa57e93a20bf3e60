"""`report.html`: how good a run is and where it fails, one self-contained page that fetches nothing."""

import html
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from imdb_transformer import config_file, run
from imdb_transformer.evaluation import plots
from imdb_transformer.evaluation.evaluate import Evaluation
from imdb_transformer.evaluation.split import Answers
from imdb_transformer.evaluation.wording import figures
from imdb_transformer.files import write_whole
from imdb_transformer.inference.encoder import EncoderModel
from imdb_transformer.inference.explain import explain
from imdb_transformer.inference.marking import marked_words

NUM_ERRORS = 20

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 62rem; margin: 1rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; }}
th, td {{ text-align: left; padding: .2rem 1rem .2rem 0; border-bottom: 1px solid #8884; }}
.plots {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem; }}
figure {{ margin: 0; }}
figure svg {{ width: 100%; height: auto; }}
figcaption {{ font-size: .9rem; }}
mark {{ color: inherit; border-radius: .2em; background: none; }}
pre, .scroll {{ overflow-x: auto; }}
details {{ margin: .5rem 0; overflow-wrap: anywhere; }}
summary {{ cursor: pointer; }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


def write_report(paths: Sequence[Path], found: Answers) -> Path:
    """Writes the page about what runs say of a split into the first one's folder."""
    opened = run.locate(paths[0])[0]
    evaluation = found.evaluation
    title = f"{' + '.join(path.name for path in paths)} on {evaluation.split}"
    sections = [
        _figures(evaluation),
        _plots(opened, found),
        f"<h2>The {NUM_ERRORS} worst errors</h2>",
        *_errors(found),
        "<h2>Config</h2>",
        f"<pre>{html.escape(config_file.dump(opened.config))}</pre>",
        "<h2>Environment</h2>",
        f"<pre>{html.escape(_environment(opened))}</pre>",
    ]
    path = opened.folder / "report.html"
    write_whole(path, PAGE.format(title=html.escape(title), body="\n".join(sections)).encode())
    return path


def _figures(found: Evaluation) -> str:
    rows = [*figures(found), ("checkpoint", found.checkpoint)]
    cells = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in rows)
    return f'<div class="scroll"><table>{cells}</table></div>'


def _plots(opened: run.Run, found: Answers) -> str:
    raw, calibrated = np.exp(found.raw_log_probabilities), np.exp(found.log_probabilities)
    every = [
        plots.learning_curves(run.read_metrics(opened)),
        plots.roc(calibrated, found.labels, found.evaluation.classes),
        plots.reliability(raw, calibrated, found.labels, found.evaluation),
        plots.confusion(found.evaluation),
        plots.slices(found.evaluation),
    ]
    drawn = [
        f'<figure><div role="img" aria-label="{html.escape(plot.description)}">{plot.svg}</div>'
        f"<figcaption><b>{html.escape(plot.title)}.</b> {html.escape(plot.description)}</figcaption></figure>"
        for plot in every
        if plot is not None
    ]
    return f'<h2>Figures</h2>\n<div class="plots">{"".join(drawn)}</div>'


def _errors(found: Answers) -> list[str]:
    """The reviews that the model was surest and wrong about, with the words that decided."""
    predictor = found.predictor
    explained = len(predictor.models) == 1 and isinstance(predictor.models[0], EncoderModel)
    rows = np.arange(len(found.labels))
    losses = -found.log_probabilities[rows, found.labels]
    wrong = rows[~found.correct]
    classes = found.evaluation.classes
    entries = []
    for i in wrong[np.argsort(-losses[wrong], kind="stable")][:NUM_ERRORS]:
        probabilities = np.exp(found.log_probabilities[i])
        answer = int(probabilities.argmax())
        text = found.texts[i]
        words = marked_words(explain(predictor, text)) if explained else html.escape(text)
        title = (
            f"{classes[answer]} at {100 * probabilities[answer]:.2f}%, labelled {classes[found.labels[i]]}: "
            f"{text[:80]}"
        )
        entries.append(f"<details><summary>{html.escape(title)}</summary><p>{words}</p></details>")
    return entries or ["<p>None.</p>"]


def _environment(opened: run.Run) -> str:
    try:
        return json.dumps(json.loads((opened.folder / run.ENVIRONMENT).read_bytes()), indent=1)
    except (OSError, ValueError):
        return "not recorded"
