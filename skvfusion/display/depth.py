"""Accuracy, recovery and harm by depth."""

import numpy as np

from ..recoverability import layer_accuracy, layer_harm, layer_recovery, oracle_accuracy
from .base import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    evaluate_layers,
    label_layers,
    layer_names,
    legend_above,
    new_axes,
    new_figure,
    read_numbers,
    share_axis,
)


class RecoverabilityDisplay:
    """Accuracy by depth, with what fusing the layers and an oracle reach; recovery and harm by depth below.

    Parameters
    ----------
    layer_accuracy : array-like of shape (n_layers,)
        Accuracy of each layer's probe, shallow to deep, in [0, 1].
    oracle_accuracy : float, default=None
        Accuracy of the any-layer oracle; None leaves its line out.
    fused_accuracy : float, default=None
        Accuracy of a classifier that fuses the layers; None leaves its line out.
    fused_name : str, default="VFusion"
        What to call it.
    layer_recovery : array-like of shape (n_layers,), default=None
        Share of the last layer's errors that each layer gets right, as
        :func:`skvfusion.recoverability.layer_recovery` returns it; None leaves its curve out.
    layer_harm : array-like of shape (n_layers,), default=None
        Share of what the last layer gets right that each layer gets wrong, as
        :func:`skvfusion.recoverability.layer_harm` returns it; None leaves its curve out.
    layers : list, default=None
        What to call the layers, shallow to deep; None numbers them from 0.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where accuracy was drawn; only after ``plot``.
    rates_ax_ : matplotlib Axes or None
        Where recovery and harm were drawn, None if neither is known; only after ``plot``.
    figure_ : matplotlib Figure
        The figure of ``ax_``; only after ``plot``.

    Examples
    --------
    >>> from skvfusion import RecoverabilityDisplay
    >>> display = RecoverabilityDisplay([0.5, 0.7, 0.8], oracle_accuracy=0.9, fused_accuracy=0.85)
    >>> display.plot().ax_.get_xlabel()
    'layer'
    """

    def __init__(
        self,
        layer_accuracy,
        *,
        oracle_accuracy=None,
        fused_accuracy=None,
        fused_name="VFusion",
        layer_recovery=None,
        layer_harm=None,
        layers=None,
    ):
        self.layer_accuracy = layer_accuracy
        self.oracle_accuracy = oracle_accuracy
        self.fused_accuracy = fused_accuracy
        self.fused_name = fused_name
        self.layer_recovery = layer_recovery
        self.layer_harm = layer_harm
        self.layers = layers

    @classmethod
    def from_predictions(
        cls,
        y_true,
        layer_predictions,
        fused_predictions=None,
        *,
        fused_name="VFusion",
        rates=False,
        layers=None,
        ax=None,
    ):
        """Draw from predicted labels.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
            True labels.
        layer_predictions : array-like of shape (n_layers, n_samples)
            Each layer's predictions, shallow to deep.
        fused_predictions : array-like of shape (n_samples,), default=None
            Predictions of a classifier that fuses the layers.
        fused_name : str, default="VFusion"
            What to call it.
        rates : bool, default=False
            Whether to draw each layer's recovery and harm too.
        layers : list, default=None
            What to call the layers; None numbers them from 0.
        ax : matplotlib Axes or pair of them, default=None
            Where to draw, as in :meth:`plot`.

        Returns
        -------
        RecoverabilityDisplay

        Examples
        --------
        >>> from skvfusion import RecoverabilityDisplay
        >>> two_layers = [["cat", "dog", "dog"], ["cat", "cat", "dog"]]
        >>> display = RecoverabilityDisplay.from_predictions(["cat", "dog", "cat"], two_layers, ["cat", "dog", "dog"])
        >>> display.layer_accuracy.round(2).tolist()
        [0.67, 0.33]
        """
        fused = (
            None if fused_predictions is None else float(np.mean(np.asarray(fused_predictions) == np.asarray(y_true)))
        )
        display = cls(
            layer_accuracy(layer_predictions, y_true),
            oracle_accuracy=oracle_accuracy(layer_predictions, y_true),
            fused_accuracy=fused,
            fused_name=fused_name,
            layer_recovery=layer_recovery(layer_predictions, y_true) if rates else None,
            layer_harm=layer_harm(layer_predictions, y_true) if rates else None,
            layers=layers,
        )
        return display.plot(ax=ax)

    @classmethod
    def from_estimator(cls, estimator, X=None, y=None, *, fused=None, fused_name="VFusion", rates=False, ax=None):
        """Draw from a fitted scorer and labelled images that it was not fitted on.

        Parameters
        ----------
        estimator : RecoverabilityScorer or Pipeline
            A fitted scorer, or a fitted Pipeline that ends in one.
        X : array-like, default=None
            Layer stacks, or what the Pipeline reads. None takes the out-of-fold predictions of a scorer with ``cv``.
        y : array-like of shape (n_samples,), default=None
            True labels of X.
        fused : classifier, default=None
            A fitted classifier that fuses the layers and reads X too, to compare with.
        fused_name : str, default="VFusion"
            What to call it.
        rates : bool, default=False
            Whether to draw each layer's recovery and harm too.
        ax : matplotlib Axes or pair of them, default=None
            Where to draw, as in :meth:`plot`.

        Returns
        -------
        RecoverabilityDisplay

        Raises
        ------
        TypeError
            If the estimator is not a scorer.
        ValueError
            If ``fused`` is given without X.

        Examples
        --------
        >>> import numpy as np
        >>> from skvfusion import RecoverabilityDisplay
        >>> from skvfusion.recoverability import RecoverabilityScorer
        >>> rng, y = np.random.default_rng(0), np.repeat([0, 1], 30)
        >>> X = rng.normal(size=(60, 3, 4)) + y[:, None, None]
        >>> scorer = RecoverabilityScorer("linear", layers=[0, 2]).fit(X, y)
        >>> RecoverabilityDisplay.from_estimator(scorer, X, y).layers
        [0, 2]
        """
        if fused is not None and X is None:
            raise ValueError("fused needs images to predict; pass X and y, or leave it out.")
        result = evaluate_layers(estimator, X, y)
        fused_predictions = None if fused is None else fused.predict(X)
        return cls.from_predictions(
            result.y,
            result.predictions,
            fused_predictions,
            fused_name=fused_name,
            rates=rates,
            layers=result.layers,
            ax=ax,
        )

    def plot(self, ax=None):
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes or pair of them, default=None
            Where to draw; None makes a figure that is not registered with pyplot. Recovery and harm, if known, go
            into a panel below in a figure of its own, into the second of a pair of axes, and beside the accuracy into
            a single one.

        Returns
        -------
        RecoverabilityDisplay
            Itself, with ``ax_``, ``rates_ax_`` and ``figure_``.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If the curves or ``layers`` differ in length.
        """
        accuracy = read_numbers(self.layer_accuracy, "layer_accuracy", ("n_layers",))
        names = layer_names(self.layers, len(accuracy))
        rates = self._rates(len(accuracy))
        upper, lower = self._axes(ax, bool(rates))
        self._draw_accuracy(upper, accuracy)
        if rates:
            self._draw_rates(lower, rates)
        for panel in {upper, lower} - {None}:
            label_layers(panel.xaxis, names)
            panel.set_xlabel("layer")
            panel.grid(alpha=0.3)
            share_axis(panel)
            legend_above(panel)
        if upper is lower:
            upper.set_ylabel("share")
        self.ax_, self.rates_ax_, self.figure_ = upper, lower, upper.figure
        return self

    def _rates(self, n_layers):
        """Return names, values and styles of the curves of recovery and harm that are known."""
        candidates = (
            ("layer_recovery", "recovery: right where the last layer is wrong", PURPLE, "^-"),
            ("layer_harm", "harm: wrong where the last layer is right", BLACK, "v--"),
        )
        return [
            (name, read_numbers(getattr(self, attribute), attribute, (n_layers,)), colour, style)
            for attribute, name, colour, style in candidates
            if getattr(self, attribute) is not None
        ]

    @staticmethod
    def _axes(ax, with_rates):
        """Return the axes for accuracy and those for the rates, or None."""
        if ax is None:
            return new_figure(6.4).subplots(2, height_ratios=(3, 2)) if with_rates else (new_axes(), None)
        pair = np.ravel(ax)
        if pair.size > 2:
            raise ValueError(f"ax holds {pair.size} axes; pass one, or two for accuracy and for recovery and harm.")
        return pair[0], pair[-1] if with_rates else None

    def _draw_accuracy(self, ax, accuracy):
        ax.plot(accuracy, "o-", color=BLUE, label="probe of one layer")
        for value, name, colour, style in (
            (self.oracle_accuracy, "any-layer oracle", GREY, ":"),
            (self.fused_accuracy, self.fused_name, ORANGE, "-"),
            (accuracy[-1], "last layer", GREEN, "--"),
        ):
            if value is not None:
                ax.axhline(value, color=colour, linestyle=style, label=f"{name} {value:.1%}")
        ax.set_ylabel("test accuracy")

    @staticmethod
    def _draw_rates(ax, rates):
        for name, values, colour, style in rates:
            # Without errors of the last layer there is nothing to recover, and every layer's share is NaN.
            ax.plot(values, style, color=colour, label=name if np.isfinite(values).any() else f"{name} (never)")
        ax.set_ylabel("share")
