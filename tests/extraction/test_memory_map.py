"""Extraction into a file: what comes out, and how an interrupted run goes on."""

import numpy as np
import pytest
from numpy.lib.format import open_memmap
from PIL import Image

from skvfusion import LayerwiseFeatureExtractor, SuperLearnerClassifier, VFusionClassifier
from skvfusion.extraction import recipe


@pytest.fixture(scope="module")
def make(tiny_vit):
    def build(**parameters):
        return LayerwiseFeatureExtractor(**{"backbone": tiny_vit(), "device": "cpu", "batch_size": 4, **parameters})

    return build


@pytest.fixture
def paths(tmp_path):
    rng = np.random.default_rng(1)
    folder = tmp_path / "images"
    folder.mkdir()
    for index in range(20):
        Image.fromarray(rng.integers(0, 256, (36, 40, 3), dtype=np.uint8)).save(folder / f"{index:02}.png")
    return sorted(folder.iterdir())


def break_after(paths, count):
    """Make the run fail at an image, as a kill would end it there; return what mends it."""
    content = paths[count].read_bytes()
    paths[count].write_bytes(b"no image")
    return lambda: paths[count].write_bytes(content)


@pytest.mark.parametrize(
    ("parameters", "shape"),
    [
        ({}, (20, 6, 64)),
        ({"tokens": "cls+mean"}, (20, 6, 2, 64)),
        ({"layers": [1, -1]}, (20, 2, 64)),
        ({"output": "flat"}, (20, 384)),
        ({"tap": "norm2", "norm": "none"}, (20, 6, 64)),
    ],
    ids=str,
)
def test_the_file_holds_what_transform_returns(make, paths, tmp_path, parameters, shape):
    features = make(**parameters).extract(paths, tmp_path / "features.npy")
    assert isinstance(features, np.memmap)
    assert features.mode == "r"
    assert features.shape == shape
    np.testing.assert_array_equal(features, make(**parameters).transform(paths))
    np.testing.assert_array_equal(np.load(tmp_path / "features.npy"), features)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features.npy", "images"]


def test_float16_takes_half_of_the_space(make, paths, tmp_path):
    half = make().extract(paths, str(tmp_path / "half.npy"), dtype="float16")
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, make().transform(paths).astype(np.float16))


def test_a_number_that_float16_cannot_hold_raises(make, paths, tmp_path, monkeypatch):
    original = recipe.layer_tokens
    monkeypatch.setattr(recipe, "layer_tokens", lambda *args: original(*args) * 1e6)
    with pytest.raises(ValueError, match=r"float16 cannot hold; use dtype='float32'"):
        make().extract(paths, tmp_path / "half.npy", dtype="float16")


@pytest.mark.parametrize("dtype", ["float64", "int8", None, np.float64])
def test_other_dtypes_are_refused(make, paths, tmp_path, dtype):
    with pytest.raises(ValueError, match="'float32' or 'float16'"):
        make().extract(paths, tmp_path / "features.npy", dtype=dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.dtype("float16")])
def test_a_dtype_may_be_numpys(make, paths, tmp_path, dtype):
    assert make().extract(paths, tmp_path / "features.npy", dtype=dtype).dtype == np.float16


def test_an_interrupted_run_goes_on(make, paths, tmp_path, computed):
    out = tmp_path / "features.npy"
    mend = break_after(paths, 13)
    with pytest.raises(ValueError, match="Image 13"):
        make().extract(paths, out)
    assert not out.exists()
    done = sum(computed)
    assert done >= 12
    mend()
    features = make().extract(paths, out)
    assert sum(computed) == 20
    np.testing.assert_array_equal(features, make().transform(paths))
    assert not list(tmp_path.glob("*.part*"))


@pytest.mark.parametrize(
    "changed",
    [
        {"norm": "all"},
        {"tap": "norm2"},
        {"layers": [5, 4, 3, 2, 1, 0][:5]},
        {"weights": "random", "backbone": "test_vit"},
    ],
    ids=str,
)
def test_what_another_extractor_left_is_not_taken_over(make, paths, tmp_path, changed):
    mend = break_after(paths, 13)
    with pytest.raises(ValueError, match="Image 13"):
        make().extract(paths, tmp_path / "features.npy")
    mend()
    other = make(**{"image_size": 32, **changed})
    np.testing.assert_array_equal(other.extract(paths, tmp_path / "features.npy"), other.transform(paths))


