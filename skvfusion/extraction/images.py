"""Collections of images of every kind users have, read one by one into 8-bit RGB."""

import hashlib
import operator
import os
import warnings
from collections.abc import Iterable, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Dataset

from .pixels import is_encoded, load, looks_12_bit, read, refuse_address, to_rgb

_ACCEPTED = (
    "a list of paths, PIL images, encoded bytes, HxW or HxWxC arrays (uint8, uint16, bool, or float in [0, 1]) or "
    "CxHxW tensors; an array (n, H, W) or (n, H, W, C); a tensor (n, C, H, W); a one-column DataFrame; or a Dataset"
)


class ImageSequence(Sequence):
    """The images in ``X``, each read when it is asked for.

    Whatever the source, an image becomes upright 8-bit RGB, over white where it is transparent. docs/images.md says
    what becomes of every kind of file, array and PIL image.

    Parameters
    ----------
    X : list, array, tensor, DataFrame, Series or Dataset
        What holds the images. Items of a Dataset may be images or (image, label).

    Attributes
    ----------
    notes : dict of int to str
        The images read so far, and not yet warned of, that hold 12-bit data in 16 bits: position to description.

    Raises
    ------
    ValueError
        If X is empty, or is not a collection of images.
    """

    def __init__(self, X):
        self._items = _as_collection(X)
        if len(self._items) == 0:
            raise ValueError("X holds no images: it is empty. Pass at least one.")
        self.notes = {}

    def __len__(self):
        """Return the number of images."""
        return len(self._items)

    def __getitem__(self, index):
        """Return image ``index`` as an RGB ``PIL.Image``; ValueError with index and path if it cannot be read."""
        return self.source(index).rgb()

    def source(self, index):
        """Fetch image ``index`` without decoding it.

        A Dataset's ``__getitem__`` runs here, so that it is only ever called from one thread and in order; what it
        opened with Pillow is also read here.

        Parameters
        ----------
        index : int
            Position; negative ones count from the end.

        Returns
        -------
        ImageSource
            May be used from another thread.

        Raises
        ------
        IndexError
            If there is no such position.
        ValueError
            If the Dataset fails to give the image; the message names its position.
        """
        index = range(len(self))[operator.index(index)]
        with _naming(f"Image {index}"):
            item = self._items[index]
        of_dataset = isinstance(self._items, Dataset)
        if of_dataset and isinstance(item, tuple) and item:
            item = item[0]
        source = ImageSource(item, index, self.notes)
        if of_dataset and isinstance(item, Image.Image):
            with _naming(source.description):
                item.load()  # closes its file, as whoever takes an image from a Dataset has to
        return source

    def warn(self):
        """Warn once for all images read since the last call that came out nearly black; for the caller's thread."""
        if not self.notes:
            return
        first = self.notes[min(self.notes)]
        others = f" (and {len(self.notes) - 1} more)" if len(self.notes) > 1 else ""
        self.notes.clear()
        warnings.warn(
            f"{first}{others} has 16 bits but no value above 4095, so it comes out nearly black: of 16 bits the upper "
            "8 are used. 12-bit data stored in 16 bits has to be scaled first: `image << 4`.",
            stacklevel=3,
        )


class ImageSource:
    """One image of an :class:`ImageSequence`, fetched but not decoded; for one thread at a time, whichever it is.

    Parameters
    ----------
    item : str, path, bytes, PIL image, ndarray or tensor
        The image.
    index : int
        Its position.
    notes : dict
        Takes a note if the image holds 12-bit data in 16 bits.

    Attributes
    ----------
    description : str
        Position and path, or position, type and size.
    """

    def __init__(self, item, index, notes):
        self.description = f"Image {index} ({_describe(item)})"
        self._item = item
        self._index = index
        self._notes = notes
        self._digest = None
        self._content = self._rgb = None  # what was hashed, until rgb() takes it

    @property  # not a cached_property: before Python 3.12 these lock out all other threads
    def digest(self):
        """32 bytes that stand for the image: of the encoded file, or else of its 8-bit RGB pixels with their size.

        An array, a tensor and a PIL image with the same pixels share it; a file shares it with its bytes only. Raises a
        ValueError that names index and path if the image cannot be read.
        """
        if self._digest is None:
            with _naming(self.description):
                self._digest = self._hash()
        return self._digest

    def rgb(self, shorter_side=None):
        """Decode the image: what ``digest`` hashed if that was asked for, which is freed.

        A second call reads a file anew.

        Parameters
        ----------
        shorter_side : int, default=None
            The size that the image will be resized to. A large JPEG is then decoded at a reduced size, which is several
            times faster and after the resize nearly the same; see docs/images.md. None decodes it in full.

        Returns
        -------
        PIL.Image.Image
            In mode RGB.

        Raises
        ------
        ValueError
            If the image cannot be read; the message names index and path.
        """
        content, rgb = self._content, self._rgb
        self._content = self._rgb = None
        if rgb is not None:
            return rgb
        with _naming(self.description):
            if content is None:
                content = read(self._item) if is_encoded(self._item) else self._item
            return self._decode(content, shorter_side)

    def _hash(self):
        if is_encoded(self._item):
            self._content = read(self._item)
            return hashlib.blake2b(self._content, digest_size=32, person=b"file").digest()
        self._rgb = self._decode(self._item)
        digest = hashlib.blake2b(repr(self._rgb.size).encode(), digest_size=32, person=b"pixels")
        digest.update(self._rgb.tobytes())
        return digest.digest()

    def _decode(self, item, shorter_side=None):
        pixels = load(item, shorter_side)
        image = to_rgb(pixels)
        if looks_12_bit(pixels):
            self._notes[self._index] = self.description
        return image


