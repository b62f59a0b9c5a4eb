"""Corruptions of images in the manner of CIFAR-10-C and ImageNet-C, at five severities.

The kinds and strengths are those of Hendrycks and Dietterich (ICLR 2019): for images whose shorter side is below 64
pixels those of CIFAR-C, for others those of ImageNet-C, which were chosen for 224 pixels. Pillow, NumPy and torchvision
do the work. No package of these corruptions is well kept and light: imagecorruptions 1.1.2 and medmnistc 0.1.0 do not
go with today's NumPy or scikit-image (``np.float_``, ``multichannel``, pinned versions), and torch-uncertainty brings
lightning, kornia and OpenCV and advises against its random corruptions where figures must be repeatable. What needs
ImageMagick, OpenCV or photographs of ice is left out (motion, glass and defocus blur, snow, frost, fog, elastic,
spatter), so a mean over these is not a figure of CIFAR-10-C; the published files give that (``cifar10_c``).

Every image draws from a generator of its own, seeded by ``random_state`` and its position; no global one is touched.
"""

import io

import numpy as np
from PIL import Image
from torchvision.transforms.v2 import functional

from skvfusion.extraction.images import ImageSequence

_SMALL = 64


def _gaussian_noise(image, scale, rng):
    return image + rng.normal(scale=scale, size=image.shape)


def _shot_noise(image, photons, rng):
    return rng.poisson(image * photons) / photons


def _impulse_noise(image, share, rng):
    hit, white = rng.random((2, *image.shape))
    return np.where(hit < share, white < 0.5, image)


def _speckle_noise(image, scale, rng):
    return image + image * rng.normal(scale=scale, size=image.shape)


def _contrast(image, factor, rng):
    mean = image.mean(axis=(0, 1))
    return (image - mean) * factor + mean


def _brightness(image, shift, rng):
    hsv = np.asarray(_picture(image).convert("HSV")).astype(float)
    hsv[..., 2] += 255 * shift
    return _from_hsv(hsv)


def _saturate(image, factor_and_shift, rng):
    factor, shift = factor_and_shift
    hsv = np.asarray(_picture(image).convert("HSV")).astype(float)
    hsv[..., 1] = hsv[..., 1] * factor + 255 * shift
    return _from_hsv(hsv)


def _gaussian_blur(image, sigma, rng):
    size = 2 * max(1, round(4 * sigma)) + 1
    # torchvision pads by reflection, which needs more pixels than the kernel reaches.
    size = min(size, 2 * (min(image.shape[:2]) - 1) + 1)
    return np.asarray(functional.gaussian_blur(_picture(image), [size, size], [sigma, sigma])) / 255


def _zoom_blur(image, stop_and_step, rng):
    picture, layers = _picture(image), [image]
    for zoom in np.arange(1, *stop_and_step):
        width, height = (side / zoom for side in picture.size)
        left, top = (picture.width - width) / 2, (picture.height - height) / 2
        box = (left, top, left + width, top + height)
        layers.append(np.asarray(picture.resize(picture.size, Image.Resampling.BILINEAR, box)) / 255)
    return np.mean(layers, axis=0)


def _pixelate(image, share, rng):
    picture = _picture(image)
    small = [max(1, int(side * share)) for side in picture.size]
    return np.asarray(picture.resize(small, Image.Resampling.BOX).resize(picture.size, Image.Resampling.BOX)) / 255


def _jpeg_compression(image, quality, rng):
    file = io.BytesIO()
    _picture(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file)) / 255


def _picture(image):
    return Image.fromarray(np.round(np.clip(image, 0, 1) * 255).astype(np.uint8))


def _from_hsv(hsv):
    return np.asarray(Image.fromarray(np.clip(hsv, 0, 255).astype(np.uint8), "HSV").convert("RGB")) / 255


# name: (function, strengths for small images, strengths for large ones)
_TABLE = {
    "gaussian_noise": (_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)),
    "shot_noise": (_shot_noise, (500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
    "impulse_noise": (_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27)),
    "speckle_noise": (_speckle_noise, (0.06, 0.10, 0.12, 0.16, 0.20), (0.15, 0.20, 0.35, 0.45, 0.60)),
    "gaussian_blur": (_gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0), (1, 2, 3, 4, 6)),
    "zoom_blur": (
        _zoom_blur,
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    ),
    "brightness": (_brightness, (0.05, 0.10, 0.15, 0.20, 0.30), (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": (_contrast, (0.75, 0.50, 0.40, 0.30, 0.15), (0.40, 0.30, 0.20, 0.10, 0.05)),
    "saturate": (
        _saturate,
        ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    ),
    "pixelate": (_pixelate, (0.95, 0.90, 0.85, 0.75, 0.65), (0.60, 0.50, 0.40, 0.30, 0.25)),
    "jpeg_compression": (_jpeg_compression, (80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
}

#: Names that :func:`corrupt` takes.
CORRUPTIONS = tuple(_TABLE)


def corrupt(images, corruption, severity, random_state):
    """Corrupt images.

    Parameters
    ----------
    images : sequence
        Whatever the extractor takes.
    corruption : str
        One of ``CORRUPTIONS``.
    severity : int
        1 to 5.
    random_state : int
        Seeds the noise; the same images, corruption, severity and seed give the same result.

    Returns
    -------
    list of PIL.Image.Image
        In RGB, of the sizes they had.

    Raises
    ------
    ValueError
        If there is no such corruption or severity.
    """
    if corruption not in _TABLE:
        raise ValueError(f"There is no corruption {corruption!r}; choose one of {', '.join(CORRUPTIONS)}.")
    if severity not in (1, 2, 3, 4, 5):
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5, got {severity!r}.")
    function, small, large = _TABLE[corruption]
    corrupted = []
    for position, picture in enumerate(ImageSequence(images)):
        strength = (small if min(picture.size) < _SMALL else large)[severity - 1]
        rng = np.random.default_rng((random_state, position))
        corrupted.append(_picture(function(np.asarray(picture) / 255, strength, rng)))
    return corrupted
