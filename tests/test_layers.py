import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skvfusion import resolve_layers
from skvfusion.layers import take_layers

PATIENT = settings(deadline=None)  # a busy machine is not a failure
NAMES = ["all", "second_half", "strided", "strided:3", "quarterly", "last"]


def every(n):
    return list(range(n))


@pytest.mark.parametrize(
    ("layers", "n_layers", "expected"),
    [
        ("all", 12, every(12)),
        ("all", 24, every(24)),
        ("all", 1, [0]),
        ("all", 7, every(7)),
        ("second_half", 12, [6, 7, 8, 9, 10, 11]),
        ("second_half", 24, list(range(12, 24))),
        ("second_half", 1, [0]),
        ("second_half", 7, [3, 4, 5, 6]),
        ("strided", 12, [1, 3, 5, 7, 9, 11]),
        ("strided", 24, list(range(1, 24, 2))),
        ("strided", 1, [0]),
        ("strided", 7, [0, 2, 4, 6]),
        ("strided:2", 12, [1, 3, 5, 7, 9, 11]),
        ("strided:1", 5, every(5)),
        ("strided:3", 12, [2, 5, 8, 11]),
        ("strided:3", 24, [2, 5, 8, 11, 14, 17, 20, 23]),
        ("strided:3", 7, [0, 3, 6]),
        ("strided:5", 12, [1, 6, 11]),
        ("strided:99", 12, [11]),
        ("quarterly", 12, [3, 6, 9, 11]),
        ("quarterly", 24, [6, 12, 18, 23]),
        ("quarterly", 1, [0]),
        ("quarterly", 2, [0, 1]),
        ("quarterly", 3, [0, 1, 2]),
        ("quarterly", 7, [1, 3, 5, 6]),
        ("last", 12, [11]),
        ("last", 24, [23]),
        ("last", 1, [0]),
        ("last", 7, [6]),
        ("last:1", 12, [11]),
        ("last:4", 12, [8, 9, 10, 11]),
        ("last:4", 24, [20, 21, 22, 23]),
        ("last:12", 12, every(12)),
        ("last:10", 24, list(range(14, 24))),
        ("last:3", 7, [4, 5, 6]),
    ],
)
def test_names(layers, n_layers, expected):
    assert resolve_layers(layers, n_layers) == expected


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (0, [0]),
        (11, [11]),
        (-1, [11]),
        (-12, [0]),
        (np.int64(3), [3]),
        (np.int8(-2), [10]),
        (np.uint8(7), [7]),
    ],
)
def test_one_index(layers, expected):
    assert resolve_layers(layers, 12) == expected


@pytest.mark.parametrize(
    "layers",
    [[2, -1, 5], (11, 5, 2), np.array([5, 2, 11]), {5, 11, 2}, [np.int32(2), 5, np.int16(-1)]],
    ids=["list", "tuple", "array", "set", "numpy ints"],
)
def test_a_collection_of_indices_comes_out_from_shallow_to_deep(layers):
    assert resolve_layers(layers, 12) == [2, 5, 11]


def test_a_range_is_a_list_of_indices():
    assert resolve_layers(range(3, 12, 4), 12) == [3, 7, 11]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (slice(None), every(12)),
        (slice(6, None), [6, 7, 8, 9, 10, 11]),
        (slice(-3, None), [9, 10, 11]),
        (slice(None, 99), every(12)),
        (slice(1, 10, 4), [1, 5, 9]),
        (slice(None, None, -5), [1, 6, 11]),
        (slice(np.int64(2), np.int64(4)), [2, 3]),
    ],
    ids=str,
)
def test_slices(layers, expected):
    assert resolve_layers(layers, 12) == expected


@pytest.mark.parametrize(
    "layers", ["all", "last:2", [np.int64(3), -1], np.int64(4), np.arange(3), slice(0, 2)], ids=str
)
def test_result_is_a_list_of_plain_ints(layers):
    resolved = resolve_layers(layers, 12)
    assert type(resolved) is list
    assert {type(layer) for layer in resolved} == {int}


def test_the_users_list_is_left_as_it_is():
    layers = [5, -1, 0]
    resolve_layers(layers, 12)
    assert layers == [5, -1, 0]


