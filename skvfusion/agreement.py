"""When a model's layers agree with its answer, and from where on that is unusually late."""

import warnings

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.utils.validation import has_fit_parameter

from .fusion import LayerVotingClassifier
from .recoverability import prediction_depth
from .trials import deal_folds

#: At most this share of the training images is unusual.
UNUSUAL = 0.1
FOLDS = 5


def fit_layer_probes(X, y, *, device="auto"):
    """Fit a linear probe of every layer.

    Parameters
    ----------
    X : array of shape (n_samples, n_layers, ...)
        Layer stacks.
    y : array of shape (n_samples,)
        Labels.
    device : str, default="auto"
        Where to compute.

    Returns
    -------
    LayerVotingClassifier
        Which holds them, as ``probes_``.
    """
    return LayerVotingClassifier(device=device).fit(X, y)


def layer_disagreement(probes, X, answers):
    """Return from which layer on all layers agree with an answer, and how many layers do not.

    Parameters
    ----------
    probes : LayerVotingClassifier
        Of :func:`fit_layer_probes`.
    X : array of shape (n_samples, n_layers, ...)
        Layer stacks.
    answers : array of shape (n_samples,)
        A class for each.

    Returns
    -------
    depths : ndarray of int of shape (n_samples,)
        The prediction depth, in which the answer stands for the last layer's prediction: 0 if all layers agree, the
        number of layers if not even the last one does.
    others : ndarray of int of shape (n_samples,)
        How many layers' probes give another class.

    References
    ----------
    Baldock et al., "Deep Learning Through the Lens of Example Difficulty", NeurIPS 2021, with linear probes for its
    nearest neighbours, and the answer of whatever fuses the layers for the network's.
    """
    stack = X if X.ndim == 4 else X[:, :, None]
    predictions = probes.classes_[probes.probes_.logits(stack).argmax(axis=2)].T
    answers = np.asarray(answers)
    return prediction_depth(np.concatenate([predictions, answers[None]])), (predictions != answers).sum(axis=0)


def is_unusual(depths, others, rule):
    """Tell for which samples the layers disagree unusually much.

    Parameters
    ----------
    depths, others : arrays of int of shape (n_samples,)
        Of :func:`layer_disagreement`.
    rule : dict
        Of :func:`learn_agreement`.

    Returns
    -------
    ndarray of bool of shape (n_samples,)
    """
    return (depths > rule["depth"]) | ((depths == rule["depth"]) & (others >= rule["others"]))


def learn_agreement(X, y, classifier, *, groups=None, device="auto", seed=0):
    """Learn from training images how much disagreement of the layers is unusual.

    Images are ranked by the depth from which on layers agree with the answer and, where that is equal, by the number of
    layers that do not. Unusual is a rank that at most a tenth of the images reach or exceed; or the highest there is,
    if more than a tenth have that.

    Every image gets its answer and its rank from a classifier and probes that were fitted without it, in five folds
    (fewer if there are fewer groups, one for each of up to ten images): on the images that they were fitted on, layers
    agree far too well.

    Parameters
    ----------
    X : array of shape (n_samples, n_layers, ...)
        Layer stacks.
    y : array of shape (n_samples,)
        Labels.
    classifier : classifier
        It is cloned.
    groups : array of shape (n_samples,), default=None
        Samples of a group are in the same fold.
    device : str, default="auto"
        Where to compute the probes.
    seed : int, default=0
        Seeds the folds.

    Returns
    -------
    dict or None
        ``depth`` and ``others``, the lowest rank that is unusual; ``share`` of the images for which it is;
        ``accuracy`` of the answers to these, and ``other_accuracy`` to the others, None if there are none. None if a
        class has one image only, there is one group only, or a fold leaves too few images for the classifier to learn
        from, such as one that cross-validates itself.
    """
    folds = _folds(X, y, groups, seed)
    if folds is None:
        return None
    answers, depths, others = np.empty_like(y), np.empty(len(y), dtype=int), np.empty(len(y), dtype=int)
    for train, test in folds:
        own = {} if groups is None or not has_fit_parameter(classifier, "groups") else {"groups": groups[train]}
        try:
            fitted = clone(classifier).fit(X[train], y[train], **own)
        except ValueError:  # too few images: on all of them it was fitted
            return None
        answers[test] = fitted.predict(X[test])
        probes = fit_layer_probes(X[train], y[train], device=device)
        depths[test], others[test] = layer_disagreement(probes, X[test], answers[test])
    depth, other = first_unusual(depths, others)
    warned, right = is_unusual(depths, others, {"depth": depth, "others": other}), answers == y
    return {
        "depth": depth,
        "others": other,
        "share": float(warned.mean()),
        "accuracy": float(right[warned].mean()) if warned.any() else None,
        "other_accuracy": float(right[~warned].mean()) if not warned.all() else None,
    }


def first_unusual(depths, others):
    """Return the lowest rank that at most a tenth of the images reach.

    Parameters
    ----------
    depths, others : arrays of int of shape (n_samples,)
        Of images that were not learned from.

    Returns
    -------
    depth, others : int
        At least (1, 1), since there is nothing unusual about agreement from the first layer on; the highest rank there
        is, if more than a tenth have that.
    """
    ranks = sorted((depth, other) for depth, other in zip(depths.tolist(), others.tolist(), strict=True))
    first = len(ranks) - int(UNUSUAL * len(ranks))
    higher = [rank for place, rank in enumerate(ranks) if place >= first and rank != ranks[place - 1]]
    return max(higher[0] if higher else ranks[-1], (1, 1))


def _folds(X, y, groups, seed):
    _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    if counts.min() < 2:
        return None
    if groups is None:
        return deal_folds(codes, seed)
    n_folds = min(FOLDS, counts.min(), len(np.unique(groups)))
    if n_folds < 2:
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class", category=UserWarning)
        folds = list(StratifiedGroupKFold(n_folds, shuffle=True, random_state=seed).split(X, y, groups))
    # Groups may leave no more than one class to learn from.
    return folds if all(len(np.unique(y[train])) > 1 for train, _ in folds) else None
