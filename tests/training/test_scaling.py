import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler, normalize
from torch.nn import functional as F

from skvfusion.layers import take_layers
from skvfusion.training import scaling
from skvfusion.training.scaling import SCALINGS, InputScaling, scale, scaling_statistics

PATIENT = settings(deadline=None)  # a busy machine is not a failure
SHAPE = (40, 3, 2, 5)
EVERY = np.arange(40)


@pytest.fixture
def X():
    """Stacks whose layers, tokens and dimensions have means and scales of their own."""
    rng = np.random.default_rng(0)
    return rng.normal(size=SHAPE) * rng.uniform(0.1, 10, SHAPE[1:]) + rng.normal(size=SHAPE[1:]) * 5


@pytest.fixture
def weight():
    return np.random.default_rng(1).uniform(0, 3, 40)


def scaled(X, kind, rows=EVERY, sample_weight=None):
    return scale(X, kind, *scaling_statistics(X, rows, kind, sample_weight))


def test_standard_equals_scikit_learns(X):
    expected = StandardScaler().fit_transform(X.reshape(40, -1)).reshape(SHAPE)
    np.testing.assert_allclose(scaled(X, "standard"), expected, atol=1e-5)


def test_weighted_standard_equals_scikit_learns(X, weight):
    scaler = StandardScaler().fit(X.reshape(40, -1), sample_weight=weight)
    mean, divisor = scaling_statistics(X, EVERY, "standard", weight)
    np.testing.assert_allclose(mean.ravel(), scaler.mean_, rtol=1e-5)
    np.testing.assert_allclose(divisor.ravel(), scaler.scale_, rtol=1e-5)


def test_layer_by_numpy(X, weight):
    mean, divisor = scaling_statistics(X, EVERY, "layer", weight)
    np.testing.assert_allclose(mean, np.average(X, axis=0, weights=weight), rtol=1e-5)
    variance = np.average((X - np.average(X, axis=0, weights=weight)) ** 2, axis=0, weights=weight)
    np.testing.assert_allclose(divisor, np.sqrt(variance.mean(-1, keepdims=True)).repeat(5, axis=-1), rtol=1e-5)


def test_layer_gives_each_layer_and_token_a_root_mean_square_of_1(X):
    np.testing.assert_allclose(np.square(scaled(X, "layer")).mean(axis=(0, 3)), 1, rtol=1e-5)


def test_layer_keeps_the_relative_scales_of_the_dimensions(X):
    before, after = X.std(axis=0), scaled(X, "layer").std(axis=0)
    np.testing.assert_allclose(after / after[..., :1], before / before[..., :1], rtol=1e-5)


def test_standard_and_layer_centre_every_dimension(X):
    for kind in ("standard", "layer"):
        np.testing.assert_allclose(scaled(X, kind).mean(axis=0), 0, atol=1e-5)


@pytest.mark.parametrize("kind", ["standard", "layer"])
def test_whole_weights_are_repeated_rows(X, kind):
    repeats = np.random.default_rng(2).integers(0, 4, 40)
    weighted = scaling_statistics(X, EVERY, kind, repeats.astype(float))
    repeated = scaling_statistics(X, np.repeat(EVERY, repeats), kind)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-5)


@pytest.mark.parametrize("kind", ["standard", "layer"])
def test_equal_weights_are_no_weights(X, kind):
    weighted = scaling_statistics(X, EVERY, kind, np.full(40, 7.0))
    np.testing.assert_allclose(weighted, scaling_statistics(X, EVERY, kind), rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["standard", "layer"])
def test_only_training_rows_count(X, weight, kind, weighted):
    rows = np.array([1, 4, 7, 20, 33])
    weight = weight if weighted else None
    expected = scaling_statistics(X[rows], np.arange(5), kind, weight[rows] if weighted else None)
    X[np.setdiff1d(EVERY, rows)] = np.nan
    np.testing.assert_array_equal(scaling_statistics(X, rows, kind, weight), expected)


@pytest.mark.parametrize("kind", ["standard", "layer"])
def test_statistics_are_float32_of_a_samples_shape(X, kind):
    for statistic in scaling_statistics(X, EVERY, kind):
        assert statistic.dtype == np.float32
        assert statistic.shape == SHAPE[1:]
        assert statistic.flags.c_contiguous


@pytest.mark.parametrize("kind", ["token", "l2", None])
def test_the_other_kinds_need_no_statistics(X, kind):
    assert scaling_statistics(X, EVERY, kind) == (None, None)


def test_token_equals_torchs_layer_norm(X):
    expected = F.layer_norm(torch.from_numpy(X), (5,), eps=0)
    np.testing.assert_allclose(scaled(X, "token"), expected, rtol=1e-9)


