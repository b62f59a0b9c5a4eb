"""Notions of overthinking, older than recoverability: where in depth a sample is right, and stays so."""

import numpy as np

from .validation import correctness, read_predictions, read_scores


def first_correct_layer(predictions, y):
    """Shallowest layer that gets each sample right.

    Parameters
    ----------
    predictions : array-like of shape (n_layers, n_samples)
        Each layer's predicted labels, shallow to deep.
    y : array-like of shape (n_samples,)
        True labels.

    Returns
    -------
    ndarray of int of shape (n_samples,)
        Position of the layer in ``predictions``; -1 where no layer is right.

    References
    ----------
    Kaya, Hong and Dumitras, "Shallow-Deep Networks", ICML 2019, arXiv 1810.07052, whose wasted compute is the sum over
    samples of what comes after this layer.

    Examples
    --------
    >>> from skvfusion.recoverability import first_correct_layer
    >>> first_correct_layer([[0, 1, 0], [1, 0, 0]], [0, 0, 1]).tolist()
    [0, 1, -1]
    """
    correct = correctness(predictions, y)
    return np.where(correct.any(axis=0), correct.argmax(axis=0), -1)


def cumulative_accuracy(predictions, y):
    """Share of samples that some layer up to each depth gets right.

    Parameters
    ----------
    predictions : array-like of shape (n_layers, n_samples)
        Each layer's predicted labels, shallow to deep.
    y : array-like of shape (n_samples,)
        True labels.

    Returns
    -------
    ndarray of shape (n_layers,)
        Never falling; the first is the first layer's accuracy, the last the any-layer oracle's.

    References
    ----------
    Kaya, Hong and Dumitras, "Shallow-Deep Networks", ICML 2019, arXiv 1810.07052: ``|union of correct_l| / n``.

    Examples
    --------
    >>> from skvfusion.recoverability import cumulative_accuracy
    >>> cumulative_accuracy([[0, 1], [1, 0]], [0, 0]).tolist()
    [0.5, 1.0]
    """
    return np.logical_or.accumulate(correctness(predictions, y), axis=0).mean(axis=1)


def prediction_depth(predictions):
    """Shallowest layer from which on all layers agree with the last.

    Parameters
    ----------
    predictions : array-like of shape (n_layers, n_samples)
        Each layer's predicted labels, shallow to deep.

    Returns
    -------
    ndarray of int of shape (n_samples,)
        Position of the layer in ``predictions``: 0 if all layers agree, ``n_layers - 1`` if the one before the last
        does not.

    References
    ----------
    Baldock, Maennel and Neyshabur, "Deep Learning Through the Lens of Example Difficulty", NeurIPS 2021,
    arXiv 2106.09647. There the probes are nearest-neighbour classifiers (k=30); here they are whatever predicted.

    Examples
    --------
    >>> from skvfusion.recoverability import prediction_depth
    >>> prediction_depth([["cat", "dog", "cat"], ["cat", "cat", "dog"], ["cat", "cat", "cat"]]).tolist()
    [0, 1, 2]
    """
    predictions = read_predictions(predictions)
    agrees = np.logical_and.accumulate((predictions == predictions[-1])[::-1], axis=0)
    return len(predictions) - agrees.sum(axis=0)


def destructive_overthinking(predictions, y):
    """Share of the last layer's errors on samples that an earlier layer gets right.

    ``|union over l < L of correct_l, and wrong_L| / |wrong_L|``: the recovery rate by its older name.

    Parameters
    ----------
    predictions : array-like of shape (n_layers, n_samples)
        Each layer's predicted labels, shallow to deep; the last row is the last layer's.
    y : array-like of shape (n_samples,)
        True labels.

    Returns
    -------
    float
        In [0, 1]; 0 if there is one layer; nan if the last layer makes no error.

    References
    ----------
    Kaya, Hong and Dumitras, "Shallow-Deep Networks", ICML 2019, arXiv 1810.07052: about half of the errors of four
    convolutional nets.

    Examples
    --------
    >>> from skvfusion.recoverability import destructive_overthinking
    >>> destructive_overthinking([[0, 1, 0], [1, 0, 0]], [0, 0, 1])
    0.5
    """
    correct = correctness(predictions, y)
    return _share(correct[:-1].any(axis=0), ~correct[-1])


def wasteful_overthinking(predictions, y):
    """Share of the last layer's right answers that an earlier layer gives already.

    ``|union over l < L of correct_l, and correct_L| / |correct_L|``. With accuracy a of the last layer, the inner
    layers' oracle is ``a * wasteful + (1 - a) * destructive``.

    Parameters
    ----------
    predictions : array-like of shape (n_layers, n_samples)
        Each layer's predicted labels, shallow to deep; the last row is the last layer's.
    y : array-like of shape (n_samples,)
        True labels.

    Returns
    -------
    float
        In [0, 1]; 0 if there is one layer; nan if the last layer is never right.

    References
    ----------
    Kaya, Hong and Dumitras, "Shallow-Deep Networks", ICML 2019, arXiv 1810.07052. Their code weighs samples by the cost
    of the layer that is right first; see :func:`first_correct_layer`.

    Examples
    --------
    >>> from skvfusion.recoverability import wasteful_overthinking
    >>> wasteful_overthinking([[0, 1, 0], [0, 0, 1]], [0, 0, 0])
    0.5
    """
    correct = correctness(predictions, y)
    return _share(correct[:-1].any(axis=0), correct[-1])


def confusion_score(probabilities):
    """How far the layers' probabilities are from the last layer's: ``D(x) = sum_l ||p_L - p_l||_1``.

    Parameters
    ----------
    probabilities : array-like of shape (n_layers, n_samples, n_classes)
        Each layer's class probabilities, shallow to deep; the last row is the last layer's.

    Returns
    -------
    ndarray of shape (n_samples,)
        In [0, 2 (n_layers - 1)]; higher where the last layer is more likely to be wrong. The authors standardise it by
        mean and deviation on training data.

    References
    ----------
    Kaya, Hong and Dumitras, "Shallow-Deep Networks", ICML 2019, arXiv 1810.07052.

    Examples
    --------
    >>> from skvfusion.recoverability import confusion_score
    >>> confusion_score([[[0.5, 0.5], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]]).tolist()
    [1.0, 0.0]
    """
    return distance_of_probabilities(probabilities).sum(axis=0)


def distance_of_probabilities(probabilities):
    """Return each layer's ``||p_L - p_l||_1``, of shape (n_layers, n_samples)."""
    probabilities = read_scores(probabilities, "probabilities")
    total = probabilities.sum(axis=2)
    if probabilities.min() < 0 or np.abs(total - 1).max() > 1e-3:
        raise ValueError(
            f"probabilities must not be negative and sum to 1 over the classes; they are {probabilities.min():g} or "
            f"more and sum to {total.min():g} to {total.max():g}. Logits become probabilities by a softmax."
        )
    return np.abs(probabilities - probabilities[-1]).sum(axis=2)


def _share(event, samples):
    """Return how often there is the event among the chosen samples; nan if there are none."""
    return float(event[samples].mean()) if samples.any() else float("nan")