@pytest.mark.parametrize(
    "layers",
    [
        True,
        False,
        np.bool_(True),
        [True, False],
        np.array([True] * 12),
        1.0,
        np.float32(3),
        [0, 1.5],
        None,
        ["last"],
        [[0, 1]],
        np.zeros((2, 2), dtype=int),
        pytest.param(object(), id="object"),
        "foo",
        "",
        "All",
        " all",
        "3",
        "strided:0",
        "strided:-1",
        "strided:",
        "strided:1.5",
        "strided:two",
        "strided:2:2",
        "strided:٣",
        "last:0",
        "last:-4",
        "last:04",
        "last: 4",
        "last:4\n",
        "all:2",
        "second_half:2",
        "quarterly:2",
    ],
    ids=repr,
)
def test_what_is_no_selection_is_refused_with_the_forms_that_are(layers):
    with pytest.raises(ValueError, match=r"is not a layer selection; use 'all', 'second_half'.*a slice") as error:
        resolve_layers(layers, 12)
    assert repr(layers) in str(error.value)


@pytest.mark.parametrize("layers", [[1, 1], [0, -12], (3, 4, np.int64(3))], ids=str)
def test_a_layer_named_twice_is_refused(layers):
    with pytest.raises(ValueError, match=r"names a layer twice \(12 layers\); name each once"):
        resolve_layers(layers, 12)


@pytest.mark.parametrize(
    ("layers", "culprit"), [(12, 12), (-13, -13), ([0, 12], 12), (np.array([1, -99]), -99), (np.int64(30), 30)], ids=str
)
def test_a_layer_that_does_not_exist_is_refused_by_number(layers, culprit):
    with pytest.raises(
        ValueError, match=rf"^Layer {culprit} does not exist: there are 12 layers, 0 to 11 \(or -12 to -1\)\.$"
    ):
        resolve_layers(layers, 12)


@pytest.mark.parametrize("layers", [[], (), np.array([], dtype=int), slice(5, 5), slice(20, None)], ids=repr)
def test_an_empty_selection_is_refused(layers):
    with pytest.raises(ValueError, match="selects none of the 12 layers; select at least one"):
        resolve_layers(layers, 12)


def test_more_last_layers_than_there_are_is_refused():
    with pytest.raises(ValueError, match="'last:99' asks for 99 layers, but there are only 12"):
        resolve_layers("last:99", 12)


@PATIENT
@given(st.sampled_from(NAMES), st.integers(1, 60))
def test_every_name_keeps_the_last_layer_and_sorted_distinct_indices_at_every_depth(name, n_layers):
    resolved = resolve_layers(name, n_layers)
    assert resolved[-1] == n_layers - 1
    assert resolved == sorted(set(resolved))
    assert resolved[0] >= 0


@PATIENT
@given(st.data(), st.integers(1, 30))
def test_indices_mean_what_they_mean_in_python(data, n_layers):
    wanted = data.draw(st.sets(st.integers(0, n_layers - 1), min_size=1))
    signed = [layer - n_layers * data.draw(st.booleans()) for layer in wanted]
    assert resolve_layers(data.draw(st.permutations(signed)), n_layers) == sorted(wanted)


def stack(n_layers=12, dim=2):
    return np.arange(3 * n_layers * dim, dtype=np.float32).reshape(3, n_layers, dim)


@PATIENT
@given(st.data(), st.integers(1, 16))
def test_take_layers_equals_indexing_for_every_selection(data, n_layers):
    indices = sorted(data.draw(st.sets(st.integers(0, n_layers - 1), min_size=1)))
    X = stack(n_layers)
    np.testing.assert_array_equal(take_layers(X, indices), X[:, indices])


@pytest.mark.parametrize("indices", [[3, 1], [5, 4, 3], [-2, -1], [7, 2, 5]], ids=str)
def test_take_layers_equals_indexing_in_any_order(indices):
    X = stack()
    np.testing.assert_array_equal(take_layers(X, indices), X[:, indices])


@pytest.mark.parametrize("name", ["all", "second_half", "strided", "strided:3", "last", "last:4", 0, -1, [0, 5, 10]])
def test_evenly_spaced_layers_are_a_view(name):
    X = stack()
    assert np.shares_memory(take_layers(X, resolve_layers(name, 12)), X)


def test_a_memory_map_stays_one(tmp_path):
    np.save(tmp_path / "stack.npy", stack())
    X = np.load(tmp_path / "stack.npy", mmap_mode="r")
    taken = take_layers(X, resolve_layers("strided", 12))
    assert isinstance(taken, np.memmap)
    assert np.shares_memory(taken, X)
    np.testing.assert_array_equal(taken, stack()[:, 1::2])


def test_take_layers_keeps_the_token_axis():
    X = np.arange(48).reshape(2, 4, 3, 2)
    np.testing.assert_array_equal(take_layers(X, [0, 1, 3]), X[:, [0, 1, 3]])
    np.testing.assert_array_equal(take_layers(X, [1, 3]), X[:, [1, 3]])
