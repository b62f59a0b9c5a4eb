import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression

from skvfusion.training.solver import ABSENT, solve_logistic

pytestmark = pytest.mark.usefixtures("one_thread")

EXACT = {"tol": 1e-14, "max_iter": 3000}
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
SHAPES = [
    pytest.param({"n": 80, "dim": 6}, id="more samples"),
    pytest.param({"n": 25, "dim": 60}, id="more dimensions"),
    pytest.param({"n": 30, "dim": 30}, id="square"),
    pytest.param({"n": 80, "dim": 6, "n_classes": 2}, id="two classes"),
    pytest.param({"n": 80, "dim": 6, "offset": 300}, id="uncentred"),
    pytest.param({"n": 80, "dim": 6, "n_classes": 7}, id="more classes than dimensions"),
    pytest.param({"n": 80, "dim": 1}, id="one dimension"),
]


def problem(n=80, dim=6, n_classes=4, offset=0.0, signal=0.7, condition=None, seed=0):
    rng = np.random.default_rng(seed)
    codes = np.concatenate([np.arange(n_classes), rng.integers(0, n_classes, n - n_classes)])
    X = rng.normal(size=(n, dim)) + signal * rng.normal(size=(n_classes, dim))[codes]
    if condition is not None:
        # Variances from large to small, of mean 1 as after scaling, in directions unrelated to the dimensions.
        variance = np.geomspace(condition, 1, dim)
        X = X * np.sqrt(variance / variance.mean()) @ np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    return X + offset * rng.normal(size=dim), codes


def solve(X, codes, weight=None, ridge=1.0, n_classes=None, dtype=torch.float64, **options):
    """Solve in torch what is given in numpy; weights (n,) or (n, K), ridge scalar, (K,) or (K, dim)."""
    weight = np.ones(len(X)) if weight is None else weight
    weight = weight.reshape(len(X), -1)
    ridge = np.broadcast_to(ridge, weight.shape[1]) if np.ndim(ridge) == 0 else ridge
    options = EXACT | options if dtype == torch.float64 else options
    found = solve_logistic(
        torch.from_numpy(X).to(dtype),
        torch.from_numpy(codes),
        torch.from_numpy(weight).to(dtype),
        torch.from_numpy(np.array(ridge)).to(dtype),
        codes.max() + 1 if n_classes is None else n_classes,
        **options,
    )
    return tuple(part.numpy() for part in found)


def objective(X, codes, coef, intercept, weight=1.0, ridge=1.0):
    loss = -log_softmax(X @ coef.astype(float) + intercept, axis=1)[np.arange(len(X)), codes]
    return np.sum(weight * loss) + 0.5 * np.sum(np.reshape(ridge, (-1, 1)) * coef.astype(float) ** 2)


def gradients(X, codes, coef, intercept, weight=1.0, ridge=1.0):
    """Gradients of ``objective`` by the coefficients and the intercepts."""
    error = softmax(X @ coef + intercept, axis=1) - np.eye(coef.shape[1])[codes]
    error *= np.broadcast_to(weight, len(X))[:, None]
    return X.T @ error + np.reshape(ridge, (-1, 1)) * coef, error.sum(axis=0)


def scikit_learns(X, codes, C=1.0, weight=None, tol=1e-12):
    return LogisticRegression(C=C, solver="newton-cg", tol=tol, max_iter=10_000).fit(X, codes, sample_weight=weight)


def tolerance(dtype, in_float64, in_float32):
    return in_float64 if dtype == torch.float64 else in_float32


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ridge", [0.1, 1.0, 20.0])
def test_the_gradient_is_zero_at_the_solution(shape, ridge):
    X, codes = problem(**shape)
    coef, intercept, converged = solve(X, codes, ridge=ridge)
    by_coef, by_intercept = gradients(X, codes, coef[0], intercept[0], ridge=ridge)
    assert converged.all()
    assert np.abs(by_coef).max() < 1e-5 * np.abs(X).max() * len(X) ** 0.5
    assert np.abs(by_intercept).max() < 1e-5


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.id != "two classes"])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_scikit_learns_logistic_regression(shape, weighted):
    X, codes = problem(**shape)
    weight = np.random.default_rng(1).uniform(0.1, 3, len(X)) if weighted else None
    # Centred for scikit-learn only: with a free intercept it is the same problem, and one that it solves exactly.
    mean = X.mean(axis=0)
    reference = scikit_learns(X - mean, codes, C=0.5, weight=weight)
    coef, intercept, _ = solve(X, codes, weight, ridge=2.0)
    assert_allclose(coef[0], reference.coef_.T, atol=1e-6)
    assert_allclose(softmax(X @ coef[0] + intercept[0], axis=1), reference.predict_proba(X - mean), atol=1e-6)


