"""Cross-fitting: every sample scored by probes that have not seen it, as data for whatever combines the layers."""

import warnings
from math import ceil
from numbers import Integral, Real

import numpy as np
import pandas as pd
from sklearn.base import _fit_context
from sklearn.model_selection import GroupShuffleSplit, StratifiedGroupKFold, StratifiedKFold, check_cv
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import _num_samples

from ..training.batches import split_validation
from ..training.seeding import draw_seed
from .base import BaseStackClassifier, BaseTorchClassifier
from .encoder import EncoderClassifier
from .probes import fit_probes
from .progress import with_callbacks


class CannotSplitError(ValueError):
    """Samples or groups are too few, or too much alike, to be cross-fitted."""


class BaseProbeEnsemble(BaseStackClassifier):
    """A classifier that combines the layers' probes by what it learns from samples which these have not seen.

    Subclasses have the parameters ``probe``, ``C``, ``cv``, ``n_jobs`` and those of :class:`BaseTorchClassifier`.
    """

    _parameter_constraints: dict = {
        **BaseTorchClassifier._parameter_constraints,
        "probe": [StrOptions({"linear", "mlp"}), HasMethods(["fit", "predict_proba"])],
        "C": [Interval(Real, 0, None, closed="neither")],
        "cv": ["cv_object", StrOptions({"holdout"})],
        "n_jobs": [Integral, None],
    }

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None, groups=None):
        """Fit the probes and what combines them.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_layers, dim), (n_samples, n_layers, n_tokens, dim) or (n_samples, dim)
            Layer stacks, shallow to deep.
        y : array-like of shape (n_samples,)
            Labels of any kind that can be sorted: int, str, bool.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; a sample of weight 0 counts as absent. None weights all equally.
        groups : array-like of shape (n_samples,), default=None
            Samples of a group (a patient, a site) are never on both sides of a split. Ignored where nothing is split.

        Returns
        -------
        self : object
            The fitted classifier.

        Raises
        ------
        ValueError
            If X holds NaN or infinity, its shape does not fit the parameters, y has fewer than two classes, or the
            samples cannot be split as ``cv`` asks.
        """
        groups = read_groups(groups, _num_samples(X))
        return self._fit_checked(X, y, sample_weight, groups=groups)

    def _seed(self):
        """Return the seed of folds and probes: an int as it is, so that MLPs are those that it gives alone."""
        return self.random_state if isinstance(self.random_state, Integral) else draw_seed(self.random_state)

    def _fit_probes(self, stack, codes, weight, row_sets, seed):
        return fit_probes(
            self.probe,
            stack,
            codes,
            len(self.classes_),
            weight,
            row_sets,
            scaling=self.scaling,
            C=self.C,
            mlp_params=self._mlp_params() | {"random_state": seed},
            device=self.device,
            n_jobs=self.n_jobs,
        )

    def _mlp_params(self):
        """Return the parameters of ``probe="mlp"``: those that a subclass has in common with VFusionClassifier."""
        params = self.get_params(deep=False)
        shared = set(EncoderClassifier._get_param_names()) & params.keys() - {"layers", "class_weight", "n_layers"}
        return {name: params[name] for name in shared}

    def _refit(self, stack, codes, weight, seed):
        """Return the probes of all layers fitted on all samples."""
        rows = np.arange(len(codes)) if weight is None else np.flatnonzero(weight)
        return self._fit_probes(stack, codes, weight, [rows], seed)[0]

    def _cross_fit(self, stack, codes, weight, groups, seed):
        """Fit the probes of each split and score the samples that it left out.

        Returns
        -------
        logits : float32 array of shape (n_samples, n_layers, n_classes)
            NaN for samples that are in no test fold.
        usable : array of int
            Samples from which a combiner can learn: scored by probes that know their class, and with a weight.
        splits : list of (train, test)
            The rows of each split.
        """
        splits = make_splits(self.cv, stack, codes, weight, groups, self.validation_fraction, seed)
        fitted = self._fit_probes(stack, codes, weight, [train for train, _ in splits], seed)
        logits = np.full((*stack.shape[:2], len(self.classes_)), np.nan, dtype=np.float32)
        known = np.zeros(len(codes), dtype=bool)
        for (train, test), probes in zip(splits, fitted, strict=True):
            if len(test) > 0:
                logits[test] = probes.logits(stack, test)
                known[test] = np.isin(codes[test], codes[train])
        usable = np.flatnonzero(known)
        if len(usable) == 0:
            raise CannotSplitError(
                f"{type(self).__name__} has nothing to learn from: cv makes no split with samples of a class on both "
                "sides. It takes at least 2 samples of a class."
            )
        return logits, usable, splits


