"""What every classifier must do, whatever it fuses."""

import copy
import pickle
import warnings
from io import BytesIO
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from joblib import Parallel, delayed
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted
from skorch.callbacks import Callback
from threadpoolctl import threadpool_limits

from skvfusion import (
    AttentiveFusionClassifier,
    LayerProbeClassifier,
    LayerVotingClassifier,
    MixtureOfExpertsClassifier,
    NeuralLogitControllerClassifier,
    SuperLearnerClassifier,
    VFusionClassifier,
)
from skvfusion.training.net import FusionNet

pytestmark = pytest.mark.usefixtures("one_thread")

FAST = {"max_epochs": 15, "hidden": 32, "latent_dim": 8, "random_state": 0}
GATE = {"hidden": 32, "max_epochs": 15, "lr": 0.01, "cv": 3, "random_state": 0}
CLASSIFIERS = {
    "vfusion": VFusionClassifier(**FAST),
    "linear": LayerProbeClassifier(layer=2, random_state=0),
    "best": LayerProbeClassifier(layer="best", cv=3, random_state=0),
    "mlp": LayerProbeClassifier(layer=2, probe="mlp", **FAST),
    "alf": AttentiveFusionClassifier(min_steps=60, max_epochs=15, lr=0.01, random_state=0),
    "super": SuperLearnerClassifier(cv=3, random_state=0),
    "nlc": NeuralLogitControllerClassifier(**GATE),
    "moe": MixtureOfExpertsClassifier(**GATE),
    "moe-joint": MixtureOfExpertsClassifier("joint", **GATE),
    "vote": LayerVotingClassifier(random_state=0),
    "vote-calibrated": LayerVotingClassifier("calibrated", cv=3, random_state=0),
}


def trains_a_net(classifier):
    """Whether fitting takes epochs on a device."""
    kinds = (VFusionClassifier, AttentiveFusionClassifier, NeuralLogitControllerClassifier, MixtureOfExpertsClassifier)
    return isinstance(classifier, kinds) or classifier.probe == "mlp"


def cross_fits(classifier):
    """Whether fitting needs samples that the layers' probes have not seen."""
    params = classifier.get_params()
    if isinstance(classifier, LayerProbeClassifier):
        return params["layer"] == "best"
    if isinstance(classifier, LayerVotingClassifier):
        return params["voting"] == "calibrated"
    return "cv" in params and params.get("experts") != "joint"


def which(predicate):
    """Parametrize a test by the classifiers for which the predicate holds."""
    chosen = [pytest.param(classifier, id=name) for name, classifier in CLASSIFIERS.items() if predicate(classifier)]
    return pytest.mark.parametrize("classifier", chosen)


every_classifier = which(lambda classifier: True)


@pytest.fixture(scope="module")
def models():
    return {}


@pytest.fixture
def fitted(classifier, make_stack, models):
    """Return the classifier fitted on ``make_stack()``, once for all tests, which must leave it as it is."""
    key = repr(classifier)
    if key not in models:
        models[key] = clone(classifier).fit(*make_stack())
    return models[key]


@every_classifier
def test_learns_what_one_layer_knows(classifier, make_stack, rng):
    X, y = make_stack(n_per_class=60)
    # Layers differ in their means, as those of a backbone do: attention, which gets no layer numbers, needs that.
    X += 2 * rng.normal(size=X.shape[1:]).astype(np.float32)
    assert clone(classifier).set_params(max_epochs=60).fit(X[:120], y[:120]).score(X[120:], y[120:]) > 0.85


@every_classifier
@pytest.mark.parametrize(
    "labels",
    [
        pytest.param(np.array([0, 2, 5]), id="gaps"),
        pytest.param(np.array([-1, 1]), id="minus one"),
        pytest.param(np.array([False, True]), id="bool"),
        pytest.param(np.array(["cat", "dog", "älg"]), id="str"),
        pytest.param(np.array(["b", "a"], dtype=object), id="object"),
        pytest.param(np.array([5, 6], dtype=np.int8), id="int8"),
        pytest.param(np.array([1.0, 2.0]), id="float"),
    ],
)
def test_labels_come_back_as_they_went_in(classifier, labels, make_stack):
    X, y = make_stack(n_classes=len(labels))
    predicted = clone(classifier).fit(X, labels[y]).predict(X)
    assert predicted.dtype == labels.dtype
    assert set(predicted) <= set(labels)
    assert np.mean(predicted == labels[y]) > 0.5