def test_an_image_that_was_changed_meanwhile_is_computed_anew(make, paths, tmp_path, computed):
    mend = break_after(paths, 13)
    with pytest.raises(ValueError, match="Image 13"):
        make().extract(paths, tmp_path / "features.npy")
    before = sum(computed)
    mend()
    Image.new("RGB", (30, 30), "red").save(paths[2])
    features = make().extract(paths, tmp_path / "features.npy")
    assert sum(computed) == 21
    assert before < 20
    np.testing.assert_array_equal(features[2], make().transform([paths[2]])[0])


@pytest.mark.parametrize("leftover", ["features.npy.part", "features.npy.part.rows"])
@pytest.mark.parametrize("damage", [b"", b"nonsense"], ids=["empty", "nonsense"])
def test_damaged_leftovers_are_not_used(make, paths, tmp_path, leftover, damage):
    mend = break_after(paths, 13)
    with pytest.raises(ValueError, match="Image 13"):
        make().extract(paths, tmp_path / "features.npy")
    mend()
    (tmp_path / leftover).write_bytes(damage)
    features = make().extract(paths, tmp_path / "features.npy")
    np.testing.assert_array_equal(features, make().transform(paths))


def test_a_truncated_leftover_is_not_used(make, paths, tmp_path):
    mend = break_after(paths, 13)
    with pytest.raises(ValueError, match="Image 13"):
        make().extract(paths, tmp_path / "features.npy")
    mend()
    part = tmp_path / "features.npy.part"
    part.write_bytes(part.read_bytes()[:500])
    np.testing.assert_array_equal(make().extract(paths, tmp_path / "features.npy"), make().transform(paths))


def test_rows_that_cannot_be_read_are_nan_and_tried_again(make, paths, tmp_path, computed):
    mend = break_after(paths, 3)
    with pytest.warns(UserWarning, match="Image 3"):
        features = make(on_error="nan").extract(paths, tmp_path / "features.npy")
    assert np.isnan(features[3]).all()
    assert np.isfinite(np.delete(features, 3, axis=0)).all()
    mend()
    assert np.isfinite(make(on_error="nan").extract(paths, tmp_path / "features.npy")).all()


def test_duplicates_are_computed_once(make, paths, tmp_path, computed):
    features = make().extract(paths[:5] * 4, tmp_path / "features.npy")
    assert sum(computed) == 5
    np.testing.assert_array_equal(features[15:], features[:5])


def test_the_cache_is_used_too(make, paths, tmp_path, computed):
    make(cache=tmp_path / "cache").transform(paths)
    make(cache=tmp_path / "cache").extract(paths, tmp_path / "features.npy")
    assert sum(computed) == 20


def test_a_file_that_is_there_is_replaced_when_the_new_one_is_complete(make, paths, tmp_path):
    np.save(tmp_path / "features.npy", np.zeros(3))
    mend = break_after(paths, 13)
    with pytest.raises(ValueError, match="Image 13"):
        make().extract(paths, tmp_path / "features.npy")
    assert np.load(tmp_path / "features.npy").shape == (3,)
    mend()
    assert make().extract(paths, tmp_path / "features.npy").shape == (20, 6, 64)


def test_a_folder_that_is_not_there_raises(make, paths, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        make().extract(paths, tmp_path / "nowhere" / "features.npy")


def test_classifiers_train_from_the_file(make, paths, tmp_path):
    features = make().extract(paths, tmp_path / "features.npy", dtype="float16")
    y = np.arange(20) % 2
    in_memory = make().transform(paths).astype(np.float16)
    for classifier in (VFusionClassifier(max_epochs=5, random_state=0), SuperLearnerClassifier(cv=2, random_state=0)):
        from_file = classifier.fit(features, y).predict_proba(features)
        np.testing.assert_array_equal(classifier.fit(in_memory, y).predict_proba(in_memory), from_file)


def test_leftovers_are_small_beside_the_features(make, paths, tmp_path):
    break_after(paths, 13)
    with pytest.raises(ValueError, match="Image 13"):
        make().extract(paths, tmp_path / "features.npy")
    assert (tmp_path / "features.npy.part.rows").stat().st_size == 20 * 16
    assert open_memmap(tmp_path / "features.npy.part", mode="r").shape == (20, 6, 64)
