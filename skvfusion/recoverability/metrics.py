"""How much of what the last layer gets wrong its inner layers get right: pure functions of predictions and labels."""

import numpy as np

from ..training.seeding import draw_seed
from .validation import correctness, read_choice

# What separates accuracies of samples that are not the same from rounding.
_ROUNDING = 1e-9


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
    return correctness(predictions, y).mean(axis=1)


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
    return float(correctness(predictions, y).any(axis=0).mean())


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
    correct = correctness(predictions, y)
    wrong = ~correct[-1]
    return float(correct[:, wrong].any(axis=0).mean()) if wrong.any() else float("nan")


def corrected_recovery_rate(predictions, y, *, n_draws=200, random_state=0):
    """Recovery rate beyond what answers that belong to other samples reach.

    ``(RR - RR_0) / (1 - RR_0)``. ``RR_0`` is the recovery rate by chance: of the last layer's errors, the share that is
    recovered when each gets the inner layers' answers to another error with the same answer of the last layer, on
    average over these others. All inner answers to a sample are exchanged together: layers that agree with each other
    have fewer chances than as many independent ones.

    Parameters
    ----------
    predictions : array-like of shape (n_layers, n_samples)
        Each layer's predicted labels, shallow to deep; the last row is the last layer's.
    y : array-like of shape (n_samples,)
        True labels.
    n_draws : int, default=200
        Random exchanges to average over. None computes the average over all, which is exact and faster: the share of
        the others whose inner answers contain the label.
    random_state : int, RandomState instance or None, default=0
        Seeds the exchanges.

    Returns
    -------
    float
        At most 1; about 0 if inner layers know nothing of the errors beyond what the last layer's answer tells, and
        negative if they know less than that. nan if no two errors share their answer, or if chance recovers all.

    Notes
    -----
    An error whose answer of the last layer no other error shares has nothing to be compared with and is left out. With
    two classes the figure is 0: that the last layer is wrong tells the label already.

    References
    ----------
    This package's answer to a known objection against the recovery rate of VFusion (arXiv 2607.10391): that it rises
    with the number of layers. The paper has no such correction.

    Examples
    --------
    >>> from skvfusion.recoverability import corrected_recovery_rate
    >>> y, last = [0, 1, 0, 1], [2, 2, 2, 2]
    >>> corrected_recovery_rate([[0, 1, 0, 1], last], y, n_draws=None)
    1.0
    >>> corrected_recovery_rate([[0, 0, 0, 0], last], y, n_draws=None)
    0.0
    """
    if n_draws is not None and not n_draws >= 1:
        raise ValueError(f"n_draws={n_draws!r} must be at least 1, or None for the average over all exchanges.")
    n_samples = correctness(predictions, y).shape[1]
    _, codes = np.unique(np.concatenate([np.asarray(predictions), np.asarray(y)[None]]), return_inverse=True)
    codes = codes.reshape(-1, n_samples)
    if n_draws is None:
        return recovery_beyond_chance(codes[:-1], codes[-1], np.arange(n_samples))
    rng = np.random.default_rng(draw_seed(random_state))
    return recovery_beyond_chance(codes[:-1], codes[-1], np.arange(n_samples), n_draws, rng)


def recovery_beyond_chance(predictions, y, identity, n_draws=None, rng=None):
    """Compute :func:`corrected_recovery_rate` of integers from 0, where samples may be copies of each other.

    Parameters
    ----------
    predictions, y
        As there; ``y`` may be -1 for a label that no layer knows.
    identity : array of int of shape (n_samples,)
        Which sample each one is. Copies that a bootstrap makes of a sample are not others, or chance would be
        overrated.
    n_draws, rng
        How often to draw, and of what. None averages over all exchanges.

    Returns
    -------
    float
    """
    errors = np.flatnonzero(predictions[-1] != y)
    copies = np.bincount(identity[errors], minlength=1 + identity.max())[identity]
    others = np.bincount(predictions[-1, errors], minlength=1 + predictions[-1].max())[predictions[-1]] - copies
    errors = errors[others[errors] > 0]
    if len(errors) == 0:
        return float("nan")
    inner, y, last = predictions[:-1, errors], y[errors], predictions[-1, errors]
    recovered = (inner == y).any(axis=0)
    if n_draws is None:
        chance = (_count_containing(inner, y, last) - copies[errors] * recovered) / others[errors]
    else:
        chance = np.mean([_exchanged_recovery(inner, y, last, rng) for _ in range(n_draws)], axis=0)
    chance = chance.mean()
    return float((recovered.mean() - chance) / (1 - chance)) if chance < 1 else float("nan")