def _polars(dtype):
    polars = pytest.importorskip("polars")
    return {
        "String": lambda y: polars.Series(np.array(["no", "yes"])[y]),
        "Enum": lambda y: polars.Series(np.array(["no", "yes"])[y], dtype=polars.Enum(["yes", "no"])),
        "Int8": lambda y: polars.Series(y + 3, dtype=polars.Int8),
        "Boolean": lambda y: polars.Series(y == 1),
    }[dtype]


SERIES = {
    "list": lambda y: np.array(["no", "yes"])[y].tolist(),
    "datetime": lambda y: np.array(["2025-01-01", "2026-01-01"], dtype="M8[D]")[y],
    "pandas-str": lambda y: pd.Series(np.array(["no", "yes"])[y], dtype="str"),
    "pandas-string": lambda y: pd.Series(np.array(["no", "yes"])[y], dtype="string"),
    "pandas-category": lambda y: pd.Series(pd.Categorical(np.array(["no", "yes"])[y], categories=["yes", "no"])),
    "pandas-category-of-int": lambda y: pd.Series(y + 3).astype("category"),
    "pandas-int8": lambda y: pd.Series(y + 3, dtype="int8"),
    "pandas-Int64": lambda y: pd.Series(y + 3, dtype="Int64"),
    "pandas-boolean": lambda y: pd.Series(y == 1, dtype="boolean"),
    **{f"polars-{dtype}": lambda y, dtype=dtype: _polars(dtype)(y) for dtype in ("String", "Enum", "Int8", "Boolean")},
}


@every_classifier
@pytest.mark.parametrize("kind", SERIES)
def test_series_of_labels_come_back_as_from_scikit_learn(classifier, kind, make_stack):
    X, codes = make_stack(n_classes=2)
    y = SERIES[kind](codes)
    reference = LogisticRegression().fit(X[:, 2], y)
    fitted = clone(classifier).set_params(**_few_epochs(classifier)).fit(X, y)
    assert fitted.classes_.dtype == reference.classes_.dtype
    assert fitted.classes_.tolist() == reference.classes_.tolist()
    assert fitted.predict(X).dtype == reference.predict(X[:, 2]).dtype
    assert fitted.score(X, y) == np.mean(fitted.predict(X) == fitted.classes_[codes])


@every_classifier
def test_missing_labels_are_refused(classifier, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match="Input y contains NaN"):
        clone(classifier).fit(X, np.where(np.arange(60) == 3, np.nan, y))


@every_classifier
def test_probabilities_agree_with_predictions(fitted, make_stack):
    X, _ = make_stack()
    proba = fitted.predict_proba(X)
    assert proba.shape == (60, 3)
    assert_allclose(proba.sum(axis=1), 1)
    assert_array_equal(fitted.classes_[proba.argmax(axis=1)], fitted.predict(X))
    assert_array_equal(fitted.decision_function(X).argmax(axis=1), proba.argmax(axis=1))


@every_classifier
def test_binary_scores_follow_scikit_learn(classifier, make_stack):
    X, y = make_stack(n_classes=2)
    fitted = clone(classifier).fit(X, y)
    score = fitted.decision_function(X)
    assert score.shape == (40,)
    assert fitted.predict_proba(X).shape == (40, 2)
    assert_array_equal(score > 0, fitted.predict(X) == 1)
    assert_allclose(1 / (1 + np.exp(-score)), fitted.predict_proba(X)[:, 1])


@every_classifier
def test_same_seed_same_bits(classifier, fitted, make_stack, global_rngs_untouched):
    X, y = make_stack()
    assert_array_equal(clone(classifier).fit(X, y).predict_proba(X), fitted.predict_proba(X))


