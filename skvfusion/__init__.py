"""Fuse all layers of one frozen Vision Transformer into a better classifier than its last layer."""

from importlib.metadata import version

from .compare import compare
from .display import (
    AttentionDisplay,
    FirstCorrectLayerDisplay,
    LatentCorrelationDisplay,
    LayerAgreementDisplay,
    LayerWeightsDisplay,
    RecoverabilityDisplay,
    SeverityDisplay,
)
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
from .recoverability import RecoverabilityScorer

__all__ = [
    "AttentionDisplay",
    "AttentiveFusionClassifier",
    "BackboneStack",
    "FirstCorrectLayerDisplay",
    "LatentCorrelationDisplay",
    "LayerAgreementDisplay",
    "LayerProbeClassifier",
    "LayerVotingClassifier",
    "LayerWeightsDisplay",
    "LayerwiseFeatureExtractor",
    "MixtureOfExpertsClassifier",
    "NeuralLogitControllerClassifier",
    "RecoverabilityDisplay",
    "RecoverabilityScorer",
    "SeverityDisplay",
    "SuperLearnerClassifier",
    "VFusionClassifier",
    "compare",
    "load",
    "resolve_layers",
    "save",
]

__version__ = version("skvfusion")
