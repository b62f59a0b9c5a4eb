"""From one image of any kind to 8-bit RGB; docs/images.md is the policy."""

import contextlib
import io
import os
import re
import threading
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

# A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where that leaves this many times the side that it is resized to.
# Measured on pictures of 6 to 20 megapixels: after that resize they differ from full decoding by up to 0.5 levels of
# 255 on average and 12 at most, and 12 megapixels take a fifth (much noise: a third) of the time. With 1 instead of 2
# they would differ by up to 1.5 and 44; with 4 by half as much as with 2, but half the gain in time would be lost.
JPEG_MARGIN = 2

# Loading fills a PIL image in place and moves its file's position, so two threads must not do it to the same image.
_loading = threading.Lock()


def is_encoded(item):
    """Whether ``item`` is a path or an image file's bytes."""
    return isinstance(item, (str, os.PathLike, bytes, bytearray, memoryview))


def read(item):
    """Return the bytes of the image file that ``item`` names or is."""
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    refuse_address(item)
    return Path(item).read_bytes()


def refuse_address(path):
    """Raise a ValueError if ``path`` is a URL or a folder."""
    path = os.fspath(path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", str(path)):
        raise ValueError("it is a URL, and nothing is downloaded here; save the file and pass its path")
    if os.path.isdir(path):
        raise ValueError('it is a folder; pass a list of its files: sorted(Path(folder).rglob("*.jpg"))')


def load(item, shorter_side=None):
    """Return the pixels of one image, upright but as they came.

    Parameters
    ----------
    item : bytes, PIL image, ndarray or tensor
        The image; bytes are an image file's.
    shorter_side : int, default=None
        Decode a JPEG at a reduced size, with a shorter side of at least ``JPEG_MARGIN`` times this. None does not.

    Returns
    -------
    PIL image in any mode or ndarray of shape (height, width) or (height, width, n_channels)
        A PIL image is never the one that was given.

    Raises
    ------
    ValueError
        If ``item`` is nothing of this kind. What cannot be decoded raises whatever Pillow raises.
    """
    if isinstance(item, bytes):
        with Image.open(io.BytesIO(item)) as image:
            if shorter_side is not None and image.format in ("JPEG", "MPO"):
                _reduce(image, shorter_side)
            return _upright(image)
    if isinstance(item, Image.Image):
        return _upright(_own(item))
    if isinstance(item, torch.Tensor):
        item = item.detach().cpu()
        array = (item.float() if item.dtype == torch.bfloat16 else item).numpy()
        return np.moveaxis(array, 0, -1) if array.ndim == 3 else array
    if isinstance(item, np.ndarray):
        return item
    advice = ""
    if isinstance(item, list):
        advice = "; make numbers an array with np.asarray(image, dtype=np.uint8), and flatten nested lists of images"
    elif isinstance(item, tuple):
        advice = "; only a torch Dataset may hold (image, label), so pass the images alone"
    raise ValueError(f"it is a {type(item).__name__}, not a path, PIL image, bytes, array or tensor{advice}")


def to_rgb(pixels):
    """Return what :func:`load` gave as an RGB PIL image.

    Parameters
    ----------
    pixels : PIL image or ndarray
        Pixels of any mode or dtype.

    Returns
    -------
    PIL.Image.Image
        In mode RGB.

    Raises
    ------
    ValueError
        If shape, dtype or range are not those of an image.
    """
    image = _from_array(pixels) if isinstance(pixels, np.ndarray) else pixels
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
    return image if image.mode == "RGB" else image.convert("RGB")


def looks_12_bit(pixels):
    """Whether 16-bit ``pixels`` use the lower 12 bits only, of which the upper 8 of 16 leave next to nothing."""
    if isinstance(pixels, np.ndarray):
        is_16_bit = pixels.dtype.kind == "u" and pixels.dtype.itemsize == 2
    else:
        is_16_bit = pixels.mode.startswith("I")
    return is_16_bit and 0 < np.asarray(pixels).max() < 2**12


def _reduce(image, shorter_side):
    """Have a JPEG that is not yet read decoded at a reduced size, if that is large enough."""
    width, height = image.size
    for scale in (8, 4, 2):
        # Only where nothing is left over: half a block at the edge would shift the picture by up to a pixel.
        if width % scale == height % scale == 0 and min(width, height) >= scale * JPEG_MARGIN * shorter_side:
            image.draft(None, (width // scale, height // scale))
            return


def _upright(image):
    """Apply the EXIF orientation of an image that nobody else holds."""
    image.load()
    with contextlib.suppress(SyntaxError):  # EXIF data that cannot be read says nothing about the pixels
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _own(image):
    """Return a copy of the caller's image; one that is not read from its file yet stays so, and its file open."""
    with _loading:
        file = getattr(image, "fp", None)
        if file is None and getattr(image, "tile", None):
            raise ValueError("its file was closed before its pixels were read; call image.load() before that")
        if file is not None:
            position = file.tell()
            file.seek(0)
            content = file.read()
            file.seek(position)
    if file is not None:
        copy = Image.open(io.BytesIO(content))
        copy.seek(image.tell())
        if (copy.mode, copy.size) == (image.mode, image.size):
            return copy
        # Something was set that is not in the file, such as a draft or the size of an icon.
    with _loading:
        image.load()
    return image.copy()


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
        array = _from_unit_floats(array)
    elif array.dtype != np.uint8:
        raise ValueError(f"its dtype {array.dtype} is none of uint8, uint16, bool and float{_dtype_advice(array)}")
    return Image.fromarray(np.ascontiguousarray(array[..., 0] if array.ndim == 3 and channels == 1 else array))


def _from_unit_floats(array):
    low, high = array.min(), array.max()
    if np.isnan(low):
        raise ValueError("its float values contain NaN; replace them, and scale all to [0, 1]")
    # Resizing in floats overshoots by rounding.
    if not (low >= -1e-5 and high <= 1 + 1e-5):
        advice = ""
        if low < 0:
            advice = "; if they were normalised for a network, leave that out, as it is done here"
        elif high <= 255:
            advice = "; divide them by 255 if they are 8-bit levels"
        raise ValueError(f"its float values run from {low:g} to {high:g}; scale them to [0, 1]{advice}")
    return np.rint(array.clip(0, 1) * 255).astype(np.uint8)


def _dtype_advice(array):
    if array.dtype.kind == "O":
        return "; stack equal arrays with np.stack(images), and give numbers a dtype with .astype(np.uint8)"
    if array.dtype.kind not in "iu":
        return ""
    low, high = array.min(), array.max()
    if low >= 0 and high <= 255:
        return "; as its values are within 0..255, convert it with .astype(np.uint8) (a tensor: .to(torch.uint8))"
    return f"; its values run from {low} to {high}: scale them to 0..255 and convert them with .astype(np.uint8)"
