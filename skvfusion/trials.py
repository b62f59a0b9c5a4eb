"""The fits that a comparison consists of: its data, its splits, and the jobs that are run for them."""

import warnings
from dataclasses import dataclass
from fractions import Fraction
from time import perf_counter

import numpy as np
from joblib import Parallel, delayed
from scipy.special import softmax
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import has_fit_parameter
from tqdm import tqdm

from .fusion import LayerProbeClassifier, LayerVotingClassifier
from .fusion.cross_fitting import make_splits, read_groups
from .fusion.validation import check_two_classes, encode_labels, read_stack
from .methods import METHODS

# Folds inside the training part, from which the validation accuracy comes.
VALIDATION_FOLDS = 5
# Groups are dealt into at most so many folds, some of which are the test part.
_MOST_GROUP_FOLDS = 20


@dataclass
class Data:
    """What was passed, validated; evaluated are samples of ``X_test`` if there is one, else of ``X``."""

    X: np.ndarray
    X_test: np.ndarray | None
    y: np.ndarray
    codes: np.ndarray
    classes: np.ndarray
    groups: np.ndarray | None
    test_groups: np.ndarray | None
    given_groups: np.ndarray | None
    test_y: np.ndarray
    test_codes: np.ndarray

    def rows(self, rows, evaluated):
        """Return these rows of what is fitted or evaluated: itself if that is all of them, else a copy."""
        X = self.X if self.X_test is None or not evaluated else self.X_test
        return X if len(rows) == len(X) else X[rows]


def read_methods(methods):
    """Return the keys of METHODS that are asked for, each once."""
    keys = [methods] if isinstance(methods, str) else list(methods)
    keys = list(METHODS) if keys == ["all"] else list(dict.fromkeys(keys))
    unknown = [key for key in keys if key not in METHODS]
    if unknown or not keys:
        raise ValueError(f"methods={methods!r} must be 'all' or keys of METHODS: {', '.join(METHODS)}.")
    return keys


def read_data(X, y, X_test, y_test, groups):
    """Validate what :func:`skvfusion.compare` was passed."""
    if (X_test is None) != (y_test is None):
        raise ValueError("X_test and y_test go together: pass both or neither.")
    reader = LayerProbeClassifier()
    stack, y = read_stack(reader, X, reset=True, y=y)
    # With a single token the methods get three axes, the form in which users have stacks.
    shape = stack.shape[1:] if stack.shape[2] > 1 else (stack.shape[1], stack.shape[3])
    X, n_test, given = stack.reshape(-1, *shape), 0, None
    labels = y
    if X_test is not None:
        X_test = read_stack(reader, X_test, reset=False).reshape(-1, *shape)
        y_test = column_or_1d(y_test)
        check_consistent_length(X_test, y_test)
        if (y.dtype.kind in "OUST") != (y_test.dtype.kind in "OUST"):
            raise ValueError(f"y has labels of {y.dtype} and y_test of {y_test.dtype}; both must be of one kind.")
        labels, n_test = np.concatenate([y, y_test]), len(y_test)
    classes, codes = encode_labels(labels)
    n = len(y)
    check_two_classes(reader, classes[np.unique(codes[:n])], codes[:n], None)
    if groups is not None:
        with_test = n_test > 0 and np.size(groups) == n + n_test
        groups = read_groups(given := np.asarray(groups), n + n_test if with_test else n)
    test = slice(None) if X_test is None else slice(n, None)
    covered = groups is not None and (X_test is None or len(groups) > n)
    return Data(
        X=X,
        X_test=X_test,
        y=y,
        codes=codes[:n],
        classes=classes,
        groups=None if groups is None else groups[:n],
        test_groups=groups[test] if covered else None,
        given_groups=given[test] if covered else None,
        test_y=labels[test],
        test_codes=codes[test],
    )