@which(trains_a_net)
def test_another_seed_gives_another_model(classifier, fitted, make_stack):
    X, y = make_stack()
    other = clone(classifier).set_params(random_state=1).fit(X, y)
    assert not np.array_equal(other.predict_proba(X), fitted.predict_proba(X))


@which(lambda classifier: trains_a_net(classifier) or (cross_fits(classifier) and not hasattr(classifier, "layer")))
def test_no_seed_gives_fresh_randomness_and_leaves_global_generators_alone(
    classifier, make_stack, global_rngs_untouched
):
    X, y = make_stack(signal_layers=(2, 4), strength=1)
    first, second = (clone(classifier).set_params(random_state=None).fit(X, y).predict_proba(X) for _ in range(2))
    assert not np.array_equal(first, second)


@every_classifier
@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_parallel_fits_give_the_same_bits(classifier, fitted, backend, make_stack):
    X, y = make_stack()
    fits = Parallel(n_jobs=2, backend=backend)(delayed(_fit_proba)(clone(classifier), X, y) for _ in range(2))
    for proba in fits:
        assert_array_equal(proba, fitted.predict_proba(X))


def _fit_proba(classifier, X, y):
    return classifier.fit(X, y).predict_proba(X)


@every_classifier
def test_the_number_of_threads_does_not_change_a_bit(classifier, make_stack):
    # Wide enough for torch and BLAS to deal out the work.
    X, y = make_stack(n_per_class=80, dim=96)
    changes = {"max_epochs": 1, "min_steps": 0, "hidden": 256}
    known = classifier.get_params()
    model = clone(classifier).set_params(**{name: value for name, value in changes.items() if name in known})
    results = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        with threadpool_limits(n_threads):
            results.append(clone(model).fit(X, y).predict_proba(X))
    torch.set_num_threads(1)
    assert_array_equal(*results)


@pytest.mark.parametrize("probe", ["linear", "mlp", LogisticRegression()], ids=["linear", "mlp", "estimator"])
def test_jobs_give_the_same_bits(probe, make_stack):
    X, y = make_stack()
    one, two = (
        SuperLearnerClassifier(probe=probe, cv=2, max_epochs=3, n_jobs=n_jobs, random_state=0).fit(X, y)
        for n_jobs in (1, 2)
    )
    assert_array_equal(one.oof_proba_, two.oof_proba_)
    assert_array_equal(one.predict_proba(X), two.predict_proba(X))


WITH_NETS = [
    *which(trains_a_net).args[1],
    pytest.param(SuperLearnerClassifier(probe="mlp", cv=2, max_epochs=3, random_state=0), id="super-mlp"),
    pytest.param(MixtureOfExpertsClassifier(probe=VFusionClassifier(**FAST), **GATE), id="moe-vfusion"),
]


@every_classifier
def test_pickle_keeps_predictions_and_no_training_state(classifier, fitted, make_stack):
    X, _ = make_stack()
    data = pickle.dumps(fitted)
    assert_array_equal(pickle.loads(data).predict_proba(X), fitted.predict_proba(X))
    X, y = make_stack(n_per_class=80)
    larger = clone(classifier).fit(X, y)
    results = [len(pickle.dumps(getattr(model, "oof_proba_", None))) for model in (fitted, larger)]
    assert len(pickle.dumps(larger)) - results[1] < len(data) - results[0] + X.nbytes / 10


@pytest.mark.parametrize("classifier", [*every_classifier.args[1], *WITH_NETS[-2:]])
def test_a_pickle_holds_no_tensor_and_no_backbone(fitted):
    names = set()

    class Reader(pickle.Unpickler):
        def find_class(self, module, name):
            names.add(f"{module}.{name}")
            return super().find_class(module, name)

    Reader(BytesIO(pickle.dumps(fitted))).load()
    assert not [name for name in names if name.startswith(("torch", "timm", "skorch", "skvfusion.extraction"))]


