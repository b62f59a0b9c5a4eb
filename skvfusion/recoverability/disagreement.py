"""How differently the layers see the same samples."""

import numpy as np

from .validation import read_choice, read_predictions, read_scores

READINGS = ("A", "B")


def pairwise_disagreement(predictions):
    """Share of samples on which two layers predict different labels, for each pair of layers.

    Parameters
    ----------
    predictions : array-like of shape (n_layers, n_samples)
        Each layer's predicted labels, shallow to deep.

    Returns
    -------
    ndarray of shape (n_layers, n_layers)
        Symmetric, in [0, 1], 0 on the diagonal.

    References
    ----------
    The disagreement measure of Kuncheva and Whitaker, Machine Learning 51, 2003, of labels rather than correctness.

    Examples
    --------
    >>> from skvfusion.recoverability import pairwise_disagreement
    >>> pairwise_disagreement([["cat", "dog"], ["cat", "cat"]]).tolist()
    [[0.0, 0.5], [0.5, 0.0]]
    """
    predictions = read_predictions(predictions)
    return np.stack([(predictions != layer).mean(axis=1) for layer in predictions])


def geometric_disagreement(logits, y, *, classes=None, reading="A", center=True):
    """Cosine distance between the layers' logits of the samples that the last layer gets wrong.

    ``1 - cos(z_l, z_m)``, on average over these samples and over pairs of layers. The paper is known to use cosine
    distances of misclassified samples' logits; which pairs is not, so that there are two readings: A compares each
    inner layer with the last, B all layers with each other.

    Parameters
    ----------
    logits : array-like of shape (n_layers, n_samples, n_classes)
        Each layer's logits, shallow to deep; the last layer's tell which samples it gets wrong.
    y : array-like of shape (n_samples,)
        True labels.
    classes : array-like of shape (n_classes,), default=None
        The labels of the columns; a label in ``y`` that is not among them is never predicted. None means that labels
        are column indices.
    reading : {"A", "B"}, default="A"
        The pairs of layers.
    center : bool, default=True
        Whether to subtract each logit vector's mean first. Probabilities do not depend on it, but cosines do.

    Returns
    -------
    float
        In [0, 2]; 0 if all layers' logits are positive multiples of each other. nan if the last layer makes no error,
        or is the only one. A vector of zeros, or of equal logits if centred, has the distance 1 to every other, as in
        scikit-learn.

    References
    ----------
    VFusion (arXiv 2607.10391): the recovery rate correlates negatively with it over data sets. Readings and centring
    are ours.

    Examples
    --------
    >>> from skvfusion.recoverability import geometric_disagreement
    >>> last, inner = [[0.0, 2.0]], [[1.0, -1.0]]
    >>> round(geometric_disagreement([inner, last], [0]), 12)
    2.0
    """
    read_choice(reading, READINGS, "reading")
    logits, y = read_scores(logits, "logits"), np.asarray(y)
    wrong = last_errors(logits, y, classes)
    if not wrong.any() or len(logits) == 1:
        return float("nan")
    return float(sample_disagreement(logits[:, wrong], reading, center).mean())


def last_errors(logits, y, classes=None):
    """Return where the last layer is wrong, a bool array of shape (n_samples,)."""
    n_samples, n_classes = logits.shape[1:]
    if y.shape != (n_samples,):
        raise ValueError(f"y has shape {y.shape}; logits of shape {logits.shape} need ({n_samples},).")
    if classes is None:
        classes = np.arange(n_classes)
        if not np.isin(y, classes).all():
            raise ValueError(f"y has labels that are not column indices 0 to {n_classes - 1}; pass classes=.")
    classes = np.asarray(classes)
    if classes.shape != (n_classes,):
        raise ValueError(f"classes has shape {classes.shape}; logits of {n_classes} classes need ({n_classes},).")
    return classes[logits[-1].argmax(axis=1)] != y


def sample_disagreement(logits, reading="A", center=True):
    """Return each sample's cosine distance, averaged over the pairs of layers; nan if there is one layer.

    Parameters
    ----------
    logits : float64 array of shape (n_layers, n_samples, n_classes)
        Each layer's logits.
    reading, center
        As in :func:`geometric_disagreement`.

    Returns
    -------
    ndarray of shape (n_samples,)
        In [0, 2].
    """
    n_layers = len(logits)
    if n_layers == 1:
        return np.full(logits.shape[1], np.nan)
    if reading == "A":
        return distance_to_last(logits, center)[:-1].mean(axis=0)
    units = _unit_vectors(logits, center)
    cosines = np.einsum("lnc,mnc->lmn", units, units, optimize=True).clip(-1, 1)
    return 1 - cosines[np.triu_indices(n_layers, k=1)].mean(axis=0)


def distance_to_last(logits, center=True):
    """Return each layer's cosine distance to the last, of shape (n_layers, n_samples)."""
    units = _unit_vectors(logits, center)
    distance = 1 - (units * units[-1]).sum(axis=2).clip(-1, 1)
    distance[-1] = 0
    return distance


def _unit_vectors(logits, center):
    """Scale each vector of logits to length 1, those without a direction to 0."""
    size = np.abs(logits).max(axis=2, keepdims=True)
    # Scaled first, because the squares of large logits overflow.
    vectors = logits / np.where(size > 0, size, 1.0)
    if center:
        vectors = vectors - vectors.mean(axis=2, keepdims=True)
        # What rounding leaves of equal logits is no direction.
        vectors[np.abs(vectors).max(axis=2) < 1e-14] = 0
    length = np.linalg.norm(vectors, axis=2, keepdims=True)
    return vectors / np.where(length > 0, length, 1.0)
