import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skvfusion.training import batches
from skvfusion.training.batches import BatchIterator, StackDataset, resolve_batch_size, split_validation

PATIENT = settings(deadline=None)  # a busy machine is not a failure


def memmap(folder, X):
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode="r")


def read_only(X):
    X = X.copy()
    X.flags.writeable = False
    return X


VARIANTS = {
    "float32": lambda X, folder: X.astype(np.float32),
    "float16": lambda X, folder: X.astype(np.float16),
    "float64": lambda X, folder: X.astype(np.float64),
    "big-endian": lambda X, folder: X.astype(">f8"),
    "int64": lambda X, folder: X.astype(np.int64),
    "int8": lambda X, folder: X.astype(np.int8),
    "uint8": lambda X, folder: np.abs(X).astype(np.uint8),
    "bool": lambda X, folder: X > 0,
    "Fortran order": lambda X, folder: np.asfortranarray(X),
    "reversed samples": lambda X, folder: X[::-1],
    "reversed layers": lambda X, folder: X[:, ::-1],
    "reversed dims": lambda X, folder: X[..., ::-1],
    "every other layer": lambda X, folder: X[:, ::2],
    "read-only": lambda X, folder: read_only(X),
    "read-only memmap": lambda X, folder: memmap(folder, X.astype(np.float16)),
    "strided memmap": lambda X, folder: memmap(folder, X.astype(np.float32))[:, ::-2],
}


@pytest.fixture(params=VARIANTS)
def stack(request, tmp_path):
    """A stack of whole numbers, in one of many dtypes and layouts."""
    X = np.random.default_rng(0).integers(-100, 100, (10, 4, 2, 3)).astype(np.float64)
    return VARIANTS[request.param](X, tmp_path)


@pytest.mark.parametrize("positions", [np.array([3, 0, 9]), slice(2, 6), slice(0, 10), np.array([5])], ids=str)
def test_a_batch_holds_the_data_in_float32(stack, positions):
    batch, target = StackDataset(stack).batch(positions)
    assert batch.dtype == torch.float32
    np.testing.assert_array_equal(batch.numpy(), np.asarray(stack)[positions].astype(np.float32))
    assert len(target) == 0


@pytest.mark.parametrize("positions", [np.array([3, 0]), slice(0, 10)], ids=str)
def test_writing_into_a_batch_does_not_reach_the_data(stack, positions):
    before = np.array(stack)
    batch, _ = StackDataset(stack).batch(positions)
    batch.fill_(77)
    np.testing.assert_array_equal(stack, before)


def test_rows_choose_samples_labels_and_weights():
    X = np.arange(20, dtype=np.float32).reshape(10, 2)
    dataset = StackDataset(X, np.array([8, 2, 5]), np.arange(10) * 10, np.arange(10) / 10)
    assert len(dataset) == 3
    batch, (labels, weights) = dataset.batch(np.array([2, 0]))
    assert batch.tolist() == [[10, 11], [16, 17]]
    assert labels.tolist() == [50, 80]
    assert weights.tolist() == [0.5, 0.8]


def test_without_weights_the_target_is_the_labels():
    _, labels = StackDataset(np.zeros((4, 2)), y=np.array([3, 1, 2, 0])).batch(slice(1, 3))
    assert labels.dtype == torch.int64
    assert labels.tolist() == [1, 2]


def test_labels_are_not_shared_with_the_batch():
    y = np.array([3, 1, 2, 0])
    _, labels = StackDataset(np.zeros((4, 2)), y=y).batch(np.arange(4))
    labels.zero_()
    assert y.tolist() == [3, 1, 2, 0]


def numbered(n):
    """A data set whose samples are their own numbers."""
    return StackDataset(np.arange(n, dtype=np.float64)[:, None], y=np.arange(n))


def epoch(iterator):
    """The samples of each batch, as lists."""
    batches = []
    for X, labels in iterator:
        assert X[:, 0].tolist() == labels.tolist()
        batches.append(labels.tolist())
    return batches


def flat(batches):
    return [sample for batch in batches for sample in batch]


sizes = given(n=st.integers(1, 300), batch_size=st.integers(1, 120), seed=st.integers(0, 2**31 - 1))


@PATIENT
@sizes
@example(n=384, batch_size=256, seed=0)
def test_a_shuffled_epoch_has_every_sample_once_in_batches_of_nearly_equal_size(n, batch_size, seed):
    iterator = BatchIterator(numbered(n), batch_size, shuffle=True, seed=seed)
    for _ in range(2):
        batches = epoch(iterator)
        assert sorted(flat(batches)) == list(range(n))
        assert len(batches) == len(iterator)
        lengths = [len(batch) for batch in batches]
        assert max(lengths) - min(lengths) <= 1
        assert max(lengths) <= max(1.5 * batch_size, 1) + 1
        assert n < batch_size or min(lengths) >= int(0.66 * batch_size)


