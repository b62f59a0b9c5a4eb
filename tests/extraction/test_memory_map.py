"""Extraction into a file: what comes out, and how an interrupted run goes on."""

import errno
import os

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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features.npy", "features.npy.rows", "images"]


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


def interrupted(make, paths, out, after=1, **parameters):
    """Run until some images were computed, and end as a kill would; flushes of the journal included."""
    bad = [*paths[: 4 * after], out.parent / "missing.png", *paths[4 * after + 1 :]]
    with pytest.raises(ValueError, match=r"missing\.png"):
        make(**parameters).extract(bad, out)


def test_a_complete_file_is_not_computed_again(make, paths, tmp_path, computed):
    out = tmp_path / "features.npy"
    first = make().extract(paths, out)
    written = out.stat()
    again = make().extract(paths, out)
    assert sum(computed) == 20
    assert (out.stat().st_mtime_ns, out.stat().st_ino) == (written.st_mtime_ns, written.st_ino)
    np.testing.assert_array_equal(again, first)


def test_only_images_that_changed_are_computed_and_readers_keep_the_old_file(make, paths, tmp_path, computed):
    out = tmp_path / "features.npy"
    first = make().extract(paths, out)
    old = first[3].copy()
    Image.new("RGB", (30, 30), "red").save(paths[3])
    again = make().extract(paths, out)
    assert sum(computed) == 21
    np.testing.assert_array_equal(first[3], old)
    np.testing.assert_array_equal(again, make().transform(paths))


def test_a_file_written_by_others_is_not_taken_for_the_result(make, paths, tmp_path, computed):
    out = tmp_path / "features.npy"
    make().extract(paths, out)
    np.save(out, np.zeros((20, 6, 64), np.float32))
    np.testing.assert_array_equal(make().extract(paths, out), make().transform(paths))


@pytest.mark.parametrize("changed", [{"layers": [0]}, {"norm": "all"}, {"weights": "random", "backbone": "test_vit"}])
def test_a_complete_file_of_another_extractor_is_replaced(make, paths, tmp_path, changed):
    out = tmp_path / "features.npy"
    make().extract(paths, out)
    other = make(**{"image_size": 32, **changed})
    np.testing.assert_array_equal(other.extract(paths, out), other.transform(paths))


@pytest.mark.parametrize("cached", [True, False])
def test_runs_over_other_orders_leave_no_wrong_rows(make, paths, tmp_path, cached):
    """A row that is overwritten must not keep the digest of what it held before."""
    out = tmp_path / "features.npy"
    parameters = {"cache": tmp_path / "cache"} if cached else {}
    interrupted(make, paths, out, 3, **parameters)
    interrupted(make, paths[::-1], out, 2, **parameters)
    features = make(**parameters).extract(paths, out)
    np.testing.assert_allclose(features, make().transform(paths), atol=1e-5)


def test_a_row_that_could_not_be_read_in_between_is_computed(make, paths, tmp_path):
    out = tmp_path / "features.npy"
    interrupted(make, paths, out, 3)
    mend = break_after(paths, 2)
    missing = [*paths[:15], tmp_path / "missing.png", *paths[16:]]
    with pytest.warns(UserWarning, match="2 of 20 images"):
        make(on_error="nan").extract(missing, out)
    mend()
    assert np.isfinite(make(on_error="nan").extract(paths, out)).all()


def test_digests_of_an_older_part_are_not_believed(make, paths, tmp_path):
    out = tmp_path / "features.npy"
    interrupted(make, paths, out, 3)
    (tmp_path / "features.npy.part").unlink()
    np.testing.assert_array_equal(make().extract(paths, out), make().transform(paths))


def test_two_extractions_into_one_file_are_refused(make, paths, tmp_path, monkeypatch):
    out = tmp_path / "features.npy"
    original = recipe.layer_tokens
    errors = []

    def second_one(*args):
        try:
            make(norm="all").extract(paths, out)
        except OSError as error:
            errors.append(str(error))
        return original(*args)

    monkeypatch.setattr(recipe, "layer_tokens", second_one)
    features = make(batch_size=20).extract(paths, out)
    assert len(errors) == 1
    assert "being written by another extraction" in errors[0]
    monkeypatch.undo()
    np.testing.assert_array_equal(features, make(batch_size=20).transform(paths))
    assert not (tmp_path / "features.npy.part.lock").exists()


def test_a_folder_as_file_is_refused_before_anything_is_computed(make, paths, tmp_path, computed):
    with pytest.raises(IsADirectoryError, match=r"is a folder; pass the path of the \.npy file"):
        make().extract(paths, tmp_path)
    assert computed == []


def test_a_full_disk_raises_before_anything_is_computed(make, paths, tmp_path, computed, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match=r"No space left.*bytes are needed for.*features\.npy\.part"):
        make().extract(paths, tmp_path / "features.npy")
    assert computed == []
    assert not (tmp_path / "features.npy.part").exists()


def test_a_file_system_that_sets_no_space_aside_will_do(make, paths, tmp_path, monkeypatch):
    def cannot(*args):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", cannot, raising=False)
    assert make().extract(paths, tmp_path / "features.npy").shape == (20, 6, 64)


def test_leftovers_are_small_beside_the_features(make, paths, tmp_path):
    break_after(paths, 13)
    with pytest.raises(ValueError, match="Image 13"):
        make().extract(paths, tmp_path / "features.npy")
    assert (tmp_path / "features.npy.part.rows").stat().st_size == 20 * 16
    assert open_memmap(tmp_path / "features.npy.part", mode="r").shape == (20, 6, 64)
