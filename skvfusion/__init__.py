"""Fuse all layers of one frozen Vision Transformer into a better classifier than its last layer."""

from importlib.metadata import version

from .display import RecoverabilityDisplay
from .extraction import LayerwiseFeatureExtractor
from .fusion import AttentiveFusionClassifier, LayerProbeClassifier, VFusionClassifier
from .layers import resolve_layers
from .persistence import load, save

__all__ = [
    "AttentiveFusionClassifier",
    "LayerProbeClassifier",
    "LayerwiseFeatureExtractor",
    "RecoverabilityDisplay",
    "VFusionClassifier",
    "load",
    "resolve_layers",
    "save",
]

__version__ = version("skvfusion")
