"""Stacks larger than memory: rows written to a memory-mapped .npy file, of which no finished row is computed again."""

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from numpy.lib.format import open_memmap

_DIGEST_SIZE = 16


class FileSink:
    """Rows of a .npy file that takes its name when it is complete; a context manager.

    Until then they are in ``NAME.part``. Beside it, ``NAME.part.rows`` holds for each finished row a digest of its
    image and of how it was computed, and in the end ``NAME.rows`` does. A row whose digest is what it would be now is
    not computed again, neither after an interruption nor when all is there already.

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

    Raises
    ------
    OSError
        If the file cannot be written, the disk is too full for it, or another process is writing it.
    """

    def __init__(self, path, shape, dtype, recipe_digest):
        self.path = Path(os.path.expanduser(path))
        self._shape = tuple(shape)
        self._dtype = np.dtype(dtype)
        self._recipe_digest = recipe_digest
        self._part = self._beside(".part")
        self._rows_of_part = self._beside(".part.rows")
        self._rows_of_finished = self._beside(".rows")
        self._unsaved = {}
        self._rows = self._flat = self._digests = None
        self._is_finished = False

    def __enter__(self):
        """Take what is there: a part, or the finished file, which is left alone unless a row of it has to change."""
        if self.path.is_dir():
            raise IsADirectoryError(f"{os.fspath(self.path)!r} is a folder; pass the path of the .npy file to write.")
        if not self.path.parent.is_dir():  # a FileLock would create it
            raise FileNotFoundError(
                f"There is no folder {os.fspath(self.path.parent)!r} to write {self.path.name} into."
            )
        self._lock = FileLock(self._beside(".part.lock"), thread_local=False)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise OSError(f"{os.fspath(self.path)!r} is being written by another extraction; wait for it.") from None
        try:
            self._is_finished = not self._resume() and self._load_finished()
            if self._digests is None:
                self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        """Close the files; what is finished of a part stays."""
        self._rows = self._flat = self._digests = None
        with suppress(OSError):
            os.remove(self._lock.lock_file)
        self._lock.release()

    def _beside(self, suffix):
        return self.path.with_name(self.path.name + suffix)

    def has(self, row, digest):
        """Tell whether a row holds the result of this image already."""
        return self._digests[row].tobytes() == self._digest(digest)

    def write(self, row, values, digest):
        """Set a row; ``digest`` is that of its image, or None if that cannot be read."""
        if self._is_finished:
            self._copy_finished()
        # First of all, or a run that is killed now would leave the new row under the old digest.
        self._digests[row] = 0
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
        if not self._is_finished:
            self.flush()
            self._rows.flush()
            digests = np.array(self._digests)
            self._rows = self._flat = self._digests = None  # Windows renames no open file
            os.replace(self._part, self.path)
            np.vstack([digests, self._stamp()]).tofile(self._rows_of_finished)
            os.remove(self._rows_of_part)
        return np.load(self.path, mmap_mode="r")

    def _digest(self, image_digest):
        return hashlib.blake2b(self._recipe_digest + image_digest, digest_size=_DIGEST_SIZE).digest()

    def _stamp(self):
        """Return what tells that the finished file is the one that its digests are about."""
        facts = self.path.stat()
        stamp = hashlib.blake2b(f"{facts.st_size} {facts.st_mtime_ns}".encode(), digest_size=_DIGEST_SIZE).digest()
        return np.frombuffer(stamp, np.uint8)

    def _begin(self):
        """Create an empty part, without digests that are about another."""
        with suppress(FileNotFoundError):
            os.remove(self._rows_of_part)
        self._take(
            open_memmap(self._part, mode="w+", dtype=self._dtype, shape=self._shape),
            np.memmap(self._rows_of_part, mode="w+", dtype=np.uint8, shape=(self._shape[0], _DIGEST_SIZE)),
        )

    def _resume(self):
        """Open the part of an interrupted run; False if there is none that fits."""
        try:
            open_memmap(self._part, mode="r")  # refuses a file that is too short, which "r+" would fill with zeros
            rows = open_memmap(self._part, mode="r+")
            digests = np.memmap(self._rows_of_part, mode="r+", dtype=np.uint8).reshape(-1, _DIGEST_SIZE)
        except (OSError, ValueError):  # there is none, or it is damaged
            return False
        return self._fits(rows, len(digests)) and self._take(rows, digests)

    def _load_finished(self):
        """Open the finished file to read; False if there is none that fits."""
        try:
            rows = np.load(self.path, mmap_mode="r")
            digests = np.fromfile(self._rows_of_finished, np.uint8).reshape(-1, _DIGEST_SIZE)
        except (OSError, ValueError):
            return False
        if not self._fits(rows, len(digests) - 1) or not np.array_equal(digests[-1], self._stamp()):
            return False
        self._rows, self._flat, self._digests = rows, rows.reshape(len(rows), -1), digests[:-1]
        return True

    def _copy_finished(self):
        """Go on with a copy of the finished file, which others may be reading."""
        digests = self._digests
        self._begin()
        self._rows[:] = np.load(self.path, mmap_mode="r")
        self._digests[:] = digests
        self._is_finished = False

    def _fits(self, rows, n_digests):
        return rows.shape == self._shape and rows.dtype == self._dtype and n_digests == len(rows)

    def _take(self, rows, digests):
        _allocate(self._part)
        _allocate(self._rows_of_part)
        self._rows, self._flat, self._digests = rows, rows.reshape(len(rows), -1), digests
        return True


def _allocate(path):
    """Have the disk set the file's space aside, since a full disk kills whoever writes to a mapped file."""
    if not hasattr(os, "posix_fallocate"):
        return
    with open(path, "r+b") as file:
        size = os.path.getsize(path)
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # the file system cannot
                return
            os.remove(path)
            raise OSError(error.errno, f"{os.strerror(error.errno)}: {size} bytes are needed for", str(path)) from error
