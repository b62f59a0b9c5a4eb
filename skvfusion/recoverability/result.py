"""What an evaluation of the layers' probes found: figures by layer, in all, and by group."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.special import softmax
from scipy.stats import rankdata

from ..fusion.cross_fitting import read_groups
from . import metrics, overthinking
from .bootstrap import bootstrap_interval
from .disagreement import READINGS, distance_to_last, last_errors, pairwise_disagreement, sample_disagreement
from .validation import read_scores


@dataclass(frozen=True, eq=False, repr=False)
class RecoverabilityResult:
    """Logits of the layers' probes on labelled samples, and every figure of recoverability that follows from them.

    Made by :meth:`RecoverabilityScorer.evaluate`, or from logits of any origin.

    Parameters
    ----------
    logits : ndarray of shape (n_layers, n_samples, n_classes)
        Each layer's logits, shallow to deep.
    y : ndarray of shape (n_samples,)
        True labels. One that is not among the classes counts as never recognised.
    classes : ndarray of shape (n_classes,)
        The labels of the columns.
    layers : list of int
        What to call the layers: their indices into X.
    groups : ndarray of shape (n_samples,), default=None
        Subpopulations, for figures by group.
    clusters : ndarray of shape (n_samples,), default=None
        Samples that depend on each other (of one patient, one site), which intervals take into account. None if all are
        independent.

    Examples
    --------
    >>> import numpy as np
    >>> from skvfusion.recoverability import RecoverabilityResult
    >>> logits = np.array([[[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [3.0, 0.0]]])
    >>> result = RecoverabilityResult(logits, np.array([0, 1]), np.array([0, 1]), layers=[5, 11])
    >>> result
    RecoverabilityResult(n_layers=2, n_samples=2, last_accuracy=0.5, oracle_accuracy=1, recovery_rate=1)
    >>> result.to_frame()["accuracy"].to_dict()
    {5: 1.0, 11: 0.5}
    """

    logits: np.ndarray
    y: np.ndarray
    classes: np.ndarray
    layers: list
    groups: np.ndarray | None = None
    clusters: np.ndarray | None = None

    def __post_init__(self):
        logits, y, classes = read_scores(self.logits, "logits"), np.asarray(self.y), np.asarray(self.classes)
        last_errors(logits, y, classes)  # raises where the shapes do not fit
        # In one order, so that a copy of it gives the same bits.
        logits = np.ascontiguousarray(logits)
        if len(self.layers) != len(logits):
            raise ValueError(f"layers={self.layers!r} must name the {len(logits)} layers of the logits.")
        for name, value in {"logits": logits, "y": y, "classes": classes}.items():
            object.__setattr__(self, name, value)
        for name in ("groups", "clusters"):
            value = getattr(self, name)
            read_groups(value, len(y))
            object.__setattr__(self, name, None if value is None else np.asarray(value))

    def __repr__(self):
        n_layers, n_samples = self.predictions.shape
        figures = {
            "last_accuracy": self.layer_accuracy[-1],
            "oracle_accuracy": self.oracle_accuracy,
            "recovery_rate": self.recovery_rate,
        }
        figures = ", ".join(f"{name}={value:.3g}" for name, value in figures.items())
        return f"RecoverabilityResult(n_layers={n_layers}, n_samples={n_samples}, {figures})"

    @cached_property
    def predictions(self):
        """Each layer's predicted labels, of shape (n_layers, n_samples)."""
        return self.classes[self.logits.argmax(axis=2)]

    @cached_property
    def probabilities(self):
        """Each layer's class probabilities, of shape (n_layers, n_samples, n_classes)."""
        return softmax(self.logits, axis=2)

    @property
    def layer_accuracy(self):
        """Accuracy of each layer; see :func:`layer_accuracy`."""
        return metrics.layer_accuracy(self.predictions, self.y)

    @property
    def oracle_accuracy(self):
        """Share of samples that some layer gets right; see :func:`oracle_accuracy`."""
        return metrics.oracle_accuracy(self.predictions, self.y)

    @property
    def recovery_rate(self):
        """Share of the last layer's errors that an inner layer gets right; see :func:`recovery_rate`."""
        return metrics.recovery_rate(self.predictions, self.y)

    @property
    def corrected_recovery_rate(self):
        """The recovery rate beyond chance, over all exchanges; see :func:`corrected_recovery_rate`."""
        return metrics.corrected_recovery_rate(self.predictions, self.y, n_draws=None)

    @property
    def layer_recovery(self):
        """Share of the last layer's errors that each layer gets right; see :func:`layer_recovery`."""
        return metrics.layer_recovery(self.predictions, self.y)

    @property
    def layer_harm(self):
        """Share of the last layer's right answers that each layer gets wrong; see :func:`layer_harm`."""
        return metrics.layer_harm(self.predictions, self.y)

    @property
    def pairwise_disagreement(self):
        """Share of samples on which two layers differ; see :func:`pairwise_disagreement`."""
        return pairwise_disagreement(self.predictions)

    @property
    def first_correct_layer(self):
        """Position in ``layers`` of the first that gets each sample right, or -1; see :func:`first_correct_layer`."""
        return overthinking.first_correct_layer(self.predictions, self.y)

    @property
    def prediction_depth(self):
        """Position in ``layers`` from which on all agree, by sample; see :func:`prediction_depth`."""
        return overthinking.prediction_depth(self.predictions)

    @property
    def confusion_score(self):
        """How far the layers' probabilities are from the last's, by sample; see :func:`confusion_score`."""
        return overthinking.confusion_score(self.probabilities)

    def to_frame(self):
        """Return the figures by layer.

        Returns
        -------
        DataFrame
            A row per layer, by its index into X, with the columns

            - ``accuracy``; ``recovery`` and ``harm``, the shares of the last layer's errors that it gets right and of
              its right answers that it gets wrong;
            - ``cumulative_accuracy``, of an oracle that knows the layers up to this; ``first_correct``, the share of
              samples that no shallower layer gets right, but this; ``settled``, the share of samples whose prediction
              depth this is;
            - ``disagreement``, the share of samples predicted otherwise than by the last layer; ``confusion``, the mean
              L1 distance of its probabilities from the last layer's; ``cosine_distance``, the mean distance of its
              centred logits from the last layer's on the last layer's errors;
            - ``worst_group_accuracy``, the least over groups, if there are groups.
        """
        n_layers = len(self.logits)
        wrong = self.predictions[-1] != self.y
        first, depth = self.first_correct_layer, self.prediction_depth
        cosine = distance_to_last(self.logits[:, wrong]).mean(axis=1) if wrong.any() else np.full(n_layers, np.nan)
        frame = pd.DataFrame(
            {
                "accuracy": self.layer_accuracy,
                "recovery": self.layer_recovery,
                "harm": self.layer_harm,
                "cumulative_accuracy": overthinking.cumulative_accuracy(self.predictions, self.y),
                "first_correct": np.bincount(first[first >= 0], minlength=n_layers) / len(first),
                "settled": np.bincount(depth, minlength=n_layers) / len(depth),
                "disagreement": self.pairwise_disagreement[:, -1],
                "confusion": overthinking.distance_of_probabilities(self.probabilities).mean(axis=1),
                "cosine_distance": cosine,
            },
            index=pd.Index(self.layers, name="layer"),
        )
        if self.groups is not None:
            by_group = [metrics.layer_accuracy(self.predictions[:, rows], self.y[rows]) for rows in self._group_rows()]
            frame["worst_group_accuracy"] = np.min(by_group, axis=0)
        return frame

    def summary(self, *, n_draws=1000, level=0.95, random_state=0):
        """Return the scalar figures with bootstrap intervals.

        Parameters
        ----------
        n_draws : int, default=1000
            Draws of the bootstrap, the same for all figures. If there are ``clusters``, these are drawn.
        level : float, default=0.95
            Confidence level of the intervals.
        random_state : int, RandomState instance or None, default=0
            Seeds the draws.

        Returns
        -------
        DataFrame
            A row per figure with the columns ``value``, ``low`` and ``high``; nan where a figure is not defined.
            ``best_accuracy`` is that of the layer that is best on these very samples, in hindsight. The disagreements
            called ``raw`` are without centring, and ``confusion_auroc`` tells how well the confusion score finds the
            last layer's errors. With groups, ``worst_group`` figures are the least over groups.
        """
        arrays = self._by_sample()
        figures = _scalar_figures(*arrays)
        low, high = bootstrap_interval(
            lambda *drawn: list(_scalar_figures(*drawn).values()),
            *arrays,
            n_draws=n_draws,
            level=level,
            groups=self.clusters,
            random_state=random_state,
        )
        index = pd.Index(list(figures), name="figure")
        return pd.DataFrame({"value": list(figures.values()), "low": low, "high": high}, index=index)

    def by_group(self):
        """Return the figures of each subpopulation.

        Returns
        -------
        DataFrame
            A row per group, sorted, with the columns ``n_samples``, ``last_accuracy``, ``best_accuracy``,
            ``oracle_accuracy``, ``recovery_rate`` and ``corrected_recovery_rate``. The best layer is the one that is
            best in the group, in hindsight.

        Raises
        ------
        ValueError
            If the evaluation was given no groups.
        """
        if self.groups is None:
            raise ValueError("There are no groups to tell apart; pass evaluate(X, y, groups=...).")
        predicted, y, identity, *_ = self._by_sample()
        rows = [
            {"n_samples": len(members), **_group_figures(predicted[:, members], y[members], identity[members])}
            for members in self._group_rows()
        ]
        return pd.DataFrame(rows, index=pd.Index(self._group_names(), name="group"))

    def worst_group(self):
        """Return the least of each figure over the groups.

        Returns
        -------
        DataFrame
            A row per figure of :meth:`by_group` with the columns ``value`` and ``group``, the first that has it; nan
            and None where the figure is defined in no group.

        Raises
        ------
        ValueError
            If the evaluation was given no groups.
        """
        figures = self.by_group().drop(columns="n_samples")
        known = figures.notna().any()
        group = [figures[name].idxmin() if known[name] else None for name in figures]
        index = pd.Index(figures.columns, name="figure")
        return pd.DataFrame({"value": figures.min(), "group": pd.Series(group, index, dtype=object)}, index=index)

    def _group_rows(self):
        codes = self._group_codes()
        return [np.flatnonzero(codes == code) for code in range(codes.max() + 1)]

    def _group_names(self):
        return pd.factorize(self.groups, sort=True)[1]

    def _group_codes(self):
        # pandas sorts names of several kinds, which numpy refuses.
        return pd.factorize(self.groups, sort=True)[0]

    def _by_sample(self):
        """Return what the scalar figures are made of, arrays with the samples on the last axis.

        What can be computed sample by sample is, so that the bootstrap only averages.
        """
        distances = np.stack(
            [sample_disagreement(self.logits, reading, center) for center in (True, False) for reading in READINGS]
        )
        # Codes are compared faster than labels; a label that is not among the classes becomes -1.
        y = pd.Index(self.classes).get_indexer(self.y)
        identity = np.arange(len(y))
        arrays = [self.logits.argmax(axis=2), y, identity, distances, self.confusion_score, self.prediction_depth]
        if self.groups is not None:
            arrays.append(self._group_codes())
        return arrays


def _scalar_figures(predicted, y, identity, distances, confusion, depth, group=None):
    """Return the scalar figures by name."""
    wrong = predicted[-1] != y
    distances = distances[:, wrong].mean(axis=1) if wrong.any() else np.full(len(distances), np.nan)
    figures = _group_figures(predicted, y, identity) | {
        "wasteful_overthinking": overthinking.wasteful_overthinking(predicted, y),
        **{f"correction_entropy_{r}": metrics.correction_entropy(predicted, y, reading=r) for r in ("A", "B", "C")},
        "geometric_disagreement_A": distances[0],
        "geometric_disagreement_B": distances[1],
        "geometric_disagreement_A_raw": distances[2],
        "geometric_disagreement_B_raw": distances[3],
        "confusion": confusion.mean(),
        "confusion_auroc": _auroc(confusion, wrong),
        "prediction_depth": depth.mean(),
    }
    if group is None:
        return figures
    by_group = [_group_figures(predicted[:, group == g], y[group == g], identity[group == g]) for g in np.unique(group)]
    worst = pd.DataFrame(by_group).min()
    return figures | {f"worst_group_{name}": worst[name] for name in worst.index}


def _group_figures(predicted, y, identity):
    """Return the figures that are of interest for a subpopulation, too; labels are codes."""
    accuracy = metrics.layer_accuracy(predicted, y)
    return {
        "last_accuracy": accuracy[-1],
        "best_accuracy": accuracy.max(),
        "oracle_accuracy": metrics.oracle_accuracy(predicted, y),
        "recovery_rate": metrics.recovery_rate(predicted, y),
        "corrected_recovery_rate": metrics.recovery_beyond_chance(predicted, y, identity),
    }


def _auroc(score, positive):
    """Return the probability that a positive sample has a higher score than a negative one; nan without either."""
    n_positive = positive.sum()
    n_negative = len(positive) - n_positive
    if min(n_positive, n_negative) == 0:
        return np.nan
    ranks = rankdata(score)[positive].sum()
    return (ranks - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative)
