"""How much of what the last layer gets wrong its inner layers get right: the metrics, and what measures them all."""

from .bootstrap import bootstrap_interval
from .disagreement import geometric_disagreement, pairwise_disagreement
from .metrics import (
    corrected_recovery_rate,
    correction_entropy,
    gap_closure,
    layer_accuracy,
    layer_harm,
    layer_recovery,
    oracle_accuracy,
    recovery_rate,
)
from .overthinking import (
    confusion_score,
    cumulative_accuracy,
    destructive_overthinking,
    first_correct_layer,
    prediction_depth,
    wasteful_overthinking,
)
from .result import RecoverabilityResult
from .scorer import RecoverabilityScorer

__all__ = [
    "RecoverabilityResult",
    "RecoverabilityScorer",
    "bootstrap_interval",
    "confusion_score",
    "corrected_recovery_rate",
    "correction_entropy",
    "cumulative_accuracy",
    "destructive_overthinking",
    "first_correct_layer",
    "gap_closure",
    "geometric_disagreement",
    "layer_accuracy",
    "layer_harm",
    "layer_recovery",
    "oracle_accuracy",
    "pairwise_disagreement",
    "prediction_depth",
    "recovery_rate",
    "wasteful_overthinking",
]