def test_l2_equals_scikit_learns_normaliser(X):
    expected = normalize(X.reshape(-1, 5)).reshape(SHAPE)
    np.testing.assert_allclose(scaled(X, "l2"), expected, rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_l2_gives_every_token_length_1_and_leaves_zero_zero(X, dtype):
    X[:, 1, 0] = 0
    out = scaled(X.astype(dtype), "l2")
    length = np.linalg.norm(out, axis=-1)
    assert (out[:, 1, 0] == 0).all()
    length[:, 1, 0] = 1
    np.testing.assert_allclose(length, 1, rtol=1e-6)
    assert torch.equal(scale(torch.zeros(2, 1, 1, 3), "l2", None, None), torch.zeros(2, 1, 1, 3))


@pytest.mark.parametrize("kind", ["token", "l2"])
def test_token_kinds_look_at_nothing_but_the_token(X, kind):
    alone = scaled(X[3:4], kind, np.arange(1))
    np.testing.assert_array_equal(scaled(X, kind)[3:4], alone)


def test_none_leaves_the_numbers_alone(X):
    assert scaled(X, None) is X


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1e4, 1e6, 1e-20])
def test_a_constant_dimension_gets_divisor_1(X, value):
    X[:, 1, 0, 2] = value
    mean, divisor = scaling_statistics(X, EVERY, "standard")
    assert divisor[1, 0, 2] == 1
    assert mean[1, 0, 2] == pytest.approx(value)
    assert np.count_nonzero(divisor == 1) == 1
    assert np.abs(scaled(X, "standard")[:, 1, 0, 2]).max() <= 1e-6 * max(1, abs(value))


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, 333.3])
def test_a_constant_layer_stays_finite(X, kind, dtype, value):
    X[:, 1] = value
    X = X.astype(dtype)
    mean, divisor = scaling_statistics(X, EVERY, kind)
    out = scale(X.astype(np.float32), kind, mean, divisor)
    assert np.isfinite(out).all()
    if kind in ("standard", "layer"):
        assert (divisor[1] == 1).all()
        assert np.abs(out[:, 1]).max() < 1e-3


@pytest.mark.parametrize("kind", ["standard", "layer"])
def test_one_row_stays_finite(X, kind):
    mean, divisor = scaling_statistics(X, np.array([3]), kind)
    np.testing.assert_allclose(mean, X[3], rtol=1e-6)
    assert (divisor == 1).all()


def test_a_small_spread_around_a_large_mean_is_not_taken_for_constant():
    X = (1000 + np.random.default_rng(0).normal(size=(200, 1, 1, 4))).astype(np.float32)
    _, divisor = scaling_statistics(X, np.arange(200), "standard")
    np.testing.assert_allclose(divisor[0, 0], X[:, 0, 0].astype(float).std(axis=0), rtol=1e-4)


