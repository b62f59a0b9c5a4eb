"""The answer that a comparison gives, in one sentence, and the form in which numbers are written for readers."""

import numpy as np

from .recoverability import layer_accuracy

# Methods that read one layer; all others fuse several.
SINGLE_LAYER = ("last", "last_mlp", "best")

DASH, _MINUS, NBSP = "\u2013", "\u2212", "\u00a0"
_LEVEL = f"95{NBSP}%"


def verdict(comparison):
    """Say in one sentence whether fusing pays, and what a reader should know before believing it.

    Parameters
    ----------
    comparison : Comparison
        What :func:`skvfusion.compare.run_comparison` returned.

    Returns
    -------
    dict
        ``kind`` ("gain", "unclear", "loss" or "unknown"), ``answer`` (a few words), ``sentence`` and ``notes``, a list
        of further sentences.
    """
    fused = fused_method(comparison)
    if fused is None:
        kind, answer = "unknown", "No answer."
        sentence, notes = "None of the methods that were compared fuses layers and succeeded.", []
    else:
        kind, answer, sentence = _answer(comparison, fused)
        notes = _choice_notes(comparison, fused)
    failed = [label_of(comparison, key) for key in compared_methods(comparison) if key not in comparison.probabilities]
    if failed:
        notes = [*notes, f"Failed, see the table: {', '.join(failed)}."]
    return {"kind": kind, "answer": answer, "sentence": sentence, "notes": notes}


def fused_method(comparison):
    """Return the key of the method that is compared with the last layer; None if no fusing method succeeded."""
    if comparison.best is not None and comparison.best not in SINGLE_LAYER:
        return comparison.best
    candidates = [
        key for key in compared_methods(comparison) if key in comparison.probabilities and key not in SINGLE_LAYER
    ]
    if not candidates:
        return None
    validation = comparison.frame["validation_accuracy"].reindex(candidates).fillna(-np.inf)
    return validation.idxmax()  # of equals the first


def _answer(comparison, fused):
    """Return kind, answer and sentence of the verdict on a method that succeeded."""
    row = comparison.frame.loc[fused]
    last = layer_accuracy(comparison.layer_predictions, comparison.y)[-1]
    gain, low, high = row["gain"], row["gain_low"], row["gain_high"]
    reached = (
        f"Fusing ({short_label_of(comparison, fused)}) gets {percent(row['accuracy'])} of {len(comparison.y)} images "
        f"right, the last layer alone {percent(last)}"
    )
    interval = f"({_LEVEL} interval {points(low)} to {points(high)})"
    if np.isnan(low) or np.isnan(high):
        return "unknown", "Not known.", f"{reached}: {points(gain)} points, but without an interval it may be chance."
    if low > 0:
        return "gain", "Fusing pays here.", f"{reached}: a gain of {points(gain, sign='')} points {interval}."
    if high < 0:
        return "loss", "Use the last layer.", f"{reached}: a loss of {points(-gain, sign='')} points {interval}."
    return "unclear", "No clear gain.", f"{reached}: {points(gain)} points {interval}{_possible(low, high)}."


def _possible(low, high):
    """Name the changes that an interval around 0 leaves possible."""
    loss, gain = f"a loss of up to {points(-low, sign='')}", f"a gain of up to {points(high, sign='')} points"
    if low < 0 < high:
        return f", so anything from {loss} to {gain} is still possible"
    if low < 0:
        return f", so {loss} points is still possible"
    return f", so {gain} is still possible" if high > 0 else ""


def _choice_notes(comparison, fused):
    """Say how the method was chosen, and what of its gain does not come from fusing."""
    frame, best, label = comparison.frame, comparison.best, short_label_of(comparison, fused)
    if np.isnan(frame.loc[best, "validation_accuracy"]):
        notes = ["No method could be validated on the training images, so the plainest one is the choice."]
    elif best == fused:
        notes = [f"The method, {label}, was chosen by cross-validation on training images."]
    else:
        notes = [
            f"Cross-validation on training images preferred \u201c{label_of(comparison, best)}\u201d, which reads one "
            f"layer; of the methods that fuse, {label} was best there."
        ]
    honest = frame.attrs.get("best_accuracy", np.nan)
    if abs(honest - frame.loc[best, "accuracy"]) > 1e-9:
        notes.append(
            f"Every image here also served to choose the method; chosen in each fold without the images counted there, "
            f"{percent(honest)} are right."
        )
    for key in ("last_mlp", "best"):
        if key in comparison.probabilities:
            row = frame.loc[key]
            notes.append(
                f"For comparison, \u201c{row['label']}\u201d without fusing: {points(row['gain'])} points "
                f"({points(row['gain_low'])} to {points(row['gain_high'])})."
            )
    if comparison.groups is not None:
        notes.append("Intervals treat the samples of a group as one unit.")
    return notes


def percent(value, decimals=1):
    """Write a share in per cent."""
    return number(100 * value, decimals) + ("" if np.isnan(value) else f"{NBSP}%")


def whole_percent(value):
    """Write a share in per cent without decimals."""
    return percent(value, 0)


def points(value, sign="+"):
    """Write a difference of shares in points; one that rounds to 0.0 gets a second decimal, to show its sign."""
    value = round(100 * value, 6)
    return number(value, 1 if value == 0 or abs(round(value, 1)) > 0 else 2, sign if value != 0 else "")


def number(value, decimals=3, sign=""):
    """Write a number with a true minus sign; a dash if it is nan."""
    return DASH if np.isnan(value) else f"{value:{sign}.{decimals}f}".replace("-", _MINUS)


def seconds(value):
    """Write a duration in seconds."""
    if value < 0.01:
        return f"<{NBSP}0.01"
    return number(value, 2 if value < 10 else 0)


def compared_methods(comparison):
    """Return the keys of the methods, without the oracle."""
    return [key for key in comparison.frame.index if key != "oracle"]


def label_of(comparison, key):
    """Return what a method is called."""
    return str(comparison.frame.loc[key, "label"])


def short_label_of(comparison, key):
    """Return what a method is called in a sentence."""
    return label_of(comparison, key).removesuffix(", all layers")
