"""A store of byte strings on disk that threads and processes share, and in which nothing is computed twice."""

import functools
import hashlib
import os
import uuid
import warnings
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

import lmdb
from filelock import FileLock, Timeout

from .database import FILE, lock, opened, remove, used_size

_KEY_SIZE = 32
_CHECKSUM_SIZE = 16
_PAGE_HEADER = 16


class FeatureCache:
    """Byte strings by key, in a folder that any number of threads and processes of one machine may use at once.

    A context manager: its methods work while it is entered, from any thread. A process forked meanwhile must enter one
    of its own. Two that are entered, even in one process, are two owners of claims.

    Parameters
    ----------
    folder : str or path
        Where the cache lies; ``~`` is the home folder. It is created when the cache is entered. A network drive will
        not do, since LMDB's locks do not work there.

    Raises
    ------
    OSError
        On entering, if the folder is a file or cannot be written.
    ValueError
        On entering, if the cache was written in another format.

    Warns
    -----
    UserWarning
        Once, if something cannot be stored, say because the disk is full; from then on nothing is. And on entering, if
        the file is damaged; it is moved aside and a new one begun.
    """

    def __init__(self, folder):
        if not os.fspath(folder):
            raise ValueError("The cache's folder is an empty string; pass the path of a folder, or '.' for this one.")
        self.folder = Path(os.path.expanduser(folder))
        self._pid = None

    def __enter__(self):
        """Open the cache, and clear what processes that were killed left behind."""
        if self._pid == os.getpid():
            raise RuntimeError("This FeatureCache is entered already; make another one for the same folder.")
        with ExitStack() as stack:
            self._database = stack.enter_context(opened(self.folder))
            self._owner = uuid.uuid4().hex.encode()
            self._owner_lock = _owner_lock(self._database, self._owner)
            stack.callback(self._end_ownership)
            # All that is done to the owners' locks is done within transactions, that is by one process at a time.
            with lock, self._database.env.begin(write=True):
                self._owner_lock.acquire()
            with suppress(lmdb.Error), lock, self._database.env.begin(write=True) as txn:
                _drop_claims_of_dead(self._database, txn)
            self._stack = stack.pop_all()
        self._stores = True
        self._pid = os.getpid()
        return self

    def __exit__(self, *_):
        """Drop all claims, and close the file if nobody else in this process uses it."""
        with lock:
            if self._pid != os.getpid():  # the parent's business
                return
            self._pid = None
            # Claims that cannot be dropped end with the owner's lock.
            with self._stack, suppress(lmdb.Error), self._database.env.begin(write=True) as txn:
                _drop_claims_of({self._owner}, self._database, txn)

    def get(self, key):
        """Return what is stored.

        Parameters
        ----------
        key : bytes of length 32
            Its key.

        Returns
        -------
        bytes or None
            The value; None if there is none or it is damaged.
        """
        _check([key])
        try:
            with self._transaction() as txn:
                stored = txn.get(key, db=self._database.features)
        except lmdb.Error:  # the file is damaged
            return None
        return _value(key, stored)

    def claim(self, keys):
        """Reserve what is to be computed.

        Parameters
        ----------
        keys : iterable of bytes of length 32
            The keys that are wanted.

        Returns
        -------
        set of bytes
            Those to compute now and then to put: not stored, and claimed by nobody alive, this FeatureCache
            included, since its other threads use it too. The rest is stored, or will be by whoever claimed it.
        """
        keys = _check(set(keys))
        is_dead = functools.cache(functools.partial(_is_dead, self._database))
        claims = self._database.claims
        try:
            with self._transaction(write=True) as txn:
                missing = {key for key in keys if self.get(key) is None}
                if not self._stores:
                    return missing
                owners = {key: txn.get(key, db=claims) for key in missing}
                free = {key for key, owner in owners.items() if owner is None or is_dead(owner)}
                for key in free:
                    txn.put(key, self._owner, db=claims)
                return free
        except (lmdb.Error, OSError) as error:
            self._stop_storing(error)
        return {key for key in keys if self.get(key) is None}

    def put(self, items):
        """Store values and drop our claims on them, in one transaction, which is on disk when this returns.

        Parameters
        ----------
        items : dict of bytes of length 32 to bytes
            Values by key; one that is stored already is replaced.
        """
        _check(items)
        packed = {key: _checksum(key, value) + value for key, value in items.items()}
        try:
            with self._transaction(write=True) as txn:
                if not self._stores:
                    return
                # A process that was killed while it read keeps freed pages from being used again.
                self._database.env.reader_check()
                _store(packed, self._database, txn)
                _evict(self._database, txn)
                self._drop_claims(txn, packed)
        except (lmdb.Error, OSError) as error:
            self._stop_storing(error)

    @contextmanager
    def _transaction(self, write=False):
        with lock:
            if self._pid != os.getpid():
                raise RuntimeError("This FeatureCache is not entered in this process; use it in a with statement.")
            with self._database.env.begin(write=write) as txn:
                yield txn

    def _drop_claims(self, txn, keys):
        for key in keys:
            if txn.get(key, db=self._database.claims) == self._owner:
                txn.delete(key, db=self._database.claims)

    def _stop_storing(self, error):
        with lock:
            if not self._stores:
                return
            self._stores = False
            # A full disk cannot take the dropping of claims either, but they end with the lock.
            self._end_ownership()
        warnings.warn(
            f"The cache in {self.folder} takes nothing more ({error}; is the disk full?), so what is computed from "
            "here on is not stored. The results are right all the same. Free some space, or use another folder.",
            UserWarning,
            stacklevel=3,
        )

    def _end_ownership(self):
        self._owner_lock.release()
        remove(self._owner_lock.lock_file)


