"""The skorch net under every torch estimator: seeded, cosine-annealed, with the best weights kept in memory."""

import copy
import warnings

import numpy as np
import pandas as pd
import torch
from skorch import NeuralNet
from skorch.callbacks import EarlyStopping, GradientNormClipping, LRScheduler
from skorch.exceptions import DeviceWarning
from skorch.helper import predefined_split
from skorch.history import History
from torch import nn

from ..devices import resolve_device
from .batches import BatchIterator

# The annealed learning rate ends here rather than at 0, so that the last epochs still count.
FINAL_LR = 1e-6
# Samples in a pass without gradients, if they are small, and most numbers in them, which are copied several times over
# in float64.
INFERENCE_BATCH = 1024
_INFERENCE_NUMBERS = 2**20
# As many as in a training batch at most, so that validating takes no more memory.
_VALIDATION_BATCH = 256


class FusionNet(NeuralNet):
    """A skorch net with this engine's optimiser and iterators, whose pickle is plain Python and numpy.

    A pickle, copy or model file holds the classes of module and loss with their parameters, the weights as arrays, the
    history without its batches and a few numbers. What only training needs (optimiser state, data, callbacks) is left
    out; loading makes it anew, so that the net can be trained further.
    """

    _fixed_params = {
        "optimizer": torch.optim.AdamW,
        # One pass over the weights where the plain form makes a dozen: several times faster on the CPU too.
        "optimizer__fused": True,
        "iterator_train": BatchIterator,
        "iterator_train__shuffle": True,
        "iterator_valid": BatchIterator,
        "iterator_valid__batch_size": _VALIDATION_BATCH,
        "train_split": None,
    }
    _kept_params = ("lr", "max_epochs", "batch_size", "verbose", "optimizer__weight_decay", "iterator_train__seed")

    def __init__(self, module, criterion, **params):
        super().__init__(module, criterion, **self._fixed_params | params)

    def __getstate__(self):
        return {
            "module": self.module,
            "module_params": self.get_params_for("module"),
            "criterion": self.criterion,
            "criterion_params": self.get_params_for("criterion"),
            "params": {name: getattr(self, name) for name in self._kept_params},
            "device": str(self.device),
            "training": self.module_.training,
            "weights": {name: value.numpy(force=True) for name, value in self.module_.state_dict().items()},
            "history": [{name: _plain(value) for name, value in epoch.items()} for epoch in _epochs(self)],
        }

    def __setstate__(self, state):
        # A model file may name any class of the package here; what is called below must be a module.
        for part in ("module", "criterion"):
            found = state[part] if isinstance(state[part], type) else type(state[part])
            if found is not state[part] or not issubclass(found, nn.Module):
                raise ValueError(f"The net's {part} must be a class of torch modules; got {found}.")
        self.__init__(
            state["module"],
            state["criterion"],
            **{f"module__{name}": value for name, value in state["module_params"].items()},
            **{f"criterion__{name}": value for name, value in state["criterion_params"].items()},
            **{name: state["params"][name] for name in self._kept_params},
            device=_device_for(state["device"]),
        )
        # As in training: the caller may be in inference mode.
        with torch.inference_mode(False):
            self.initialize()
            # Copies, because tensors cannot share the memory of arrays that are read-only, as joblib's memory maps are.
            weights = {name: torch.tensor(value) for name, value in state["weights"].items()}
            self.module_.load_state_dict(weights)
        self.module_.train(state["training"])
        self.history_ = History({**epoch, "batches": []} for epoch in state["history"])