def layer_recovery(predictions, y):
    """Share of the last layer's errors that each layer gets right: ``R_l = P(layer l right | last layer wrong)``.

    Parameters
    ----------
    predictions : array-like of shape (n_layers, n_samples)
        Each layer's predicted labels, shallow to deep; the last row is the last layer's.
    y : array-like of shape (n_samples,)
        True labels.

    Returns
    -------
    ndarray of shape (n_layers,)
        In [0, 1], 0 for the last layer, and none above the recovery rate; all nan if the last layer makes no error.

    References
    ----------
    The recovery rate of VFusion (arXiv 2607.10391) for one layer at a time.

    Examples
    --------
    >>> from skvfusion.recoverability import layer_recovery
    >>> layer_recovery([[0, 1, 0], [1, 0, 0]], [0, 0, 1]).tolist()
    [0.5, 0.0]
    """
    correct = correctness(predictions, y)
    return _mean_where(correct, ~correct[-1])


def layer_harm(predictions, y):
    """Share of the last layer's right answers that each layer gets wrong: ``H_l = P(layer l wrong | last right)``.

    What trusting that layer instead of the last would cost; the counterpart of :func:`layer_recovery`.

    Parameters
    ----------
    predictions : array-like of shape (n_layers, n_samples)
        Each layer's predicted labels, shallow to deep; the last row is the last layer's.
    y : array-like of shape (n_samples,)
        True labels.

    Returns
    -------
    ndarray of shape (n_layers,)
        In [0, 1], 0 for the last layer; all nan if the last layer is never right.

    References
    ----------
    Not in VFusion, whose readers miss it: recovery without harm tells half of what following a layer means.

    Examples
    --------
    >>> from skvfusion.recoverability import layer_harm
    >>> layer_harm([[0, 1, 0], [1, 0, 0]], [0, 0, 1]).tolist()
    [1.0, 0.0]
    """
    correct = correctness(predictions, y)
    return _mean_where(~correct, correct[-1])


def correction_entropy(predictions, y, *, reading="A", normalize=True):
    """How evenly over depth the corrections of the last layer's errors are spread.

    The paper is known to measure the distribution over depth of corrective ability; its formula is not, so that there
    are three readings. Of the last layer's errors, m(x) inner layers get x right.

    - A: ``-sum_l q_l ln q_l`` with ``q_l`` proportional to the errors that layer l gets right.
    - B: the same, but each error with m(x) > 0 gives ``1 / m(x)`` to each layer that gets it right.
    - C: the mean of ``ln m(x)`` over errors with m(x) > 0, which is at most B.

    Parameters
    ----------
    predictions : array-like of shape (n_layers, n_samples)
        Each layer's predicted labels, shallow to deep; the last row is the last layer's.
    y : array-like of shape (n_samples,)
        True labels.
    reading : {"A", "B", "C"}, default="A"
        The formula.
    normalize : bool, default=True
        Whether to divide by the largest possible value, ``ln(n_layers - 1)``, which makes depths comparable.

    Returns
    -------
    float
        In [0, 1] if normalised. 0 if each error is corrected by the same one layer (of A and B) or by one layer each
        (of C), and if there is one inner layer only. nan if nothing is corrected, be it for want of errors.

    References
    ----------
    VFusion (arXiv 2607.10391): the recovery rate correlates positively with it over data sets. Readings are ours.

    Examples
    --------
    >>> from skvfusion.recoverability import correction_entropy
    >>> y, last = [0, 0, 0, 0], [1, 1, 1, 1]
    >>> correction_entropy([[0, 0, 1, 1], [1, 1, 0, 0], last], y)
    1.0
    >>> correction_entropy([[0, 0, 1, 1], [1, 1, 1, 1], last], y)
    0.0
    """
    read_choice(reading, ("A", "B", "C"), "reading")
    correct = correctness(predictions, y)
    inner = correct[:-1, ~correct[-1]]
    inner = inner[:, inner.any(axis=0)]
    if inner.size == 0:
        return float("nan")
    n_right = inner.sum(axis=0)
    if reading == "C":
        entropy = np.log(n_right).mean()
    else:
        mass = (inner if reading == "A" else inner / n_right).sum(axis=1)
        share = mass[mass > 0] / mass.sum()
        # Adding 0 turns the -0.0 of a single layer into 0.0.
        entropy = 0.0 - (share * np.log(share)).sum()
    most = np.log(len(inner)) if normalize and len(inner) > 1 else 1.0
    return float(entropy / most)


