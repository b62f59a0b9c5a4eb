"""Reading what users pass to a classifier: layer stacks, labels and sample weights."""

import os

import numpy as np
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_array, check_X_y, validate_data

# A block of rows small enough to be checked without loading a memory map.
_BLOCK = 2**20


def read_stack(estimator, X, *, reset, y=None):
    """Validate ``X`` (and ``y``) and view it as ``(n_samples, n_layers, n_tokens, dim)``.

    Parameters
    ----------
    estimator : BaseStackClassifier
        Its ``n_layers`` parameter splits a 2-D array; otherwise 2-D is read as one layer. With ``reset``, its
        ``n_features_in_``, ``n_layers_in_``, ``n_tokens_in_`` and ``dim_in_`` are set; otherwise X must match them.
    X : array-like of shape (n_samples, n_features), (n_samples, n_layers, dim) or (n_samples, n_layers, n_tokens, dim)
        Any real dtype.
    reset : bool
        Whether this is a fit.
    y : array-like of shape (n_samples,), default=None
        Labels, in a fit.

    Returns
    -------
    X : array of shape (n_samples, n_layers, n_tokens, dim)
        A view where possible.
    y : array of shape (n_samples,)
        Only in a fit.
    """
    name = type(estimator).__name__
    if isinstance(X, (list, tuple)) and len(X) and isinstance(X[0], (str, os.PathLike)):
        raise ValueError(
            f"{name} got X that holds paths ({os.fspath(X[0])!r}, ...), not layer stacks; put a "
            "LayerwiseFeatureExtractor in front of it, as in make_pipeline(LayerwiseFeatureExtractor(), ...)."
        )
    if not hasattr(X, "ndim") and not hasattr(X, "__dataframe__"):
        X = np.asarray(X)
    ndim = getattr(X, "ndim", 2)
    checks = {"ensure_all_finite": False, "dtype": "numeric"}
    if ndim > 4:
        raise ValueError(
            f"{name} got X with {ndim} dimensions {tuple(X.shape)}; it takes (images, layers, dims), "
            "(images, layers, tokens, dims) or (images, dims), which is one layer."
        )
    if ndim > 2:
        checks |= {"allow_nd": True, "estimator": estimator}
        X, y = check_X_y(X, y, **checks) if reset else (check_array(X, **checks), y)
    elif reset:
        X, y = validate_data(estimator, X, y, **checks)
    else:
        X = validate_data(estimator, X, reset=False, **checks)
    stack = _as_four_axes(X, estimator.n_layers, name)
    n_layers, n_tokens, dim = stack.shape[1:]
    if reset:
        estimator.n_layers_in_, estimator.n_tokens_in_, estimator.dim_in_ = n_layers, n_tokens, dim
        estimator.n_features_in_ = n_layers * n_tokens * dim
    else:
        _check_same_shape(estimator, stack, X.ndim)
    check_finite(stack)
    return (stack, y) if reset else stack


