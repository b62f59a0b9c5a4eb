"""scikit-learn's callbacks (1.9 and later) around the epochs of a net, for progress bars and the like."""

from contextlib import contextmanager

from skorch.callbacks import Callback

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn 1.7 and 1.8 have no callbacks

    class CallbackSupportMixin:
        """Nothing to support."""

    def with_callbacks(method):
        """Return the method as it is."""
        return method


__all__ = ["CallbackSupportMixin", "epoch_tasks", "with_callbacks"]


@contextmanager
def epoch_tasks(estimator, max_epochs):
    """Report a fit to the callbacks set by ``estimator.set_callbacks`` or a search around it.

    Parameters
    ----------
    estimator : BaseTorchClassifier
        The estimator being fitted, by a method under ``with_callbacks``.
    max_epochs : int
        Most epochs there can be.

    Yields
    ------
    list
        The skorch callbacks that report the epochs: none if nobody listens.
    """
    if not hasattr(estimator, "_skl_callbacks"):
        yield []
        return
    fit = estimator._init_callback_context(max_subtasks=max_epochs)
    fit.call_on_fit_task_begin(estimator=estimator)
    yield [_EpochTasks(fit, estimator)]
    fit.call_on_fit_task_end(estimator=estimator)


class _EpochTasks(Callback):
    """Make each epoch a task of scikit-learn's."""

    def __init__(self, fit, estimator):
        self.fit = fit
        self.estimator = estimator

    def on_epoch_begin(self, net, **kwargs):
        """Begin a task."""
        self.epoch_ = self.fit.subcontext(task_name="epoch").call_on_fit_task_begin(estimator=self.estimator)

    def on_epoch_end(self, net, **kwargs):
        """End it."""
        self.epoch_.call_on_fit_task_end(estimator=self.estimator)

    def __deepcopy__(self, memo):
        # The engine copies callbacks for the user's sake; this one has to report to the very fit it was made for.
        return self
