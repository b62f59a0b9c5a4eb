"""scikit-learn's callbacks, which came with 1.9, hear of every epoch."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.model_selection import GridSearchCV

from skvfusion import AttentiveFusionClassifier, NeuralLogitControllerClassifier, VFusionClassifier

pytest.importorskip("sklearn.callback", reason="scikit-learn before 1.9 has no callbacks")

FAST = {"max_epochs": 3, "random_state": 0}


class Listener:
    """Writes down the tasks it hears of."""

    max_propagation_depth = None

    def __init__(self):
        self.heard = []

    def setup(self, estimator, context):
        self.heard.append("setup")

    def teardown(self, estimator, context):
        self.heard.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        self.heard.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context):
        self.heard.append(f"end {context.task_name}")


@pytest.mark.parametrize(
    "classifier",
    [
        VFusionClassifier(**FAST),
        NeuralLogitControllerClassifier(cv=2, **FAST),
        AttentiveFusionClassifier(min_steps=0, **FAST),
    ],
)
def test_a_callback_hears_of_the_fit_and_of_every_epoch(classifier, make_stack):
    X, y = make_stack()
    listener = Listener()
    classifier.set_callbacks(listener).fit(X, y)
    assert listener.heard == ["setup", "begin fit", *["begin epoch", "end epoch"] * 3, "end fit", "teardown"]


def test_listening_changes_nothing(make_stack):
    X, y = make_stack()
    heard = VFusionClassifier(**FAST).set_callbacks(Listener()).fit(X, y)
    assert_array_equal(heard.predict_proba(X), VFusionClassifier(**FAST).fit(X, y).predict_proba(X))


def test_a_search_hands_its_callbacks_down(make_stack):
    X, y = make_stack()
    listener = Listener()
    search = GridSearchCV(VFusionClassifier(**FAST), {"layers": ["all", "last"]}, cv=2)
    search.set_callbacks(listener).fit(X, y)
    assert listener.heard.count("begin epoch") == listener.heard.count("end epoch") == 3 * (2 * 2 + 1)


def test_a_failing_fit_tears_down(make_stack):
    X, y = make_stack()
    X[0, 0, 0] = np.nan
    listener = Listener()
    with pytest.raises(ValueError, match="NaN"):
        VFusionClassifier(**FAST).set_callbacks(listener).fit(X, y)
    with pytest.raises(ValueError, match="diverged"):
        VFusionClassifier(lr=1e30, **FAST).set_callbacks(listener).fit(X[1:], y[1:])
    assert listener.heard.count("setup") == listener.heard.count("teardown") == 1


def test_nothing_of_it_stays_in_a_pickle(make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(**FAST).fit(X, y)
    assert not [name for name in vars(pickle.loads(pickle.dumps(fitted))) if "callback" in name and name != "callbacks"]
