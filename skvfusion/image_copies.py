"""Finding image files that are the same byte by byte."""

import hashlib
import os


def find_copies(paths, originals):
    """Find files that are in two lists under different names, or under the same.

    Parameters
    ----------
    paths, originals : list of str
        Files; those that cannot be read count as different.

    Returns
    -------
    list of (str, str)
        Each of ``paths`` that holds the same bytes as one of ``originals``, with the first such.
    """
    sizes = [{path: _size(path) for path in part} for part in (originals, paths)]
    common = set(sizes[0].values()) & set(sizes[1].values()) - {None, 0}
    digests = [{path: _digest(path) for path, size in part.items() if size in common} for part in sizes]
    original_of = {digest: path for path, digest in reversed(digests[0].items()) if digest is not None}
    return [(path, original_of[digest]) for path, digest in digests[1].items() if digest in original_of]


def _size(path):
    try:
        return os.path.getsize(path)
    except OSError:
        return None


def _digest(path):
    try:
        with open(path, "rb") as file:
            digest = hashlib.blake2b()
            while block := file.read(2**20):
                digest.update(block)
            return digest.digest()
    except OSError:
        return None