def split_data(data, cv, test_size, seed):
    """Return a list of (train, test), rows of X and of what is evaluated."""
    if data.X_test is not None:
        if cv is not None:
            raise ValueError(
                "cv and X_test exclude each other: leave out X_test to evaluate on out-of-fold predictions."
            )
        return [(np.arange(len(data.X)), np.arange(len(data.X_test)))]
    further = (data.X, data.codes, None, data.groups, test_size, seed)
    if cv is not None:
        splits = [(train, test) for train, test in make_splits(cv, *further) if len(test) > 0]
        if not splits:
            raise ValueError("cv leaves no samples out, so that there is nothing to evaluate on.")
        return splits
    if data.groups is None:
        return make_splits("holdout", *further)
    share = Fraction(test_size).limit_denominator(_MOST_GROUP_FOLDS)
    folds = [test for _, test in make_splits(max(share.denominator, 2), *further)]
    chosen = min(max(round(test_size * len(folds)), 1), len(folds) - 1)
    train, test = np.sort(np.concatenate(folds[chosen:])), np.sort(np.concatenate(folds[:chosen]))
    if len(np.unique(data.codes[train])) < 2:
        raise ValueError(
            f"Holding out {chosen} of {len(folds)} folds of groups leaves {len(train)} training samples of one class. "
            "Use a smaller test_size, or cv."
        )
    return [(train, test)]


def warn_of_what_cannot_be_learned(data, splits):
    """Warn of classes that are only evaluated, whose labels are returned, and of groups on both sides."""
    unknown, torn = set(), 0
    for train, test in splits:
        unknown |= set(data.test_codes[test]) - set(data.codes[train])
        if data.test_groups is not None:
            torn += len(np.intersect1d(data.groups[train], data.test_groups[test]))
    unknown = data.classes[sorted(unknown)].tolist()
    if unknown:
        warnings.warn(
            f"Evaluated samples of the classes {unknown} count as wrong: they are not in the training part.",
            UserWarning,
            stacklevel=4,
        )
    if torn:
        warnings.warn(
            f"{torn} groups are on both sides of the splits that were given: accuracy on new groups will be lower.",
            UserWarning,
            stacklevel=4,
        )
    return unknown


@dataclass
class Job:
    """A fit, and predictions if there is something to predict.

    ``key`` is the method's; None stands for the linear probes of all layers. ``split`` is the split's position; None
    for a fit on all samples. ``fold`` is that of the validation inside its training part; None for what is evaluated.
    """

    key: str | None
    split: int | None
    fold: int | None
    train: np.ndarray
    test: np.ndarray | None
    keep: bool


@dataclass
class Outcome:
    """What became of a job: nothing but an ``error``, or the rest."""

    probabilities: np.ndarray | None = None
    hits: np.ndarray | None = None
    fit_seconds: float = np.nan
    predict_seconds: float = np.nan
    estimator: object = None
    best_layer: int | None = None
    error: str = ""


def plan_jobs(keys, splits, data, seed, refit):
    """Return the list of jobs, and for splits that cannot be validated inside why.

    With ``refit``, methods are fitted on all samples too, and kept as these are; otherwise as fitted for evaluation.
    """
    jobs, impossible = [], {}
    for split, (train, test) in enumerate(splits):
        jobs.append(Job(None, split, None, train, test, keep=False))
        jobs += [Job(key, split, None, train, test, keep=not refit) for key in keys]
        try:
            folds = _validation_folds(train, data, seed)
        except ValueError as error:
            impossible[split] = str(error)
            continue
        jobs += [Job(key, split, fold, *rows, keep=False) for key in keys for fold, rows in enumerate(folds)]
    if refit:
        jobs += [Job(key, None, None, np.arange(len(data.X)), None, keep=True) for key in keys]
    return jobs, impossible


def _validation_folds(train, data, seed):
    """Return (train, test) rows of X of each fold inside a training part."""
    codes = data.codes[train]
    if data.groups is not None:
        folds = make_splits(VALIDATION_FOLDS, None, codes, None, data.groups[train], None, seed)
    else:
        folds = deal_folds(codes, seed)
        folds = make_splits(folds, None, codes, None, None, None, seed)
    return [(train[fitted], train[left_out]) for fitted, left_out in folds]


def deal_folds(codes, seed):
    """Return (train, test) of five stratified folds, or of leaving one out of few samples.

    Samples are dealt class by class. StratifiedKFold would make no more folds than classes have samples, and of two
    samples each leave one, from which methods that cross-validate themselves cannot learn.
    """
    n_folds = VALIDATION_FOLDS if len(codes) > 2 * VALIDATION_FOLDS else len(codes)
    shuffled = np.random.RandomState(seed).permutation(len(codes))
    fold_of = np.empty(len(codes), dtype=int)
    fold_of[shuffled[np.argsort(codes[shuffled], kind="stable")]] = np.arange(len(codes)) % n_folds
    return [(np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)) for fold in range(n_folds)]


