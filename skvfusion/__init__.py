"""Fuse all layers of one frozen Vision Transformer into a better classifier than its last layer."""

from importlib.metadata import version

from .display import RecoverabilityDisplay
from .extraction import BackboneStack, LayerwiseFeatureExtractor
from .fusion import (
    AttentiveFusionClassifier,
    LayerProbeClassifier,
    LayerVotingClassifier,
    MixtureOfExpertsClassifier,
    NeuralLogitControllerClassifier,
    SuperLearnerClassifier,
    VFusionClassifier,
)
from .layers import resolve_layers
from .persistence import load, save

__all__ = [
    "AttentiveFusionClassifier",
    "BackboneStack",
    "LayerProbeClassifier",
    "LayerVotingClassifier",
    "LayerwiseFeatureExtractor",
    "MixtureOfExpertsClassifier",
    "NeuralLogitControllerClassifier",
    "RecoverabilityDisplay",
    "SuperLearnerClassifier",
    "VFusionClassifier",
    "load",
    "resolve_layers",
    "save",
]

__version__ = version("skvfusion")
