"""Where Attentive Layer Fusion looks, data set by data set."""

import numpy as np

from .base import (
    by_name,
    draw_map,
    label_layers,
    last_step,
    layer_names,
    name_rows,
    new_axes,
    percent_axis,
    read_dict,
    read_numbers,
    row_height,
)


class AttentionDisplay:
    """The attention that each layer's tokens get, as a heat map with a row for each data set.

    Parameters
    ----------
    attention : dict of str to array-like of shape (n_layers,) or (n_layers, n_tokens)
        Shares of the attention, by the name of the data set; a row sums to 1.
    layers : list, default=None
        What to call the layers, shallow to deep; None numbers them from 0.
    tokens : list of str, default=None
        What to call the kinds of token. None means the extractor's ``"cls+mean"`` if there are two, and numbers more.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where it was drawn; only after ``plot``.
    figure_ : matplotlib Figure
        The figure of ``ax_``; only after ``plot``.

    References
    ----------
    Ciernik et al., "Beyond the Final Layer: Attentive Multi-Layer Fusion for Vision Transformers", arXiv 2601.09322,
    2026, have such a picture. Attention says where the net looks, not what accuracy a layer adds.

    Examples
    --------
    >>> from skvfusion import AttentionDisplay
    >>> display = AttentionDisplay({"pets": [[0.1, 0.2], [0.3, 0.4]], "cars": [[0.0, 0.1], [0.5, 0.4]]})
    >>> [label.get_text() for label in display.plot().ax_.get_yticklabels()]
    ['pets', 'cars']
    """

    def __init__(self, attention, *, layers=None, tokens=None):
        self.attention = attention
        self.layers = layers
        self.tokens = tokens

    @classmethod
    def from_estimator(cls, estimator, X, *, tokens=None, ax=None):
        """Draw from fitted classifiers and images; what is drawn is the mean over heads and images.

        Parameters
        ----------
        estimator : AttentiveFusionClassifier, Pipeline or dict
            A fitted classifier, or a Pipeline that ends in one. With several data sets, a dict of those fitted on each,
            by the data set's name, of the same layers and tokens; one classifier looks at all of them.
        X : array-like or dict of str to array-like
            Layer stacks, or what the Pipeline reads. With several data sets, a dict of them by name.
        tokens : list of str, default=None
            What to call the kinds of token. None means the extractor's ``"cls+mean"`` if there are two, and numbers
            more.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        AttentionDisplay

        Raises
        ------
        TypeError
            If a classifier has no attention.
        ValueError
            If the names of classifiers and data sets differ, or the classifiers' layers.

        Examples
        --------
        >>> import numpy as np
        >>> from skvfusion import AttentionDisplay, AttentiveFusionClassifier
        >>> X = np.random.default_rng(0).normal(size=(40, 3, 2, 8))
        >>> clf = AttentiveFusionClassifier(min_steps=50, random_state=0).fit(X, np.repeat([0, 1], 20))
        >>> AttentionDisplay.from_estimator(clf, {"noise": X}).attention["noise"].shape
        (3, 2)
        """
        sets = X if isinstance(X, dict) else dict.fromkeys(by_name(estimator), X)
        fitted = estimator if isinstance(estimator, dict) else dict.fromkeys(sets, estimator)
        if set(fitted) != set(sets):
            raise ValueError(f"The classifiers are {sorted(fitted)} but the data sets {sorted(sets)}; name them alike.")
        attention, layers = {}, {}
        for name, images in sets.items():
            classifier, stack = last_step(fitted[name], images)
            if not hasattr(classifier, "attention_weights"):
                raise TypeError(
                    f"{type(classifier).__name__} has no attention; pass a fitted AttentiveFusionClassifier."
                )
            attention[name] = classifier.attention_weights(stack).mean(axis=(0, 1))
            layers[name] = list(classifier.layers_)
        if len({tuple(chosen) for chosen in layers.values()}) > 1:
            raise ValueError(f"The classifiers have different layers: {layers}; draw them one at a time.")
        return cls(attention, layers=next(iter(layers.values())), tokens=tokens).plot(ax=ax)

    def plot(self, ax=None):
        """Draw; each kind of token has the layers side by side, shallow to deep.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure that is not registered with pyplot.

        Returns
        -------
        AttentionDisplay
            Itself, with ``ax_`` and ``figure_``.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If the rows differ in shape, or ``layers`` or ``tokens`` in length.
        """
        names = read_dict(self.attention, "attention")
        rows = self._rows(names)
        n_layers, n_tokens = rows.shape[1:]
        layers, tokens = layer_names(self.layers, n_layers), self._token_names(n_tokens)
        if ax is None:
            ax = new_axes(1.7 + row_height(names) * max(2, len(names)))
        matrix = rows.transpose(0, 2, 1).reshape(len(rows), -1)
        bar = draw_map(ax, matrix, "share of the attention", colorbar="bottom", aspect="auto", vmin=0)
        percent_axis(bar.ax.xaxis)
        for block, token in enumerate(tokens):
            ax.text(
                (block + 0.5) * n_layers - 0.5, 1.0, token, transform=ax.get_xaxis_transform(), ha="center", va="bottom"
            )
            if block:
                ax.axvline(block * n_layers - 0.5, color="white", linewidth=3)
        label_layers(ax.xaxis, layers, blocks=n_tokens)
        name_rows(ax, names)
        ax.set_xlabel("layer")
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _rows(self, names):
        """Return an array of shape (n_rows, n_layers, n_tokens)."""
        first = np.asarray(self.attention[names[0]])
        shape = first.shape if first.ndim in (1, 2) and first.size else ("n_layers", "n_tokens")
        rows = np.stack([read_numbers(self.attention[name], f"attention[{name!r}]", shape) for name in names])
        return rows.reshape(*rows.shape[:2], -1)

    def _token_names(self, n_tokens):
        if self.tokens is None:
            return {1: [], 2: ["CLS", "mean"]}.get(n_tokens, [f"token {i}" for i in range(n_tokens)])
        if len(self.tokens) != n_tokens:
            raise ValueError(f"tokens names {len(self.tokens)} kinds of token, but there are {n_tokens}.")
        return list(self.tokens)