@dataclass(frozen=True, repr=False)
class CacheInfo:
    """What is in a cache.

    Parameters
    ----------
    path : Path
        The cache's folder.
    n_images : int
        Values stored.
    size : int
        Their bytes, rounded up to the file's pages; this is what a limit is compared with.
    file_size : int
        Bytes of the file. It does not shrink: what is freed is used again.
    max_size : int or None
        The limit.
    n_computed : int
        Values that were ever stored, those included that left or were replaced.
    """

    path: Path
    n_images: int = 0
    size: int = 0
    file_size: int = 0
    max_size: int | None = None
    n_computed: int = 0

    def __repr__(self):
        limit = "no limit" if self.max_size is None else f"limit {_megabytes(self.max_size)}"
        return (
            f"CacheInfo('{self.path}': {self.n_images:,} images, {_megabytes(self.size)}, {limit}; "
            f"file of {_megabytes(self.file_size)}; {self.n_computed:,} images computed so far)"
        )


def _megabytes(size):
    return f"{size / 1e6:,.1f} MB"


def cache_info(path):
    """Say what is in a cache.

    Parameters
    ----------
    path : str or path
        The cache's folder. If there is no cache, all counts are zero, and none is created.

    Returns
    -------
    CacheInfo
        Counts and sizes.

    Raises
    ------
    OSError
        If the folder cannot be written, which even reading needs, for LMDB's locks.
    ValueError
        If the cache was written in another format.

    Examples
    --------
    >>> import tempfile
    >>> from skvfusion.extraction import cache_info
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache_info(folder).n_images
    0
    """
    path = Path(os.path.expanduser(path))
    if not (path / FILE).exists():
        return CacheInfo(path)
    with opened(path) as database, lock, database.env.begin() as txn:
        # On Windows the file has the size of the whole map.
        used = min(os.path.getsize(database.path), used_size(database.env))
        n_images = txn.stat(database.features)["entries"]
        size, max_size, n_computed = (_number(database, txn, name) for name in (b"size", b"max_size", b"n_computed"))
        return CacheInfo(path, n_images, size, used, max_size or None, n_computed)


