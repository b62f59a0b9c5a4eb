"""Sample weights and groups on their way through scikit-learn, with and without metadata routing."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn import config_context
from sklearn.base import clone
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_predict, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import has_fit_parameter

from skvfusion import (
    AttentiveFusionClassifier,
    LayerProbeClassifier,
    LayerVotingClassifier,
    MixtureOfExpertsClassifier,
    NeuralLogitControllerClassifier,
    SuperLearnerClassifier,
    VFusionClassifier,
)

pytestmark = pytest.mark.usefixtures("one_thread")

GATE = {"hidden": 16, "max_epochs": 3, "cv": 2, "random_state": 0}
WITH_GROUPS = {
    "best": LayerProbeClassifier("best", cv=2, random_state=0),
    "super": SuperLearnerClassifier(cv=2, random_state=0),
    "super-groupkfold": SuperLearnerClassifier(cv=GroupKFold(2), random_state=0),
    "super-holdout": SuperLearnerClassifier(cv="holdout", validation_fraction=0.3, random_state=0),
    "nlc": NeuralLogitControllerClassifier(**GATE),
    "moe": MixtureOfExpertsClassifier(**GATE),
    "vote-calibrated": LayerVotingClassifier("calibrated", cv=2, random_state=0),
    "vfusion": VFusionClassifier(hidden=16, latent_dim=8, max_epochs=3, random_state=0),
}
WITH_WEIGHTS = {
    "alf": AttentiveFusionClassifier(min_steps=0, max_epochs=3, random_state=0),
    "linear": LayerProbeClassifier(2),
    "vote": LayerVotingClassifier(),
    **WITH_GROUPS,
}
every_classifier = pytest.mark.parametrize("classifier", WITH_WEIGHTS.values(), ids=WITH_WEIGHTS)
with_groups = pytest.mark.parametrize("classifier", WITH_GROUPS.values(), ids=WITH_GROUPS)


@pytest.fixture
def data(make_stack, rng):
    X, y = make_stack(signal_layers=(2, 4), strength=1)
    return X, y, rng.random(60), np.arange(60) // 3


@pytest.fixture
def routing():
    with config_context(enable_metadata_routing=True):
        yield


def metadata_of(classifier, weight, groups):
    """Return what the classifier's ``fit`` takes."""
    known = {"sample_weight": weight, "groups": groups}
    return {name: value for name, value in known.items() if has_fit_parameter(classifier, name)}


@every_classifier
def test_cross_validation_routes_to_fit_and_score(classifier, data, routing):
    X, y, weight, groups = data
    metadata = metadata_of(classifier, weight, groups)
    asking = clone(classifier).set_fit_request(**dict.fromkeys(metadata, True)).set_score_request(sample_weight=True)
    splitter = GroupKFold(2)
    results = cross_validate(asking, X, y, cv=splitter, params=metadata | {"groups": groups}, return_estimator=True)
    for (train, test), fitted, score in zip(
        splitter.split(X, y, groups), results["estimator"], results["test_score"], strict=True
    ):
        alone = clone(classifier).fit(X[train], y[train], **{name: value[train] for name, value in metadata.items()})
        assert_array_equal(fitted.predict_proba(X), alone.predict_proba(X))
        assert score == alone.score(X[test], y[test], sample_weight=weight[test])


@every_classifier
def test_pipelines_and_searches_route_to_fit(classifier, data, routing):
    X, y, weight, groups = data
    metadata = metadata_of(classifier, weight, groups)
    asking = clone(classifier).set_fit_request(**dict.fromkeys(metadata, True)).set_score_request(sample_weight=True)
    expected = clone(classifier).fit(X, y, **metadata).predict_proba(X)
    pipeline = make_pipeline(FunctionTransformer(), asking)
    assert_array_equal(pipeline.fit(X, y, **metadata).predict_proba(X), expected)
    search = GridSearchCV(asking, {"random_state": [0]}, cv=GroupKFold(2))
    assert_array_equal(search.fit(X, y, **metadata | {"groups": groups}).predict_proba(X), expected)