def test_two_classes_are_scikit_learns_with_a_doubled_penalty():
    X, codes = problem(n_classes=2)
    reference = scikit_learns(X, codes, C=0.5)
    coef, intercept, _ = solve(X, codes, ridge=2 / 0.5)
    assert_allclose(coef[0, :, 1] - coef[0, :, 0], reference.coef_[0], atol=1e-7)
    assert_allclose(intercept[0, 1] - intercept[0, 0], reference.intercept_[0], atol=1e-7)


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_comes_as_low_as_float64(shape):
    X, codes = problem(**shape)
    lowest = objective(X, codes, *(part[0] for part in solve(X, codes)[:2]))
    coef, intercept, converged = solve(X, codes, dtype=torch.float32)
    assert coef.dtype == intercept.dtype == np.float32
    assert converged.all()
    # What float32 makes of the features is another problem, if they are far from 0.
    assert objective(X.astype(np.float32), codes, coef[0], intercept[0]) == pytest.approx(lowest, rel=1e-4)


@dtypes
@pytest.mark.parametrize("n", [120, 300])
@pytest.mark.parametrize("ridge", [1e-2, 1.0])
def test_badly_conditioned_features_are_solved(dtype, n, ridge):
    X, codes = problem(n=n, dim=150, signal=0.3, condition=1e6, offset=1)
    mean = X.mean(axis=0)
    reference = scikit_learns(X - mean, codes, C=1 / ridge, tol=1e-8)
    lowest = objective(X - mean, codes, reference.coef_.T, reference.intercept_, ridge=ridge)
    coef, intercept, converged = solve(X, codes, ridge=ridge, dtype=dtype)
    assert converged.all()
    assert objective(X, codes, coef[0], intercept[0], ridge=ridge) < lowest * (1 + tolerance(dtype, 1e-7, 1e-4))


def test_the_eigenbasis_spares_iterations():
    X, codes = problem(n=300, dim=150, signal=0.3, condition=1e6)
    assert solve(X, codes, tol=1e-6, max_iter=60)[2].all()


def test_a_weight_counts_like_repetition():
    X, codes = problem()
    weight = np.random.default_rng(1).integers(0, 4, len(X)).astype(float)
    repeated = np.repeat(np.arange(len(X)), weight.astype(int))
    coef, intercept, _ = solve(X, codes, weight)
    by_repetition = solve(X[repeated], codes[repeated])
    assert_allclose(coef, by_repetition[0], atol=1e-6)
    assert_allclose(softmax(intercept, 1), softmax(by_repetition[1], 1), atol=1e-6)


def test_samples_without_weight_are_not_read():
    X, codes = problem()
    weight = np.where(np.arange(len(X)) < 60, 1.0, 0.0)
    changed = X.copy()
    changed[60:] += 10
    coef, intercept, _ = solve(X, codes, weight)
    for again in (solve(X[:60], codes[:60]), solve(changed, codes, weight)):
        assert_allclose(coef, again[0], atol=1e-6)
        assert_allclose(intercept - intercept.mean(), again[1] - again[1].mean(), atol=1e-6)


@pytest.mark.parametrize("shape", [{"n": 60, "dim": 6}, {"n": 25, "dim": 60}])
def test_problems_together_are_each_alone(shape):
    X, codes = problem(**shape)
    folds = np.arange(len(X)) % 5
    weight = np.stack([folds != k for k in range(5)], 1) * np.random.default_rng(1).uniform(0.5, 2, (len(X), 5))
    # From one that is solved at once to one that takes long.
    ridge = np.geomspace(1e4, 1e-2, 5)
    coef, intercept, converged = solve(X, codes, weight, ridge)
    assert coef.shape == (5, X.shape[1], 4)
    assert intercept.shape == (5, 4)
    assert converged.dtype == bool
    assert converged.tolist() == [True] * 5
    for k in range(5):
        alone = solve(X, codes, weight[:, k], ridge[k])
        assert_allclose(coef[k], alone[0][0], atol=2e-6 * np.abs(coef[k]).max())
        assert_allclose(intercept[k], alone[1][0], atol=1e-5)


def test_a_problem_takes_its_own_steps_whatever_its_company():
    X, codes = problem(n=25, dim=60)
    ridge = np.array([1e4, 300.0, 30.0, 3.0])
    # Far from the solution, so that another path would lead elsewhere.
    coef = solve(X, codes, np.ones((25, 4)), ridge, tol=1e-3)[0]
    for k in range(4):
        assert_allclose(coef[k], solve(X, codes, ridge=ridge[k], tol=1e-3)[0][0], atol=1e-8)


