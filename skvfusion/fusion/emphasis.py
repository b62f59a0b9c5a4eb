"""How much more the better layers count, learned from what probes say of samples that they have not seen."""

import numpy as np

# The strongest first. On images unlike those of the training part, shallow layers mislead most, so that the strongest
# is taken that costs nothing to speak of.
EMPHASES = (16.0, 8.0, 4.0, 0.0)

# The encoder can learn to leave a layer out, a mean of logits cannot: it favours good layers by this power more.
_PROBE_POWER = 3


def nearness(accuracies, n_samples):
    """Return how near each accuracy is to the best, as a ratio: 1 for all within a standard error of it.

    Parameters
    ----------
    accuracies : array of shape (n_layers,)
        Shares of samples.
    n_samples : int
        How many they are shares of.

    Returns
    -------
    ndarray of shape (n_layers,)
    """
    best = accuracies.max()
    if best == 0:
        return np.ones_like(accuracies)
    standard_error = np.sqrt(best * (1 - best) / n_samples)
    return np.minimum((accuracies + standard_error) / best, 1)


def encoder_gains(near, emphasis):
    """Return what each scaled layer is multiplied by, of mean square 1."""
    gains = near**emphasis
    return gains / np.sqrt(np.square(gains).mean())


def probe_weights(near, emphasis):
    """Return the weight of each probe's logits, which sum to 1."""
    weights = near ** (_PROBE_POWER * emphasis)
    return weights / weights.sum()


def mean_logits(logits, weights):
    """Return the layers' weighted mean, of shape (n_samples, n_classes)."""
    return np.einsum("nlc,l->nc", logits, weights, dtype=np.float64)


def strongest_emphasis(logits, codes, weight, near):
    """Return the strongest emphasis with which the probes' mean is about as good as with any.

    Layers that know different things are of more use together than any one of them, however much better the best is;
    then a weak emphasis is more accurate.

    Parameters
    ----------
    logits : array of shape (n_samples, n_layers, n_classes)
        Of probes that have not seen the samples.
    codes : array of int of shape (n_samples,)
        Encoded labels.
    weight : array of shape (n_samples,)
        Sample weights.
    near : array of shape (n_layers,)
        As of :func:`nearness`.

    Returns
    -------
    float
        The first of ``EMPHASES`` whose accuracy is within a standard error of the best.
    """
    right = [mean_logits(logits, probe_weights(near, each)).argmax(axis=1) == codes for each in EMPHASES]
    accuracies = np.average(right, axis=1, weights=weight)
    return EMPHASES[int((nearness(accuracies, len(codes)) == 1).argmax())]
