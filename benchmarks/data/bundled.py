"""Two small sets that come with scikit-learn, so that the benchmarks can be tried with nothing downloaded."""

import numpy as np
from sklearn.datasets import load_digits, load_sample_images

from .split import Split, draw_split

_PATCH = 32


def digits():
    """Read scikit-learn's 8x8 handwritten digits, half of them drawn for testing."""
    data = load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.uint8)
    train, test = draw_split(data.target, 0.5)
    classes = [str(name) for name in data.target_names]
    return Split(images[train], data.target[train], images[test], data.target[test], classes=classes)


def patches():
    """Cut scikit-learn's two photographs into 32x32 patches: which photograph, and its upper or lower half?

    Patches do not overlap. Blocks of two columns of patches are used in turns for training and for testing, and the
    column after each block is left out, so that no test patch touches a training patch.
    """
    parts = {True: ([], []), False: ([], [])}
    for photograph, pixels in enumerate(load_sample_images().images):
        rows, columns = (size // _PATCH for size in pixels.shape[:2])
        for column in range(columns):
            block, position = divmod(column, 3)
            for row in range(rows) if position < 2 else ():
                images, y = parts[block % 2 == 0]
                top, left = row * _PATCH, column * _PATCH
                images.append(pixels[top : top + _PATCH, left : left + _PATCH])
                y.append(2 * photograph + 2 * row // rows)
    (images, y), (images_test, y_test) = parts[True], parts[False]
    classes = [f"{name}, {half}" for name in ("temple", "flower") for half in ("upper", "lower")]
    return Split(np.array(images), np.array(y), np.array(images_test), np.array(y_test), classes=classes)


#: name -> (function that reads the set, what it is)
BUNDLED = {
    "digits": (digits, "8x8 handwritten digits, 10 classes, 898 / 899, stratified by seed 12345; scikit-learn"),
    "patches": (patches, "32x32 patches of two photographs, 4 classes, 208 / 156, blocks of columns; scikit-learn"),
}