def train_net(
    module,
    module_params,
    criterion,
    criterion_params,
    train,
    valid,
    *,
    prepare,
    max_epochs,
    lr,
    weight_decay,
    batch_size,
    patience,
    device,
    seed,
    callbacks,
    verbose,
    gradient_clip=None,
    early_stopping=None,
):
    """Train a module and return its skorch net.

    AdamW with the learning rate annealed to almost 0 along a cosine over ``max_epochs``. With a validation set,
    training ends once its loss has not fallen for ``patience`` epochs, and the weights of its best epoch are restored.

    Parameters
    ----------
    module, criterion : type
        Classes of the network and the loss; the network must draw its initial weights from a generator of its own.
    module_params, criterion_params : dict
        Their constructor parameters.
    train, valid : StackDataset
        What to train on and what to validate on; ``valid`` may be None.
    prepare : callable
        Called with the initialised module before training, to set what was learned from data by other means.
    seed : int
        Seed of the order of the samples.
    gradient_clip : float, default=None
        The largest norm of the gradient of all parameters together; longer ones are shortened to it.
    early_stopping : skorch callback, default=None
        Takes the place of skorch's own with a validation set; has ``misses_`` and ``patience`` too.

    Returns
    -------
    FusionNet
        Trained, without optimiser state.

    Raises
    ------
    ValueError
        If training diverged.
    """
    n_batches = len(BatchIterator(train, batch_size, shuffle=True))
    schedule = LRScheduler(
        torch.optim.lr_scheduler.CosineAnnealingLR,
        T_max=max(1, max_epochs * n_batches),
        eta_min=min(FINAL_LR, lr),
        step_every="batch",
    )
    own = [("lr_scheduler", schedule)]
    if gradient_clip is not None:
        own.append(("gradient_clip", GradientNormClipping(gradient_clip)))
    stopping = []
    if valid is not None:
        # Every fall of the loss counts, however small.
        if early_stopping is None:
            early_stopping = EarlyStopping(patience=patience, threshold=0, load_best=True, sink=_silent)
        stopping = [("early_stopping", early_stopping)]
    net = FusionNet(
        module,
        criterion,
        **{f"module__{name}": value for name, value in module_params.items()},
        **{f"criterion__{name}": value for name, value in criterion_params.items()},
        optimizer__weight_decay=weight_decay,
        lr=lr,
        max_epochs=max_epochs,
        batch_size=batch_size,
        iterator_train__seed=seed,
        train_split=None if valid is None else predefined_split(valid),
        # The caller's callbacks as copies, because skorch changes them; before early stopping, which ends an epoch for
        # those that come after it.
        callbacks=[*own, *copy.deepcopy(list(callbacks or [])), *stopping],
        device=device,
        verbose=verbose,
    )
    # The caller may be in inference mode, whose tensors cannot be trained.
    with torch.inference_mode(False), torch.enable_grad():
        net.initialize()
        prepare(net.module_)
        net.partial_fit(train, None)
    _check_outcome(net, dict(stopping).get("early_stopping"))
    _forget_training_state(net, [name for name, _ in own + stopping])
    return net


def net_outputs(net, dataset, output):
    """Run a net over a data set in eval mode and return its output number ``output`` as one float64 array.

    On the CPU the pass is made in float64: a sample's prediction then does not depend on which others share its batch,
    and the cost is nothing beside that of extracting the sample. Batches are small enough to hold few numbers.
    """
    device = torch.device(net.device)
    dtype = torch.float64 if device.type == "cpu" else torch.float32
    module = copy.deepcopy(net.module_).to(dtype).eval()
    n_rows = min(INFERENCE_BATCH, max(1, _INFERENCE_NUMBERS // int(np.prod(dataset.X.shape[1:]))))
    outputs, start = None, 0
    with torch.inference_mode():
        for X, _ in BatchIterator(dataset, n_rows):
            part = _call(module, X, device, dtype)[output].numpy(force=True)
            # Into one array: many small ones between the large ones of each batch would keep the heap from shrinking.
            if outputs is None:
                outputs = np.empty((len(dataset), *part.shape[1:]))
            outputs[start : start + len(part)] = part
            start += len(part)
    return outputs


def _call(module, X, device, dtype):
    """Call a module as skorch does: a dict of inputs by name."""
    if isinstance(X, dict):
        return module(**{name: value.to(device, dtype) for name, value in X.items()})
    return module(X.to(device, dtype))


def history_frame(net):
    """Return the net's history as a DataFrame, one row per epoch, without the per-batch records."""
    return pd.DataFrame(_epochs(net))


def _epochs(net):
    return [{name: value for name, value in epoch.items() if name != "batches"} for epoch in net.history]


def _plain(value):
    """Turn a numpy number into one of Python, which takes no member of its own in a model file."""
    return value.item() if isinstance(value, np.generic) else value


def _device_for(device):
    """Return the device a net was on, or the CPU with a warning where it does not exist."""
    try:
        return str(resolve_device(device))
    except ValueError:
        message = f"The model was fitted on {device}, which is not available here; it is loaded on the CPU."
        warnings.warn(message, DeviceWarning, stacklevel=2)
        return "cpu"


def _check_outcome(net, early_stopping):
    if not all(torch.isfinite(weight).all() for weight in net.module_.parameters()):
        raise ValueError(
            f"Training diverged: after {len(net.history)} epochs the weights are not finite. Lower lr ({net.lr:g}) "
            "or weight_decay, or scale the input (scaling='layer')."
        )
    # skorch ends training by KeyboardInterrupt for early stopping as well as for Ctrl-C.
    stopped_early = early_stopping is not None and early_stopping.misses_ >= early_stopping.patience
    if len(net.history) < net.max_epochs and not stopped_early:
        warnings.warn(
            f"Training was interrupted in epoch {len(net.history)} of {net.max_epochs}; the weights so far are kept.",
            UserWarning,
            stacklevel=8,
        )


def _forget_training_state(net, callback_names):
    """Drop what only training needs: the data, gradients, the optimiser's moments, callbacks that hold weights."""
    net.optimizer_.state.clear()
    net.optimizer_.zero_grad(set_to_none=True)
    net.train_split = None
    for callbacks in (net.callbacks, net.callbacks_):
        callbacks[:] = [callback for callback in callbacks if not _is_named(callback, callback_names)]


def _is_named(callback, names):
    return isinstance(callback, tuple) and callback[0] in names


def _silent(*args):
    """Swallow EarlyStopping's messages."""
