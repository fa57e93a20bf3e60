"""What follows the last step of a training."""

import numpy as np

from imdb_transformer.evaluation import scores
from imdb_transformer.evaluation.baseline import write_yardstick
from imdb_transformer.evaluation.evaluate import predict_split, save, validation_logits
from imdb_transformer.store import run

OF_EARLIER_WEIGHTS = (
    "model.onnx", "model-last.onnx", "model-previous.onnx",
    "evaluation/best-*", "evaluation/last-*", "evaluation/previous-*", "evaluation/model*.onnx-*",
)  # fmt: skip


def finish(opened: run.Run) -> None:
    """Ends a training. The classifier gets its temperature and yardstick, if validation was held out.

    If there are many classes or a rare one, its evaluation on validation is written, too. Evaluations, the
    model card and exported files of earlier weights are deleted.
    """
    if opened.info.kind == "classifier":
        _delete_earlier_results(opened)
        if opened.config.data.held_out_fraction:
            opened = _measure(opened)
    opened.write_status("finished")


def _delete_earlier_results(opened: run.Run) -> None:
    for pattern in OF_EARLIER_WEIGHTS:
        for path in opened.folder.glob(pattern):
            path.unlink(missing_ok=True)
    if not run.has_other_readme(opened.folder):
        (opened.folder / run.CARD).unlink(missing_ok=True)


def _measure(opened: run.Run) -> run.Run:
    """Writes what validation tells about a classifier. Returns its run, with the temperature."""
    logits, labels = validation_logits(opened)
    temperature = scores.fit_temperature(logits, labels, usual=scores.USUAL_TEMPERATURE)
    if opened.config.train.yardstick:
        write_yardstick(opened, logits / temperature, labels)
    opened = opened.write_info(temperature=temperature)
    if scores.is_uneven(np.bincount(labels, minlength=len(opened.info.classes)).tolist()):
        save(predict_split([opened.folder], "validation"))
    return opened
