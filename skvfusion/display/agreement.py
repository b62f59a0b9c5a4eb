"""Which layers agree: a map of layers by layers."""

import numpy as np

from ..recoverability import pairwise_disagreement
from .base import draw_map, evaluate_layers, label_layers, layer_names, new_axes, percent_axis, read_numbers


class LayerAgreementDisplay:
    """How often the probes of two layers predict the same, as a map of layers by layers.

    Parameters
    ----------
    disagreement : array-like of shape (n_layers, n_layers)
        Share of samples on which two layers' predictions differ, in [0, 1], as
        :func:`skvfusion.recoverability.pairwise_disagreement` returns it. One minus it is drawn.
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
    >>> from skvfusion import LayerAgreementDisplay
    >>> LayerAgreementDisplay([[0.0, 0.4], [0.4, 0.0]]).plot().ax_.get_ylabel()
    'layer'
    """

    def __init__(self, disagreement, *, layers=None):
        self.disagreement = disagreement
        self.layers = layers

    @classmethod
    def from_predictions(cls, layer_predictions, *, layers=None, ax=None):
        """Draw from predicted labels; the true ones do not matter.

        Parameters
        ----------
        layer_predictions : array-like of shape (n_layers, n_samples)
            Each layer's predictions, shallow to deep.
        layers : list, default=None
            What to call the layers; None numbers them from 0.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        LayerAgreementDisplay

        Examples
        --------
        >>> from skvfusion import LayerAgreementDisplay
        >>> display = LayerAgreementDisplay.from_predictions([["cat", "dog"], ["cat", "cat"]])
        >>> display.disagreement.tolist()
        [[0.0, 0.5], [0.5, 0.0]]
        """
        return cls(pairwise_disagreement(layer_predictions), layers=layers).plot(ax=ax)

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
        LayerAgreementDisplay

        Raises
        ------
        TypeError
            If the estimator is not a scorer.

        Examples
        --------
        >>> import numpy as np
        >>> from skvfusion import LayerAgreementDisplay
        >>> from skvfusion.recoverability import RecoverabilityScorer
        >>> rng, y = np.random.default_rng(0), np.repeat([0, 1], 30)
        >>> X = rng.normal(size=(60, 3, 4)) + y[:, None, None]
        >>> scorer = RecoverabilityScorer("linear", layers=[0, 2]).fit(X, y)
        >>> LayerAgreementDisplay.from_estimator(scorer, X, y).layers
        [0, 2]
        """
        result = evaluate_layers(estimator, X, y)
        return cls.from_predictions(result.predictions, layers=result.layers, ax=ax)

    def plot(self, ax=None):
        """Draw; shallow layers are at the bottom left.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure that is not registered with pyplot.

        Returns
        -------
        LayerAgreementDisplay
            Itself, with ``ax_`` and ``figure_``.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If the matrix is not square, or ``layers`` has another length.
        """
        disagreement = read_numbers(self.disagreement, "disagreement", ("n_layers", "n_layers"))
        n_layers = len(disagreement)
        read_numbers(disagreement, "disagreement", (n_layers, n_layers))
        names = layer_names(self.layers, n_layers)
        if ax is None:
            ax = new_axes(4.6)
        # Every layer agrees with itself: the scale ends there, and starts where the least alike two are.
        agreement = 1 - disagreement
        lowest = min(0.9, agreement[np.isfinite(agreement)].min(initial=1))
        bar = draw_map(ax, agreement, "share of samples predicted alike", origin="lower", vmin=lowest, vmax=1)
        percent_axis(bar.ax.yaxis)
        for axis in (ax.xaxis, ax.yaxis):
            label_layers(axis, names)
            axis.set_label_text("layer")
        self.ax_, self.figure_ = ax, ax.figure
        return self