def check_finite(stack):
    """Raise ValueError naming the first sample and layer that hold NaN or infinity."""
    if not np.issubdtype(stack.dtype, np.floating):
        return
    block = max(1, _BLOCK // max(1, int(np.prod(stack.shape[1:]))))
    for start in range(0, len(stack), block):
        # As float32, because that is what the classifiers compute with: 1e300 would become infinite there.
        with np.errstate(all="ignore"):
            bad = ~np.isfinite(stack[start : start + block].astype(np.float32, copy=False))
        if bad.any():
            sample, layer, token, dim = np.argwhere(bad)[0]
            value = stack[start + sample, layer, token, dim]
            kind = "NaN" if np.isnan(value) else "infinity or a value too large for dtype('float32')"
            raise ValueError(
                f"Input X contains {kind}: sample {start + sample}, layer {layer}, dimension {dim} is {value}. Drop or "
                "repair such samples first; NaN rows often come from images that could not be read."
            )


def encode_labels(y):
    """Return ``classes, codes``: the sorted distinct labels and each label's position among them (int64).

    Raises
    ------
    ValueError
        If y is not a classification target.
    """
    try:
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
    except TypeError as error:
        raise ValueError(
            f"y cannot be sorted into classes: {error}. Labels must not be missing, and all of one kind."
        ) from error
    return classes, codes.astype(np.int64)


def check_two_classes(estimator, classes, codes, weight):
    """Raise ValueError unless at least two classes have a sample of positive weight."""
    counted = classes if weight is None else classes[np.unique(codes[weight > 0])]
    if len(counted) < 2:
        raise ValueError(
            f"{type(estimator).__name__} needs samples of at least 2 classes; got {len(counted)} class"
            f"{'' if weight is None else ' with a positive weight'} in {len(codes)} samples: {counted.tolist()}."
        )


def read_weights(stack, sample_weight):
    """Validate sample weights: float64 of shape (n_samples,), or None."""
    if sample_weight is None:
        return None
    return _check_sample_weight(sample_weight, stack, dtype=np.float64, ensure_non_negative=True)


def combine_weights(class_weight, classes, codes, sample_weight):
    """Multiply class weights into sample weights; None if nothing is weighted."""
    if class_weight is None and sample_weight is None:
        return None
    weight = np.ones(len(codes)) if sample_weight is None else sample_weight.copy()
    if not np.isfinite(weight.sum()):
        raise ValueError("The sum of sample_weight is infinite; divide the weights by their maximum.")
    # Samples of weight 0 are absent, so a class that has no others must not count either.
    counted = np.flatnonzero(weight)
    present, positions = np.unique(codes[counted], return_inverse=True)
    by_class = compute_class_weight(
        class_weight, classes=classes[present], y=classes[codes[counted]], sample_weight=weight[counted]
    )
    with np.errstate(over="ignore"):  # refused below
        weight[counted] *= by_class[positions]
    if not (np.isfinite(weight.sum()) and weight.min() >= 0):
        raise ValueError(
            f"class_weight={class_weight!r} and sample_weight make weights from {weight.min():g} to {weight.max():g}; "
            "they must be finite, not negative, and small enough to be summed."
        )
    return weight


def _as_four_axes(X, n_layers, name):
    if X.ndim == 4:
        stack = X
    elif X.ndim == 3:
        stack = X[:, :, None, :]
    elif n_layers is None:
        stack = X[:, None, None, :]
    elif X.shape[1] % n_layers:
        raise ValueError(
            f"{name}(n_layers={n_layers}) cannot split {X.shape[1]} features into {n_layers} equal layers; "
            "n_layers must divide the number of features."
        )
    else:
        stack = X.reshape(len(X), n_layers, 1, -1)
    if n_layers not in (None, stack.shape[1]):
        raise ValueError(f"{name}(n_layers={n_layers}) got X with {stack.shape[1]} layers, shape {X.shape}.")
    if 0 in stack.shape[1:]:
        raise ValueError(f"{name} got X of shape {X.shape}: no layers, tokens or dimensions to learn from.")
    return stack


def _check_same_shape(estimator, stack, ndim):
    known = (estimator.n_layers_in_, estimator.n_tokens_in_, estimator.dim_in_)
    for what, now, then in zip(
        ("layers", "tokens per layer", "dimensions per layer"), stack.shape[1:], known, strict=True
    ):
        if now != then:
            hint = (
                f" A 2-D array is read as one layer: pass it with shape (n, {known[0]}, {known[2]}), or set n_layers."
                if ndim == 2
                else " Use the same backbone and the same layers as for fit."
            )
            raise ValueError(
                f"X has {now} {what}, but {type(estimator).__name__} was fitted with {then} {what} "
                f"({known[0]} layers, {known[1]} tokens, {known[2]} dims).{hint}"
            )
