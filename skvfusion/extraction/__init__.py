"""From images to layer stacks."""

from .backbones import ALIASES
from .extractor import LayerwiseFeatureExtractor

__all__ = ["ALIASES", "LayerwiseFeatureExtractor"]
