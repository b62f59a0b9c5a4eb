"""Fixtures shared by the tests of the benchmarks."""

import pytest

from skvfusion import (
    AttentiveFusionClassifier,
    MixtureOfExpertsClassifier,
    NeuralLogitControllerClassifier,
    VFusionClassifier,
)
from skvfusion.fusion.encoder import EncoderClassifier

_SHORT = {"max_epochs": 4, "min_steps": 40}


@pytest.fixture
def short_training(monkeypatch):
    """Train every net for a few epochs, unless told otherwise: tables are tried here, not filled.

    In this process only.
    """
    nets = (
        AttentiveFusionClassifier,
        EncoderClassifier,
        MixtureOfExpertsClassifier,
        NeuralLogitControllerClassifier,
        VFusionClassifier,
    )
    for net in nets:
        defaults = net.__init__.__kwdefaults__
        for name in _SHORT.keys() & defaults.keys():
            monkeypatch.setitem(defaults, name, _SHORT[name])
