"""Pictures, by scikit-learn's Display convention; they need matplotlib, the extra ``plot``."""

from .agreement import LayerAgreementDisplay
from .attention import AttentionDisplay
from .base import new_figure
from .depth import RecoverabilityDisplay
from .first_correct import FirstCorrectLayerDisplay
from .latent import LatentCorrelationDisplay
from .severity import SeverityDisplay
from .weights import LayerWeightsDisplay

__all__ = [
    "AttentionDisplay",
    "FirstCorrectLayerDisplay",
    "LatentCorrelationDisplay",
    "LayerAgreementDisplay",
    "LayerWeightsDisplay",
    "RecoverabilityDisplay",
    "SeverityDisplay",
    "new_figure",
]
