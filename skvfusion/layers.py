"""The layer-selection language shared by the extractor and every classifier."""

import numbers
import re
from collections.abc import Collection
from itertools import pairwise

import numpy as np

NAMED = ("all", "second_half", "strided", "quarterly", "last")
_ALLOWED = (
    "'all', 'second_half', 'strided', 'strided:STEP', 'quarterly', 'last', 'last:COUNT', "
    "an int, a list of ints or a slice"
)


def resolve_layers(layers, n_layers):
    """Turn a layer selection into indices.

    Parameters
    ----------
    layers : str, int, list of int or slice
        Which layers to keep. Indices are 0-based; negative ones count from the deepest layer.

        - ``"all"``: every layer (VFusion's holistic selection).
        - ``"second_half"``: the deeper half; the middle layer of an odd depth belongs to it.
        - ``"strided"``, ``"strided:3"``: every 2nd (3rd) layer counted back from the deepest, which is always kept.
        - ``"quarterly"``: the layers a quarter, a half and three quarters of the way, and the deepest: 3, 6, 9 and
          11 of 12, as in Attentive Layer Fusion (arXiv 2601.09322).
        - ``"last"``, ``"last:4"``: the deepest one (four).
    n_layers : int
        How many layers there are to select from.

    Returns
    -------
    list of int
        Non-negative indices from shallow to deep, whatever the order in which a list named them.

    Raises
    ------
    ValueError
        If the selection is unknown, empty, repeats a layer or names one that does not exist.

    Examples
    --------
    >>> from skvfusion.layers import resolve_layers
    >>> resolve_layers("strided", 12)
    [1, 3, 5, 7, 9, 11]
    >>> resolve_layers([-1, 0], 12)
    [0, 11]
    """
    if isinstance(layers, str):
        chosen = _resolve_name(layers, n_layers)
    elif isinstance(layers, slice) and all(part is None or _is_int(part) for part in _parts(layers)):
        chosen = list(range(n_layers)[layers])
    elif _is_int(layers):
        chosen = [_resolve_index(layers, n_layers)]
    elif _is_collection(layers) and all(_is_int(layer) for layer in layers):
        chosen = [_resolve_index(layer, n_layers) for layer in layers]
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"layers={layers!r} names a layer twice ({n_layers} layers); name each once.")
    else:
        raise ValueError(f"layers={layers!r} is not a layer selection; use {_ALLOWED}.")
    if not chosen:
        raise ValueError(f"layers={layers!r} selects none of the {n_layers} layers; select at least one.")
    return sorted(chosen)


def take_layers(X, indices):
    """Return ``X[:, indices]`` without reading it, so that a memory map stays one.

    Parameters
    ----------
    X : array or LayerView of shape (n_samples, n_layers, ...)
        Layer stacks.
    indices : list of int
        The layers to take.

    Returns
    -------
    array or LayerView
        A view where the indices ascend evenly, as most selections do; otherwise a :class:`LayerView`.
    """
    if isinstance(X, LayerView):
        return take_layers(X.X, [X.indices[index] for index in indices])
    steps = {b - a for a, b in pairwise(indices)} or {1}
    if len(steps) > 1 or min(steps) < 1 or min(indices) < 0:
        return LayerView(X, indices)
    return X[:, indices[0] : indices[-1] + 1 : steps.pop()]


class LayerView:
    """Layers of a stack at uneven distances, which numpy cannot view; they are copied for the rows that are asked for.

    Parameters
    ----------
    X : array of shape (n_samples, n_layers, ...)
        Layer stacks.
    indices : list of int
        The layers.
    """

    def __init__(self, X, indices):
        self.X = X
        self.indices = list(indices)
        self.shape = (len(X), len(self.indices), *X.shape[2:])
        self.dtype = X.dtype
        self.ndim = X.ndim

    def __len__(self):
        """Return the number of samples."""
        return len(self.X)

    def __getitem__(self, rows):
        """Return the layers of ``rows``, an array of int or a slice, as an array."""
        return self.X[np.arange(len(self.X))[rows][:, None], self.indices]

    def __array__(self, dtype=None, copy=None):
        """Return all of it as an array, for code that does not know this class."""
        return np.asarray(self[:], dtype=dtype)


def _resolve_name(layers, n_layers):
    name, _, argument = layers.partition(":")
    if name not in NAMED or (
        ":" in layers and (name not in ("strided", "last") or not re.fullmatch("[1-9][0-9]*", argument))
    ):
        raise ValueError(f"layers={layers!r} is not a layer selection; use {_ALLOWED}.")
    every = range(n_layers)
    if name == "all":
        return list(every)
    if name == "second_half":
        return list(every[n_layers // 2 :])
    if name == "strided":
        return list(every[:: -int(argument or 2)])
    if name == "quarterly":
        return list({n_layers // 4, n_layers // 2, 3 * n_layers // 4, n_layers - 1})
    count = int(argument or 1)
    if count > n_layers:
        raise ValueError(f"layers={layers!r} asks for {count} layers, but there are only {n_layers}.")
    return list(every[-count:])


def _resolve_index(layer, n_layers):
    if not -n_layers <= layer < n_layers:
        raise ValueError(
            f"Layer {layer} does not exist: there are {n_layers} layers, 0 to {n_layers - 1} (or -{n_layers} to -1)."
        )
    return int(layer) % n_layers


def _parts(interval):
    return interval.start, interval.stop, interval.step


def _is_collection(value):
    return isinstance(value, Collection) and not isinstance(value, dict) and getattr(value, "ndim", 1) == 1


def _is_int(value):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
