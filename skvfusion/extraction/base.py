"""What the transformers of images share."""

from sklearn.base import TransformerMixin


class ImageTransformer(TransformerMixin):
    """A transformer that learns nothing from images, so that it needs no fit and is told by its parameters."""

    def _tokens(self):
        """Return which tokens of a layer are kept, as the parameter ``tokens`` says it."""
        return self.tokens

    def __getstate__(self):
        """Return the parameters only: what ``fit`` sets follows from them, and hashes must not depend on it."""
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name.startswith("_") or not name.endswith("_")}

    def __sklearn_tags__(self):
        """Say that images come in, not a table, and that nothing has to be learned first."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        tags.requires_fit = False
        return tags