@contextmanager
def _naming(description):
    """Turn any error into a ValueError that says which image cannot be used and why."""
    try:
        yield
    except Exception as error:  # decoders and data sets of others' can fail in any way
        if isinstance(error, FileNotFoundError):
            reason = "there is no such file"
        elif isinstance(error, UnidentifiedImageError):
            reason = "it is not an image file that Pillow can read"
        elif isinstance(error, Image.DecompressionBombError):
            reason = f"{error}".rstrip(".") + "; raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        else:
            reason = str(error) or type(error).__name__
        raise ValueError(f"{description} cannot be used: {reason}.") from error


def _as_collection(X):
    if isinstance(X, (str, os.PathLike)):
        try:
            refuse_address(X)
        except ValueError as error:
            raise ValueError(f"X is {X!r}: {error}.") from None
    if is_encoded(X) or isinstance(X, Image.Image):
        raise ValueError(f"X is a single image ({_describe(X)}); put it into a list: [X].")
    if hasattr(X, "to_numpy") and hasattr(X, "columns"):  # a DataFrame of pandas or polars
        if X.shape[1] != 1:
            raise ValueError(f"X is a DataFrame with {X.shape[1]} columns; pass the one column that holds the images.")
        return X.to_numpy().ravel().tolist()
    if hasattr(X, "to_numpy") and hasattr(X, "to_list"):  # a Series
        return X.to_list()
    if isinstance(X, (np.ndarray, torch.Tensor)):
        return _as_batch(X)
    if not (hasattr(X, "__len__") and hasattr(X, "__getitem__")) or isinstance(X, dict):
        hint = "; if it yields images, make it a list: list(X)" if isinstance(X, Iterable) else ""
        raise ValueError(f"X is a {type(X).__name__}{hint}. Pass {_ACCEPTED}.")
    return X


def _as_batch(X):
    """Check an array or a tensor of images."""
    shape = tuple(X.shape)
    is_array = isinstance(X, np.ndarray)
    if is_array and X.dtype.kind == "O" and X.ndim in (3, 4):
        raise ValueError(
            f"X is an array of {X.dtype}, shape {shape}: equal images that were stacked as objects. Pass the list of "
            "images itself or np.stack(images); if only X is left, X.astype(np.uint8) for values from 0 to 255."
        )
    if is_array and X.dtype.kind in "OUST":
        if X.ndim != 1 and shape[1:] != (1,):
            raise ValueError(f"X is an array of {X.dtype}, shape {shape}; pass the one column that holds the images.")
        return X.ravel().tolist()
    if X.ndim not in (3, 4):
        raise ValueError(f"X is an array of shape {shape}, which is not a batch of images. Pass {_ACCEPTED}.")
    # Three or four grey images or columns are rare; a single colour image that was not put into a list is not.
    if X.ndim == 3 and len(X) and shape[-1 if is_array else 0] in (3, 4):
        layout, grey = ("HxWxC", "X[..., None]") if is_array else ("CxHxW", "X[:, None]")
        raise ValueError(f"X of shape {shape} looks like one {layout} image; pass [X], or {grey} if it is grey images.")
    return X


def _describe(item):
    if isinstance(item, (str, os.PathLike)):
        return os.fspath(item)
    if isinstance(item, (bytes, bytearray, memoryview)):
        return f"{len(item)} bytes"
    shape = getattr(item, "shape", None) or getattr(item, "size", None)
    size = f" {tuple(shape)}" if isinstance(shape, (tuple, torch.Size)) else ""
    path = getattr(item, "filename", None) if isinstance(item, Image.Image) else None
    return type(item).__name__ + size + (f" of {path}" if path else "")