@PATIENT
@sizes
def test_an_unshuffled_epoch_keeps_the_order_in_full_batches(n, batch_size, seed):
    iterator = BatchIterator(numbered(n), batch_size, seed=seed)
    for _ in range(2):
        batches = epoch(iterator)
        assert flat(batches) == list(range(n))
        assert len(batches) == len(iterator)
        assert all(len(batch) == batch_size for batch in batches[:-1])


@PATIENT
@sizes
def test_the_same_seed_gives_the_same_orders(n, batch_size, seed):
    first, again = (BatchIterator(numbered(n), batch_size, shuffle=True, seed=seed) for _ in range(2))
    for _ in range(3):
        assert epoch(first) == epoch(again)


def test_every_epoch_and_every_seed_has_an_order_of_its_own(global_rngs_untouched):
    first, other = (BatchIterator(numbered(50), 10, shuffle=True, seed=seed) for seed in (0, 1))
    orders = [str(epoch(iterator)) for iterator in (first, other) for _ in range(3)]
    assert len(set(orders)) == 6


def test_every_sample_comes_to_every_place_alike():
    iterator = BatchIterator(numbered(4), 4, shuffle=True, seed=0)
    orders = np.array([epoch(iterator)[0] for _ in range(2000)])
    counts = np.array([np.bincount(column, minlength=4) for column in orders.T])
    assert np.abs(counts - 500).max() < 100


