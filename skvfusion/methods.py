"""The registry of the methods that are compared: whatever is entered here joins every comparison."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .fusion import (
    AttentiveFusionClassifier,
    LayerProbeClassifier,
    LayerVotingClassifier,
    MixtureOfExpertsClassifier,
    NeuralLogitControllerClassifier,
    SuperLearnerClassifier,
    VFusionClassifier,
)


@dataclass(frozen=True)
class Method:
    """A way to classify layer stacks.

    Attributes
    ----------
    label : str
        What tables and pictures call it.
    make : callable
        ``make(random_state=, device=, n_jobs=)`` returns an unfitted classifier: ``fit(X, y)``, with ``groups`` too if
        it has that parameter, then ``classes_`` and ``predict_proba(X)``. To be compared in several processes, it
        has to be picklable, and so has the classifier.

    Examples
    --------
    >>> from skvfusion.methods import METHODS, Method
    >>> METHODS["vfusion"].label
    'VFusion, all layers'
    >>> METHODS["vfusion"].make(random_state=0, device="cpu", n_jobs=None)
    VFusionClassifier(device='cpu', random_state=0)
    """

    label: str
    make: Callable


def _make(classifier, *args, random_state, device, n_jobs):
    """Return a classifier; ``n_jobs`` goes to those that have it."""
    params = {"random_state": random_state, "device": device}
    if "n_jobs" in classifier._get_param_names():
        params["n_jobs"] = n_jobs
    return classifier(*args, **params)


# In the order of tables, from the plainest: of methods that are equally good the first is preferred.
METHODS = {
    "last": Method("last layer", partial(_make, LayerProbeClassifier, -1)),
    "last_mlp": Method("last layer, VFusion's own MLP", partial(_make, LayerProbeClassifier, -1, "mlp")),
    "best": Method("best single layer", partial(_make, LayerProbeClassifier, "best")),
    "average": Method("average of the layers", partial(_make, LayerVotingClassifier, "proba")),
    "vote": Method("majority vote of the layers", partial(_make, LayerVotingClassifier, "majority")),
    "calibrated": Method("calibrated average of the layers", partial(_make, LayerVotingClassifier, "calibrated")),
    "super_learner": Method("Super Learner, all layers", partial(_make, SuperLearnerClassifier)),
    "nlc": Method("Neural Logit Controller, all layers", partial(_make, NeuralLogitControllerClassifier)),
    "moe": Method("Mixture of Experts, all layers", partial(_make, MixtureOfExpertsClassifier)),
    "alf": Method("ALF, all layers", partial(_make, AttentiveFusionClassifier)),
    "vfusion": Method("VFusion, all layers", partial(_make, VFusionClassifier)),
}
