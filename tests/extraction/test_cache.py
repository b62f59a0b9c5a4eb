import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import lmdb
import pytest

from skvfusion.extraction import cache as cache_module
from skvfusion.extraction import database
from skvfusion.extraction.cache import CacheInfo, FeatureCache, cache_info, limit_cache

PAGE = 4096
# What the file may take beyond its limit: pages that are freed only by the next transactions, and the keys.
SLACK = 2**20

PRELUDE = """
import hashlib, json, os, sys, types
# Not the package itself, whose imports take seconds.
sys.modules["extraction"] = types.ModuleType("extraction")
sys.modules["extraction"].__path__ = [sys.argv[2]]
from extraction.cache import FeatureCache, cache_info, limit_cache

def key(i):
    return hashlib.sha256(str(i).encode()).digest()

folder = sys.argv[1]
"""
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def key(i):
    return hashlib.sha256(str(i).encode()).digest()


def value(i, size=6000):
    return hashlib.shake_256(str(i).encode()).digest(size)


def items(numbers, size=6000):
    return {key(i): value(i, size) for i in numbers}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def start():
    """Return a function that starts a script in a process of its own; what is left is killed."""
    processes = []

    def run(script, folder):
        command = [sys.executable, "-c", PRELUDE + script, folder, Path(cache_module.__file__).parent]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def finish(process, message=""):
    out, _ = process.communicate(message, timeout=60)
    assert process.returncode == 0
    return out


def raw(folder):
    """The tables behind a cache that is not open."""
    return lmdb.open(str(folder / "features.lmdb"), subdir=False, map_size=2**30, max_dbs=4)


def used_limit(limit):
    return int(1.05 * limit) + SLACK


def test_values_are_kept_for_the_next_one_who_enters(folder):
    with FeatureCache(folder) as cache:
        assert cache.get(key(0)) is None
        cache.put({**items([0, 1]), key(2): b""})
        assert cache.get(key(0)) == value(0)
    with FeatureCache(str(folder)) as cache:
        assert [cache.get(key(i)) for i in range(4)] == [value(0), value(1), b"", None]


def test_one_instance_can_be_entered_again_but_not_twice(folder):
    cache = FeatureCache(folder)
    with cache:
        with pytest.raises(RuntimeError, match="entered already"):
            cache.__enter__()
        cache.put(items([0]))
    with pytest.raises(RuntimeError, match="with statement"):
        cache.get(key(0))
    with cache:
        assert cache.get(key(0)) == value(0)
    assert database._databases == {}


@pytest.mark.parametrize("wrong", ["a" * 32, b"short", 3])
@pytest.mark.parametrize("method", ["get", "claim", "put"])
def test_what_is_no_key_is_refused(folder, method, wrong):
    argument = {"get": wrong, "put": {wrong: b""}}.get(method, [wrong])
    with FeatureCache(folder) as cache, pytest.raises(ValueError, match="is not a key"):
        getattr(cache, method)(argument)


def test_a_damaged_value_is_never_returned_and_can_be_claimed_and_replaced(folder):
    with FeatureCache(folder) as cache:
        cache.put(items([0, 1]))
    with raw(folder) as env, env.begin(write=True) as txn:
        features = env.open_db(b"features", txn=txn)
        stored = bytearray(txn.get(key(0), db=features))
        stored[100] ^= 1
        txn.put(key(0), bytes(stored), db=features)
    with FeatureCache(folder) as cache:
        assert cache.get(key(0)) is None
        assert cache.get(key(1)) == value(1)
        assert cache.claim([key(0), key(1)]) == {key(0)}
        cache.put(items([0]))
        assert cache.get(key(0)) == value(0)
    assert cache_info(folder) == CacheInfo(folder, 2, 4 * PAGE, cache_info(folder).file_size, None, 3)


def test_a_value_of_another_key_is_damaged(folder):
    with FeatureCache(folder) as cache:
        cache.put(items([0]))
    with raw(folder) as env, env.begin(write=True) as txn:
        features = env.open_db(b"features", txn=txn)
        txn.put(key(1), txn.get(key(0), db=features), db=features)
    with FeatureCache(folder) as cache:
        assert cache.get(key(1)) is None


