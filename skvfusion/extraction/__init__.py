"""From images to layer stacks."""

from .aliases import ALIASES, alias_table
from .cache import cache_info, limit_cache
from .extractor import LayerwiseFeatureExtractor
from .stack import BackboneStack

__all__ = ["ALIASES", "BackboneStack", "LayerwiseFeatureExtractor", "alias_table", "cache_info", "limit_cache"]
