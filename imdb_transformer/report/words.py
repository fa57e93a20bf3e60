"""An evaluation's figures as names and text, for the terminal and for the page."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # heavy; at run time only its result comes here
    from imdb_transformer.evaluation.figures import Evaluation


def figures(found: "Evaluation") -> list[tuple[str, str]]:
    """What each figure is called, and how it reads; before calibration in brackets.

    The accuracy is that of the whole model. Where n-grams stand beside an encoder, its own follows.
    """
    raw, calibrated = found.raw, found.calibrated
    interval = f"95% interval {100 * found.accuracy_low:.2f} to {100 * found.accuracy_high:.2f}"
    alone = found.encoder_alone
    rows = (
        [] if alone is None else [("encoder alone", f"{100 * alone.accuracy:.2f}% (loss {alone.loss:.4f})")]
    )
    return [
        ("reviews", f"{found.num_examples:,}"),
        ("accuracy", f"{100 * found.accuracy:.2f}% ({interval})"),
        *rows,
        ("F1", f"{found.f1:.4f}"),
        ("ROC AUC", or_undefined(found.roc_auc)),
        ("average precision", or_undefined(found.average_precision)),
        ("loss", f"{calibrated.loss:.4f} (before calibration {raw.loss:.4f})"),
        ("Brier score", f"{calibrated.brier:.4f} ({raw.brier:.4f})"),
        ("calibration error", f"{100 * calibrated.ece:.2f}% ({100 * raw.ece:.2f}%)"),
    ]


def or_undefined(figure: float | None) -> str:
    """A figure that a split with an absent class does not have."""
    return "undefined: a class is absent" if figure is None else f"{figure:.4f}"