@pytest.mark.parametrize("error", [lmdb.CorruptedError, lmdb.PageNotFoundError])
def test_a_page_that_cannot_be_read_is_a_missing_value(folder, monkeypatch, error):
    class Broken:
        def begin(self, write=False):
            raise error("broken")

    with FeatureCache(folder) as cache:
        cache.put(items([0]))
        with monkeypatch.context() as patch:
            patch.setattr(cache._database, "env", Broken())
            assert cache.get(key(0)) is None
        assert cache.get(key(0)) == value(0)


def test_what_is_claimed_is_refused_to_all_until_it_is_stored_or_its_owner_leaves(folder):
    keys = [key(i) for i in range(4)]
    with FeatureCache(folder) as theirs:
        with FeatureCache(folder) as ours:
            ours.put(items([0]))
            assert ours.claim(keys[:3]) == {key(1), key(2)}
            assert theirs.claim(keys) == {key(3)}
            assert ours.claim(keys) == set()
            ours.put(items([1]))
        assert theirs.claim(keys) == {key(2)}
    assert list((folder / "owners").iterdir()) == []


def test_what_was_stored_and_has_left_can_be_claimed_again(folder):
    with FeatureCache(folder) as ours, FeatureCache(folder) as theirs:
        assert ours.claim([key(0)]) == {key(0)}
        ours.put(items([0]))
        limit_cache(folder, PAGE)
        assert theirs.claim([key(0)]) == {key(0)}


def test_who_enters_clears_what_killed_processes_left(folder, start):
    script = """
with FeatureCache(folder) as cache:
    cache.claim([key(0)])
    print(flush=True)
    sys.stdin.read()
"""
    for _ in range(2):
        process = start(script, folder)
        process.stdout.readline()
        process.kill()
        process.wait()
    assert len(list((folder / "owners").iterdir())) == 1
    with FeatureCache(folder) as cache:
        assert len(list((folder / "owners").iterdir())) == 1
        assert cache._owner_lock.is_locked
    with raw(folder) as env, env.begin() as txn:
        assert txn.stat(env.open_db(b"claims", txn=txn))["entries"] == 0


def test_claims_end_with_the_one_who_holds_them(folder):
    with FeatureCache(folder) as ours:
        with FeatureCache(folder) as theirs:
            assert theirs.claim([key(0)]) == {key(0)}
            assert ours.claim([key(0)]) == set()
        assert ours.claim([key(0)]) == {key(0)}


def test_a_process_killed_amid_its_puts_loses_none_and_its_claims_pass_on_at_once(folder, start):
    script = """
import itertools
with FeatureCache(folder) as cache:
    cache.claim([key(-1), key(-2)])
    for i in itertools.count():
        cache.put({key(i): hashlib.shake_256(str(i).encode()).digest(6000)})
        print(i, flush=True)
"""
    process = start(script, folder)
    with FeatureCache(folder) as early:
        assert process.stdout.readline() == "0\n"
        assert early.claim([key(-1)]) == set()
        lines = [process.stdout.readline() for _ in range(30)]
        process.kill()
        lines += process.stdout.readlines()
        last = max(int(line) for line in lines if line.endswith("\n"))
        assert early.claim([key(-1)]) == {key(-1)}
        with FeatureCache(folder) as late:
            assert len(list((folder / "owners").iterdir())) == 2
            assert late.claim([key(-1), key(-2)]) == {key(-2)}
            assert [i for i in range(last + 1) if late.get(key(i)) != value(i)] == []
    assert list((folder / "owners").iterdir()) == []


