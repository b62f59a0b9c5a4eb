"""Several backbones side by side, as the layers of one stack."""

import numpy as np
from sklearn.base import clone
from sklearn.utils.metaestimators import _BaseComposition

from .base import ImageTransformer


class BackboneStack(ImageTransformer, _BaseComposition, auto_wrap_output_keys=None):
    """Concatenate the layer stacks of several backbones along the axis of the layers.

    With the last layer of each, every classifier becomes its horizontal twin: ``VFusionClassifier`` is then HFusion
    (VFusion, arXiv 2607.10391), ``SuperLearnerClassifier`` a Super Learner over backbones, and so on. Tokens narrower
    than the widest are filled up with zeros.

    Parameters
    ----------
    extractors : list of (str, extractor)
        Names and :class:`LayerwiseFeatureExtractor` objects, or other stacks, which keep the same tokens. Parameters of
        each can be set as ``name__parameter``, and an extractor by its name.

    Attributes
    ----------
    layer_names_ : list of str
        ``"name_layer"`` for each layer.
    token_names_ : list of str
        The tokens of each layer.
    dims_ : dict of str to int
        Width of each backbone's tokens.
    dim_ : int
        Width of the stack: the largest of these.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skvfusion import BackboneStack, LayerwiseFeatureExtractor
    >>> images = load_digits().images[:4] / 16
    >>> trained = LayerwiseFeatureExtractor("nano", layers=[-1])
    >>> untrained = LayerwiseFeatureExtractor("nano", layers=[-1], weights="random")
    >>> BackboneStack([("trained", trained), ("untrained", untrained)]).fit_transform(images).shape
    (4, 2, 128)
    """

    def __init__(self, extractors):
        self.extractors = extractors

    def fit(self, X=None, y=None):
        """Build the backbones and check that their stacks go together; no image is read.

        Parameters
        ----------
        X, y : ignored
            For the sake of pipelines.

        Returns
        -------
        self : object
            The stack.

        Raises
        ------
        ValueError
            If there are no extractors, names repeat, or tokens differ.
        """
        # Clones, because fitting sets attributes, and parameters are not to be changed.
        fitted = [(name, clone(extractor).fit(X, y)) for name, extractor in self._checked()]
        self.token_names_ = fitted[0][1].token_names_
        self.layer_names_ = [f"{name}_{layer}" for name, extractor in fitted for layer in extractor.layer_names_]
        self.dims_ = {name: extractor.dim_ for name, extractor in fitted}
        self.dim_ = max(self.dims_.values())
        return self

    def transform(self, X):
        """Extract the layers of each image from each backbone.

        Parameters
        ----------
        X : list, array, tensor, DataFrame or Dataset of n images
            As in :meth:`LayerwiseFeatureExtractor.transform`.

        Returns
        -------
        ndarray of shape (n, n_layers, dim) or (n, n_layers, n_tokens, dim)
            float32; the first extractor's layers, shallow to deep, then the second's, and so on.
        """
        stacks = {name: extractor.transform(X) for name, extractor in self._checked()}
        shapes = {name: stack.shape for name, stack in stacks.items()}
        first = next(iter(stacks.values()))
        n_layers, dim = sum(shape[1] for shape in shapes.values()), max(shape[-1] for shape in shapes.values())
        joined = np.zeros((len(first), n_layers, *first.shape[2:-1], dim), np.float32)
        start = 0
        for stack in stacks.values():
            joined[:, start : start + stack.shape[1], ..., : stack.shape[-1]] = stack
            start += stack.shape[1]
        return joined

    def get_params(self, deep=True):
        """Return the parameters, with ``deep`` those of the extractors too.

        Parameters
        ----------
        deep : bool, default=True
            Whether to include the extractors by name and their parameters as ``name__parameter``.

        Returns
        -------
        dict
        """
        return self._get_params("extractors", deep=deep)

    def set_params(self, **params):
        """Set parameters, of the extractors too.

        Parameters
        ----------
        **params : dict
            ``extractors``, an extractor's name, or ``name__parameter``.

        Returns
        -------
        self : object
            The stack.
        """
        self._set_params("extractors", **params)
        return self

    def set_output(self, *, transform=None):
        """Accept scikit-learn's output setting; a stack has more than two axes, so it stays an array.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"}, default=None
            Ignored.

        Returns
        -------
        self : object
            The stack.
        """
        return self

    def _checked(self):
        """Return the extractors, which must be such and keep the same tokens."""
        try:
            extractors = {str(name): extractor for name, extractor in self.extractors}
        except (TypeError, ValueError):
            extractors = {}
        if not extractors or not all(isinstance(extractor, ImageTransformer) for extractor in extractors.values()):
            raise ValueError(
                f"extractors={self.extractors!r} is not a list of (name, extractor), such as "
                "[('dino', LayerwiseFeatureExtractor('dinov2_b', layers=[-1])), ...]."
            )
        self._validate_names([str(name) for name, _ in self.extractors])
        flat = [name for name, extractor in extractors.items() if getattr(extractor, "output", "stack") != "stack"]
        if flat:
            raise ValueError(f"The extractors {flat} give flat rows; use output='stack' for all of them.")
        tokens = {name: extractor._tokens() for name, extractor in extractors.items()}
        if len(set(tokens.values())) > 1:
            raise ValueError(f"The extractors keep different tokens: {tokens}. Give all of them the same tokens=.")
        return list(extractors.items())

    def _tokens(self):
        return self._checked()[0][1]._tokens()