@pytest.mark.parametrize(
    ("n", "batch_size", "lengths"),
    [
        (512, 256, [256, 256]),
        (513, 256, [257, 256]),
        (256, 256, [256]),
        (100, 256, [100]),
        (1, 256, [1]),
        (7, 3, [4, 3]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_shuffled_batch_sizes(n, batch_size, lengths):
    assert [len(batch) for batch in epoch(BatchIterator(numbered(n), batch_size, shuffle=True))] == lengths


@pytest.mark.parametrize(
    ("n", "expected"), [(1, 16), (128, 16), (136, 17), (1000, 125), (2048, 256), (2047, 255), (10**6, 256)]
)
def test_auto_batch_size_is_an_eighth_within_bounds(n, expected):
    assert resolve_batch_size("auto", n) == expected


@pytest.mark.parametrize("batch_size", [1, 7, 10**6])
def test_a_given_batch_size_is_kept(batch_size):
    assert resolve_batch_size(batch_size, 100) == batch_size


def labels(*counts, seed=0):
    """Labels with so many samples of each class, in random order."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


@pytest.fixture(autouse=True)
def small_minimum(monkeypatch):
    """Let "auto" hold out from 50 samples on, so that the rule shows on little data."""
    monkeypatch.setattr(batches, "MIN_VALIDATION", 50)


def split(y, early_stopping, fraction=0.1, seed=0, rows=None):
    return split_validation(y, np.arange(len(y)) if rows is None else rows, early_stopping, fraction, seed)


def counts(y, rows, n_classes):
    return np.bincount(y[rows], minlength=n_classes)


@pytest.mark.parametrize("early_stopping", [True, "auto"])
def test_the_parts_are_disjoint_complete_and_ascending(early_stopping):
    y = labels(300, 200, 100, 1)
    train, valid = split(y, early_stopping)
    assert sorted([*train, *valid]) == list(range(601))
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(valid) > 0)
    assert len(valid) == 60


@pytest.mark.parametrize("early_stopping", [False, "auto"])
def test_nothing_is_held_out(early_stopping):
    rows = np.arange(0, 40, 2)
    train, valid = split(labels(20, 20), early_stopping, rows=rows)
    assert valid is None
    np.testing.assert_array_equal(train, rows)


def test_false_never_holds_out():
    assert split(labels(5000, 5000), False)[1] is None


@pytest.mark.parametrize(
    ("class_counts", "fraction", "held_out"),
    [
        ([250, 240], 0.1, 0),
        ([250, 244], 0.1, 0),
        ([250, 246], 0.1, 50),
        ([250, 250], 0.1, 50),
        ([30, 19], 0.99, 0),
        ([100, 99], 0.25, 50),
        ([20] * 29, 0.1, 58),
        ([15] * 40, 0.1, 80),
        ([14] * 40, 0.1, 0),
        ([20] * 30, 0.1, 60),
        ([600] + [1] * 29, 0.1, 60),
        ([600] + [1] * 40, 0.1, 0),
    ],
    ids=str,
)
def test_auto_holds_out_from_50_samples_and_two_per_class_on(class_counts, fraction, held_out):
    _, valid = split(labels(*class_counts), "auto", fraction)
    assert (0 if valid is None else len(valid)) == held_out


@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.98, 0.99, 0.999])
def test_auto_never_raises(fraction):
    split(labels(50, 50), "auto", fraction)
    split(labels(71, *[1] * 29), "auto", fraction)


@pytest.mark.parametrize("early_stopping", [True, "auto"])
def test_a_class_with_a_single_sample_is_never_held_out(early_stopping):
    y = labels(600, *[1] * 20)
    for seed in range(10):
        train, _ = split(y, early_stopping, seed=seed)
        assert set(y[train]) == set(range(21))


@pytest.mark.parametrize("class_counts", [[2, 2], [3, 2, 2], [10, 10], [2, 2, 96], [2, 3, 5, 1, 40], [3] * 30], ids=str)
def test_true_holds_out_at_least_one_of_every_class_that_has_two(class_counts):
    y = labels(*class_counts)
    for seed in range(5):
        train, valid = split(y, True, seed=seed)
        eligible = np.array(class_counts) >= 2
        assert (counts(y, valid, len(class_counts))[eligible] >= 1).all()
        assert (counts(y, train, len(class_counts)) >= 1).all()


@PATIENT
@given(
    class_counts=st.lists(st.integers(2, 60), min_size=2, max_size=8),
    fraction=st.floats(0.01, 0.4),
    early_stopping=st.sampled_from([True, "auto"]),
    seed=st.integers(0, 2**31 - 1),
)
def test_no_class_is_lost_to_training(class_counts, fraction, early_stopping, seed):
    y = labels(*class_counts)
    train, _ = split(y, early_stopping, fraction, seed)
    assert set(y[train]) == set(y)


@pytest.mark.parametrize(
    ("class_counts", "fraction"), [([2, 7, 7, 7, 7], 0.6), ([2, 2, 96], 0.7), ([2, 2, 96], 0.8), ([2, 2, 96], 0.9)]
)
def test_a_rare_class_is_not_lost_to_training_by_a_large_fraction(class_counts, fraction):
    y = labels(*class_counts)
    for seed in range(30):
        train, _ = split(y, True, fraction, seed)
        assert set(y[train]) == set(y)


@pytest.mark.parametrize("class_counts", [[1, 1], [1, 1, 1, 1]], ids=str)
def test_true_raises_if_every_class_has_a_single_sample(class_counts):
    with pytest.raises(ValueError, match=f"{len(class_counts)} classes has a single sample. Use early_stopping='auto'"):
        split(labels(*class_counts), True)


@PATIENT
@given(st.lists(st.integers(5, 100), min_size=2, max_size=6), st.floats(0.1, 0.5), st.integers(0, 2**31 - 1))
def test_every_class_is_held_out_in_proportion(class_counts, fraction, seed):
    y = labels(*class_counts)
    _, valid = split(y, True, fraction, seed)
    share = fraction * np.array(class_counts)
    assert np.abs(counts(y, valid, len(class_counts)) - share).max() <= 0.5 + 1e-9


def test_the_split_follows_the_seed_alone(global_rngs_untouched):
    y = labels(300, 300)
    valid = [split(y, "auto", seed=seed)[1].tolist() for seed in (0, 0, 1)]
    assert valid[0] == valid[1]
    assert valid[0] != valid[2]


def test_only_the_given_rows_are_split():
    y = labels(400, 400)
    rows = np.flatnonzero(np.arange(800) % 4)
    train, valid = split(y, "auto", rows=rows)
    assert len(valid) == 60
    np.testing.assert_array_equal(np.sort(np.concatenate([train, valid])), rows)


def test_a_class_that_is_single_among_the_rows_is_not_held_out():
    y = np.array([0] * 600 + [1] * 50)
    rows = np.arange(601)
    for seed in range(20):
        train, _ = split(y, "auto", seed=seed, rows=rows)
        assert 600 in train


def test_classes_absent_from_the_rows_do_not_count():
    y = labels(*[100] * 100)
    rows = np.flatnonzero(y < 6)
    assert len(split(y, "auto", rows=rows)[1]) == 60


def test_labels_and_rows_are_not_changed():
    y, rows = labels(300, 300), np.arange(600)
    y.flags.writeable = rows.flags.writeable = False
    split(y, True, rows=rows)