def test_processes_that_want_the_same_at_once_share_it_out(folder, start):
    script = """
import random
with FeatureCache(folder) as cache:
    print(flush=True)
    for round in sys.stdin:
        keys = [key(i) for i in range(100 * int(round), 100 * int(round) + 60)]
        random.Random(os.getpid()).shuffle(keys)
        mine = set()
        for start in range(0, 60, 4):
            mine |= cache.claim(keys[start:start + 4])
        print(json.dumps([k.hex() for k in mine]), flush=True)
"""
    processes = [start(script, folder) for _ in range(3)]
    for process in processes:
        process.stdout.readline()
    busy = 0
    for turn in range(5):
        for process in processes:
            process.stdin.write(f"{turn}\n")
            process.stdin.flush()
        shares = [json.loads(process.stdout.readline()) for process in processes]
        claimed = sorted(chain.from_iterable(shares))
        assert claimed == sorted(key(i).hex() for i in range(100 * turn, 100 * turn + 60))
        busy += sum(len(share) > 0 for share in shares) > 1
    for process in processes:
        finish(process)
    assert busy > 0  # otherwise they came one after the other, and this proved nothing


@pytest.mark.parametrize("shared", [True, False], ids=["one instance", "an instance each"])
def test_threads_compute_nothing_twice(folder, shared):
    computed, barrier = [], threading.Barrier(4)
    keys = {key(i): i for i in range(40)}

    def work(cache):
        barrier.wait()
        for some in zip(*[iter(keys)] * 4, strict=True):
            ours = cache.claim(some)
            computed.extend(ours)
            cache.put({k: value(keys[k]) for k in ours})
            cache.get(some[0])

    def enter_and_work(_):
        with FeatureCache(folder) as cache:
            work(cache)

    with FeatureCache(folder) as cache, ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [cache] * 4) if shared else pool.map(enter_and_work, range(4)))
        assert sorted(computed) == sorted(keys)
        assert all(cache.get(k) == value(i) for k, i in keys.items())
    assert cache_info(folder).n_computed == 40
    assert database._databases == {}


def _in_child(folder, inherited, found):
    try:
        inherited.get(key(0))
    except RuntimeError as error:
        found.put(str(error))
    inherited.__exit__(None, None, None)
    with FeatureCache(folder) as cache:
        found.put((cache.get(key(0)), cache.claim([key(1), key(2)])))
        cache.put(items([2]))


@needs_fork
def test_a_forked_process_can_use_a_cache_that_its_parent_has_open(folder):
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    stop = threading.Event()

    with FeatureCache(folder) as cache:
        cache.put(items([0]))
        assert cache.claim([key(1)]) == {key(1)}

        def keep_busy():
            while not stop.is_set():
                cache.put(items([3]))
                cache.get(key(3))

        thread = threading.Thread(target=keep_busy)
        thread.start()
        try:
            for _ in range(5):
                with warnings.catch_warnings():
                    # Newer Pythons warn of forking with threads, which is what this is about.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    child = context.Process(target=_in_child, args=(folder, cache, found))
                    child.start()
                child.join(30)
                assert child.exitcode == 0
                assert "not entered in this process" in found.get()
                stored, claimed = found.get()
                assert stored == value(0)
                assert key(1) not in claimed
        finally:
            stop.set()
            thread.join()
        assert cache.get(key(2)) == value(2)
        cache.put(items([1]))
        assert cache.get(key(1)) == value(1)


@needs_fork
def test_claims_of_a_killed_process_pass_on_although_its_fork_lives(folder, start):
    script = """
with FeatureCache(folder) as cache:
    cache.claim([key(0)])
    if os.fork() == 0:
        print(flush=True)  # only now it has surely let go of what it inherited
        sys.stdin.read()
        os._exit(0)
    sys.stdin.read()
"""
    process = start(script, folder)
    process.stdout.readline()
    with FeatureCache(folder) as cache:
        assert cache.claim([key(0)]) == set()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert cache.claim([key(0)]) == {key(0)}