def run_jobs(jobs, data, params, n_jobs, progress):
    """Run the jobs; return their outcomes by (key, split, fold).

    Parameters
    ----------
    jobs : list of Job
        What to do.
    data : Data
        Passed to the processes as memory maps, if it is large.
    params : dict
        What the methods are made with.
    n_jobs : int or None
        As in joblib.
    progress : bool
        Whether to show a bar.
    """
    runs = Parallel(n_jobs=n_jobs, return_as="generator_unordered")(
        delayed(_run)(job, METHODS.get(job.key), data, params) for job in jobs
    )
    bar = tqdm(runs, total=len(jobs), desc="compare", unit="fit", disable=not progress)
    return {(job.key, job.split, job.fold): outcome for job, outcome in bar}


def _run(job, method, data, params):
    if method is None:
        return job, _fit_layers(job, data, params)
    try:
        return job, _fit_method(job, method, data, params)
    except Exception as error:  # whatever it is, the other methods can be compared
        return job, Outcome(error=f"{type(error).__name__}: {error}")


def _fit_method(job, method, data, params):
    estimator = method.make(**params)
    fit_params = {}
    if data.groups is not None and has_fit_parameter(estimator, "groups"):
        fit_params["groups"] = data.groups[job.train]
    X = data.rows(job.train, evaluated=False)
    start = perf_counter()
    estimator.fit(X, data.y[job.train], **fit_params)
    outcome = Outcome(fit_seconds=perf_counter() - start, estimator=estimator if job.keep else None)
    if job.test is not None:
        evaluated = job.fold is None
        X = data.rows(job.test, evaluated)
        start = perf_counter()
        probabilities = estimator.predict_proba(X)
        outcome.predict_seconds = perf_counter() - start
        if np.shape(probabilities) != (len(X), len(estimator.classes_)):
            raise ValueError(
                f"predict_proba returned an array of shape {np.shape(probabilities)} for {len(X)} samples and "
                f"{len(estimator.classes_)} classes."
            )
        outcome.probabilities = _in_columns(probabilities, estimator.classes_, data.classes)
        codes = (data.test_codes if evaluated else data.codes)[job.test]
        outcome.hits = outcome.probabilities.argmax(axis=1) == codes
    return outcome


def _fit_layers(job, data, params):
    """Fit the linear probes of all layers, and find the layer that cross-validation prefers, if it can."""
    X, y = data.rows(job.train, evaluated=False), data.y[job.train]
    voting = LayerVotingClassifier(device=params["device"]).fit(X, y)
    X_test = data.rows(job.test, evaluated=True)
    logits = voting.probes_.logits(X_test if X_test.ndim == 4 else X_test[:, :, None])
    probabilities = _in_columns(softmax(logits.swapaxes(0, 1), axis=2), voting.classes_, data.classes)
    best = LayerProbeClassifier("best", device=params["device"], random_state=params["random_state"])
    try:
        best_layer = best.fit(X, y, groups=None if data.groups is None else data.groups[job.train]).layer_
    except ValueError:  # too few samples
        best_layer = None
    return Outcome(probabilities=probabilities, best_layer=best_layer)


def _in_columns(probabilities, known, classes):
    """Return float64 probabilities with a column for each class, 0 for those that the classifier does not know."""
    probabilities = np.asarray(probabilities, dtype=np.float64)
    if not (probabilities.min() >= 0 and np.allclose(probabilities.sum(axis=-1), 1, atol=1e-4)):
        raise ValueError(
            "predict_proba returned rows that are no probabilities: they must not be negative and sum to 1."
        )
    sums = probabilities.sum(axis=-1, keepdims=True)
    # Rounding of float32 leaves sums that scikit-learn's metrics take for no probabilities.
    probabilities = probabilities if np.allclose(sums, 1, rtol=0, atol=1e-9) else probabilities / sums
    columns = np.zeros((*probabilities.shape[:-1], len(classes)))
    columns[..., np.searchsorted(classes, known)] = probabilities
    return columns
