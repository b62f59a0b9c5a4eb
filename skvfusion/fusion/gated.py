"""What the classifiers that weigh the layers anew for each image have in common."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..layers import resolve_layers, take_layers
from ..training.batches import StackDataset
from .base import BaseTorchClassifier
from .cross_fitting import BaseProbeEnsemble
from .validation import read_stack


class BaseGatedClassifier(BaseProbeEnsemble, BaseTorchClassifier):
    """A net that reads all layers and says how much each layer's probe counts for an image.

    The net learns from cross-fitted logits; with the logits of probes that have seen the samples it would learn to
    trust those that remember them best. Its module is called with ``X`` and ``logits`` and returns the fused logits and
    the layers' weights.
    """

    _fitted_last = "net_"

    def _fit(self, stack, codes, weight, groups):
        self.layers_ = resolve_layers(self.layers, stack.shape[1])
        chosen = take_layers(stack, self.layers_)
        seed = self._seed()
        logits, usable, _ = self._cross_fit(chosen, codes, weight, groups, seed)
        self.probes_ = self._refit(chosen, codes, weight, seed)
        self._fit_net(stack, codes, weight, rows=usable, beside={"logits": logits})

    def _fit_net(self, stack, codes, weight, **options):
        BaseTorchClassifier._fit(self, stack, codes, weight, **options)

    def _mlp_params(self):
        # The parameters of training are the net's.
        return {"scaling": self.scaling, "device": self.device}

    def _dataset(self, stack):
        return StackDataset(stack, beside={"logits": self.probes_.logits(stack)})

    def layer_weights(self, X):
        """Return how much each layer counts for each image.

        Parameters
        ----------
        X : array-like
            Layer stacks with the layers, tokens and dimensions seen in ``fit``.

        Returns
        -------
        ndarray of shape (n_samples, n_combined_layers)
            float64. Those of a mixture of experts sum to 1, those of a logit controller to anything.
        """
        check_is_fitted(self)
        stack = read_stack(self, X, reset=False)
        with np.errstate(under="ignore"):
            return self._outputs(stack, 1)
