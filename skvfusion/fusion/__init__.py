"""Classifiers of layer stacks."""

from .attentive import AttentiveFusionClassifier
from .layer_probe import LayerProbeClassifier
from .vfusion import VFusionClassifier

__all__ = ["AttentiveFusionClassifier", "LayerProbeClassifier", "VFusionClassifier"]