@pytest.mark.parametrize("classifier", WITH_NETS)
def test_a_model_fitted_on_a_gpu_loads_without_one(classifier, fitted, make_stack, monkeypatch, tmp_path):
    X, _ = make_stack()
    model = make_pipeline(FunctionTransformer(), copy.deepcopy(fitted))
    assert nets(model)
    for net in nets(model):
        net.device = "cuda"
    with monkeypatch.context() as patched:
        patched.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        joblib.dump(model, tmp_path / "model.joblib")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without a GPU, a line says that the net is moved to the CPU
        loaded = joblib.load(tmp_path / "model.joblib")
    for net in nets(loaded):
        assert str(net.device) == ("cuda" if torch.cuda.is_available() else "cpu")
    assert_allclose(loaded.predict_proba(X), fitted.predict_proba(X), rtol=1e-3 if torch.cuda.is_available() else 1e-12)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_device_tells_where_a_loaded_model_is(make_stack):
    X, y = make_stack()
    fitted = VFusionClassifier(**FAST).fit(X, y)
    assert fitted.device_ == "cpu"
    fitted.net_.device = "cuda"
    with pytest.warns(match="cuda|CUDA"):
        assert pickle.loads(pickle.dumps(fitted)).device_ == "cpu"


@every_classifier
def test_fitted_attributes_are_numpy_or_plain_python(fitted):
    for name, value in vars(fitted).items():
        assert not isinstance(value, (torch.Tensor, torch.nn.Module, torch.device)), name


@every_classifier
def test_unfitted_is_not_fitted(classifier, make_stack):
    X, _ = make_stack()
    unfitted = clone(classifier)
    with pytest.raises(NotFittedError):
        check_is_fitted(unfitted)
    with pytest.raises(NotFittedError):
        unfitted.predict(X)


@every_classifier
def test_nothing_of_the_callers_changes(classifier, make_stack):
    X, y = make_stack()
    X_before, y_before, params = X.copy(), y.copy(), clone(classifier).get_params()
    fitted = clone(classifier).fit(X, y)
    fitted.predict(X)
    assert_array_equal(X, X_before)
    assert_array_equal(y, y_before)
    assert fitted.get_params() == params


@every_classifier
@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(lambda X: X.astype(np.float64), id="float64"),
        pytest.param(lambda X: X[::-1][::-1], id="negative strides"),
        pytest.param(np.asfortranarray, id="fortran"),
        pytest.param(lambda X: X.tolist(), id="lists"),
        pytest.param(torch.from_numpy, id="tensor"),
        pytest.param(lambda X: X[:, :, None, :], id="one token"),
    ],
)
def test_equal_numbers_give_equal_predictions(classifier, fitted, variant, make_stack):
    X, y = make_stack()
    assert_allclose(clone(classifier).fit(variant(X), y).predict_proba(X), fitted.predict_proba(X), rtol=1e-5)
    assert_allclose(fitted.predict_proba(variant(X)), fitted.predict_proba(X), rtol=1e-9)


@every_classifier
@pytest.mark.parametrize("dtype", [np.float16, np.int32, np.uint8])
def test_other_dtypes(classifier, dtype, make_stack):
    X, y = make_stack(strength=8)
    X = (X - X.min()).astype(dtype)
    assert clone(classifier).set_params(max_epochs=30).fit(X, y).score(X, y) > 0.8


@every_classifier
def test_read_only_memory_map(classifier, fitted, make_stack, tmp_path):
    X, y = make_stack()
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    y.flags.writeable = False
    from_map = clone(classifier).fit(mapped, y)
    assert_array_equal(from_map.predict_proba(mapped), fitted.predict_proba(X))


@every_classifier
def test_two_tokens_per_layer(classifier, make_stack):
    X, y = make_stack()
    X = np.stack([np.zeros_like(X), X], axis=2)
    fitted = clone(classifier).fit(X, y)
    assert (fitted.n_layers_in_, fitted.n_tokens_in_, fitted.dim_in_) == (6, 2, 8)
    assert fitted.score(X, y) > 0.8