def gap_closure(accuracy, best_accuracy, oracle_accuracy):
    """Share of the gap between the best layer and the oracle that a method closes.

    ``(accuracy - best) / (oracle - best)``. The mean over data sets is not the closure of their mean accuracies: say
    which of them you report.

    Parameters
    ----------
    accuracy : float or array-like
        The method's accuracy.
    best_accuracy : float or array-like
        Accuracy of the best single layer.
    oracle_accuracy : float or array-like
        Accuracy of the any-layer oracle on the same samples.

    Returns
    -------
    float or ndarray
        1 at the oracle, 0 at the best layer, negative below it; above 1 where fusing gets right what no layer does. nan
        where there is no gap.

    Raises
    ------
    ValueError
        If an oracle is below the best layer, which it cannot be on the same samples.

    References
    ----------
    VFusion (arXiv 2607.10391) reports 45 % over its 16 data sets.

    Examples
    --------
    >>> from skvfusion.recoverability import gap_closure
    >>> gap_closure(0.75, best_accuracy=0.5, oracle_accuracy=1.0)
    0.5
    """
    accuracy, best, oracle = (
        np.asarray(value, dtype=np.float64) for value in (accuracy, best_accuracy, oracle_accuracy)
    )
    gap = oracle - best
    if (gap < -_ROUNDING).any():
        raise ValueError(
            f"oracle_accuracy={oracle_accuracy} is below best_accuracy={best_accuracy}; compute both from the same "
            "predictions."
        )
    exists = gap > _ROUNDING
    closure = np.where(exists, (accuracy - best) / np.where(exists, gap, 1.0), np.nan)
    return float(closure) if closure.ndim == 0 else closure


def _mean_where(values, samples):
    """Return each layer's mean over the chosen samples; nan if there are none."""
    return values[:, samples].mean(axis=1) if samples.any() else np.full(len(values), np.nan)


def _count_containing(inner, y, last):
    """Count for each sample those with the same last answer whose inner answers contain its label."""
    n_labels = 1 + max(inner.max(initial=-1), y.max(), last.max())
    counts = np.zeros((n_labels, n_labels + 1), dtype=np.int64)  # the further column is that of label -1
    for depth, layer in enumerate(inner):
        new = ~(inner[:depth] == layer).any(axis=0)
        counts += np.bincount(last[new] * (n_labels + 1) + layer[new], minlength=counts.size).reshape(counts.shape)
    return counts[last, y]


def _exchanged_recovery(inner, y, last, rng):
    """Return which samples are recovered if each gets the inner answers of another with the same last answer."""
    # Around a ring in random order everyone's neighbour is a random other one.
    order = np.lexsort((rng.random(len(last)), last))
    starts = np.flatnonzero(np.diff(last[order], prepend=-1))
    neighbour = np.arange(1, len(last) + 1)
    neighbour[np.append(starts[1:], len(last)) - 1] = starts
    donor = np.empty_like(order)
    donor[order] = order[neighbour]
    return (inner[:, donor] == y).any(axis=0)
