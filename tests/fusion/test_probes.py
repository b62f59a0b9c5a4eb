import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from joblib import parallel_config
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Perceptron
from sklearn.metrics import log_loss
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from skorch.callbacks import Callback
from threadpoolctl import threadpool_limits

from skvfusion import VFusionClassifier
from skvfusion.fusion.probes import fit_probes
from skvfusion.training.net import FusionNet
from skvfusion.training.scaling import SCALINGS

pytestmark = pytest.mark.usefixtures("one_thread")

# Each layer learns at another pace.
STRENGTHS = (2.0, 0.0, 1.0)
MLP = {"hidden": 16, "latent_dim": 8, "max_epochs": 6, "random_state": 3, "device": "cpu"}
STOPPING = MLP | {"max_epochs": 30, "early_stopping": True, "patience": 2, "validation_fraction": 0.2, "lr": 0.01}
every_scaling = pytest.mark.parametrize("scaling", SCALINGS)
with_and_without_weights = pytest.mark.parametrize("weighted", [False, True])
KINDS = [
    pytest.param("linear", {}, id="linear"),
    pytest.param("mlp", MLP, id="mlp"),
    pytest.param("mlp", STOPPING, id="mlp, early stopping"),
    pytest.param(GaussianNB(), {}, id="sklearn"),
]
every_kind = pytest.mark.parametrize(("probe", "mlp_params"), KINDS)
linear_mlp_or_any = pytest.mark.parametrize(("probe", "mlp_params"), [KINDS[0], KINDS[1], KINDS[3]])


def samples(n=90, n_classes=3, n_tokens=1, dim=6, seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.arange(n) % n_classes)
    stack = rng.normal(size=(n, len(STRENGTHS), n_tokens, dim))
    centres = rng.normal(size=(n_classes, n_tokens, dim))
    stack += np.reshape(STRENGTHS, (-1, 1, 1)) * centres[codes][:, None]
    # Layers and dimensions of different scale and place.
    stack = stack * np.geomspace(0.5, 4, dim) + rng.normal(size=stack.shape[1:]) * 2
    return stack.astype(np.float32), codes


def folds(n, k=3):
    return [np.flatnonzero(np.arange(n) % k != fold) for fold in range(k)]


def weights(n, seed=1):
    """Weights with some zeros."""
    rng = np.random.default_rng(seed)
    return rng.uniform(0.2, 3, n) * (rng.random(n) < 0.9)


def fit(stack, codes, row_sets, probe="linear", weight=None, scaling="layer", C=0.5, n_jobs=None, **mlp_params):
    mlp_params = {"random_state": 3} | mlp_params | {"scaling": scaling}
    options = {"scaling": scaling, "C": C, "mlp_params": mlp_params, "device": "cpu", "n_jobs": n_jobs}
    return fit_probes(probe, stack, codes, codes.max() + 1, weight, row_sets, **options)


def scaled_by_hand(layer, rows, scaling, weight):
    """Scale and flatten one layer (n_samples, n_tokens, dim) with the statistics of some rows."""
    layer = layer.astype(float)
    mean = np.average(layer[rows], axis=0, weights=None if weight is None else weight[rows])
    variance = np.average((layer[rows] - mean) ** 2, axis=0, weights=None if weight is None else weight[rows])
    if scaling == "standard":
        layer = (layer - mean) / np.sqrt(variance)
    elif scaling == "layer":
        layer = (layer - mean) / np.sqrt(variance.mean(axis=-1, keepdims=True))
    elif scaling == "token":
        layer = (layer - layer.mean(axis=-1, keepdims=True)) / layer.std(axis=-1, keepdims=True)
    elif scaling == "l2":
        layer = layer / np.linalg.norm(layer, axis=-1, keepdims=True)
    return layer.reshape(len(layer), -1)


def logistic_regression(C=0.5):
    return LogisticRegression(C=C, solver="newton-cg", tol=1e-9, max_iter=1000)


def proba(logits):
    return softmax(logits, axis=-1)


class StopAfter(Callback):
    """Stands for Ctrl-C in the second epoch."""

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 2:
            raise KeyboardInterrupt


