"""Pictures, by scikit-learn's Display convention; they need matplotlib, the extra ``plot``."""

import numpy as np

from .recoverability import layer_accuracy, oracle_accuracy

# From the Okabe-Ito palette, which colour-blind readers can tell apart.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#555555"


class RecoverabilityDisplay:
    """Accuracy by depth, with what fusing the layers and an oracle reach.

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

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where it was drawn; only after ``plot``.
    figure_ : matplotlib Figure
        The figure of ``ax_``; only after ``plot``.

    Examples
    --------
    >>> from skvfusion import RecoverabilityDisplay
    >>> display = RecoverabilityDisplay([0.5, 0.7, 0.8], oracle_accuracy=0.9, fused_accuracy=0.85)
    >>> display.plot().ax_.get_xlabel()
    'layer'
    """

    def __init__(self, layer_accuracy, *, oracle_accuracy=None, fused_accuracy=None, fused_name="VFusion"):
        self.layer_accuracy = layer_accuracy
        self.oracle_accuracy = oracle_accuracy
        self.fused_accuracy = fused_accuracy
        self.fused_name = fused_name

    @classmethod
    def from_predictions(cls, y_true, layer_predictions, fused_predictions=None, *, fused_name="VFusion", ax=None):
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
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

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
        )
        return display.plot(ax=ax)

    def plot(self, ax=None):
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure that is not registered with pyplot.

        Returns
        -------
        RecoverabilityDisplay
            Itself, with ``ax_`` and ``figure_``.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        if ax is None:
            ax = new_figure().add_subplot()
        accuracy = np.asarray(self.layer_accuracy)
        depth = np.arange(len(accuracy))
        ax.plot(depth, accuracy, "o-", color=_BLUE, label="probe of one layer")
        for value, name, colour, style in (
            (self.oracle_accuracy, "any-layer oracle", _GREY, ":"),
            (self.fused_accuracy, self.fused_name, _ORANGE, "-"),
            (accuracy[-1], "last layer", _GREEN, "--"),
        ):
            if value is not None:
                ax.axhline(value, color=colour, linestyle=style, label=f"{name} {value:.1%}")
        ax.set_xlabel("layer")
        ax.set_ylabel("test accuracy")
        ax.set_xticks(depth)
        ax.grid(alpha=0.3)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:.1%}")
        # Above the axes, because there is no corner that no curve can reach.
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
        self.ax_, self.figure_ = ax, ax.figure
        return self


def new_figure():
    """Return an empty matplotlib figure that pyplot does not know; ImportError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Drawing needs matplotlib; install it with: pip install 'skvfusion[plot]'") from error
    figure = Figure(figsize=(6, 4), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
