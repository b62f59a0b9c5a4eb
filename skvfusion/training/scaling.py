"""Input scaling, learned from the training rows; the first step of every net and probe."""

import numpy as np
import torch
from torch import nn

from ..layers import take_layers

SCALINGS = ("standard", "layer", "token", "l2", None)

# Rows are read in blocks of this many, a layer at a time, so that a memory map is never loaded whole.
_BLOCK = 256


def scaling_statistics(X, rows, kind, sample_weight=None):
    """Compute the statistics that :func:`scale` needs from training rows.

    Parameters
    ----------
    X : array of shape (n_samples, n_layers, n_tokens, dim)
        Layer stacks.
    rows : array of int
        The training rows.
    kind : {"standard", "layer", "token", "l2", None}
        ``"standard"``: every dimension's mean and standard deviation. ``"layer"``: every dimension's mean, and for each
        (layer, token) one number, the root mean square of its centred dimensions, which keeps the dimensions' relative
        scales. Constant dimensions, such as those that fill a narrow backbone's layers up to the width of another's, do
        not count. The others need no statistics.
    sample_weight : array of shape (n_samples,), default=None
        Weights of all samples.

    Returns
    -------
    mean, divisor : float32 arrays of shape (n_layers, n_tokens, dim), or (None, None)
        A dimension (or layer) that is constant gets divisor 1.
    """
    if kind not in ("standard", "layer"):
        return None, None
    weight = np.ones(len(rows)) if sample_weight is None else sample_weight[rows]
    weight = weight / weight.sum()
    weight = weight[:, None, None, None]
    layers = [take_layers(X, [layer]) for layer in range(X.shape[1])]
    mean, variance = np.zeros(X.shape[1:]), np.zeros(X.shape[1:])
    # In float64 whatever the dtype: sums of float16 overflow. Blocks outside, so that a memory map is read from front
    # to back.
    for block in _blocks(len(rows)):
        for layer, part in enumerate(layers):
            mean[layer] += (weight[block] * part[rows[block]].astype(np.float64)).sum(axis=0)[0]
    for block in _blocks(len(rows)):
        for layer, part in enumerate(layers):
            variance[layer] += (weight[block] * np.square(part[rows[block]] - mean[layer])).sum(axis=0)[0]
    # What rounding leaves of a constant dimension is not variance.
    variance[variance <= 10 * np.finfo(np.float64).eps * np.square(mean)] = 0.0
    if kind == "layer":
        n_varying = np.count_nonzero(variance, axis=-1, keepdims=True)
        average = variance.sum(axis=-1, keepdims=True) / np.maximum(n_varying, 1)
        variance = np.broadcast_to(average, variance.shape)
    divisor = np.where(variance > 0, np.sqrt(variance), 1.0)
    return mean.astype(np.float32), divisor.astype(np.float32)


def scale(X, kind, mean, divisor):
    """Scale stacks of shape (n_samples, n_layers, n_tokens, dim), numpy or torch alike.

    ``"token"`` is a LayerNorm without parameters over each token, ``"l2"`` divides each token by its Euclidean length
    (a zero token stays zero); None leaves the numbers as they are. Dimensions of zeros that fill a layer up to the
    width of others stay zero and change nothing else, except with ``"token"``: a LayerNorm counts them, so they shift
    and shrink the rest.
    """
    if kind in ("standard", "layer"):
        return (X - mean) / divisor
    if kind == "token":
        X = _shrink(X - X.mean(-1, keepdims=True))
        return X / (X**2).mean(-1, keepdims=True).clip(1e-30) ** 0.5
    if kind == "l2":
        X = _shrink(X)
        return X / (X**2).sum(-1, keepdims=True).clip(1e-30) ** 0.5
    return X


def _blocks(n_rows):
    return [slice(start, start + _BLOCK) for start in range(0, n_rows, _BLOCK)]


def _shrink(X):
    """Divide each token by its largest number, whose square might not fit into float32."""
    sizes = abs(X)
    largest = (sizes.amax if isinstance(X, torch.Tensor) else sizes.max)(-1, keepdims=True)
    return X / largest.clip(float(torch.finfo(torch.float32).tiny))


class InputScaling(nn.Module):
    """Scale a batch and flatten it to (batch, features).

    The statistics are buffers of the net, so they travel with it to a device and into a file.
    """

    def __init__(self, kind, n_layers, n_tokens, dim):
        super().__init__()
        self.kind = kind
        shape = (n_layers, n_tokens, dim) if kind in ("standard", "layer") else (0,)
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float32))
        self.register_buffer("divisor", torch.ones(shape, dtype=torch.float32))

    def set_statistics(self, mean, divisor):
        """Take over what :func:`scaling_statistics` returned."""
        if mean is not None:
            self.mean.copy_(torch.from_numpy(mean))
            self.divisor.copy_(torch.from_numpy(divisor))

    def forward(self, X):
        """Return the scaled batch, flattened."""
        return scale(X, self.kind, self.mean, self.divisor).flatten(1)