@every_classifier
def test_pipelines_and_searches_without_routing(classifier, data):
    X, y, weight, groups = data
    metadata = metadata_of(classifier, weight, groups)
    expected = clone(classifier).fit(X, y, **metadata).predict_proba(X)
    pipeline = make_pipeline(FunctionTransformer(), clone(classifier))
    name = pipeline.steps[-1][0]
    prefixed = {f"{name}__{key}": value for key, value in metadata.items()}
    assert_array_equal(pipeline.fit(X, y, **prefixed).predict_proba(X), expected)
    # The search's own groups go to its splitter, those with a prefix to the classifier, cut to the fold.
    search = GridSearchCV(pipeline, {f"{name}__random_state": [0]}, cv=GroupKFold(2))
    assert_array_equal(search.fit(X, y, groups=groups, **prefixed).predict_proba(X), expected)
    folds = cross_val_predict(pipeline, X, y, cv=GroupKFold(2), groups=groups, params=prefixed, method="predict_proba")
    (train, test), _ = GroupKFold(2).split(X, y, groups)
    alone = clone(classifier).fit(X[train], y[train], **{key: value[train] for key, value in metadata.items()})
    assert_array_equal(folds[test], alone.predict_proba(X[test]))


@with_groups
def test_groups_change_the_folds(classifier, data):
    X, y, _, groups = data
    fitted = clone(classifier).fit(X, y, groups=groups)
    if classifier is WITH_GROUPS["super-groupkfold"]:
        with pytest.raises(ValueError, match="'groups' parameter should not be None"):
            clone(classifier).fit(X, y)
    elif classifier is not WITH_GROUPS["best"]:
        assert not np.array_equal(clone(classifier).fit(X, y).predict_proba(X), fitted.predict_proba(X))


@with_groups
@pytest.mark.parametrize("kind", ["str", "list", "category"])
def test_groups_of_any_kind(classifier, kind, data):
    X, y, _, groups = data
    expected = clone(classifier).fit(X, y, groups=groups).predict_proba(X)
    names = np.array([f"patient {group:02}" for group in groups])
    if kind == "list":
        names = names.tolist()
    elif kind == "category":
        names = pytest.importorskip("pandas").Series(names, dtype="category")
    assert_array_equal(clone(classifier).fit(X, y, groups=names).predict_proba(X), expected)


def test_groups_must_be_as_many_as_samples(data):
    X, y, _, groups = data
    with pytest.raises(ValueError, match="groups must be one-dimensional with an entry for each"):
        SuperLearnerClassifier().fit(X, y, groups=groups[:-1])


def test_metadata_that_nobody_asked_for_is_refused(data, routing):
    X, y, _, groups = data
    with pytest.raises(UnsetMetadataPassedError, match="set_fit_request"):
        make_pipeline(SuperLearnerClassifier()).fit(X, y, groups=groups)


def test_a_vote_routes_to_its_members(data, routing):
    X, y, weight, groups = data
    member = WITH_WEIGHTS["super"]
    asking = clone(member).set_fit_request(sample_weight=True, groups=True)
    fitted = VotingClassifier([("super", asking)]).fit(X, y, sample_weight=weight, groups=groups)
    alone = clone(member).fit(X, y, sample_weight=weight, groups=groups)
    assert_array_equal(fitted.estimators_[0].predict_proba(X), alone.predict_proba(X))


def test_stacking_hands_groups_to_its_last_estimator_too(data, routing):
    X, y, _, groups = data
    asking = SuperLearnerClassifier(cv=2, random_state=0).set_fit_request(groups=True)
    # What docs/scikit-learn.md warns of; weights are no problem, LogisticRegression takes them.
    with pytest.raises(TypeError, match="unexpected keyword argument 'groups'"):
        StackingClassifier([("super", asking)], cv=2).fit(X, y, groups=groups)
