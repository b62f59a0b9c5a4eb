import pickle

import pytest
from sklearn.base import clone, is_classifier

from skvfusion import LayerProbeClassifier, LayerVotingClassifier, VFusionClassifier
from skvfusion.methods import METHODS, Method

KEYS = ["last", "last_mlp", "best", "average", "vote", "calibrated", "super_learner", "nlc", "moe", "alf", "vfusion"]


def made(key, random_state=7):
    return METHODS[key].make(random_state=random_state, device="cpu", n_jobs=3)


def test_the_methods_are_listed_from_the_plainest():
    assert list(METHODS) == KEYS


def test_labels_differ():
    labels = [method.label for method in METHODS.values()]
    assert all(labels)
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("key", KEYS)
def test_a_method_makes_a_new_seeded_classifier_on_the_device(key):
    classifier = made(key)
    assert is_classifier(classifier)
    assert classifier is not made(key)
    assert classifier.random_state == 7
    assert classifier.device == "cpu"
    assert getattr(classifier, "n_jobs", 3) == 3
    assert not any(name.endswith("_") for name in vars(classifier))


@pytest.mark.parametrize("key", KEYS)
def test_classifiers_have_their_defaults_otherwise(key):
    changed = {"random_state": 7, "device": "cpu"} | ({"n_jobs": 3} if hasattr(made(key), "n_jobs") else {})
    kind = {"last_mlp": (-1, "mlp"), "best": ("best",), "vote": ("majority",), "calibrated": ("calibrated",)}
    expected = type(made(key))(*kind.get(key, ()), **changed)
    assert made(key).get_params() == expected.get_params()


def test_single_layers_are_the_last_and_the_best():
    params = {key: made(key).get_params() for key in ("last", "last_mlp", "best")}
    assert {key: (found["layer"], found["probe"]) for key, found in params.items()} == {
        "last": (-1, "linear"),
        "last_mlp": (-1, "mlp"),
        "best": ("best", "linear"),
    }


def test_votes_differ_in_how_they_vote():
    votes = {key: made(key) for key in ("average", "vote", "calibrated")}
    assert all(isinstance(vote, LayerVotingClassifier) for vote in votes.values())
    assert [vote.voting for vote in votes.values()] == ["proba", "majority", "calibrated"]


@pytest.mark.parametrize("key", KEYS)
def test_methods_go_to_other_processes(key):
    method = pickle.loads(pickle.dumps(METHODS[key]))
    classifier = method.make(random_state=7, device="cpu", n_jobs=3)
    assert method.label == METHODS[key].label
    assert classifier.get_params() == clone(made(key)).get_params()


def test_the_last_layers_mlp_is_vfusion_of_that_layer(make_stack):
    X, y = make_stack(n_per_class=5)
    short = {"max_epochs": 2, "hidden": 8, "latent_dim": 4}
    mlp = made("last_mlp").set_params(**short).fit(X, y)
    fused = made("vfusion").set_params(**short, layers=[-1]).fit(X, y)
    assert isinstance(mlp, LayerProbeClassifier)
    assert isinstance(fused, VFusionClassifier)
    assert (mlp.predict_proba(X) == fused.predict_proba(X)).all()


def test_a_method_cannot_be_changed_in_place():
    method = Method("own", LayerProbeClassifier)
    with pytest.raises(AttributeError):
        method.label = "other"