@every_scaling
@with_and_without_weights
@pytest.mark.parametrize("n_tokens", [1, 2])
def test_linear_probes_are_scikit_learns(scaling, weighted, n_tokens):
    stack, codes = samples(n_tokens=n_tokens)
    weight = weights(90) if weighted else None
    row_sets = folds(90)
    probes = fit(stack, codes, row_sets, weight=weight, scaling=scaling)
    for rows, probe in zip(row_sets, probes, strict=True):
        logits = probe.logits(stack)
        assert logits.shape == (90, 3, 3)
        assert logits.dtype == np.float64
        for layer in range(len(STRENGTHS)):
            X = scaled_by_hand(stack[:, layer], rows, scaling, weight)
            reference = logistic_regression().fit(X[rows], codes[rows], None if weight is None else weight[rows])
            # The statistics are kept in float32.
            assert_allclose(probe.coef[layer], reference.coef_.T, atol=2e-5)
            assert_allclose(proba(logits[:, layer]), reference.predict_proba(X), atol=2e-5)


def test_standard_scaling_is_a_pipeline_with_a_standard_scaler():
    stack, codes = samples()
    rows = folds(90)[0]
    logits = fit(stack, codes, [rows], scaling="standard")[0].logits(stack)
    for layer in range(len(STRENGTHS)):
        X = stack[:, layer, 0].astype(float)
        pipeline = make_pipeline(StandardScaler(), logistic_regression()).fit(X[rows], codes[rows])
        assert_allclose(proba(logits[:, layer]), pipeline.predict_proba(X), atol=2e-5)


@every_scaling
def test_linear_probes_of_two_classes_are_scikit_learns(scaling):
    stack, codes = samples(n_classes=2)
    rows = folds(90)[1]
    logits = fit(stack, codes, folds(90), scaling=scaling)[1].logits(stack)
    for layer in range(len(STRENGTHS)):
        X = scaled_by_hand(stack[:, layer], rows, scaling, None)
        reference = logistic_regression().fit(X[rows], codes[rows])
        assert_allclose(logits[:, layer, 1] - logits[:, layer, 0], reference.decision_function(X), atol=2e-4)


@pytest.mark.parametrize("scaling", ["standard", None])
@pytest.mark.parametrize("lacking", [1, 2])
def test_linear_probes_of_a_fold_that_lacks_classes_are_scikit_learns(scaling, lacking):
    stack, codes = samples(n_classes=4)
    row_sets = [np.flatnonzero(codes >= lacking), np.arange(90)]
    probe = fit(stack, codes, row_sets, scaling=scaling)[0]
    for layer in range(len(STRENGTHS)):
        X = scaled_by_hand(stack[:, layer], row_sets[0], scaling, None)
        reference = logistic_regression().fit(X[row_sets[0]], codes[row_sets[0]])
        found = proba(probe.logits(stack)[:, layer])
        assert_allclose(found[:, lacking:], reference.predict_proba(X), atol=2e-5)
        assert_array_equal(found[:, :lacking], 0)


def test_linear_probes_that_are_computed_in_float32_are_scikit_learns(monkeypatch):
    stack, codes = samples()
    exact = fit(stack, codes, folds(90))
    monkeypatch.setattr("skvfusion.fusion.probes._SMALL", 0)
    for in_float32, in_float64 in zip(fit(stack, codes, folds(90)), exact, strict=True):
        assert in_float32.coef.dtype == np.float32
        assert in_float64.coef.dtype == np.float64
        assert_allclose(proba(in_float32.logits(stack)), proba(in_float64.logits(stack)), atol=2e-3)


def test_folds_with_constant_dimensions_are_scikit_learns():
    stack, codes = samples()
    row_sets = folds(90)
    stack[row_sets[0], :, :, 0] = 5.0
    stack[:, :, :, 1] = -3.0
    for rows, probe in zip(row_sets, fit(stack, codes, row_sets, scaling="standard"), strict=True):
        X = stack[:, 2, 0].astype(float)
        pipeline = make_pipeline(StandardScaler(), logistic_regression()).fit(X[rows], codes[rows])
        assert_allclose(proba(probe.logits(stack[rows])[:, 2]), pipeline.predict_proba(X[rows]), atol=1e-4)


def test_a_smaller_C_shrinks_linear_probes():
    stack, codes = samples()
    norms = [np.square(fit(stack, codes, [np.arange(90)], C=C)[0].coef).sum() for C in (1e-3, 1e-1, 10)]
    assert norms[0] < 0.1 * norms[1] < 0.1 * norms[2]