def test_the_oldest_values_leave_when_a_limit_is_set_and_ever_after(folder, start):
    with FeatureCache(folder) as cache:
        for i in (3, 1, 2, 0):
            cache.put(items([i]))
        limit_cache(folder, 3 * 2 * PAGE)
        assert [cache.get(key(i)) is None for i in range(4)] == [False, False, False, True]
        finish(start("with FeatureCache(folder) as cache: cache.put({key(4): bytes(6000)})", folder))
        assert [cache.get(key(i)) is None for i in range(5)] == [False, True, False, True, False]
        limit_cache(folder, None)
        cache.put(items([5]))
        assert cache.get(key(2)) == value(2)
    info = cache_info(folder)
    assert (info.n_images, info.size, info.max_size, info.n_computed) == (4, 8 * PAGE, None, 6)


def test_a_limit_can_be_set_before_there_is_a_cache_and_is_remembered(folder, start):
    limit_cache(folder, 5 * PAGE)
    with FeatureCache(folder) as cache:
        cache.put(items(range(10)))
    assert cache_info(folder).max_size == 5 * PAGE
    script = "info = cache_info(folder); print(info.max_size, info.n_images)"
    assert finish(start(script, folder)).split() == [str(5 * PAGE), "2"]


def test_a_value_larger_than_the_limit_is_not_kept(folder):
    limit_cache(folder, PAGE)
    with FeatureCache(folder) as cache:
        cache.put(items([0], size=10 * PAGE))
        assert cache.get(key(0)) is None
        cache.put(items([1], size=100))
    assert cache_info(folder).size == PAGE
    with FeatureCache(folder) as cache:  # its pages were never written, which is no damage
        assert cache.get(key(1)) == value(1, 100)


@pytest.mark.parametrize("size", [6000, 3000], ids=["two pages", "one page"])
def test_the_file_stays_near_its_limit_whatever_is_written(folder, size):
    limit = 2 * 2**20
    limit_cache(folder, limit)
    with FeatureCache(folder) as cache:
        for start in range(0, 2000, 10):
            cache.put(items(range(start, start + 10), size))
        assert cache.get(key(1999)) == value(1999, size)
    info = cache_info(folder)
    assert info.n_computed * size > 2.5 * limit
    assert 0.95 * limit < info.size <= limit
    assert (folder / "features.lmdb").stat().st_size < used_limit(limit)
    assert info.file_size < used_limit(limit)


def test_the_file_stays_near_its_limit_when_sizes_differ_and_others_read(folder):
    limit = 2**20
    limit_cache(folder, limit)
    stop = threading.Event()

    with FeatureCache(folder) as cache:

        def read():
            while not stop.is_set():
                cache.get(key(3))

        thread = threading.Thread(target=read)
        thread.start()
        try:
            for i in range(500):
                cache.put(items([i], size=1 + 37 * i % 20000))
        finally:
            stop.set()
            thread.join()
    assert cache_info(folder).size <= limit
    assert cache_info(folder).file_size < 1.25 * limit + SLACK


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "1 GB"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(folder, wrong):
    with pytest.raises(ValueError, match="not a positive number of bytes"):
        limit_cache(folder, wrong)
    assert not folder.exists()


def filled(folder, n=50):
    with FeatureCache(folder) as cache:
        cache.put(items(range(n)))
    return folder / "features.lmdb"


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-PAGE],
        lambda content: content[:PAGE],
        lambda content: content[:5000],
        lambda content: hashlib.shake_256(b"").digest(len(content)),
        lambda content: bytes(len(content)),
        lambda content: content[:16] + bytes(PAGE - 16) + content[PAGE:],
        lambda content: b"hello",
    ],
    ids=["half", "but a page", "a page", "not quite two pages", "random", "zeros", "a zeroed meta page", "text"],
)
def test_a_damaged_file_is_moved_aside_and_a_new_one_begun(folder, damage):
    path = filled(folder)
    content = damage(path.read_bytes())
    path.write_bytes(content)
    cache = FeatureCache(folder)
    with pytest.warns(UserWarning, match=r"is damaged .*renamed to features\.lmdb\.damaged") as warned:
        cache.__enter__()
    with contextlib.ExitStack() as stack:
        stack.push(cache)
        assert cache.get(key(0)) is None
        assert len(cache.claim([key(0)])) == 1
        cache.put(items([0]))
    assert [warning.filename for warning in warned] == [__file__]
    assert (folder / "features.lmdb.damaged").read_bytes() == content
    with FeatureCache(folder) as cache:
        assert cache.get(key(0)) == value(0)


