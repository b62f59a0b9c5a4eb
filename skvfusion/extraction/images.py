"""Reading images of every kind users have into 8-bit RGB, by one policy."""

import io
import os
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch.utils.data import Dataset

_ACCEPTED = (
    "a list of paths, PIL images, encoded bytes, HxW or HxWxC arrays (uint8, uint16, bool, or float in [0, 1]) or "
    "CxHxW tensors; an array (n, H, W) or (n, H, W, C); a tensor (n, C, H, W); a one-column DataFrame; or a Dataset"
)


class ImageSequence(Sequence):
    """The images in ``X``, each read when it is asked for.

    The policy, whatever the source:

    ===================== =============================================================================
    input                 becomes
    ===================== =============================================================================
    EXIF orientation      applied
    greyscale             the same value in R, G and B
    palette               its colours
    transparency          composited over white (RGBA, grey with alpha, palette with transparency)
    CMYK, YCbCr, LAB, HSV converted to RGB
    16-bit                the upper 8 bits
    float in [0, 1]       times 255, rounded; other ranges raise
    bool                  black and white
    animated              the first frame
    ===================== =============================================================================

    Parameters
    ----------
    X : list, array, tensor, DataFrame, Series or Dataset
        What holds the images. Items of a Dataset may be images or (image, label).

    Raises
    ------
    ValueError
        If X is empty, or is not a collection of images.
    """

    def __init__(self, X):
        self._items = _as_collection(X)
        if len(self._items) == 0:
            raise ValueError("X holds no images: it is empty. Pass at least one.")

    def __len__(self):
        """Return the number of images."""
        return len(self._items)

    def __getitem__(self, index):
        """Return image ``index`` as an RGB ``PIL.Image``; ValueError with index and path if it cannot be read."""
        what = f"Image {index}"
        try:
            item = self._items[index]
            if isinstance(item, tuple) and isinstance(self._items, Dataset):
                item = item[0]
            what = f"Image {index} ({_describe(item)})"
            return _as_rgb(_open(item))
        except Exception as error:  # decoders and data sets of others' can fail in any way
            if isinstance(error, FileNotFoundError):
                reason = "there is no such file"
            elif isinstance(error, UnidentifiedImageError):
                reason = "it is not an image file that Pillow can read"
            else:
                reason = str(error) or type(error).__name__
            raise ValueError(f"{what} cannot be used: {reason}.") from error


def _as_collection(X):
    if isinstance(X, (str, bytes, os.PathLike, Image.Image)):
        raise ValueError(f"X is a single image ({_describe(X)}); put it into a list: [X].")
    if hasattr(X, "iloc"):
        if X.ndim == 2 and X.shape[1] != 1:
            raise ValueError(f"X is a DataFrame with {X.shape[1]} columns; pass the one column that holds the images.")
        return X.to_numpy().ravel().tolist() if X.ndim == 2 else X.tolist()
    if isinstance(X, np.ndarray) and X.dtype.kind in "OUST":
        if X.ndim != 1 and X.shape[1:] != (1,):
            raise ValueError(f"X is an array of {X.dtype}, shape {X.shape}; pass the one column that holds the images.")
        return X.ravel().tolist()
    if isinstance(X, (np.ndarray, torch.Tensor)) and X.ndim not in (3, 4):
        raise ValueError(f"X is an array of shape {tuple(X.shape)}, which is not a batch of images. Pass {_ACCEPTED}.")
    # Three or four grey images or columns are rare; a single colour image that was not put into a list is not.
    if isinstance(X, np.ndarray) and X.ndim == 3 and len(X) and X.shape[-1] in (3, 4):
        raise ValueError(
            f"X of shape {X.shape} looks like one HxWxC image; pass [X], or X[..., None] if it is grey images."
        )
    if isinstance(X, torch.Tensor) and X.ndim == 3 and X.shape[0] in (3, 4):
        shape = tuple(X.shape)
        raise ValueError(
            f"X of shape {shape} looks like one CxHxW image; pass [X], or X[:, None] if it is grey images."
        )
    if not (hasattr(X, "__len__") and hasattr(X, "__getitem__")) or isinstance(X, dict):
        raise ValueError(f"X is a {type(X).__name__}. Pass {_ACCEPTED}.")
    return X


def _open(item):
    if isinstance(item, Image.Image):
        return ImageOps.exif_transpose(item)
    if isinstance(item, bytes):
        item = io.BytesIO(item)
    if isinstance(item, (str, os.PathLike, io.BytesIO)):
        with Image.open(item) as image:
            # Before the file is closed, because some formats keep the orientation there.
            return ImageOps.exif_transpose(image)
    if isinstance(item, torch.Tensor):
        item = item.detach().cpu()
        array = (item.float() if item.dtype == torch.bfloat16 else item).numpy()
        return _from_array(np.moveaxis(array, 0, -1) if array.ndim == 3 else array)
    if isinstance(item, np.ndarray):
        return _from_array(item)
    raise ValueError(f"it is a {type(item).__name__}, not a path, PIL image, bytes, array or tensor")


def _from_array(array):
    channels = array.shape[-1] if array.ndim == 3 else 1
    if array.ndim not in (2, 3) or channels not in (1, 3, 4) or 0 in array.shape:
        raise ValueError(f"its shape {array.shape} is none of HxW, HxWx1, HxWx3 and HxWx4 (CxHxW for a tensor)")
    if array.dtype == bool:
        array = array.astype(np.uint8) * 255
    elif array.dtype.kind == "u" and array.dtype.itemsize == 2:
        if 0 < array.max() <= 255:
            raise ValueError(
                f"its dtype is uint16 but its values only reach {array.max()}, and of 16 bits the upper 8 are used; "
                "convert it to uint8"
            )
        array = (array >> 8).astype(np.uint8)
    elif array.dtype.kind == "f":
        if not (array.min() >= 0 and array.max() <= 1):  # written so that NaN fails too
            raise ValueError(f"its float values run from {array.min():g} to {array.max():g}; scale them to [0, 1]")
        array = np.rint(array * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise ValueError(f"its dtype {array.dtype} is none of uint8, uint16, bool and float")
    return Image.fromarray(np.ascontiguousarray(array[..., 0] if array.ndim == 3 and channels == 1 else array))


def _as_rgb(image):
    if 0 in image.size:
        raise ValueError(f"its size {image.size} leaves no pixels")
    if image.mode == "F":
        image = _from_array(np.asarray(image))
    elif image.mode.startswith("I"):
        # 16-bit files; Pillow opens some of them in its 32-bit mode "I".
        image = Image.fromarray((np.asarray(image).clip(0, 2**16 - 1).astype(np.uint16) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _describe(item):
    if isinstance(item, (str, os.PathLike)):
        return os.fspath(item)
    if isinstance(item, bytes):
        return f"{len(item)} bytes"
    shape = getattr(item, "shape", None) or getattr(item, "size", None)
    return type(item).__name__ + (f" {tuple(shape)}" if isinstance(shape, (tuple, torch.Size)) else "")
