"""How much of what the last layer gets wrong its inner layers get right: pure functions of predictions and labels."""

import numpy as np


def layer_accuracy(predictions, y):
    """Accuracy of each layer's probe.

    Parameters
    ----------
    predictions : array-like of shape (n_layers, n_samples)
        Each layer's predicted labels, shallow to deep.
    y : array-like of shape (n_samples,)
        True labels.

    Returns
    -------
    ndarray of shape (n_layers,)
        In [0, 1].

    Examples
    --------
    >>> from skvfusion.recoverability import layer_accuracy
    >>> layer_accuracy([[0, 1, 1], [0, 0, 1]], [0, 0, 1]).tolist()
    [0.6666666666666666, 1.0]
    """
    return _correct(predictions, y).mean(axis=1)


def oracle_accuracy(predictions, y):
    """Share of samples that at least one layer gets right: what an oracle that picks the layer would reach.

    Parameters
    ----------
    predictions : array-like of shape (n_layers, n_samples)
        Each layer's predicted labels, shallow to deep.
    y : array-like of shape (n_samples,)
        True labels.

    Returns
    -------
    float
        In [0, 1]; at least the accuracy of the best layer.

    References
    ----------
    VFusion (arXiv 2607.10391), the any-layer oracle of section 3.2. It is not a classifier: it looks at the labels, and
    it rises with the number of layers even if they guess.

    Examples
    --------
    >>> from skvfusion.recoverability import oracle_accuracy
    >>> oracle_accuracy([[0, 1, 0], [1, 0, 0]], [0, 0, 1])
    0.6666666666666666
    """
    return float(_correct(predictions, y).any(axis=0).mean())


def recovery_rate(predictions, y):
    """Share of the last layer's errors that at least one inner layer gets right.

    Parameters
    ----------
    predictions : array-like of shape (n_layers, n_samples)
        Each layer's predicted labels, shallow to deep; the last row is the last layer's.
    y : array-like of shape (n_samples,)
        True labels.

    Returns
    -------
    float
        In [0, 1]; nan if the last layer makes no error. Equal to (oracle - last) / (1 - last) in accuracies.

    References
    ----------
    VFusion (arXiv 2607.10391), section 3.2.1 and table 1.

    Examples
    --------
    >>> from skvfusion.recoverability import recovery_rate
    >>> recovery_rate([[0, 1, 0], [1, 0, 0]], [0, 0, 1])
    0.5
    """
    correct = _correct(predictions, y)
    wrong = ~correct[-1]
    return float(correct[:, wrong].any(axis=0).mean()) if wrong.any() else float("nan")


def _correct(predictions, y):
    predictions, y = np.asarray(predictions), np.asarray(y)
    if predictions.ndim != 2 or y.ndim != 1 or predictions.shape[1] != len(y) or predictions.size == 0:
        raise ValueError(
            f"predictions of shape {predictions.shape} and y of shape {y.shape} do not fit; pass (n_layers, n_samples) "
            "and (n_samples,) with at least one layer and sample."
        )
    return predictions == y
