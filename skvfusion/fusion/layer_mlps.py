"""MLP probes of all layers in one net: separate weights, losses and early stopping, shared batches."""

import copy

import numpy as np
import torch
from skorch.callbacks import Callback
from torch import nn

from ..training.losses import FusionLoss
from .encoder import EncoderClassifier, VFusionNet


class LayerNets(nn.Module):
    """A VFusionNet for each layer, all alike at the start and with the same dropout, as if each were trained alone."""

    def __init__(self, n_layers, **params):
        super().__init__()
        self.probes = nn.ModuleList(VFusionNet(n_layers=1, **params) for _ in range(n_layers))

    def set_statistics(self, mean, divisor):
        """Hand each layer its part of what :func:`scaling_statistics` returned."""
        for layer, probe in enumerate(self.probes):
            part = (None, None) if mean is None else (mean[[layer]], divisor[[layer]])
            probe.scaling.set_statistics(*part)

    @property
    def scaling(self):
        """The object that takes the scaling's statistics: this one."""
        return self

    def forward(self, X):
        """Return logits (batch, n_layers, n_classes) and latents (batch, n_layers, latent_dim)."""
        logits, latents = zip(*(probe(X[:, [layer]]) for layer, probe in enumerate(self.probes)), strict=True)
        return torch.stack(logits, 1), torch.stack(latents, 1)


class SeparateLosses(nn.Module):
    """The sum of the layers' losses: none has a share in another's gradient."""

    def __init__(self, **params):
        super().__init__()
        self.loss = FusionLoss(**params)
        self.latest = None

    def forward(self, output, target):
        """Return the summed loss, and remember the losses of this batch."""
        losses = [self.loss(pair, target) for pair in zip(*(part.unbind(1) for part in output), strict=True)]
        self.latest = [loss.item() for loss in losses]
        return torch.stack(losses).sum()


class LayerwiseEarlyStopping(Callback):
    """Stop when no layer's validation loss has fallen for ``patience`` epochs, and give each its best epoch's weights.

    A layer that has not improved for ``patience`` epochs is finished, as it would be if trained alone; later epochs
    are for the others only.
    """

    def __init__(self, patience):
        self.patience = patience

    def on_train_begin(self, net, **kwargs):
        """Start anew."""
        n_layers = len(net.module_.probes)
        self.best_, self.weights_ = np.full(n_layers, np.inf), [None] * n_layers
        self.misses_by_layer_ = np.zeros(n_layers, dtype=int)

    def on_epoch_begin(self, net, **kwargs):
        """Forget the batches of the epoch before."""
        self.losses_, self.sizes_ = [], []

    def on_batch_end(self, net, batch=None, training=False, **kwargs):
        """Take down the losses of a validation batch."""
        if not training:
            self.losses_.append(net.criterion_.latest)
            self.sizes_.append(len(batch[0]))

    def on_epoch_end(self, net, **kwargs):
        """Keep the weights of the layers that have improved."""
        loss = np.average(self.losses_, axis=0, weights=self.sizes_)
        for layer, probe in enumerate(net.module_.probes):
            if self.misses_by_layer_[layer] >= self.patience:
                continue
            if loss[layer] < self.best_[layer]:
                self.best_[layer], self.misses_by_layer_[layer] = loss[layer], 0
                self.weights_[layer] = copy.deepcopy(probe.state_dict())
            else:
                self.misses_by_layer_[layer] += 1
        if self.misses_ >= self.patience:
            # How skorch ends training before its time.
            raise KeyboardInterrupt

    def on_train_end(self, net, **kwargs):
        """Restore each layer's best weights."""
        for probe, weights in zip(net.module_.probes, self.weights_, strict=True):
            if weights is not None:
                probe.load_state_dict(weights)

    @property
    def misses_(self):
        """Epochs since the last layer that still improves did so."""
        return self.misses_by_layer_.min()


class LayerMLPs(EncoderClassifier):
    """One EncoderClassifier for each layer, trained side by side; its logits have a layer axis."""

    def _module(self, n_layers, n_tokens, dim, n_classes, seed):
        _, params = super()._module(1, n_tokens, dim, n_classes, seed)
        return LayerNets, params | {"n_layers": n_layers}

    def _criterion(self):
        _, params = super()._criterion()
        return SeparateLosses, params

    def _engine_options(self):
        return super()._engine_options() | {"early_stopping": LayerwiseEarlyStopping(self.patience)}
