"""The cache's file: opened once in a process, checked before it is read, safe to fork beside."""

import errno
import os
import shutil
import threading
import warnings
from contextlib import contextmanager, suppress

import lmdb
from filelock import FileLock
from lmdb.verify import VerifyError, verify

FILE = "features.lmdb"
_FORMAT = b"1"
# Only address space on POSIX, so that no cache ever reaches it. On Windows LMDB gives the file this size at once.
_MAP_SIZE = 2**40 if os.name == "posix" else 2**34

# For its lock file and the first pages.
_LEAST_SPACE = 2**20

# One thread of a process at a time is in a transaction: LMDB must not be forked within one, nor closed.
lock = threading.RLock()
# By process and real path, because LMDB does not work if a process opens a file twice.
_databases = {}


@contextmanager
def opened(folder):
    """Open the file in a folder, which is created if need be, for a with statement; OSError if that cannot be done."""
    database = _open(folder)
    try:
        yield database
    except lmdb.Error as error:
        raise _unusable(folder, error) from error
    finally:
        with lock:
            database.users -= 1
            if database.users == 0:
                del _databases[os.getpid(), database.path]
                database.env.close()


class Database:
    """An open file: its tables, and the folder of the locks that show whose owners are alive."""

    def __init__(self, path):
        self.path = path
        self.owners = path.parent / "owners"
        self.users = 0
        self.env = lmdb.open(
            os.fspath(path), subdir=False, map_size=_MAP_SIZE, metasync=False, max_readers=512, max_dbs=4
        )
        try:
            self.env.reader_check()
            # Nobody writes while this looks at the file.
            with self.env.begin(write=True) as txn:
                self._check_length()
                self._open_tables(txn)
        except BaseException:
            self.env.close()
            raise

    def _check_length(self):
        """Reading past the end would kill the process; but pages that are free may be missing there."""
        size = used_size(self.env)
        if os.path.getsize(self.path) < size:
            if _is_damaged(self.path):
                raise lmdb.CorruptedError("the file is too short")
            os.truncate(self.path, size)  # so that this need not be found out again

    def _open_tables(self, txn):
        is_new = txn.stat(self.env.open_db())["entries"] == 0
        self.meta = self.env.open_db(b"meta", txn=txn)
        if is_new:
            txn.put(b"format", _FORMAT, db=self.meta)
        found = txn.get(b"format", db=self.meta)
        if found != _FORMAT:
            raise ValueError(
                f"The cache {self.path} has format {found!r}, but this version of skvfusion uses {_FORMAT!r}. "
                "Use another folder."
            )
        self.features = self.env.open_db(b"features", txn=txn)  # checksum and value by key
        self.order = self.env.open_db(b"order", txn=txn)  # keys by number, in the order in which they came
        self.claims = self.env.open_db(b"claims", txn=txn)  # owners by key


def _open(folder):
    with lock:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder.resolve() / FILE
            database = _databases.get((os.getpid(), path)) or _open_file(path)
        except (OSError, lmdb.Error) as error:
            raise _unusable(folder, error) from error
        _databases[os.getpid(), path] = database
        database.users += 1
        return database


def _open_file(path):
    # LMDB maps its files, and a process that writes to a mapped file on a full disk is killed.
    if shutil.disk_usage(path.parent).free < _LEAST_SPACE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    path.parent.joinpath("owners").mkdir(exist_ok=True)
    # Otherwise two processes could move each other's new file aside.
    with FileLock(path.parent / f"{FILE}-opening"):
        try:
            return Database(path)
        except lmdb.Error as error:
            if not isinstance(error, lmdb.CorruptedError) and not _is_damaged(path):
                raise
            aside = path.parent / f"{FILE}.damaged"
            os.replace(path, aside)
            # Those who still have the damaged file open keep its lock file too.
            remove(f"{path}-lock")
            warnings.warn(
                f"The cache {path} is damaged ({error}). It is renamed to {aside.name}, which you may delete, and a "
                "new one is begun.",
                UserWarning,
                stacklevel=7,
            )
            return Database(path)


def _is_damaged(path):
    try:
        return bool(verify(path))
    except VerifyError:
        return True


def _unusable(folder, error):
    return OSError(
        f"The cache in {folder} cannot be used: {error}. Pass a folder on a local disk that can be created and written."
    )


def used_size(env):
    """Return how many bytes of the file are in use, pages that are free included."""
    return (env.info()["last_pgno"] + 1) * env.stat()["psize"]


def remove(path):
    """Remove a file, if it is there and may be removed now."""
    # Windows does not remove what another process has open just now; the next one to enter will.
    with suppress(FileNotFoundError, PermissionError):
        os.remove(path)


def _after_fork_in_child():
    # The parent's files must be closed, or LMDB refuses to open them again. The lock's owner, who forks, is left.
    for database in _databases.values():
        database.env.close()
    _databases.clear()
    lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=_after_fork_in_child)
