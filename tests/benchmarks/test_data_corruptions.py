"""Corruptions: each changes the image, more with severity, alike with the same seed, and touches nothing global."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from benchmarks.data import CORRUPTIONS, corrupt

PHOTOGRAPH = load_sample_images().images[0]
SMALL, LARGE = PHOTOGRAPH[100:132, 200:240], PHOTOGRAPH[:200, :240]


def distance(image, corrupted):
    return np.abs(np.asarray(corrupted).astype(float) - image).mean()


@pytest.mark.parametrize("image", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_corruptions_change_the_image_and_keep_its_form(corruption, image):
    before = image.copy()
    distances = [distance(image, corrupt([image], corruption, severity, 0)[0]) for severity in (1, 2, 3, 4, 5)]
    corrupted = corrupt([image], corruption, 5, 0)[0]
    assert isinstance(corrupted, Image.Image)
    assert (corrupted.mode, corrupted.size) == ("RGB", (image.shape[1], image.shape[0]))
    assert distances[0] > 0
    np.testing.assert_array_equal(image, before)
    if corruption != "saturate":  # its first two strengths take colour away, the others add some
        assert distances == sorted(distances)
        assert distances[-1] > 1.2 * distances[0]


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_the_same_seed_gives_the_same_images(corruption):
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first, second, third = (corrupt([SMALL, SMALL], corruption, 3, seed) for seed in (0, 0, 1))
    assert [image.tobytes() for image in first] == [image.tobytes() for image in second]
    if corruption.endswith("noise"):
        assert first[0].tobytes() != first[1].tobytes()
        assert first[0].tobytes() != third[0].tobytes()
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


def test_an_unknown_corruption_or_severity_is_refused():
    with pytest.raises(ValueError, match="no corruption 'rain'; choose one of gaussian_noise"):
        corrupt([SMALL], "rain", 1, 0)
    with pytest.raises(ValueError, match="severity must be 1, 2, 3, 4 or 5, got 6"):
        corrupt([SMALL], "contrast", 6, 0)