def test_linear_probes_that_do_not_converge_are_named(monkeypatch):
    monkeypatch.setitem(fit_probes.__globals__["_SOLVER"], torch.float64, {"tol": 1e-13, "max_iter": 3})
    stack, codes = samples()
    stack[:, 1] = 1.0
    with pytest.warns(ConvergenceWarning, match=r"layers \[0, 2\] have not converged; a smaller C \(1e\+06 now\)"):
        fit(stack, codes, [np.arange(90)], C=1e6)


@pytest.mark.parametrize("C", [1e-9, 1e4])
def test_extreme_C_converges(C):
    stack, codes = samples()
    logits = fit(stack, codes, folds(90), C=C, scaling="standard")[0].logits(stack)
    assert np.isfinite(logits).all()
    if C < 1:
        frequencies = np.bincount(codes[folds(90)[0]]) / 60
        assert_allclose(proba(logits), np.broadcast_to(frequencies, logits.shape), atol=1e-5)


@every_kind
@with_and_without_weights
@pytest.mark.parametrize("lacks_a_class", [False, True])
def test_layers_together_are_each_alone_bit_for_bit(probe, mlp_params, weighted, lacks_a_class):
    stack, codes = samples(dim=12)
    row_sets = folds(90, 2)
    if lacks_a_class:
        row_sets[1] = row_sets[1][codes[row_sets[1]] != 1]
    weight = weights(90) if weighted else None
    together = fit(stack, codes, row_sets, probe, weight, **mlp_params)
    for layer in range(len(STRENGTHS)):
        alone = fit(stack[:, [layer]], codes, row_sets, probe, weight, **mlp_params)
        for fold in range(2):
            logits = together[fold].logits(stack)[:, layer]
            assert_array_equal(logits, alone[fold].logits(stack[:, [layer]])[:, 0])
    if lacks_a_class:
        assert proba(together[1].logits(stack))[:, :, 1].max() < 1e-300
        assert proba(together[0].logits(stack))[:, :, 1].max() > 0.5


@linear_mlp_or_any
def test_row_sets_together_are_each_alone(probe, mlp_params):
    stack, codes = samples(n_tokens=2)
    together = fit(stack, codes, folds(90), probe, **mlp_params)
    for rows, fitted in zip(folds(90), together, strict=True):
        (alone,) = fit(stack, codes, [rows], probe, **mlp_params)
        assert_allclose(fitted.logits(stack), alone.logits(stack), atol=1e-4 if probe == "linear" else 0)


@every_kind
def test_rows_outside_of_the_set_are_not_read(probe, mlp_params):
    stack, codes = samples()
    changed, recoded = stack.copy(), codes.copy()
    changed[60:] = 1e6
    recoded[60:] = 0
    fitted, other = (
        fit(*data, [np.arange(60)], probe, **mlp_params)[0] for data in ((stack, codes), (changed, recoded))
    )
    assert_array_equal(fitted.logits(stack), other.logits(stack))


@pytest.mark.parametrize(("probe", "mlp_params"), KINDS[:2])
def test_rows_without_weight_count_as_absent(probe, mlp_params):
    stack, codes = samples()
    weight = np.where(codes == 1, 0, weights(90) + 0.1)
    rows = np.flatnonzero(weight)
    changed = stack.copy()
    changed[codes == 1] += 10
    (all_rows,) = fit(changed, codes, [np.arange(90)], probe, weight, **mlp_params)
    (counted,) = fit(stack, codes, [rows], probe, weight, **mlp_params)
    assert_allclose(proba(all_rows.logits(stack)), proba(counted.logits(stack)), atol=1e-5)


