"""Reading what the metrics are given: predictions, scores and labels, layers first."""

import numpy as np


def correctness(predictions, y):
    """Return where each layer is right, a bool array of shape (n_layers, n_samples).

    Raises
    ------
    ValueError
        If the shapes do not fit, or there is no layer or no sample.
    """
    predictions, y = np.asarray(predictions), np.asarray(y)
    if predictions.ndim != 2 or y.ndim != 1 or predictions.shape[1] != len(y) or predictions.size == 0:
        raise ValueError(
            f"predictions of shape {predictions.shape} and y of shape {y.shape} do not fit; pass (n_layers, n_samples) "
            "and (n_samples,) with at least one layer and sample."
        )
    return predictions == y


def read_predictions(predictions):
    """Validate predicted labels without true ones: an array of shape (n_layers, n_samples)."""
    predictions = np.asarray(predictions)
    if predictions.ndim != 2 or predictions.size == 0:
        raise ValueError(
            f"predictions has shape {predictions.shape}; pass (n_layers, n_samples) with at least one layer and sample."
        )
    return predictions


def read_scores(scores, name):
    """Validate logits or probabilities called ``name``: float64 of shape (n_layers, n_samples, n_classes)."""
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 3 or scores.size == 0:
        raise ValueError(
            f"{name} has shape {scores.shape}; pass (n_layers, n_samples, n_classes) with at least one of each."
        )
    if not np.isfinite(scores).all():
        layer, sample, column = np.argwhere(~np.isfinite(scores))[0]
        raise ValueError(
            f"{name} must be finite; that of layer {layer}, sample {sample}, class {column} is "
            f"{scores[layer, sample, column]}. Leave such samples out."
        )
    return scores


def read_choice(value, allowed, name):
    """Return ``value`` if it is one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is unknown; use one of {', '.join(map(repr, allowed))}.")
    return value
