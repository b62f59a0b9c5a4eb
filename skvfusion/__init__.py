"""Fuse all layers of one frozen Vision Transformer into a better classifier than its last layer."""

from importlib.metadata import version

from .display import RecoverabilityDisplay
from .extraction import LayerwiseFeatureExtractor
from .fusion import LayerProbeClassifier, VFusionClassifier
from .layers import resolve_layers

__all__ = [
    "LayerProbeClassifier",
    "LayerwiseFeatureExtractor",
    "RecoverabilityDisplay",
    "VFusionClassifier",
    "resolve_layers",
]

__version__ = version("skvfusion")