@every_classifier
def test_flattened_stack_with_n_layers_is_the_stack(classifier, fitted, make_stack):
    X, y = make_stack()
    flat = clone(classifier).set_params(n_layers=6).fit(X.reshape(60, 48), y)
    assert flat.n_layers_in_ == 6
    assert_array_equal(flat.predict_proba(X.reshape(60, 48)), fitted.predict_proba(X))


@every_classifier
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X: X[:, :4], "4 layers.*fitted with 6 layers"),
        (lambda X: X[:, :, :5], "5 dimensions per layer.*fitted with 8"),
        (lambda X: np.stack([X, X], axis=2), "2 tokens per layer.*fitted with 1"),
        (lambda X: X.reshape(60, 48), r"2-D array is read as one layer.*\(n, 6, 8\)"),
        (lambda X: X[..., None, None], "5 dimensions"),
        (lambda X: X[:, :, :0], "0 dimensions per layer|no layers, tokens or dimensions"),
        (lambda X: X[:0], "0 sample"),
    ],
)
def test_another_shape_at_predict_is_refused(fitted, change, message, make_stack):
    X, _ = make_stack()
    with pytest.raises(ValueError, match=message):
        fitted.predict(change(X))


@every_classifier
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_bad_numbers_are_named(classifier, value, make_stack):
    X, y = make_stack()
    X[17, 4, 3] = value
    message = f"{'NaN' if np.isnan(value) else 'infinity'}.*sample 17, layer 4, dimension 3"
    with pytest.raises(ValueError, match=message):
        clone(classifier).fit(X, y)


@every_classifier
def test_numbers_too_large_for_float32_are_refused(classifier, make_stack):
    X, y = make_stack()
    X = X.astype(np.float64)
    X[0, 2, 0] = 1e300
    with pytest.raises(ValueError, match="sample 0, layer 2, dimension 0"):
        clone(classifier).fit(X, y)


@every_classifier
def test_one_class_is_refused_by_name(classifier, make_stack):
    X, _ = make_stack()
    with pytest.raises(ValueError, match=r"at least 2 classes; got 1 class in 60 samples: \['cat'\]"):
        clone(classifier).fit(X, ["cat"] * 60)


@every_classifier
def test_three_samples(classifier, make_stack):
    X, _ = make_stack()
    y = np.array(["a", "b", "a"])
    if cross_fits(classifier):
        with pytest.raises(
            ValueError, match="3 samples cannot be cross-validated: two classes need at least 2 samples"
        ):
            clone(classifier).fit(X[:3], y)
    else:
        assert set(clone(classifier).fit(X[:3], y).predict(X[:3])) <= {"a", "b"}


@every_classifier
def test_a_class_with_one_sample(classifier, make_stack):
    X, y = make_stack()
    y = y.copy()
    y[0] = 9
    fitted = clone(classifier).fit(X, y)
    assert_array_equal(fitted.classes_, [0, 1, 2, 9])
    assert fitted.predict_proba(X).shape == (60, 4)


@every_classifier
def test_empty_input_is_refused(classifier):
    with pytest.raises(ValueError, match="0 sample"):
        clone(classifier).fit(np.empty((0, 6, 8)), [])


