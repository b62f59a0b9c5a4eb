"""Classifiers of layer stacks."""

from .attentive import AttentiveFusionClassifier
from .experts import MixtureOfExpertsClassifier
from .layer_probe import LayerProbeClassifier
from .logit_controller import NeuralLogitControllerClassifier
from .super_learner import SuperLearnerClassifier
from .vfusion import VFusionClassifier
from .voting import LayerVotingClassifier

__all__ = [
    "AttentiveFusionClassifier",
    "LayerProbeClassifier",
    "LayerVotingClassifier",
    "MixtureOfExpertsClassifier",
    "NeuralLogitControllerClassifier",
    "SuperLearnerClassifier",
    "VFusionClassifier",
]
