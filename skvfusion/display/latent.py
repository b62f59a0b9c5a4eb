"""What is left of redundancy in VFusion's latent: the correlations of its dimensions."""

import numpy as np

from .base import draw_map, label_layers, last_step, new_axes, read_numbers


class LatentCorrelationDisplay:
    """The correlations between the dimensions of a VFusionClassifier's latent, as a map.

    Parameters
    ----------
    correlation : array-like of shape (latent_dim, latent_dim)
        Correlations over samples, in [-1, 1], as :meth:`skvfusion.VFusionClassifier.latent_correlation` returns them.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where it was drawn; only after ``plot``.
    figure_ : matplotlib Figure
        The figure of ``ax_``; only after ``plot``.

    Examples
    --------
    >>> from skvfusion import LatentCorrelationDisplay
    >>> LatentCorrelationDisplay([[1.0, -0.5], [-0.5, 1.0]]).plot().ax_.get_title()
    'mean square beside the diagonal: 0.250'
    """

    def __init__(self, correlation):
        self.correlation = correlation

    @classmethod
    def from_estimator(cls, estimator, X, *, ax=None):
        """Draw from a fitted classifier and images.

        Parameters
        ----------
        estimator : VFusionClassifier or Pipeline
            A fitted classifier, or a fitted Pipeline that ends in one.
        X : array-like
            At least 2 layer stacks, or what the Pipeline reads. On images the classifier was not trained on, there is
            more correlation left.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        LatentCorrelationDisplay

        Raises
        ------
        TypeError
            If the classifier has no latent.

        Examples
        --------
        >>> import numpy as np
        >>> from skvfusion import LatentCorrelationDisplay, VFusionClassifier
        >>> X = np.random.default_rng(0).normal(size=(40, 3, 8))
        >>> clf = VFusionClassifier(hidden=16, latent_dim=4, random_state=0).fit(X, np.repeat([0, 1], 20))
        >>> LatentCorrelationDisplay.from_estimator(clf, X).correlation.shape
        (4, 4)
        """
        estimator, X = last_step(estimator, X)
        if not hasattr(estimator, "latent_correlation"):
            raise TypeError(f"{type(estimator).__name__} has no latent; pass a fitted VFusionClassifier.")
        return cls(estimator.latent_correlation(X)).plot(ax=ax)

    def plot(self, ax=None):
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure that is not registered with pyplot.

        Returns
        -------
        LatentCorrelationDisplay
            Itself, with ``ax_`` and ``figure_``.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If the matrix is not square.
        """
        correlation = read_numbers(self.correlation, "correlation", ("latent_dim", "latent_dim"))
        size = len(correlation)
        read_numbers(correlation, "correlation", (size, size))
        if ax is None:
            ax = new_axes(4.6)
        # Two colours with white between them, which the palette for colour-blind readers does not confuse.
        draw_map(ax, correlation, "correlation", cmap="PuOr", vmin=-1, vmax=1)
        beside = correlation[~np.eye(size, dtype=bool)]
        if size > 1:
            ax.set_title(f"mean square beside the diagonal: {np.square(beside).mean():.3f}", fontsize="medium")
        for axis in (ax.xaxis, ax.yaxis):
            label_layers(axis, range(size))
            axis.set_label_text("dimension of the latent")
        self.ax_, self.figure_ = ax, ax.figure
        return self
