import numpy as np
import pytest

from benchmarks.backbones import BackboneNotFound, read_backbone
from benchmarks.features import Features, load_features


@pytest.fixture
def features(rng):
    X = rng.normal(size=(30, 4, 2, 8)).astype(np.float32)
    return Features("made up", "none", X, np.repeat(["a", "b", "c"], 10), X[:6], np.repeat(["a", "b", "c"], 2))


def test_tokens_are_taken_contiguously(features):
    X, X_test = features.cls()
    assert np.array_equal(X, features.X[:, :, 0])
    assert np.array_equal(X_test, features.X_test[:, :, 0])
    assert X.flags.c_contiguous
    assert np.array_equal(features.mean()[0], features.X[:, :, 1])
    assert features.tokens("cls+mean")[0].shape == (30, 4, 2, 8)


def test_few_shots_are_so_many_of_each_class_by_the_seed(features):
    few = features.few(3, 0)
    assert np.unique(few.y, return_counts=True)[1].tolist() == [3, 3, 3]
    rows = [np.flatnonzero((x == features.X).all(axis=(1, 2, 3)))[0] for x in few.X]
    assert (features.y[rows] == few.y).all()
    assert few.X_test is features.X_test
    assert np.array_equal(few.X, features.few(3, 0).X)
    assert not np.array_equal(few.X, features.few(3, 1).X)


def test_few_shots_keep_all_of_a_class_that_has_fewer(features):
    assert len(features.few(100, 0).y) == 30
    assert features.few(None, 0) is features


def test_bundled_digits_become_layer_stacks(tmp_path):
    found = load_features("digits", read_backbone("nano"), cache=tmp_path, device="cpu")
    assert found.X.shape[1:] == found.X_test.shape[1:] == (12, 2, 128)
    assert len(found.X) == len(found.y)
    assert len(found.X_test) == len(found.y_test)
    assert set(np.unique(found.y)) == set(np.unique(found.y_test))
    assert len(found.fingerprint) == 64


def test_weights_that_do_not_fit_are_told_without_their_folder(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"nothing")
    backbone = read_backbone(f"mine=nano:{tmp_path / 'weights.pt'}")
    with pytest.raises(BackboneNotFound, match=r"mine=nano:WEIGHTS/weights\.pt is left out"):
        load_features("digits", backbone, cache=tmp_path, device="cpu")


def test_validation_splits_the_training_images_and_leaves_the_test_part_out(rng):
    y = np.repeat(["a", "b"], 8)
    X = np.arange(16, dtype=np.float32)[:, None, None, None] * np.ones((1, 2, 2, 3), np.float32)
    features = Features("s", "b", X, y, X[:4] + 100, y[:4])
    part = features.validation(seed=0)
    used = np.concatenate([part.X[:, 0, 0, 0], part.X_test[:, 0, 0, 0]])
    assert sorted(used) == list(range(16))
    assert np.unique(part.y_test, return_counts=True)[1].tolist() == [2, 2]
    assert part.X_test[:, 0, 0, 0].tolist() != features.validation(seed=1).X_test[:, 0, 0, 0].tolist()
