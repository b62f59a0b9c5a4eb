"""How accuracy falls as images are corrupted more and more."""

import numpy as np

from .base import by_name, legend_above, legend_height, line_style, new_axes, read_dict, read_numbers, share_axis


class SeverityDisplay:
    """Accuracy by the severity of a corruption, a curve for each method.

    Parameters
    ----------
    accuracies : dict of str to array-like of shape (n_severities,)
        Each method's accuracies in [0, 1], by its name.
    severities : array-like of shape (n_severities,), default=None
        How severe, as numbers; None counts from 0, which is clean images.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where it was drawn; only after ``plot``.
    figure_ : matplotlib Figure
        The figure of ``ax_``; only after ``plot``.

    Examples
    --------
    >>> from skvfusion import SeverityDisplay
    >>> SeverityDisplay({"last layer": [0.9, 0.7, 0.4], "VFusion": [0.9, 0.8, 0.5]}).plot().ax_.get_xlabel()
    'severity of the corruption'
    """

    def __init__(self, accuracies, *, severities=None):
        self.accuracies = accuracies
        self.severities = severities

    @classmethod
    def from_predictions(cls, y_true, predictions, *, severities=None, ax=None):
        """Draw from predicted labels of the same samples at several severities.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
            True labels.
        predictions : dict of str to array-like of shape (n_severities, n_samples)
            Each method's predictions, by its name. With several corruptions, (n_severities, n_corruptions, n_samples),
            over which accuracies are averaged.
        severities : array-like of shape (n_severities,), default=None
            How severe, as numbers; None counts from 0, which is clean images.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        SeverityDisplay

        Examples
        --------
        >>> from skvfusion import SeverityDisplay
        >>> predictions = {"last layer": [["cat", "dog"], ["dog", "dog"]]}
        >>> SeverityDisplay.from_predictions(["cat", "dog"], predictions).accuracies
        {'last layer': [1.0, 0.5]}
        """
        y_true = np.asarray(y_true)
        accuracies = {}
        for name in read_dict(predictions, "predictions"):
            predicted = np.asarray(predictions[name])
            if predicted.ndim not in (2, 3) or predicted.shape[-1] != len(y_true) or predicted.size == 0:
                raise ValueError(
                    f"predictions[{name!r}] of shape {predicted.shape} do not fit {len(y_true)} labels; pass "
                    "(n_severities, n_samples) or (n_severities, n_corruptions, n_samples)."
                )
            accuracies[name] = [float((row == y_true).mean()) for row in predicted]
        return cls(accuracies, severities=severities).plot(ax=ax)

    @classmethod
    def from_estimator(cls, estimator, X, y, *, severities=None, ax=None):
        """Draw from fitted classifiers and the same samples at several severities.

        Parameters
        ----------
        estimator : classifier or dict of str to classifier
            A fitted classifier, or several by their names.
        X : sequence of array-like
            What the classifiers read, for each severity: layer stacks, or images if they are Pipelines.
        y : array-like of shape (n_samples,)
            True labels, the same at all severities.
        severities : array-like of shape (n_severities,), default=None
            How severe, as numbers; None counts from 0, which is clean images.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        SeverityDisplay

        Examples
        --------
        >>> import numpy as np
        >>> from skvfusion import LayerProbeClassifier, SeverityDisplay
        >>> rng, y = np.random.default_rng(0), np.repeat([0, 1], 50)
        >>> X = 3 * y[:, None, None] + rng.normal(size=(100, 2, 4))
        >>> noisy = [X + noise * rng.normal(size=X.shape) for noise in (0, 4)]
        >>> display = SeverityDisplay.from_estimator({"last layer": LayerProbeClassifier().fit(X, y)}, noisy, y)
        >>> clean, noisy = display.accuracies["last layer"]
        >>> bool(clean > noisy)
        True
        """
        predictions = {
            name: [classifier.predict(stack) for stack in X] for name, classifier in by_name(estimator).items()
        }
        return cls.from_predictions(y, predictions, severities=severities, ax=ax)

    def plot(self, ax=None):
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure that is not registered with pyplot.

        Returns
        -------
        SeverityDisplay
            Itself, with ``ax_`` and ``figure_``.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If the curves differ in length.
        """
        names = read_dict(self.accuracies, "accuracies")
        first = read_numbers(self.accuracies[names[0]], f"accuracies[{names[0]!r}]", ("n_severities",))
        severities = np.arange(len(first)) if self.severities is None else self.severities
        severities = read_numbers(severities, "severities", (len(first),))
        curves = {
            name: read_numbers(self.accuracies[name], f"accuracies[{name!r}]", (len(severities),)) for name in names
        }
        if ax is None:
            ax = new_axes(3.6 + legend_height(names))
        for i, (name, curve) in enumerate(curves.items()):
            ax.plot(severities, curve, label=name, markersize=5, **line_style(i))
        ax.set_xticks(severities)
        ax.set_xlabel("severity of the corruption")
        ax.set_ylabel("test accuracy")
        share_axis(ax)
        ax.grid(alpha=0.3)
        legend_above(ax)
        self.ax_, self.figure_ = ax, ax.figure
        return self