def make_splits(cv, stack, codes, weight, groups, fraction, seed):
    """Return a list of (train, test) rows, without samples of weight 0.

    Parameters
    ----------
    cv : int, cross-validation splitter, iterable of splits, or "holdout"
        An int means shuffled folds, stratified by class, which keep groups together if there are any; as many as the
        second-largest class has samples (or as there are groups) if these are fewer. ``"holdout"`` is one split.
    stack, codes, weight, groups
        Samples; ``weight`` and ``groups`` may be None.
    fraction : float
        Share of the samples that ``"holdout"`` leaves out.
    seed : int
        Seed of the shuffling.

    Raises
    ------
    ValueError
        If this cannot be done, a split trains on fewer than two classes, or test folds overlap.
    """
    rows = np.arange(len(codes)) if weight is None else np.flatnonzero(weight)
    if isinstance(cv, str):
        splits = [_hold_out(rows, codes, groups, fraction, seed)]
    elif isinstance(cv, Integral):
        splits = _stratified_folds(cv, rows, codes, groups, seed)
    else:
        splits = check_cv(cv, codes, classifier=True).split(stack, codes, groups)
        splits = [tuple(_as_rows(part, len(codes), rows) for part in split) for split in splits]
    _check_splits(splits, codes)
    return splits


def _as_rows(part, n_samples, rows):
    """Return one side of a given split, a mask or indices, as those of ``rows`` that are in it."""
    try:
        chosen = np.arange(n_samples)[part]
    except IndexError as error:
        raise ValueError(f"cv gives a split that does not fit {n_samples} samples: {error}.") from error
    if len(np.unique(chosen)) < len(chosen):
        raise ValueError("cv gives a split that names a sample twice; weigh samples by sample_weight instead.")
    return np.intersect1d(chosen, rows)


def _check_splits(splits, codes):
    if not splits:
        raise ValueError("cv gives no splits. A generator can be used once only: pass a list of its splits.")
    for train, test in splits:
        if len(np.intersect1d(train, test)):
            raise ValueError("cv gives a split with samples on both sides: probes would be scored on what they saw.")
        if len(np.unique(codes[train])) < 2:
            raise CannotSplitError(
                f"cv makes a split whose {len(train)} training samples are of one class. Use splits that leave at least"
                " two classes to train on, or fit on more samples."
            )
    tested = np.concatenate([test for _, test in splits])
    if len(np.unique(tested)) < len(tested):
        raise ValueError("cv has overlapping test folds; each sample can be scored once only, as by KFold.")


def read_groups(groups, n_samples):
    """Validate groups: integers of shape (n_samples,) that number them, or None."""
    if groups is None:
        return None
    groups = pd.Series(np.asarray(groups).tolist() if np.ndim(groups) == 1 else [])
    if len(groups) != n_samples:
        raise ValueError(f"groups must be one-dimensional with an entry for each of the {n_samples} samples.")
    if groups.isna().any():
        raise ValueError("groups has missing entries; give samples of unknown group a group of their own each.")
    return pd.factorize(groups)[0]


def _hold_out(rows, codes, groups, fraction, seed):
    if groups is None:
        try:
            return split_validation(codes, rows, True, fraction, seed)
        except ValueError as error:
            raise CannotSplitError("cv='holdout' has nothing to set aside: each class has a single sample.") from error
    n_groups = len(np.unique(groups[rows]))
    if n_groups < 2:
        raise CannotSplitError("cv='holdout' cannot set a group aside: there is only one.")
    splitter = GroupShuffleSplit(1, test_size=min(ceil(fraction * n_groups), n_groups - 1), random_state=seed)
    train, test = next(splitter.split(rows, groups=groups[rows]))
    return rows[train], rows[test]


def _stratified_folds(cv, rows, codes, groups, seed):
    n_splits, splitter = min(cv, np.sort(np.bincount(codes[rows]))[-2]), StratifiedKFold
    if groups is not None:
        n_splits, splitter = min(n_splits, len(np.unique(groups[rows]))), StratifiedGroupKFold
    if n_splits < 2:
        raise CannotSplitError(
            f"{len(rows)} samples cannot be cross-validated: two classes need at least 2 samples each, and groups, if "
            "given, must be at least 2. Fit on more samples."
        )
    groups = None if groups is None else groups[rows]
    with warnings.catch_warnings():
        # A class with fewer samples than folds is absent from some folds, which is all that can be done.
        warnings.filterwarnings("ignore", message="The least populated class", category=UserWarning)
        folds = list(splitter(n_splits, shuffle=True, random_state=seed).split(rows, codes[rows], groups))
    return [(rows[train], rows[test]) for train, test in folds]


def fold_accuracies(logits, codes, weight, splits):
    """Return the accuracy of each layer on each split's test rows, of shape (n_layers, n_splits).

    Weighted; NaN where a test fold is empty or has no weight.
    """
    scores = np.full((logits.shape[1], len(splits)), np.nan)
    for fold, (_, test) in enumerate(splits):
        fold_weight = np.ones(len(test)) if weight is None else weight[test]
        if fold_weight.sum() > 0:
            right = logits[test].argmax(axis=2) == codes[test, None]
            scores[:, fold] = np.average(right, axis=0, weights=fold_weight)
    return scores


def log_probabilities(probabilities):
    """Return logarithms, finite where the probability has become 0."""
    return np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
