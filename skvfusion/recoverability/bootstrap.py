"""How far a metric would move with other samples of the same kind: percentile bootstrap intervals."""

from numbers import Integral

import numpy as np

from ..fusion.cross_fitting import read_groups
from ..training.seeding import draw_seed


def bootstrap_interval(metric, *arrays, axis=-1, n_draws=1000, level=0.95, groups=None, random_state=0):
    """Interval of a metric over samples drawn with replacement, by percentiles.

    Arrays are drawn together, so that the interval of a difference between two classifiers is a paired one.

    Parameters
    ----------
    metric : callable
        Takes as many arrays as are given and returns a number, or an array of numbers, each of which gets an interval.
    *arrays : array-like
        What to compute the metric from, such as predictions and labels.
    axis : int or sequence of int, default=-1
        Which axis of the arrays holds the samples, one for all or one for each: -1 fits predictions of shape
        (n_layers, n_samples) and labels, 1 fits logits of shape (n_layers, n_samples, n_classes).
    n_draws : int, default=1000
        How often to draw as many samples as there are.
    level : float, default=0.95
        Confidence level, in (0, 1).
    groups : array-like of shape (n_samples,), default=None
        Samples of a group (a patient, a site) depend on each other: groups are drawn as a whole, as many as there are.
        None draws each sample by itself.
    random_state : int, RandomState instance or None, default=0
        Seeds the draws. The same seed draws the same samples for another metric.

    Returns
    -------
    low, high : float or ndarray
        The interval's ends, like what the metric returns. Draws for which the metric is nan do not count; if it always
        is, so are the ends.

    Raises
    ------
    ValueError
        If the arrays have unequal numbers of samples, or a parameter is out of range.

    References
    ----------
    Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.

    Examples
    --------
    >>> import numpy as np
    >>> from skvfusion.recoverability import bootstrap_interval, layer_accuracy
    >>> y = np.zeros(100, dtype=int)
    >>> predictions = np.array([np.arange(100) < 20, y])
    >>> low, high = bootstrap_interval(layer_accuracy, predictions, y)
    >>> low.round(1).tolist(), high.round(1).tolist()
    ([0.7, 1.0], [0.9, 1.0])
    """
    if not (isinstance(n_draws, Integral) and n_draws >= 1):
        raise ValueError(f"n_draws={n_draws!r} must be an integer of at least 1.")
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must lie between 0 and 1, such as 0.95.")
    arrays, axes = [np.asarray(array) for array in arrays], _read_axes(axis, len(arrays))
    n_samples = _count_samples(arrays, axes)
    rng = np.random.default_rng(draw_seed(random_state))
    draw = _drawer(n_samples, read_groups(groups, n_samples), rng)
    drawn = []
    for _ in range(n_draws):
        rows = draw()
        drawn.append(metric(*(array.take(rows, axis=where) for array, where in zip(arrays, axes, strict=True))))
    return _percentiles(np.array(drawn, dtype=np.float64), level)


def _read_axes(axis, n_arrays):
    axes = [axis] * n_arrays if isinstance(axis, Integral) else list(axis)
    if n_arrays == 0 or len(axes) != n_arrays:
        raise ValueError(f"axis={axis!r} names {len(axes)} axes for {n_arrays} arrays; pass an int, or one for each.")
    return axes


def _count_samples(arrays, axes):
    counts = [array.shape[axis] for array, axis in zip(arrays, axes, strict=True)]
    if len(set(counts)) > 1 or counts[0] == 0:
        shapes = [array.shape for array in arrays]
        raise ValueError(
            f"Arrays of shapes {shapes} have {counts} samples along axes {axes}; they must have equally many, at least "
            "one. Name the axis of the samples by axis=."
        )
    return counts[0]


def _drawer(n_samples, groups, rng):
    """Return a function that draws rows."""
    if groups is None:
        return lambda: rng.integers(n_samples, size=n_samples)
    members = np.split(np.argsort(groups, kind="stable"), np.cumsum(np.bincount(groups))[:-1])
    return lambda: np.concatenate([members[group] for group in rng.integers(len(members), size=len(members))])


def _percentiles(values, level):
    """Return the ends of the middle ``level`` of the values along the first axis, without those that are nan."""
    flat = values.reshape(len(values), -1)
    ends = np.full((2, flat.shape[1]), np.nan)
    known = ~np.isnan(flat).all(axis=0)
    ends[:, known] = np.nanquantile(flat[:, known], [(1 - level) / 2, (1 + level) / 2], axis=0)
    low, high = ends.reshape(2, *values.shape[1:])
    return (float(low), float(high)) if values.ndim == 1 else (low, high)