def test_an_empty_file_is_a_new_cache(folder):
    folder.mkdir()
    (folder / "features.lmdb").touch()
    with FeatureCache(folder) as cache:
        cache.put(items([0]))
        assert cache.get(key(0)) == value(0)


def test_a_file_without_its_last_pages_is_no_damage_if_these_are_free(folder):
    path = filled(folder)
    generator = random.Random(0)
    with raw(folder) as env:
        features = env.open_db(b"features")
        for _ in range(500):
            with env.begin(write=True, db=features) as txn:
                added = [generator.randbytes(32) for _ in range(100)]
                for k in added:
                    txn.put(k, bytes(generator.choice([100, 5000, 20000])))
                for k in added:
                    txn.delete(k)
            missing = database.used_size(env) - path.stat().st_size
            if missing > 0:
                break
    assert missing > 0  # otherwise there is nothing to be tested
    with FeatureCache(folder) as cache:
        assert [cache.get(key(i)) == value(i) for i in range(50)] == [True] * 50
    assert not (folder / "features.lmdb.damaged").exists()


def test_pages_overwritten_in_the_file_are_never_returned_and_never_fatal(folder, start):
    path = filled(folder)
    content = path.read_bytes()
    script = """
import warnings
warnings.simplefilter("ignore")
with FeatureCache(folder) as cache:
    keys = [key(i) for i in range(50)]
    for i in range(50):
        assert cache.get(keys[i]) in (None, hashlib.shake_256(str(i).encode()).digest(6000))
    for k in cache.claim(keys):
        cache.put({k: b""})
"""
    for page in (2, len(content) // PAGE // 2, len(content) // PAGE - 5):
        path.write_bytes(content[: page * PAGE] + hashlib.shake_256(b"").digest(PAGE) + content[(page + 1) * PAGE :])
        finish(start(script, folder))
    assert len(content) > 100 * PAGE


@pytest.mark.parametrize("table", [b"meta", b"others"], ids=["another format", "something else's"])
def test_a_file_in_another_format_is_left_alone(folder, table):
    path = filled(folder)
    if table == b"others":
        path.unlink()
    with raw(folder) as env, env.begin(write=True) as txn:
        txn.put(b"format", b"99", db=env.open_db(table, txn=txn))
    content = path.read_bytes()
    for use in (FeatureCache(folder).__enter__, lambda: cache_info(folder), lambda: limit_cache(folder, 1)):
        with pytest.raises(ValueError, match=r"has format .*Use another folder"):
            use()
    assert path.read_bytes() == content
    assert database._databases == {}


def test_a_map_that_is_full_is_warned_of_once_and_ends_the_storing(folder, monkeypatch):
    monkeypatch.setattr(database, "_MAP_SIZE", 2**18)
    with FeatureCache(folder) as other, FeatureCache(folder) as cache:
        cache.put(items([0]))
        assert cache.claim([key(1), key(100)]) == {key(1), key(100)}
        with pytest.warns(UserWarning, match=r"takes nothing more .*results are right") as warned:
            cache.put(items(range(1, 100)))
        cache.put(items(range(1, 200)))  # a second warning would be an error
        assert [warning.filename for warning in warned] == [__file__]
        assert [cache.get(key(i)) for i in range(2)] == [value(0), None]
        assert other.claim([key(1), key(100)]) == {key(1), key(100)}  # nobody waits for it
        assert cache.claim([key(0), key(1)]) == {key(1)}
    with FeatureCache(folder) as cache:
        cache.put(items([1]))
        assert cache.get(key(1)) == value(1)


@pytest.mark.skipif(os.name != "posix", reason="file sizes can be limited on POSIX only")
@pytest.mark.parametrize("method", ["put", "claim"])
def test_a_disk_that_takes_no_more_is_no_error(folder, method):
    import resource

    path = filled(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with FeatureCache(folder) as cache:
        many = items(range(5000), size=100)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
        try:
            with pytest.warns(UserWarning, match="takes nothing more"):
                result = getattr(cache, method)(many)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert [cache.get(key(i)) == value(i) for i in (0, 49, 50)] == [True, True, False]
    assert result is None if method == "put" else result == set(many) - set(items(range(50)))
    with FeatureCache(folder) as cache:
        assert cache.claim(items(range(45, 60))) == set(items(range(50, 60)))


@pytest.mark.parametrize("error", [lmdb.DiskError("No space left on device"), OSError(28, "No space left on device")])
def test_a_full_disk_is_warned_of_once(folder, monkeypatch, error):
    def fail(*_):
        raise error

    with FeatureCache(folder) as cache:
        cache.put(items([0]))
        cache.claim([key(1)])
        monkeypatch.setattr(cache_module, "_store", fail)
        with pytest.warns(UserWarning, match="No space left on device"):
            cache.put(items([1]))
        cache.put(items([2]))  # a second warning would be an error
        assert cache.get(key(0)) == value(0)
        with FeatureCache(folder) as other:
            assert other.claim([key(1)]) == {key(1)}


def test_info_on_nothing_is_zero_and_creates_nothing(folder):
    info = cache_info(folder)
    assert info == CacheInfo(folder, 0, 0, 0, None, 0)
    assert not folder.exists()
    folder.mkdir()
    assert cache_info(str(folder)) == info
    assert list(folder.iterdir()) == []


def test_info_counts_what_is_stored(folder):
    with FeatureCache(folder) as cache:
        cache.put(items(range(10)))
        cache.put(items(range(5)))
        info = cache_info(folder)
    assert info == cache_info(folder)
    assert (info.n_images, info.size, info.n_computed) == (10, 20 * PAGE, 15)
    assert info.size < info.file_size == (folder / "features.lmdb").stat().st_size
    assert str(info) == (
        f"CacheInfo('{folder}': 10 images, 0.1 MB, no limit; file of {info.file_size / 1e6:.1f} MB; "
        "15 images computed so far)"
    )
    assert "2,000 images, 4.0 MB, limit 3,000.0 MB; file" in repr(CacheInfo(folder, 2000, 4 * 10**6, 0, 3 * 10**9))


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=r"cannot be used.*Pass a folder"):
            FeatureCache(path).__enter__()
        with pytest.raises(OSError, match=r"cannot be used.*Pass a folder"):
            limit_cache(path, 1000)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_folder_that_cannot_be_written_is_refused(folder):
    filled(folder)
    folder.chmod(0o500)
    try:
        with pytest.raises(OSError, match=r"cannot be used.*Pass a folder"):
            FeatureCache(folder).__enter__()
    finally:
        folder.chmod(0o700)


def test_folders_may_be_nested_and_have_any_name_and_be_reached_by_several_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    name = "Bilder für Ömer/図 1"
    with FeatureCache(f"~/{name}") as cache:
        cache.put(items([0]))
        monkeypatch.chdir(tmp_path)
        with FeatureCache(name) as again:
            assert again.get(key(0)) == value(0)
            assert len(database._databases) == 1
    assert cache_info(tmp_path / name).n_images == 1


def test_a_full_disk_is_an_error_and_no_reason_to_move_a_file(folder, monkeypatch):
    with FeatureCache(folder) as cache:
        cache.put(items(range(3)))
    monkeypatch.setattr(database.shutil, "disk_usage", lambda path: SimpleNamespace(free=4096))
    with pytest.raises(OSError, match="No space left"):
        FeatureCache(folder).__enter__()
    monkeypatch.undo()
    assert cache_info(folder).n_images == 3
    assert not list(folder.glob("*.damaged"))


def test_an_empty_string_is_no_folder():
    with pytest.raises(ValueError, match="empty string"):
        FeatureCache("")
