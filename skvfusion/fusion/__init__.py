"""Classifiers of layer stacks."""

from .layer_probe import LayerProbeClassifier
from .vfusion import VFusionClassifier

__all__ = ["LayerProbeClassifier", "VFusionClassifier"]