@pytest.mark.parametrize("kind", ["standard", "layer"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("source", ["float16", "memmap", "integers"])
@pytest.mark.parametrize("rows_per_block", [1, 7, 40])
def test_several_blocks_give_what_one_gives(X, weight, kind, weighted, source, rows_per_block, tmp_path, monkeypatch):
    X = X.astype({"float16": np.float16, "memmap": np.float16, "integers": np.int32}[source])
    if source == "memmap":
        np.save(tmp_path / "X.npy", X)
        X = np.load(tmp_path / "X.npy", mmap_mode="r")
    weight = weight if weighted else None
    rows = np.arange(1, 40)
    expected = scaling_statistics(X.astype(np.float64), rows, kind, weight)
    monkeypatch.setattr(scaling, "_BLOCK", rows_per_block)
    np.testing.assert_allclose(scaling_statistics(X, rows, kind, weight), expected, rtol=1e-6)


def test_a_memory_map_is_read_block_by_block(X, monkeypatch):
    class Spy(np.ndarray):
        longest = 0

        def __getitem__(self, key):
            taken = super().__getitem__(key)
            # What slices give is a view, which reads nothing.
            if not np.shares_memory(taken, X):
                Spy.longest = max(Spy.longest, len(taken))
            return taken

    monkeypatch.setattr(scaling, "_BLOCK", 8)
    scaling_statistics(X.view(Spy), EVERY, "standard")
    assert Spy.longest == 8


def padded(X, width):
    """Stacks whose layer 1 has two columns more than the others, which are filled up with zeros."""
    X = np.concatenate([X, np.zeros((*X.shape[:-1], width - X.shape[-1]))], axis=-1)
    X[:, 1, :, 5:7] = X[:, 1, :, :2] + 1
    return X


@pytest.mark.parametrize("kind", ["standard", "layer", "l2", None])
@pytest.mark.parametrize("weighted", [False, True])
def test_padding_stays_zero_and_leaves_the_rest_as_without(X, weight, kind, weighted):
    weight = weight if weighted else None
    out = scaled(padded(X, 9), kind, sample_weight=weight)
    np.testing.assert_array_equal(out[:, [0, 2], :, 5:], 0)
    np.testing.assert_array_equal(out[..., 7:], 0)
    np.testing.assert_allclose(out[:, [0, 2], :, :5], scaled(X[:, [0, 2]], kind, sample_weight=weight), rtol=1e-6)
    unpadded = scaled(padded(X, 9)[:, [1], :, :7], kind, sample_weight=weight)
    np.testing.assert_allclose(out[:, [1], :, :7], unpadded, rtol=1e-6)


def test_token_counts_padding(X):
    assert np.abs(scaled(padded(X, 9), "token")[:, 0, :, 5:]).max() > 0.1


def test_constant_dimensions_do_not_make_a_layer_larger(X):
    X[:, 0, 0, :3] = 7.0
    _, divisor = scaling_statistics(X, EVERY, "layer")
    np.testing.assert_allclose(divisor[0, 0], np.sqrt(X[:, 0, 0, 3:].var(axis=0).mean()), rtol=1e-5)
    np.testing.assert_allclose(divisor[0, 1], np.sqrt(X[:, 0, 1].var(axis=0).mean()), rtol=1e-5)


@pytest.mark.parametrize("kind", ["standard", "layer"])
def test_float16_gives_the_bits_of_float32_even_where_sums_overflow(X, kind):
    X = (60_000 * X / np.abs(X).max()).astype(np.float16)
    X[:, 0] = np.abs(X[:, 0])
    with np.errstate(over="ignore"):
        assert np.isinf(X.sum(axis=0)).any()
    expected = scaling_statistics(X.astype(np.float32), EVERY, kind)
    for found, same in zip(scaling_statistics(X, EVERY, kind), expected, strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_array_equal(found, same)


def test_layers_at_uneven_distances_have_the_statistics_that_they_have_alone(X):
    every, some = (scaling_statistics(stack, EVERY, "layer") for stack in (X, take_layers(X, [2, 0])))
    for all_layers, two in zip(every, some, strict=True):
        np.testing.assert_array_equal(two, all_layers[[2, 0]])


@pytest.mark.parametrize("kind", SCALINGS)
def test_numpy_and_torch_agree(X, kind):
    X = X.astype(np.float32)
    mean, divisor = scaling_statistics(X, EVERY, kind)
    statistics = (None, None) if mean is None else (torch.from_numpy(mean), torch.from_numpy(divisor))
    out = scale(torch.from_numpy(X), kind, *statistics)
    assert out.dtype == torch.float32
    np.testing.assert_allclose(scale(X, kind, mean, divisor), out, rtol=1e-5, atol=1e-5)


@PATIENT
@given(st.sampled_from(SCALINGS), st.integers(1, 12), st.integers(0, 99))
def test_scaling_is_finite_and_keeps_the_shape(kind, n, seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(-2, 3, (n, 2, 1, 3)) * 10.0 ** rng.integers(-8, 8, (2, 1, 3))
    out = scaled(X, kind, np.arange(n))
    assert out.shape == X.shape
    assert np.isfinite(out).all()


@pytest.mark.parametrize("kind", SCALINGS)
def test_the_input_is_not_changed(X, weight, kind):
    before = X.copy()
    X.flags.writeable = weight.flags.writeable = False
    scaled(X, kind, EVERY, weight)
    np.testing.assert_array_equal(X, before)


def module(kind, X):
    """InputScaling with the statistics of X."""
    made = InputScaling(kind, *SHAPE[1:])
    made.set_statistics(*scaling_statistics(X, EVERY, kind))
    return made


@pytest.mark.parametrize("kind", SCALINGS)
def test_the_module_scales_and_flattens(X, kind):
    X = X.astype(np.float32)
    out = module(kind, X)(torch.from_numpy(X))
    assert out.shape == (40, 30)
    np.testing.assert_allclose(out, scaled(X, kind).reshape(40, 30), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", SCALINGS)
def test_statistics_travel_in_the_state_dict(X, kind):
    X = X.astype(np.float32)
    first, second = module(kind, X), InputScaling(kind, *SHAPE[1:])
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(torch.from_numpy(X)), first(torch.from_numpy(X)))


@pytest.mark.parametrize("kind", SCALINGS)
def test_statistics_are_not_trained(X, kind):
    assert not list(module(kind, X).parameters())


@pytest.mark.parametrize("kind", ["standard", "layer"])
def test_the_module_owns_its_statistics(X, kind):
    mean, divisor = scaling_statistics(X, EVERY, kind)
    made = InputScaling(kind, *SHAPE[1:])
    made.set_statistics(mean, divisor)
    mean[:] = divisor[:] = 0
    assert made.divisor.min() > 0


def test_the_module_in_float64_computes_in_float64(X):
    out = module("standard", X).double()(torch.from_numpy(X))
    assert out.dtype == torch.float64


@pytest.mark.parametrize("kind", SCALINGS)
def test_gradients_pass(X, kind):
    x = torch.from_numpy(X).requires_grad_()
    module(kind, X).double()(x).square().sum().backward()
    assert torch.isfinite(x.grad).all()
