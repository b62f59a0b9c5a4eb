"""Which layers the methods that weigh them listen to."""

import numpy as np

from .base import (
    GREY,
    by_name,
    label_layers,
    last_step,
    layer_names,
    legend_above,
    legend_height,
    line_style,
    new_axes,
    read_dict,
    read_numbers,
    share_axis,
)

_QUANTILES = (0.1, 0.9)


class LayerWeightsDisplay:
    """How much each layer counts, a curve for each method.

    Parameters
    ----------
    weights : dict of str to array-like of shape (n_layers,)
        Each method's weights, shallow to deep, by its name; they are drawn as shares of 1.
    spread : dict of str to array-like of shape (2, n_layers), default=None
        Lower and upper bounds of a band around the weights of methods that weigh anew for each image; methods may be
        missing.
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
    >>> from skvfusion import LayerWeightsDisplay
    >>> LayerWeightsDisplay({"Super Learner": [0.1, 0.2, 0.7]}).plot().ax_.get_xlabel()
    'layer'
    """

    def __init__(self, weights, *, spread=None, layers=None):
        self.weights = weights
        self.spread = spread
        self.layers = layers

    @classmethod
    def from_estimator(cls, estimator, X=None, *, ax=None):
        """Draw from fitted classifiers.

        Parameters
        ----------
        estimator : classifier or dict of str to classifier
            A fitted :class:`skvfusion.SuperLearnerClassifier`, :class:`skvfusion.NeuralLogitControllerClassifier` or
            :class:`skvfusion.MixtureOfExpertsClassifier`, a Pipeline that ends in one, or several by their names, of
            the same layers.
        X : array-like, default=None
            Layer stacks, or what the Pipelines read; only needed by classifiers that weigh anew for each image. Of
            these, the mean over X is drawn, in a band that 8 of 10 images are in.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        LayerWeightsDisplay

        Raises
        ------
        TypeError
            If a classifier does not weigh layers.
        ValueError
            If X is needed and missing, or the classifiers have different layers.

        Notes
        -----
        A logit controller's weights sum to anything. Multiplying all of an image's weights by one number does not
        change its class, so they are divided by the sum of their absolute values, image by image, to compare methods.

        Examples
        --------
        >>> import numpy as np
        >>> from skvfusion import LayerWeightsDisplay, SuperLearnerClassifier
        >>> y = np.repeat([0, 1], 30)
        >>> X = np.random.default_rng(0).normal(size=(60, 4, 8))
        >>> X[:, 2] += y[:, None]
        >>> clf = SuperLearnerClassifier(random_state=0).fit(X, y)
        >>> display = LayerWeightsDisplay.from_estimator({"Super Learner": clf})
        >>> display.weights["Super Learner"].argmax()
        np.int64(2)
        """
        weights, spread, layers = {}, {}, {}
        for name, fitted in by_name(estimator).items():
            classifier, stack = last_step(fitted, X)
            shares = _shares(classifier, stack)
            layers[name] = list(classifier.layers_)
            weights[name] = shares.mean(axis=0)
            if len(shares) > 1:
                spread[name] = np.quantile(shares, _QUANTILES, axis=0)
        if len({tuple(chosen) for chosen in layers.values()}) > 1:
            raise ValueError(f"The classifiers have different layers: {layers}; draw them one at a time.")
        return cls(weights, spread=spread, layers=next(iter(layers.values()))).plot(ax=ax)

    def plot(self, ax=None):
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure that is not registered with pyplot.

        Returns
        -------
        LayerWeightsDisplay
            Itself, with ``ax_`` and ``figure_``.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If weights, bands or ``layers`` differ in length.
        """
        names = read_dict(self.weights, "weights")
        n_layers = len(read_numbers(self.weights[names[0]], f"weights[{names[0]!r}]", ("n_layers",)))
        weights = {name: read_numbers(self.weights[name], f"weights[{name!r}]", (n_layers,)) for name in names}
        spread = {
            name: read_numbers(band, f"spread[{name!r}]", (2, n_layers)) for name, band in (self.spread or {}).items()
        }
        layers = layer_names(self.layers, n_layers)
        if ax is None:
            ax = new_axes(3.6 + legend_height([*names, "all alike"]))
        depth = np.arange(n_layers)
        for i, (name, curve) in enumerate(weights.items()):
            style = line_style(i)
            if name in spread:
                ax.fill_between(depth, *spread[name], color=style["color"], alpha=0.15, linewidth=0)
            ax.plot(depth, curve, label=name, markersize=5, **style)
        ax.axhline(1 / n_layers, color=GREY, linestyle=":", label="all alike")
        label_layers(ax.xaxis, layers)
        ax.set_xlabel("layer")
        ax.set_ylabel("share of the weights")
        share_axis(ax, lowest=-1)
        ax.grid(alpha=0.3)
        legend_above(ax)
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _shares(classifier, X):
    """Return a fitted classifier's weights, (1, n_layers) or one row per image, as shares."""
    name = type(classifier).__name__
    if hasattr(classifier, "layer_weights_"):
        weights = classifier.layer_weights_[None]
    elif not hasattr(classifier, "layer_weights"):
        raise TypeError(
            f"{name} does not weigh layers; pass a fitted SuperLearnerClassifier, NeuralLogitControllerClassifier or "
            "MixtureOfExpertsClassifier."
        )
    elif X is None:
        raise ValueError(f"{name} weighs the layers anew for each image; pass X, the images to average over.")
    else:
        weights = classifier.layer_weights(X)
    total = np.abs(weights).sum(axis=1, keepdims=True)
    return weights / np.where(total > 0, total, 1)
