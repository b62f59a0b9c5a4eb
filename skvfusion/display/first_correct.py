"""How deep it takes to get an image right for the first time."""

import numpy as np

from ..recoverability import first_correct_layer
from .base import (
    BLUE,
    GREY,
    ORANGE,
    evaluate_layers,
    inches,
    label_layers,
    layer_names,
    legend_above,
    new_axes,
    read_numbers,
)

# In inches: a small digit, a row of them standing upright, from the last bar to that of no layer.
_DIGIT, _UPRIGHT, _APART = 0.07, 0.1, 0.42


class FirstCorrectLayerDisplay:
    """How many samples each layer is the first to get right, as a histogram.

    Parameters
    ----------
    counts : array-like of int of shape (n_layers,)
        Samples that each layer gets right and no shallower one does.
    never : int, default=0
        Samples that no layer gets right.
    lost : array-like of int of shape (n_layers,), default=None
        How many of ``counts`` the last layer gets wrong: what inner layers could rescue. They are drawn apart; None
        draws no difference.
    layers : list, default=None
        What to call the layers, shallow to deep; None numbers them from 0.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where it was drawn; only after ``plot``.
    figure_ : matplotlib Figure
        The figure of ``ax_``; only after ``plot``.

    Examples
    --------
    >>> from skvfusion import FirstCorrectLayerDisplay
    >>> FirstCorrectLayerDisplay([50, 30, 10], never=10, lost=[5, 2, 0]).plot().ax_.get_ylabel()
    'samples'
    """

    def __init__(self, counts, *, never=0, lost=None, layers=None):
        self.counts = counts
        self.never = never
        self.lost = lost
        self.layers = layers

    @classmethod
    def from_predictions(cls, y_true, layer_predictions, *, layers=None, ax=None):
        """Draw from predicted labels.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
            True labels.
        layer_predictions : array-like of shape (n_layers, n_samples)
            Each layer's predictions, shallow to deep.
        layers : list, default=None
            What to call the layers; None numbers them from 0.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        FirstCorrectLayerDisplay

        Examples
        --------
        >>> from skvfusion import FirstCorrectLayerDisplay
        >>> display = FirstCorrectLayerDisplay.from_predictions([0, 1, 1], [[0, 1, 0], [0, 0, 0]])
        >>> display.counts.tolist(), display.lost.tolist(), display.never
        ([2, 0], [1, 0], 1)
        """
        first = first_correct_layer(layer_predictions, y_true)
        wrong = np.asarray(layer_predictions)[-1] != np.asarray(y_true)
        n_layers = len(layer_predictions)
        display = cls(
            np.bincount(first[first >= 0], minlength=n_layers),
            never=int((first < 0).sum()),
            lost=np.bincount(first[(first >= 0) & wrong], minlength=n_layers),
            layers=layers,
        )
        return display.plot(ax=ax)

    @classmethod
    def from_estimator(cls, estimator, X=None, y=None, *, ax=None):
        """Draw from a fitted scorer and labelled images that it was not fitted on.

        Parameters
        ----------
        estimator : RecoverabilityScorer or Pipeline
            A fitted scorer, or a fitted Pipeline that ends in one.
        X : array-like, default=None
            Layer stacks, or what the Pipeline reads. None takes the out-of-fold predictions of a scorer with ``cv``.
        y : array-like of shape (n_samples,), default=None
            True labels of X.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        FirstCorrectLayerDisplay

        Raises
        ------
        TypeError
            If the estimator is not a scorer.

        Examples
        --------
        >>> import numpy as np
        >>> from skvfusion import FirstCorrectLayerDisplay
        >>> from skvfusion.recoverability import RecoverabilityScorer
        >>> rng, y = np.random.default_rng(0), np.repeat([0, 1], 30)
        >>> X = rng.normal(size=(60, 3, 4)) + y[:, None, None]
        >>> scorer = RecoverabilityScorer("linear", layers=[0, 2]).fit(X, y)
        >>> FirstCorrectLayerDisplay.from_estimator(scorer, X, y).layers
        [0, 2]
        """
        result = evaluate_layers(estimator, X, y)
        return cls.from_predictions(result.y, result.predictions, layers=result.layers, ax=ax)

    def plot(self, ax=None):
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure that is not registered with pyplot.

        Returns
        -------
        FirstCorrectLayerDisplay
            Itself, with ``ax_`` and ``figure_``.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If ``lost`` or ``layers`` has another length than ``counts``.
        """
        counts = read_numbers(self.counts, "counts", ("n_layers",))
        n_layers = len(counts)
        lost = np.zeros(n_layers) if self.lost is None else read_numbers(self.lost, "lost", (n_layers,))
        names = layer_names(self.layers, n_layers)
        if ax is None:
            ax = new_axes()
        # Far enough from the last layer for both to be labelled.
        depth, apart = np.arange(n_layers), n_layers - 1 + max(1.5, _APART * n_layers / inches(ax)[0])
        kept = "a layer right" if self.lost is None else "last layer right too"
        ax.bar(depth, counts - lost, color=BLUE, label=f"{kept}: {(counts - lost).sum():.0f}")
        if self.lost is not None:
            label = f"last layer wrong: {lost.sum():.0f}"
            ax.bar(depth, lost, bottom=counts - lost, color=ORANGE, hatch="///", label=label)
        ax.bar(apart, self.never, color=GREY, label=f"no layer right: {self.never:.0f}")
        self._write_counts(ax, [*depth, apart], [*counts, self.never])
        label_layers(ax.xaxis, names)
        labels = [label.get_text() for label in ax.get_xticklabels()]
        ax.set_xticks([*ax.get_xticks(), apart], [*labels, "none"])
        ax.set_xlabel("first layer that is right")
        ax.set_ylabel("samples")
        ax.yaxis.get_major_locator().set_params(integer=True)
        ax.grid(axis="y", alpha=0.3)
        ax.set_axisbelow(True)
        legend_above(ax)
        self.ax_, self.figure_ = ax, ax.figure
        return self

    @staticmethod
    def _write_counts(ax, places, heights):
        """Write each bar's height above it, upright if bars are narrow and not at all if they are narrower still."""
        texts = [f"{height:.0f}" for height in heights]
        room = inches(ax)[0] / (places[-1] + 1)
        upright = max(map(len, texts)) * _DIGIT > room
        if room < _UPRIGHT:
            texts = []
        for place, height, text in zip(places, heights, texts, strict=False):
            ax.annotate(
                text,
                (place, height),
                (0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize="x-small",
                rotation=90 if upright else 0,
            )
        ax.set_ylim(0, max(1, *heights) * (1.15 if upright else 1.08))