def test_the_blocks_of_rows_make_no_difference(monkeypatch):
    X, codes = problem(n=200)
    weight = np.random.default_rng(1).uniform(0, 2, (200, 3))
    whole = solve(X, codes, weight)
    monkeypatch.setattr("skvfusion.training.solver._BLOCK", 1)
    for part, in_blocks in zip(whole, solve(X, codes, weight), strict=True):
        assert_allclose(part, in_blocks, atol=1e-6)


@dtypes
@pytest.mark.parametrize("shape", SHAPES)
def test_centring_by_blocks_makes_no_difference(shape, dtype, monkeypatch):
    X, codes = problem(**shape)
    whole = solve(X, codes, dtype=dtype)
    monkeypatch.setattr("skvfusion.training.solver._ROWS", 7)
    for found, expected in zip(solve(X, codes, dtype=dtype)[:2], whole[:2], strict=True):
        assert_allclose(found, expected, atol=tolerance(dtype, 1e-6, 1e-2))


@dtypes
@pytest.mark.parametrize("shape", [{"n": 80, "dim": 6}, {"n": 25, "dim": 60}])
def test_each_dimension_may_have_its_own_ridge(shape, dtype):
    X, codes = problem(**shape)
    dim = X.shape[1]
    ridge = np.stack([np.full(dim, 1e5), np.geomspace(0.1, 10, dim), np.full(dim, 2.0)])
    coef, intercept, converged = solve(X, codes, np.ones((len(X), 3)), ridge, dtype=dtype)
    assert converged.all()
    for k in range(3):
        # A penalty of r on w is one of 1 on w * sqrt(r), which reads x / sqrt(r).
        reference = scikit_learns(X / np.sqrt(ridge[k]), codes)
        proba = softmax(X @ coef[k] + intercept[k], axis=1)
        atol = tolerance(dtype, 1e-5, 5e-3)
        assert_allclose(proba, reference.predict_proba(X / np.sqrt(ridge[k])), atol=atol)
        assert_allclose(coef[k] * np.sqrt(ridge[k])[:, None], reference.coef_.T, atol=atol)


def test_a_ridge_for_each_dimension_that_is_the_same_is_one_number():
    X, codes = problem(n=25, dim=60)
    assert_allclose(solve(X, codes, ridge=np.full((1, 60), 2.0))[0], solve(X, codes, ridge=2.0)[0], atol=1e-6)


@dtypes
def test_absent_classes_get_no_probability_and_disturb_no_other(dtype):
    X, codes = problem(n_classes=4, offset=3)
    weight = np.ones((80, 3))
    weight[codes == 1, 1] = 0
    weight[(codes == 0) | (codes == 3), 2] = 0
    ridge = np.array([1e4, 1.0, 1.0])
    coef, intercept, converged = solve(X, codes, weight, ridge, n_classes=5, dtype=dtype)
    assert converged.all()
    atol = tolerance(dtype, 1e-6, 3e-3)
    for k, present in enumerate([[0, 1, 2, 3], [0, 2, 3], [1, 2]]):
        absent = np.setdiff1d(np.arange(5), present)
        proba = softmax(X @ coef[k] + intercept[k], axis=1)
        assert_array_equal(proba[:, absent], 0)
        assert_array_equal(coef[k][:, absent], 0)
        assert_allclose(intercept[k, absent], intercept[k, present].min() + ABSENT)
        rows = np.isin(codes, present)
        alone = solve(X[rows], np.searchsorted(present, codes[rows]), ridge=ridge[k])
        assert_allclose(proba[:, present], softmax(X @ alone[0][0] + alone[1][0], axis=1), atol=atol)


@dtypes
def test_a_problem_of_one_class_ends(dtype):
    X, codes = problem(n_classes=2)
    weight = np.stack([np.ones(80), (codes == 0) * 1.0], 1)
    coef, intercept, converged = solve(X, codes, weight, dtype=dtype)
    assert converged.all()
    assert_allclose(softmax(X @ coef[1] + intercept[1], axis=1), np.tile([1.0, 0.0], (80, 1)))


@dtypes
def test_constant_features_get_no_coefficient(dtype):
    X, codes = problem()
    X[:, 2] = 7
    coef, intercept, converged = solve(X, codes, dtype=dtype)
    without = solve(np.delete(X, 2, axis=1), codes)
    assert converged.all()
    assert_allclose(coef[0, 2], 0, atol=1e-5)
    atol = tolerance(dtype, 1e-6, 3e-3)
    assert_allclose(np.delete(coef[0], 2, axis=0), without[0][0], atol=atol)
    assert_allclose(softmax(intercept[0]), softmax(without[1][0]), atol=atol)