@every_scaling
@pytest.mark.parametrize("params", [MLP, STOPPING], ids=["all epochs", "early stopping"])
@with_and_without_weights
def test_mlp_probes_are_vfusion_classifiers_of_one_layer(scaling, params, weighted):
    stack, codes = samples()
    rows = folds(90)[1]
    weight = weights(90) if weighted else None
    (probes,) = fit(stack, codes, [rows], "mlp", weight, scaling=scaling, **params)
    n_epochs = set()
    for layer in range(len(STRENGTHS)):
        alone = VFusionClassifier(layers=[layer], scaling=scaling, **params)
        counted = rows if weight is None else rows[weight[rows] > 0]
        alone.fit(stack[counted], codes[counted], None if weight is None else weight[counted])
        assert_array_equal(probes.logits(stack)[:, layer], alone.decision_function(stack))
        n_epochs.add(alone.n_iter_)
    if "patience" in params:
        # Layers that all stopped together would test nothing.
        assert min(n_epochs) < max(n_epochs)
    # Only as long as the last layer needs.
    assert len(probes.mlps.net_.history) == max(n_epochs)


def test_validation_in_batches_of_unequal_size_weighs_them_as_alone(monkeypatch):
    monkeypatch.setitem(FusionNet._fixed_params, "iterator_valid__batch_size", 17)
    stack, codes = samples()
    (probes,) = fit(stack, codes, [np.arange(90)], "mlp", **STOPPING)
    for layer in range(len(STRENGTHS)):
        alone = VFusionClassifier(layers=[layer], **STOPPING).fit(stack, codes)
        assert_array_equal(probes.logits(stack)[:, layer], alone.decision_function(stack))


def test_a_vfusion_classifier_as_probe_stands_for_itself():
    stack, codes = samples()
    own = VFusionClassifier(hidden=24, latent_dim=4, max_epochs=4, activation="tanh", random_state=7)
    (probes,) = fit(stack, codes, [np.arange(90)], own, scaling="standard", hidden=99)
    for layer in range(len(STRENGTHS)):
        alone = VFusionClassifier(**own.get_params() | {"layers": [layer]}).fit(stack, codes)
        assert_array_equal(probes.logits(stack)[:, layer], alone.decision_function(stack))


def test_a_vfusion_classifier_as_probe_is_seeded_if_it_has_no_seed():
    stack, codes = samples()
    own = VFusionClassifier(hidden=16, latent_dim=4, max_epochs=3)
    (probes,) = fit(stack, codes, [np.arange(90)], own, random_state=3)
    alone = VFusionClassifier(**own.get_params() | {"layers": [2], "random_state": 3}).fit(stack, codes)
    assert_array_equal(probes.logits(stack)[:, 2], alone.decision_function(stack))
    assert own.random_state is None


def test_ctrl_c_keeps_the_weights_of_mlp_probes_and_says_so():
    stack, codes = samples()
    params = MLP | {"max_epochs": 50, "lr": 0.01}
    with pytest.warns(UserWarning, match="Training was interrupted in epoch 2 of 50"):
        (probes,) = fit(stack, codes, [np.arange(90)], "mlp", **params, callbacks=[StopAfter()])
    assert len(probes.mlps.net_.history) == 2
    (untrained,) = fit(stack, codes, [np.arange(90)], "mlp", **params | {"max_epochs": 1, "lr": 1e-12})
    loss = [log_loss(codes, proba(fitted.logits(stack)[:, 0])) for fitted in (probes, untrained)]
    assert loss[0] < 0.9 * loss[1]


def test_ctrl_c_with_a_validation_set_keeps_each_layers_best_weights():
    stack, codes = samples()
    with pytest.warns(UserWarning, match="Training was interrupted in epoch 2 of 30"):
        (probes,) = fit(stack, codes, [np.arange(90)], "mlp", **STOPPING, callbacks=[StopAfter()])
    assert np.isfinite(probes.logits(stack)).all()


@pytest.mark.parametrize(
    "probe",
    [
        pytest.param(KNeighborsClassifier(4), id="knn"),
        pytest.param(make_pipeline(StandardScaler(), KNeighborsClassifier(4)), id="pipeline"),
        pytest.param(GaussianNB(), id="naive Bayes"),
    ],
)
@pytest.mark.parametrize("scaling", ["layer", None])
@pytest.mark.parametrize("n_tokens", [1, 2])
def test_any_classifier_reads_its_layer_scaled_and_flattened(probe, scaling, n_tokens):
    stack, codes = samples(n_tokens=n_tokens)
    rows = np.flatnonzero((np.arange(90) % 3 != 0) & (codes != 1))
    probes = fit(stack, codes, [np.arange(90), rows], probe, scaling=scaling)[1]
    for layer in range(len(STRENGTHS)):
        X = scaled_by_hand(stack[:, layer], rows, scaling, None)
        expected = probe.fit(X[rows], codes[rows]).predict_proba(X)
        assert_allclose(proba(probes.logits(stack)[:, layer])[:, [0, 2]], expected, atol=1e-5)
        assert_array_equal(proba(probes.logits(stack)[:, layer])[:, 1], 0)


