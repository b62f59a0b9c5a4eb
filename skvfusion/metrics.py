"""How good class probabilities are: the figures of a comparison that are about a single method."""

import numpy as np
from sklearn.metrics import recall_score, roc_auc_score

_EPS = np.finfo(np.float64).eps


def balanced_accuracy(codes, probabilities):
    """Mean recall of the classes that are in ``codes``; see :func:`negative_log_likelihood` for the arguments."""
    predicted = probabilities.argmax(axis=1)
    return float(recall_score(codes, predicted, labels=np.unique(codes), average="macro"))


def negative_log_likelihood(codes, probabilities):
    """Mean negative logarithm of the probability given to the true class.

    Probabilities below 2.2e-16, float64's rounding unit, count as that, as in scikit-learn's ``log_loss``: a class that
    the classifier did not know, and gives probability 0, adds 36 and not infinity.

    Parameters
    ----------
    codes : array of int of shape (n_samples,)
        True classes, as columns of ``probabilities``.
    probabilities : array of shape (n_samples, n_classes)
        Rows sum to 1.

    Returns
    -------
    float
        0 is perfect; log(n_classes) is what knowing nothing costs.

    Examples
    --------
    >>> from skvfusion.metrics import negative_log_likelihood
    >>> round(negative_log_likelihood([0, 1], [[0.5, 0.5], [0.0, 1.0]]), 4)
    0.3466
    """
    at_label = np.asarray(probabilities, dtype=np.float64)[np.arange(len(codes)), codes]
    return float(-np.log(np.maximum(at_label, _EPS)).mean())


def expected_calibration_error(codes, probabilities, n_bins=15):
    """Mean distance between how sure predictions are and how often they are right.

    Samples are binned by the probability of the predicted (most probable) class into ``n_bins`` bins of equal width,
    (0, 1/n], ..., ((n-1)/n, 1]; the error is the sum over bins of n_bin / n * \\|accuracy - mean probability\\|.

    Parameters
    ----------
    codes : array of int of shape (n_samples,)
        True classes, as columns of ``probabilities``.
    probabilities : array of shape (n_samples, n_classes)
        Rows sum to 1.
    n_bins : int, default=15
        Number of bins; 15 is the usual choice.

    Returns
    -------
    float
        In [0, 1]. Of a few samples it is well above 0 even for perfectly calibrated probabilities.

    References
    ----------
    Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, equation 3.

    Examples
    --------
    >>> from skvfusion.metrics import expected_calibration_error
    >>> round(expected_calibration_error([0, 1], [[0.9, 0.1], [0.9, 0.1]]), 4)
    0.4
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    sure = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == codes
    bins = np.clip(np.ceil(sure * n_bins).astype(int) - 1, 0, n_bins - 1)
    # In a bin, n_bin * |accuracy - mean probability| is the size of the sum of their differences.
    return float(np.abs(np.bincount(bins, weights=right - sure)).sum() / len(sure))


def macro_auc(codes, probabilities):
    """Area under the ROC curve of each class against the rest, averaged over the classes.

    Parameters
    ----------
    codes : array of int of shape (n_samples,)
        True classes, as columns of ``probabilities``.
    probabilities : array of shape (n_samples, n_classes)
        Rows sum to 1.

    Returns
    -------
    float
        scikit-learn's ``roc_auc_score``; nan if a class is missing in ``codes``, which leaves it undefined.

    Examples
    --------
    >>> from skvfusion.metrics import macro_auc
    >>> macro_auc([0, 1, 1], [[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]])
    1.0
    """
    probabilities = np.asarray(probabilities)
    n_classes = probabilities.shape[1]
    if len(np.unique(codes)) < n_classes:
        return float("nan")
    scores = probabilities[:, 1] if n_classes == 2 else probabilities
    return float(roc_auc_score(codes, scores, multi_class="ovr", average="macro"))
