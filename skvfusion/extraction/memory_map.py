"""Stacks larger than memory: rows written to a memory-mapped .npy file, from where an interrupted run goes on."""

import hashlib
import os
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

_DIGEST_SIZE = 16


class FileSink:
    """Rows of a .npy file that takes its name when it is complete.

    Until then they are in ``NAME.part``, and ``NAME.part.rows`` holds, for each finished row, a digest of its image and
    of how it was computed. Rows whose digest is what it would be now are not computed again.

    Parameters
    ----------
    path : str or path
        The file to write.
    shape : list of int
        Shape of the array; a row is an element of its first axis.
    dtype : {"float32", "float16"}
        What is stored.
    recipe_digest : bytes
        Digest of how rows are computed.
    """

    def __init__(self, path, shape, dtype, recipe_digest):
        self.path = Path(path).expanduser()
        self._part = self.path.with_name(self.path.name + ".part")
        self._journal = self.path.with_name(self.path.name + ".part.rows")
        self._shape = tuple(shape)
        self._dtype = np.dtype(dtype)
        self._recipe_digest = recipe_digest
        self._unsaved = {}
        self._rows, self._digests = self._resume() or self._begin()
        self._flat = self._rows.reshape(len(self._rows), -1)

    def has(self, row, digest):
        """Tell whether a row holds the result of this image already."""
        return self._digests[row].tobytes() == self._digest(digest)

    def write(self, row, values, digest):
        """Set a row; ``digest`` is that of its image, or None if that cannot be read."""
        with np.errstate(over="ignore"):  # refused below
            self._flat[row] = np.ravel(values)
        if self._dtype == np.float16 and np.isinf(self._flat[row]).any():
            raise ValueError(
                f"Row {row} has a value of {np.abs(values).max():g}, which float16 cannot hold; use dtype='float32'."
            )
        if digest is not None:
            self._unsaved[row] = self._digest(digest)

    def read(self, row):
        """Return the numbers of a row."""
        return self._flat[row]

    def flush(self):
        """Save what was written: first the rows, then that they are finished."""
        if self._unsaved:
            self._rows.flush()
            for row, digest in self._unsaved.items():
                self._digests[row] = np.frombuffer(digest, np.uint8)
            self._unsaved = {}

    def finish(self):
        """Give the file its name and return it as a read-only memory map."""
        self._rows.flush()
        del self._flat, self._rows, self._digests  # Windows renames no open file
        os.replace(self._part, self.path)
        self._journal.unlink()
        return np.load(self.path, mmap_mode="r")

    def _digest(self, image_digest):
        return hashlib.blake2b(self._recipe_digest + image_digest, digest_size=_DIGEST_SIZE).digest()

    def _begin(self):
        rows = open_memmap(self._part, mode="w+", dtype=self._dtype, shape=self._shape)
        digests = np.memmap(self._journal, mode="w+", dtype=np.uint8, shape=(len(rows), _DIGEST_SIZE))
        return rows, digests

    def _resume(self):
        try:
            open_memmap(self._part, mode="r")  # refuses a file that is too short, which "r+" would fill with zeros
            rows = open_memmap(self._part, mode="r+")
            digests = np.memmap(self._journal, mode="r+", dtype=np.uint8).reshape(-1, _DIGEST_SIZE)
        except (OSError, ValueError):  # there is none, or it is damaged
            return None
        fits = rows.shape == self._shape and rows.dtype == self._dtype and len(digests) == len(rows)
        return (rows, digests) if fits else None