def test_any_classifier_gets_the_weights_and_input_scaled_by_them():
    stack, codes = samples()
    weight, rows = weights(90), folds(90)[0]
    probe = logistic_regression(C=0.01)
    (probes,) = fit(stack, codes, [rows], probe, weight)
    X = scaled_by_hand(stack[:, 2], rows, "layer", weight)
    expected = probe.fit(X[rows], codes[rows], weight[rows]).predict_proba(X)
    assert_allclose(proba(probes.logits(stack)[:, 2]), expected, atol=1e-5)


@pytest.mark.parametrize("in_a_pipeline", [False, True])
def test_what_has_no_seed_gets_one(in_a_pipeline, global_rngs_untouched):
    stack, codes = samples()
    forest = RandomForestClassifier(5)
    forest = make_pipeline(StandardScaler(), forest) if in_a_pipeline else forest
    first, again, other = (
        fit(stack, codes, [np.arange(90)], forest, random_state=seed)[0].logits(stack) for seed in (3, 3, 4)
    )
    assert_array_equal(first, again)
    assert (first != other).any()
    assert all(value is None for name, value in forest.get_params().items() if name.endswith("random_state"))


def test_what_has_a_seed_keeps_it():
    stack, codes = samples()
    forest = RandomForestClassifier(5, random_state=1)
    first, again = (fit(stack, codes, [np.arange(90)], forest, random_state=seed)[0].logits(stack) for seed in (3, 4))
    assert_array_equal(first, again)
    assert not hasattr(forest, "estimators_")


@pytest.mark.parametrize("probe", [Perceptron(), LinearSVC()])
def test_a_classifier_without_probabilities_is_refused(probe):
    stack, codes = samples()
    with pytest.raises(ValueError, match=r"must be 'linear', 'mlp' or a classifier with predict_proba.*Calibrated"):
        fit(stack, codes, folds(90), probe)


@pytest.mark.parametrize("probe", [KNeighborsClassifier(), make_pipeline(StandardScaler(), GaussianNB())])
def test_a_classifier_that_takes_no_weights_is_refused_if_there_are_some(probe):
    stack, codes = samples()
    with pytest.raises(ValueError, match="takes no sample_weight; fit without weights, and set class_weight"):
        fit(stack, codes, folds(90), probe, weights(90))


@every_kind
@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_jobs_change_no_bit(probe, mlp_params, backend):
    stack, codes = samples()
    alone = fit(stack, codes, folds(90), probe, **mlp_params)
    with parallel_config(backend=backend):
        in_jobs = fit(stack, codes, folds(90), probe, n_jobs=2, **mlp_params)
    for one, other in zip(alone, in_jobs, strict=True):
        assert_array_equal(one.logits(stack), other.logits(stack))


@linear_mlp_or_any
def test_threads_change_no_bit(probe, mlp_params):
    stack, codes = samples(n=150, dim=80)
    logits = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        try:
            with threadpool_limits(n_threads):
                logits.append(fit(stack, codes, [np.arange(120)], probe, **mlp_params)[0].logits(stack))
            assert torch.get_num_threads() == n_threads
        finally:
            torch.set_num_threads(1)
    assert_array_equal(*logits)


def test_threads_that_are_started_later_have_as_many_as_before():
    stack, codes = samples()
    torch.set_num_threads(2)
    try:
        fit(stack, codes, folds(90))
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
    finally:
        torch.set_num_threads(1)
    assert seen == [2]


@every_kind
def test_the_global_generators_are_left_alone(probe, mlp_params, global_rngs_untouched):
    stack, codes = samples()
    fit(stack, codes, folds(90), probe, **mlp_params)