@every_classifier
def test_lengths_must_agree(classifier, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        clone(classifier).fit(X, y[:-1])


@every_classifier
def test_continuous_labels_are_refused(classifier, make_stack, rng):
    X, _ = make_stack()
    with pytest.raises(ValueError, match="continuous"):
        clone(classifier).fit(X, rng.normal(size=60))


@every_classifier
def test_weight_zero_is_absence(classifier, make_stack, rng):
    X, y = make_stack()
    keep = rng.random(60) < 0.7
    weighted = clone(classifier).fit(X, y, sample_weight=keep.astype(float))
    dropped = clone(classifier).fit(X[keep], y[keep])
    assert_allclose(weighted.predict_proba(X), dropped.predict_proba(X), rtol=1e-6)


@every_classifier
def test_balanced_class_weight_is_the_equivalent_sample_weight(classifier, make_stack):
    X, y = make_stack()
    X, y = X[15:], np.sort(y)[15:]
    weight = (len(y) / (3 * np.bincount(y)))[y]
    by_class = clone(classifier).set_params(class_weight="balanced").fit(X, y)
    assert_array_equal(by_class.predict_proba(X), clone(classifier).fit(X, y, sample_weight=weight).predict_proba(X))


@every_classifier
def test_class_weight_as_dict(classifier, make_stack):
    X, y = make_stack(strength=1)
    labels = np.array(["a", "b", "c"])[y]
    heavy = clone(classifier).set_params(class_weight={"a": 100, "b": 1, "c": 1}).fit(X, labels)
    assert np.mean(heavy.predict(X) == "a") > np.mean(labels == "a")


@every_classifier
@pytest.mark.parametrize(("weight", "message"), [(-1.0, "Negative values"), (np.nan, "NaN")])
def test_bad_sample_weights(classifier, weight, message, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match=message):
        clone(classifier).fit(X, y, sample_weight=np.where(np.arange(60) == 3, weight, 1.0))


@every_classifier
def test_weights_that_leave_one_class(classifier, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match="at least 2 classes; got 1 class with a positive weight"):
        clone(classifier).fit(X, y, sample_weight=(y == 1).astype(float))


@every_classifier
def test_balancing_ignores_a_class_without_weight(classifier, make_stack):
    X, y = make_stack()
    keep = y != 2
    model = clone(classifier).set_params(class_weight="balanced", max_epochs=60)
    model.fit(X, y, sample_weight=keep.astype(float))
    assert np.isfinite(model.predict_proba(X)).all()
    assert model.score(X[keep], y[keep]) > 0.8


@every_classifier
def test_class_weights_that_leave_one_class(classifier, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match="at least 2 classes; got 1 class with a positive weight"):
        clone(classifier).set_params(class_weight={0: 1, 1: 0, 2: 0}).fit(X, y)


@every_classifier
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_class_weights_must_be_usable(classifier, value, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match="class_weight"):
        clone(classifier).set_params(class_weight={0: value, 1: 1.0, 2: 1.0}).fit(X, y)


@every_classifier
def test_sample_weights_that_cannot_be_summed_are_refused(classifier, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match="sum of sample_weight is infinite"), np.errstate(over="ignore"):
        clone(classifier).fit(X, y, sample_weight=np.full(60, 1.7e308))


@every_classifier
@pytest.mark.parametrize("change", [{"scaling": "token"}, {"n_layers": 3}, {"class_weight": "balanced"}])
def test_parameters_set_after_a_fit_wait_for_the_next(fitted, change, make_stack):
    X, _ = make_stack()
    fitted = copy.deepcopy(fitted)
    before = fitted.predict_proba(X)
    if "n_layers" not in change:
        assert_array_equal(fitted.set_params(**change).predict_proba(X), before)
    for probe in ("linear", "mlp"):
        if "probe" in fitted.get_params():
            assert_array_equal(fitted.set_params(probe=probe).predict_proba(X), before)


@every_classifier
def test_a_failed_fit_leaves_no_half_fitted_model(classifier, fitted, make_stack):
    X, y = make_stack()
    bad = {"layer": 99} if "layer" in classifier.get_params() else {"layers": [99]}
    model = clone(classifier).set_params(**bad)
    with pytest.raises(ValueError, match="does not exist"):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    refitted = copy.deepcopy(fitted).set_params(**bad)
    with pytest.raises(ValueError, match="does not exist"):
        refitted.fit(X, y + 5)
    with pytest.raises(NotFittedError):
        refitted.predict(X)


@every_classifier
def test_a_refit_forgets_the_fit_before(classifier, fitted, make_stack):
    X, y = make_stack()
    frame = pd.DataFrame(X.reshape(60, 48), columns=[f"x{i}" for i in range(48)])
    model = clone(classifier).set_params(n_layers=6).fit(frame, y)
    assert len(model.feature_names_in_) == 48
    names = {name for name in vars(model.fit(X, y)) if name.endswith("_")}
    assert names == {name for name in vars(fitted) if name.endswith("_")}


@every_classifier
def test_log_probabilities(fitted, make_stack):
    X, _ = make_stack()
    assert_allclose(np.exp(fitted.predict_log_proba(X)), fitted.predict_proba(X))
    assert np.isfinite(fitted.predict_log_proba(1000 * X)).all()


@every_classifier
def test_floating_point_errors_set_to_raise_do_not_matter(classifier, make_stack):
    X, y = make_stack()
    X = X.astype(np.float64)
    X[:, 0] *= 1e-200
    with np.errstate(all="raise"):
        assert clone(classifier).fit(X, y).predict(X).shape == (60,)


@which(trains_a_net)
def test_the_callers_torch_settings_do_not_matter(classifier, fitted, make_stack):
    X, y = make_stack()
    expected = fitted.predict_proba(X)
    with torch.inference_mode():
        assert_array_equal(clone(classifier).fit(X, y).predict_proba(X), expected)
    with torch.no_grad():
        assert_array_equal(clone(classifier).fit(X, y).predict_proba(X), expected)
    torch.set_default_dtype(torch.float64)
    try:
        assert_array_equal(clone(classifier).fit(X, y).predict_proba(X), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@which(trains_a_net)
@pytest.mark.parametrize("change", [{"weight_decay": 1e6}, {"lr": 1e30}])
def test_divergence_is_an_error_that_says_what_to_do(classifier, change, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match=r"Training diverged.*Lower lr"):
        clone(classifier).set_params(**change).fit(X, y)


@pytest.mark.parametrize("parameter", ["hidden", "latent_dim"])
def test_widths_that_layer_norm_would_erase_are_refused(parameter, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match=f"The '{parameter}' parameter"):
        VFusionClassifier(**{parameter: 2}).fit(X, y)


@every_classifier
def test_model_selection_tools_take_stacks(classifier, make_stack):
    X, y = make_stack()
    assert cross_val_score(clone(classifier), X, y, cv=3).shape == (3,)
    scores = cross_validate(clone(classifier), X, y, cv=3, scoring=["accuracy", "neg_log_loss"])
    assert np.isfinite(scores["test_neg_log_loss"]).all()


@every_classifier
def test_ensembles_take_stacks(classifier, make_stack):
    X, y = make_stack()
    assert CalibratedClassifierCV(clone(classifier), cv=2).fit(X, y).predict_proba(X).shape == (60, 3)
    members = [("a", clone(classifier)), ("b", LayerProbeClassifier())]
    assert VotingClassifier(members, voting="soft").fit(X, y).predict(X).shape == (60,)
    assert StackingClassifier(members, cv=2).fit(X, y).predict(X).shape == (60,)


def test_grid_search_over_layers_is_the_same_with_jobs(make_stack):
    X, y = make_stack()
    grid = {"layers": ["all", "second_half", "strided", [2]]}
    results = [
        GridSearchCV(VFusionClassifier(**FAST), grid, cv=3, n_jobs=n_jobs).fit(X, y).cv_results_ for n_jobs in (1, 2)
    ]
    assert_array_equal(results[0]["mean_test_score"], results[1]["mean_test_score"])
    assert results[0]["mean_test_score"].argmax() in (0, 3)


@every_classifier
def test_a_generator_as_random_state_moves_on(classifier, make_stack):
    X, y = make_stack()
    state = np.random.RandomState(0)
    first, second = (clone(classifier).set_params(random_state=state).fit(X, y) for _ in range(2))
    assert first.score(X, y) > 0.5
    assert second.score(X, y) > 0.5


@which(lambda classifier: "probe" in classifier.get_params() and not hasattr(classifier, "layer"))
def test_parameters_of_a_probe_can_be_searched(classifier, make_stack):
    X, y = make_stack(signal_layers=(2, 4), strength=1)
    model = clone(classifier).set_params(probe=LogisticRegression(), **_few_epochs(classifier))
    model.set_params(probe__C=0.5)
    assert clone(model).get_params()["probe__C"] == 0.5
    search = GridSearchCV(model, {"probe__C": [1e-6, 1.0], "cv": [2]}, cv=2).fit(X, y)
    assert model.probe.C == 0.5
    assert search.best_params_["probe__C"] == search.best_estimator_.probe.C
    if hasattr(search.best_estimator_, "probes_"):
        assert search.cv_results_["mean_test_score"][0] != search.cv_results_["mean_test_score"][1]


@every_classifier
def test_every_parameter_survives_clone(classifier):
    for name in classifier.get_params(deep=False):
        value = object()
        assert clone(classifier).set_params(**{name: value}).get_params(deep=False)[name] is value


class Interrupt(Callback):
    """Press Ctrl-C in the midst of the eighth epoch; the weights after each epoch before are kept in the class."""

    weights = []

    def on_epoch_end(self, net, **kwargs):
        self.weights.append(copy.deepcopy(net.module_.state_dict()))

    def on_batch_begin(self, net, training=False, **kwargs):
        if training and len(net.history) == 8:
            raise KeyboardInterrupt


@which(trains_a_net)
@pytest.mark.parametrize("early_stopping", [False, True])
def test_an_interrupted_fit_keeps_its_best_weights_and_says_so(classifier, early_stopping, make_stack):
    # Labels that are noise: what is held out is predicted worse the longer the training.
    X, y = make_stack(n_per_class=30, strength=0)
    model = clone(classifier).set_params(early_stopping=early_stopping, validation_fraction=0.3, patience=50, lr=0.02)
    Interrupt.weights.clear()
    with pytest.warns(UserWarning, match="Training was interrupted in epoch 8 of"):
        interrupted = model.set_params(callbacks=[Interrupt()]).fit(X, y)
    (net,) = nets(interrupted)
    assert_allclose(interrupted.predict_proba(X).sum(axis=1), 1)
    if early_stopping:
        best = np.argmin([epoch["valid_loss"] for epoch in net.history[:7]])
        assert best < 6
        for name, value in Interrupt.weights[best].items():
            assert torch.equal(net.module_.state_dict()[name], value)


@every_classifier
@pytest.mark.parametrize(
    ("parameter", "value"),
    [("scaling", "zscore"), ("max_epochs", 0), ("lr", -1.0), ("validation_fraction", 1.0), ("n_layers", 0)],
)
def test_bad_parameters_are_refused_by_name(classifier, parameter, value, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match=f"The '{parameter}' parameter"):
        clone(classifier).set_params(**{parameter: value}).fit(X, y)


@which(trains_a_net)
def test_a_device_that_is_not_there_is_refused(classifier, make_stack):
    X, y = make_stack()
    with pytest.raises(ValueError, match="cuda:99"):
        clone(classifier).set_params(device="cuda:99").fit(X, y)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@which(trains_a_net)
def test_on_a_gpu(classifier, make_stack):
    X, y = make_stack()
    fitted = clone(classifier).set_params(device="cuda", max_epochs=60).fit(X, y)
    assert fitted.score(X, y) > 0.8
    assert_allclose(pickle.loads(pickle.dumps(fitted)).predict_proba(X), fitted.predict_proba(X), rtol=1e-4)


def _few_epochs(classifier):
    """Return parameters that shorten the training of a classifier whose accuracy does not matter."""
    return {name: value for name, value in {"max_epochs": 2, "min_steps": 0}.items() if name in classifier.get_params()}


def nets(part):
    """Return the nets that an object holds, however deep."""
    if isinstance(part, FusionNet):
        return [part]
    if isinstance(part, (list, tuple)):
        return [net for item in part for net in nets(item)]
    return [net for item in getattr(part, "__dict__", {}).values() for net in nets(item)]


@pytest.mark.parametrize("paths", [["a.png", "b.png"], (Path("a.png"), Path("b.png"))], ids=["str", "Path"])
def test_paths_are_refused_with_what_is_missing(paths):
    with pytest.raises(ValueError, match=r"holds paths \('a\.png'.*LayerwiseFeatureExtractor in front"):
        VFusionClassifier().fit(paths, [0, 1])
