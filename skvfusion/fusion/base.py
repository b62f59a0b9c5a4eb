"""What all classifiers of layer stacks share: reading input, and turning scores into predictions."""

from abc import ABCMeta, abstractmethod
from numbers import Integral, Real

import numpy as np
import torch
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.utils._param_validation import Interval, Options, StrOptions
from sklearn.utils.validation import check_is_fitted

from ..devices import resolve_device
from ..layers import resolve_layers, take_layers
from ..training.batches import BatchIterator, StackDataset, resolve_batch_size, split_validation
from ..training.losses import FusionLoss
from ..training.net import history_frame, net_outputs, train_net
from ..training.scaling import SCALINGS, scaling_statistics
from ..training.seeding import draw_seed, spawn_seeds
from .progress import CallbackSupportMixin, epoch_tasks, with_callbacks
from .validation import check_two_classes, combine_weights, encode_labels, read_stack, read_weights

POSITIVE_INT = Interval(Integral, 1, None, closed="left")


class BaseStackClassifier(ClassifierMixin, BaseEstimator, metaclass=ABCMeta):
    """A classifier of layer stacks.

    Subclasses implement ``_fit(stack, codes, weight)`` and ``_logits(stack)`` on validated input of shape
    (n_samples, n_layers, n_tokens, dim), and name in ``_fitted_last`` the attribute that ends a fit.
    """

    _parameter_constraints: dict = {
        "n_layers": [POSITIVE_INT, None],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "random_state": ["random_state"],
    }

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None):
        """Fit the classifier.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_layers, dim), (n_samples, n_layers, n_tokens, dim) or (n_samples, dim)
            Layer stacks, shallow to deep. Training is in float32 whatever the dtype; memory maps are read by batches.
        y : array-like of shape (n_samples,)
            Labels of any kind that can be sorted: int, str, bool.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; a sample of weight 0 counts as absent. None weights all equally.

        Returns
        -------
        self : object
            The fitted classifier.

        Raises
        ------
        ValueError
            If X holds NaN or infinity, its shape does not fit the parameters, or y has fewer than two classes.
        """
        return self._fit_checked(X, y, sample_weight)

    def predict(self, X):
        """Predict the most probable class of each sample.

        Parameters
        ----------
        X : array-like
            Layer stacks with the layers, tokens and dimensions seen in ``fit``.

        Returns
        -------
        ndarray of shape (n_samples,)
            Labels as they were in ``y``.
        """
        logits = self._checked_logits(X)
        return self.classes_[logits.argmax(axis=1)]

    def predict_proba(self, X):
        """Predict class probabilities.

        Parameters
        ----------
        X : array-like
            Layer stacks with the layers, tokens and dimensions seen in ``fit``.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            float64, columns in the order of ``classes_``.
        """
        return softmax(self._checked_logits(X), axis=1)

    def predict_log_proba(self, X):
        """Predict the logarithms of class probabilities.

        Parameters
        ----------
        X : array-like
            Layer stacks with the layers, tokens and dimensions seen in ``fit``.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            float64, columns in the order of ``classes_``; finite where the probability would round to 0.
        """
        return log_softmax(self._checked_logits(X), axis=1)

    def decision_function(self, X):
        """Return the logits.

        Parameters
        ----------
        X : array-like
            Layer stacks with the layers, tokens and dimensions seen in ``fit``.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            float64. With two classes, the logit of ``classes_[1]`` minus that of ``classes_[0]``.
        """
        logits = self._checked_logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def _fit_checked(self, X, y, sample_weight, **further):
        """Validate what ``fit`` was given and pass it on to ``_fit``, with ``further`` arguments."""
        self._forget()
        stack, y = read_stack(self, X, reset=True, y=y)
        weight = read_weights(stack, sample_weight)
        self.classes_, codes = encode_labels(y)
        weight = combine_weights(self.class_weight, self.classes_, codes, weight)
        check_two_classes(self, self.classes_, codes, weight)
        # A number too small for float32 may become 0, whatever the caller makes of underflow.
        with np.errstate(under="ignore"):
            self._fit(stack, codes, weight, **further)
        return self

    def _checked_logits(self, X):
        check_is_fitted(self)
        stack = read_stack(self, X, reset=False)
        with np.errstate(under="ignore"):
            return self._logits(stack)

    def _forget(self):
        """Drop what an earlier fit learned, so that a fit that fails leaves no mixture of two."""
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]:
            delattr(self, name)

    def __sklearn_is_fitted__(self):
        """Tell whether a fit came to its end."""
        return hasattr(self, self._fitted_last)

    @abstractmethod
    def _fit(self, stack, codes, weight):
        """Learn from validated input; ``weight`` is float64 of shape (n_samples,), or None if all count equally."""

    @abstractmethod
    def _logits(self, stack):
        """Return float64 logits of shape (n_samples, n_classes)."""

    def __sklearn_tags__(self):
        """Say that 3-D stacks are welcome beside 2-D arrays."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


class BaseTorchClassifier(CallbackSupportMixin, BaseStackClassifier):
    """A classifier trained by the shared engine.

    Subclasses implement ``_module(n_layers, n_tokens, dim, n_classes, seed)``, which returns a module class and its
    parameters. The module has an ``InputScaling`` called ``scaling`` and returns ``(logits, something else)``. They may
    override ``_criterion`` and ``_engine_options``.
    """

    _fitted_last = "net_"

    _parameter_constraints: dict = {
        **BaseStackClassifier._parameter_constraints,
        "layers": [str, Integral, "array-like", slice],
        "scaling": [Options(object, set(SCALINGS))],
        "max_epochs": [POSITIVE_INT],
        "lr": [Interval(Real, 0, None, closed="neither")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "batch_size": [POSITIVE_INT, StrOptions({"auto"})],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "patience": [POSITIVE_INT],
        "device": [str, torch.device],
        "callbacks": [list, None],
        "verbose": ["verbose"],
    }

    def _fit(self, stack, codes, weight, *, rows=None, beside=None):
        """Train on ``rows`` (all by default), with the arrays ``beside`` the stack as further inputs of the module."""
        device = resolve_device(self.device)
        self.layers_ = resolve_layers(self.layers, stack.shape[1])
        stack = take_layers(stack, self.layers_)
        split_seed, module_seed, order_seed = spawn_seeds(draw_seed(self.random_state), 3)
        rows = np.arange(len(codes)) if rows is None else rows
        counted = rows if weight is None else rows[weight[rows] > 0]
        train, valid = split_validation(codes, counted, self.early_stopping, self.validation_fraction, split_seed)
        statistics = scaling_statistics(stack, train, self.scaling, weight)
        module, params = self._module(*stack.shape[1:], len(self.classes_), module_seed)
        if weight is not None:
            # Mean 1, so that the scale of the weights does not act as a learning rate.
            weight = (weight / weight[train].mean()).astype(np.float32)
        train = StackDataset(stack, train, codes, weight, beside)
        batch_size = resolve_batch_size(self.batch_size, len(train))
        max_epochs = self._most_epochs(len(BatchIterator(train, batch_size, shuffle=True)))
        with epoch_tasks(self, max_epochs) as reporters:
            net = train_net(
                module,
                params,
                *self._criterion(),
                train,
                None if valid is None else StackDataset(stack, valid, codes, weight, beside),
                prepare=lambda module: self._prepare(module, statistics),
                max_epochs=max_epochs,
                lr=self._learning_rate(),
                weight_decay=self.weight_decay,
                batch_size=batch_size,
                patience=self.patience,
                device=device,
                seed=order_seed,
                callbacks=[*(self.callbacks or []), *reporters],
                verbose=self.verbose,
                **self._engine_options(),
            )
        self.n_iter_ = len(net.history)
        self.net_ = net

    @property
    def history_(self):
        """A row per epoch, made from the net's history: a DataFrame could not be part of a model file."""
        return history_frame(self.net_)

    @property
    def device_(self):
        """The device that holds the net; the CPU after loading on a machine without the one it was trained on."""
        return str(self.net_.device)

    def _prepare(self, module, statistics):
        """Hand the module what was learned before it."""
        module.scaling.set_statistics(*statistics)

    def _logits(self, stack):
        return self._outputs(stack, 0)

    def _outputs(self, stack, output):
        return net_outputs(self.net_, self._dataset(take_layers(stack, self.layers_)), output)

    def _dataset(self, stack):
        """Return the chosen layers as the module's input."""
        return StackDataset(stack)

    @abstractmethod
    def _module(self, n_layers, n_tokens, dim, n_classes, seed):
        """Return the module's class and its constructor parameters."""

    def _criterion(self):
        """Return the loss's class and its constructor parameters."""
        return FusionLoss, {}

    def _most_epochs(self, n_batches):
        """Return how many epochs of so many batches to train at most."""
        return self.max_epochs

    def _learning_rate(self):
        """Return the initial learning rate."""
        return self.lr

    def _engine_options(self):
        """Return further arguments of :func:`skvfusion.training.net.train_net`."""
        return {}