@dtypes
def test_a_ridge_that_is_0_is_harmless(dtype):
    X, codes = problem(signal=0.2)
    coef, intercept, converged = solve(np.column_stack([X, np.zeros(80)]), codes, ridge=0.0, dtype=dtype)
    assert converged.all()
    reference = LogisticRegression(C=np.inf, solver="newton-cg", tol=1e-12).fit(X, codes)
    proba = softmax(X @ coef[0, :-1] + intercept[0], axis=1)
    assert_allclose(proba, reference.predict_proba(X), atol=tolerance(dtype, 1e-5, 5e-3))


@dtypes
def test_without_any_variance_the_classes_frequencies_are_left(dtype):
    codes = np.array([0] * 5 + [1] * 3 + [2] * 2)
    coef, intercept, converged = solve(np.full((10, 3), 4.0), codes, dtype=dtype)
    assert converged.all()
    assert_allclose(coef, 0, atol=1e-6)
    assert_allclose(softmax(intercept[0]), [0.5, 0.3, 0.2], atol=tolerance(dtype, 1e-5, 1e-3))


@dtypes
def test_a_huge_ridge_leaves_the_classes_frequencies(dtype):
    X, codes = problem()
    coef, intercept, converged = solve(X, codes, ridge=1e9, dtype=dtype)
    assert converged.all()
    assert np.abs(coef).max() < 1e-6
    assert_allclose(softmax(intercept[0]), np.bincount(codes) / 80, atol=tolerance(dtype, 1e-5, 1e-3))


@dtypes
def test_separable_classes_and_hardly_any_ridge_end(dtype):
    X, codes = problem(n=25, dim=60)
    coef, intercept, converged = solve(X, codes, ridge=1e-9, dtype=dtype)
    assert np.isfinite(coef).all()
    assert converged.all()
    proba = softmax(X @ coef[0] + intercept[0], axis=1)
    assert proba[np.arange(25), codes].min() > 0.999


def test_what_max_iter_cuts_short_is_said_not_to_have_converged():
    X, codes = problem(n=200, condition=1e3)
    ridge = np.array([1e9, 1e-6])
    coef, intercept, converged = solve(X, codes, np.ones((200, 2)), ridge, max_iter=10, tol=1e-10)
    assert converged.tolist() == [True, False]
    start = 200 * np.log(4)
    lowest = objective(X, codes, *(part[0] for part in solve(X, codes, ridge=1e-6)[:2]), ridge=1e-6)
    reached = objective(X, codes, coef[1], intercept[1], ridge=1e-6)
    assert lowest * 1.0001 < reached < 0.9 * start


def test_float32_stops_at_its_noise_rather_than_at_max_iter():
    X, codes = problem(n=100, dim=150, condition=1e6)
    for ridge in (1e-3, 1.0):
        coef, _, converged = solve(X, codes, ridge=ridge, dtype=torch.float32, tol=0.0, max_iter=2000)
        assert converged.all()
        assert np.isfinite(coef).all()


@dtypes
def test_the_same_call_gives_the_same_bits(dtype):
    X, codes = problem(n=200, dim=40)
    weight = np.random.default_rng(1).uniform(0, 2, (200, 3))
    for part, again in zip(*(solve(X, codes, weight, dtype=dtype) for _ in range(2)), strict=True):
        assert_array_equal(part, again)


def test_its_arguments_are_left_alone():
    X, codes = problem(n_classes=4)
    arguments = [torch.from_numpy(X), torch.from_numpy(codes), torch.ones(80, 2).double(), torch.ones(2).double()]
    arguments[2][codes == 1, 0] = 0
    before = [argument.clone() for argument in arguments]
    solve_logistic(*arguments, 4)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))


@dtypes
def test_tol_sets_the_precision(dtype):
    X, codes = problem(n=200, dim=40, condition=1e3)
    lowest = objective(X, codes, *(part[0] for part in solve(X, codes, ridge=0.1)[:2]), ridge=0.1)
    errors = []
    for tol in (1e-1, 1e-3, 1e-5):
        coef, intercept, _ = solve(X, codes, ridge=0.1, dtype=dtype, tol=tol)
        errors.append(objective(X, codes, coef[0], intercept[0], ridge=0.1) / lowest - 1)
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-4


@dtypes
def test_the_scale_of_weights_and_ridge_together_is_immaterial(dtype):
    X, codes = problem()
    coef = solve(X, codes, dtype=dtype)[0]
    for factor in (1e-6, 1e6):
        scaled = solve(X, codes, np.full(80, factor), factor, dtype=dtype)
        assert scaled[2].all()
        assert_allclose(scaled[0], coef, atol=tolerance(dtype, 1e-5, 1e-2))


def test_nothing_is_drawn(global_rngs_untouched):
    solve(*problem())