def limit_cache(path, max_size):
    """Limit a cache's size, now and for everyone who stores something from now on; the oldest values leave first.

    Parameters
    ----------
    path : str or path
        The cache's folder, which is created if need be.
    max_size : int or None
        Bytes that the values may take, see :class:`CacheInfo`; None takes the limit away. The file is larger by some
        batches and a few per cent, and does not shrink if it is larger already.

    Raises
    ------
    OSError
        If the folder cannot be written.
    ValueError
        If ``max_size`` is no positive integer, or the cache was written in another format.

    Examples
    --------
    >>> import tempfile
    >>> from skvfusion.extraction import cache_info, limit_cache
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     limit_cache(folder, 10 * 2**30)
    ...     cache_info(folder).max_size
    10737418240
    """
    is_number = isinstance(max_size, Integral) and not isinstance(max_size, bool)
    if max_size is not None and not (is_number and max_size > 0):
        raise ValueError(f"max_size={max_size!r} is not a positive number of bytes. Pass an int, or None for no limit.")
    path = Path(os.path.expanduser(path))
    with opened(path) as database, lock, database.env.begin(write=True) as txn:
        if max_size is None:
            txn.delete(b"max_size", db=database.meta)
        else:
            _set_number(database, txn, b"max_size", max_size)
        _evict(database, txn)


def _owner_lock(database, owner):
    return FileLock(database.owners / f"{owner.decode()}.lock", thread_local=False)


def _is_dead(database, owner):
    """Tell whether nobody holds an owner's lock, and remove it then; within a write transaction only."""
    owner_lock = _owner_lock(database, owner)
    if not os.path.exists(owner_lock.lock_file):
        return True
    try:
        owner_lock.acquire(timeout=0)
    except Timeout:
        return False
    owner_lock.release()
    remove(owner_lock.lock_file)
    return True


def _drop_claims_of_dead(database, txn):
    owners = {path.stem.encode() for path in database.owners.glob("*.lock")}
    owners.update(owner for _, owner in txn.cursor(database.claims))
    _drop_claims_of({owner for owner in owners if _is_dead(database, owner)}, database, txn)


def _drop_claims_of(owners, database, txn):
    for key in [key for key, owner in txn.cursor(database.claims) if owner in owners]:
        txn.delete(key, db=database.claims)


def _store(packed, database, txn):
    cursor = txn.cursor(database.order)
    number = int.from_bytes(cursor.key(), "big") if cursor.last() else 0
    size = _number(database, txn, b"size")
    for key, stored in packed.items():
        replaced = txn.replace(key, stored, db=database.features)
        size += _size(database, stored) - _size(database, replaced)
        if replaced is None:
            number += 1
            txn.put(number.to_bytes(8, "big"), key, db=database.order)
    _set_number(database, txn, b"size", size)
    _set_number(database, txn, b"n_computed", _number(database, txn, b"n_computed") + len(packed))


def _evict(database, txn):
    """Remove the oldest values until the limit is kept."""
    max_size = _number(database, txn, b"max_size")
    size = _number(database, txn, b"size")
    cursor = txn.cursor(database.order)
    while max_size and size > max_size and cursor.first():
        size -= _size(database, txn.pop(cursor.value(), db=database.features))
        cursor.delete()
    _set_number(database, txn, b"size", size)


def _size(database, stored):
    """Return the bytes that a value takes, in pages of its own, as LMDB keeps all but small ones."""
    if stored is None:
        return 0
    page = database.env.stat()["psize"]
    return -(-(_PAGE_HEADER + len(stored)) // page) * page


def _number(database, txn, name):
    return int(txn.get(name, b"0", db=database.meta))


def _set_number(database, txn, name, number):
    txn.put(name, b"%d" % number, db=database.meta)


def _value(key, stored):
    if stored is None or stored[:_CHECKSUM_SIZE] != _checksum(key, stored[_CHECKSUM_SIZE:]):
        return None
    return stored[_CHECKSUM_SIZE:]


def _checksum(key, value):
    checksum = hashlib.blake2b(key, digest_size=_CHECKSUM_SIZE)
    checksum.update(value)
    return checksum.digest()


def _check(keys):
    for key in keys:
        if not isinstance(key, bytes) or len(key) != _KEY_SIZE:
            raise ValueError(f"{key!r} is not a key. Pass bytes of length {_KEY_SIZE}.")
    return keys
