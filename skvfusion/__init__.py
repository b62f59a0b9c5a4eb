"""Fuse all layers of one frozen Vision Transformer into a better classifier than its last layer."""

from .fusion import LayerProbeClassifier, VFusionClassifier
from .layers import resolve_layers

__all__ = ["LayerProbeClassifier", "VFusionClassifier", "resolve_layers"]