@linear_mlp_or_any
def test_a_read_only_memory_map_in_float16_serves_as_well(probe, mlp_params, tmp_path):
    stack, codes = samples(n_tokens=2)
    stack = stack.astype(np.float16)
    np.save(tmp_path / "stack.npy", stack)
    mapped = np.load(tmp_path / "stack.npy", mmap_mode="r")
    fitted = fit(mapped, codes, folds(90, 2), probe, **mlp_params)[0]
    assert_array_equal(fitted.logits(mapped), fit(stack, codes, folds(90, 2), probe, **mlp_params)[0].logits(stack))


@linear_mlp_or_any
def test_what_is_passed_in_is_left_alone(probe, mlp_params):
    stack, codes = samples()
    weight, row_sets = weights(90), folds(90)
    for array in (stack, codes, weight, *row_sets):
        array.setflags(write=False)
    fit(stack, codes, row_sets, probe, weight, **mlp_params)[0].logits(stack)


@linear_mlp_or_any
def test_scoring_in_blocks_changes_nothing(probe, mlp_params, monkeypatch):
    stack, codes = samples()
    (probes,) = fit(stack, codes, [np.arange(90)], probe, **mlp_params)
    whole = probes.logits(stack)
    monkeypatch.setattr("skvfusion.fusion.probes._BLOCK", 100)
    assert_allclose(probes.logits(stack), whole, rtol=1e-12)


@linear_mlp_or_any
def test_chosen_rows_are_scored_as_a_stack_of_them(probe, mlp_params):
    stack, codes = samples()
    (probes,) = fit(stack, codes, [np.arange(90)], probe, **mlp_params)
    rows = np.array([80, 3, 41])
    assert_array_equal(probes.logits(stack, rows), probes.logits(stack[rows]))


@linear_mlp_or_any
def test_a_sample_is_scored_alike_in_any_company(probe, mlp_params):
    stack, codes = samples()
    (probes,) = fit(stack, codes, [np.arange(90)], probe, **mlp_params)
    alone = np.concatenate([probes.logits(stack[[i]]) for i in range(10)])
    assert_allclose(alone, probes.logits(stack)[:10], rtol=1e-10)


@every_kind
def test_probes_pickle(probe, mlp_params):
    stack, codes = samples()
    (probes,) = fit(stack, codes, [np.flatnonzero(codes > 0)], probe, **mlp_params)
    assert_array_equal(pickle.loads(pickle.dumps(probes)).logits(stack), probes.logits(stack))


@pytest.mark.parametrize("own", [{"class_weight": {0: 1, 1: 2, 2: 3}}, {"layers": [0]}, {"n_layers": 2}])
def test_what_a_vfusion_classifier_cannot_mean_as_probe_is_refused(own):
    stack, codes = samples()
    with pytest.raises(ValueError, match=f"set {next(iter(own))} of the classifier around it"):
        fit(stack, codes, folds(90), VFusionClassifier(**own))


@pytest.mark.parametrize("own", [{"scaling": "foo"}, {"max_epochs": 0}, {"batch_size": 0}, {"activation": "foo"}])
def test_a_vfusion_classifiers_parameters_are_checked_as_probe_too(own):
    stack, codes = samples()
    with pytest.raises(ValueError, match=f"The '{next(iter(own))}' parameter of VFusionClassifier"):
        fit(stack, codes, folds(90), VFusionClassifier(**own))


def test_a_class_in_place_of_a_classifier_is_refused():
    stack, codes = samples()
    with pytest.raises(ValueError, match="must be 'linear', 'mlp' or a classifier"):
        fit(stack, codes, folds(90), KNeighborsClassifier)


@pytest.mark.parametrize("factor", [1e-20, 1e10, 1e25])
@pytest.mark.parametrize("weight", [1e-40, 1.0, 1e300])
def test_numbers_of_any_size_are_solved_in_float32(factor, weight, monkeypatch):
    monkeypatch.setattr("skvfusion.fusion.probes._SMALL", 0)
    stack, codes = samples()
    scaled = {"scaling": "standard", "C": 1 / weight}
    (plain,) = fit(stack, codes, [np.arange(90)], "linear", scaling="standard", C=1.0)
    (large,) = fit(stack * factor, codes, [np.arange(90)], "linear", np.full(90, weight), **scaled)
    assert_allclose(large.logits(stack * factor), plain.logits(stack), atol=0.02)


def test_fits_in_threads_leave_torch_its_threads():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        stack, codes = samples()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: fit(stack, codes, folds(90), "linear"), range(8)))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
