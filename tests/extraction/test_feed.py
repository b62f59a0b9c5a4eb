"""What is read, computed and kept: duplicates, the cache, unreadable images, memory that runs out, threads."""

import logging
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from torch.utils.data import Dataset

from skvfusion import LayerProbeClassifier, LayerwiseFeatureExtractor
from skvfusion.extraction import cache_info, limit_cache, recipe
from skvfusion.extraction.backbones import get_backbone
from skvfusion.extraction.feed import ArraySink, Feed
from skvfusion.extraction.images import ImageSequence


@pytest.fixture(scope="module")
def make(tiny_vit):
    def build(**parameters):
        return LayerwiseFeatureExtractor(**{"backbone": tiny_vit(), "device": "cpu", **parameters})

    return build


@pytest.fixture(scope="module")
def many():
    return np.random.default_rng(1).integers(0, 256, (20, 36, 40, 3), dtype=np.uint8)


# ---- duplicates


def test_duplicates_in_a_call_are_computed_once(make, many, computed):
    X = np.concatenate([many[:7], many[:3], many[2:9]])
    stack = make(batch_size=4).transform(X)
    assert sum(computed) == 9
    np.testing.assert_array_equal(stack[7:10], stack[:3])
    np.testing.assert_allclose(
        stack, np.concatenate([make().transform(X[i : i + 1]) for i in range(len(X))]), atol=1e-4
    )


def test_the_same_pixels_are_one_image_in_whatever_form(make, many, computed):
    image = many[0]
    forms = [image, Image.fromarray(image), torch.from_numpy(image).permute(2, 0, 1), image / 255]
    stack = make().transform(forms)
    assert sum(computed) == 1
    assert (stack == stack[0]).all()


def test_one_image_many_times(make, many, computed):
    stack = make(batch_size=2).transform([many[0]] * 50)
    assert stack.shape == (50, 6, 64)
    assert sum(computed) == 1


# ---- the cache


def test_a_second_call_computes_nothing_and_gives_the_same_bits(make, many, computed, tmp_path):
    first = make(cache=tmp_path).transform(many)
    assert sum(computed) == 20
    second = make(cache=str(tmp_path)).transform(many[::-1])
    assert sum(computed) == 20
    np.testing.assert_array_equal(second[::-1], first)
    np.testing.assert_allclose(first, make().transform(many), atol=1e-5)


@pytest.mark.parametrize(
    "changed",
    [
        {"layers": "last"},
        {"layers": [1, 3]},
        {"batch_size": 3},
        {"n_threads": 3},
        {"output": "flat"},
        {"on_error": "nan"},
    ],
    ids=str,
)
def test_what_only_slices_or_speeds_up_is_served(make, many, computed, tmp_path, changed):
    make(cache=tmp_path).transform(many)
    served = make(cache=tmp_path, **changed).transform(many)
    assert sum(computed) == 20
    np.testing.assert_allclose(served, make(**changed).transform(many), atol=1e-5)


@pytest.mark.parametrize(
    "changed",
    [
        {"tap": "norm2"},
        {"norm": "all"},
        {"norm": "none"},
        {"tokens": "mean"},
        {"tokens": "cls+mean"},
        {"image_size": 64},
        {"weights": "random"},
        {"backbone": "nano"},
        {"dtype": "bfloat16"},
    ],
    ids=str,
)
def test_what_changes_results_is_computed_anew(make, many, computed, tmp_path, changed):
    make(cache=tmp_path).transform(many[:2])
    other = make(cache=tmp_path, **changed).transform(many[:2])
    assert sum(computed) == 4
    np.testing.assert_allclose(other, make(**changed).transform(many[:2]), atol=1e-5)


def test_other_weights_in_the_same_file_are_computed_anew(make, many, computed, tmp_path, state_dict):
    from safetensors.torch import save_file

    file = tmp_path / "weights.safetensors"
    stacks = []
    for seed in (0, 1, 0):
        save_file(state_dict(seed, img_size=32), file)
        os.utime(file, ns=(seed, seed))
        extractor = make(backbone="test_vit", image_size=32, weights=file, cache=tmp_path / "cache")
        stacks.append(extractor.transform(many[:2]))
    assert sum(computed) == 4
    assert np.abs(stacks[0] - stacks[1]).max() > 0.1
    np.testing.assert_array_equal(stacks[0], stacks[2])


def test_other_versions_are_computed_anew(make, many, computed, tmp_path, monkeypatch):
    make(cache=tmp_path).transform(many[:2])
    original = recipe.importlib.metadata.version
    monkeypatch.setattr(recipe.importlib.metadata, "version", lambda name: "0.0" if name == "timm" else original(name))
    make(cache=tmp_path).transform(many[:2])
    assert sum(computed) == 4


def test_paths_are_known_by_content(make, many, computed, tmp_path):
    for name in ("a.png", "b.png"):
        Image.fromarray(many[0]).save(tmp_path / name)
    extractor = make(cache=tmp_path / "cache")
    extractor.transform([tmp_path / "a.png"])
    extractor.transform([str(tmp_path / "b.png")])
    assert sum(computed) == 1
    Image.fromarray(many[1]).save(tmp_path / "a.png")
    changed = extractor.transform([tmp_path / "a.png"])
    assert sum(computed) == 2
    np.testing.assert_allclose(changed, make().transform(many[1:2]), atol=1e-5)


def test_damaged_entries_are_computed_anew(make, many, computed, tmp_path):
    import lmdb

    expected = make(cache=tmp_path).transform(many[:3])
    with lmdb.open(str(tmp_path / "features.lmdb"), subdir=False, max_dbs=4, map_size=2**30) as env:
        features = env.open_db(b"features")
        with env.begin(write=True) as txn:
            key, value = next(iter(txn.cursor(db=features)))
            txn.put(bytes(key), bytes(value[:-5]) + b"12345", db=features)
    np.testing.assert_array_equal(make(cache=tmp_path).transform(many[:3]), expected)
    assert sum(computed) == 4


def test_an_interrupted_call_keeps_what_was_computed(make, many, computed, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"Image 12 \(.*broken.png\)"):
        make(cache=tmp_path / "cache", batch_size=4).transform([*many[:12], tmp_path / "broken.png", *many[12:]])
    assert 8 <= sum(computed) <= 12
    assert cache_info(tmp_path / "cache").n_images >= 8
    make(cache=tmp_path / "cache").transform(many)
    assert sum(computed) == 20


def test_a_limited_cache_still_gives_right_results(make, many, computed, tmp_path):
    limit_cache(tmp_path, 20_000)
    expected = make().transform(many)
    for _ in range(2):
        np.testing.assert_allclose(make(cache=tmp_path, batch_size=4).transform(many), expected, atol=1e-5)
    assert cache_info(tmp_path).size <= 20_000
    assert sum(computed) > 40


CHILD = """
import sys, time
import numpy as np, torch
torch.set_num_threads(1)
from skvfusion import LayerwiseFeatureExtractor
from skvfusion.extraction import recipe
original = recipe.layer_tokens
def slow(backbone, batch, *args):
    time.sleep(float(sys.argv[3]))
    print(len(batch), flush=True)
    return original(backbone, batch, *args)
recipe.layer_tokens = slow
X = np.random.default_rng(1).integers(0, 256, (20, 36, 40, 3), dtype=np.uint8)
extractor = LayerwiseFeatureExtractor(sys.argv[1], cache=sys.argv[2], batch_size=2, device="cpu")
print("sum", float(extractor.transform(X).sum()))
"""


def child(backbone, cache, delay):
    command = [sys.executable, "-c", CHILD, backbone, str(cache), str(delay)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)


def test_two_processes_share_the_work(make, many, tiny_vit, tmp_path):
    processes = [child(tiny_vit(), tmp_path, 0.05) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0].split("\n") for process in processes]
    batches = [int(line) for lines in outputs for line in lines if line.isdigit()]
    assert sum(batches) == 20
    sums = [float(line.split()[1]) for lines in outputs for line in lines if line.startswith("sum")]
    assert sums == [sums[0]] * 2
    assert sums[0] == pytest.approx(float(make().transform(many).sum()), rel=1e-4)


def test_kill_loses_the_batch_in_flight_only(make, many, tiny_vit, computed, tmp_path):
    killed = child(tiny_vit(), tmp_path, 0.2)
    for _ in range(4):
        killed.stdout.readline()
    killed.kill()
    killed.communicate()
    assert cache_info(tmp_path).n_images >= 4
    stored = cache_info(tmp_path).n_images
    expected = make().transform(many)
    computed.clear()
    np.testing.assert_allclose(make(cache=tmp_path).transform(many), expected, atol=1e-5)
    assert sum(computed) == 20 - stored


def test_threads_share_the_work(make, many, computed, tmp_path):
    stacks = [None] * 3
    extractors = [make(cache=tmp_path, batch_size=2) for _ in stacks]

    def run(index):
        stacks[index] = extractors[index].transform(many)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(computed) == 20
    for stack in stacks[1:]:
        np.testing.assert_array_equal(stack, stacks[0])


class Counting(LayerwiseFeatureExtractor):
    """Writes a line to a file for each image that goes through the backbone, from whatever process."""

    def _recipe(self):
        recipe, layers = super()._recipe()
        log = Path(self.cache).parent / "computed.txt"

        class Counted(type(recipe)):
            def start(self, pixels, layers):
                with open(log, "a") as file:
                    file.write("x" * len(pixels))
                return super().start(pixels, layers)

        return Counted(recipe.backbone, recipe.tokens, recipe.tap, recipe.norm, recipe.dtype), layers


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_search_sends_each_image_through_the_backbone_once(many, tiny_vit, tmp_path, n_jobs):
    y = np.arange(20) % 2
    pipeline = Pipeline(
        [
            ("features", Counting(tiny_vit(), device="cpu", cache=str(tmp_path / "cache"), batch_size=2)),
            ("clf", LayerProbeClassifier()),
        ]
    )
    grid = {"features__layers": ["all", "second_half", "strided", "last"]}
    search = GridSearchCV(pipeline, grid, cv=5, n_jobs=n_jobs, error_score="raise").fit(list(many), y)
    assert len((tmp_path / "computed.txt").read_text()) == 20
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


# ---- images that cannot be read


@pytest.fixture
def with_broken(many, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    return [*many[:5], tmp_path / "broken.jpg", many[5], tmp_path / "missing.png"]


def test_nan_marks_the_row_and_warns_once(make, many, with_broken):
    message = r"(?s)2 of 8 images cannot be used.*Image 5 \(.*broken.jpg.*missing.png"
    with pytest.warns(UserWarning, match=message) as caught:
        stack = make(on_error="nan").transform(with_broken)
    assert len(caught) == 1
    assert np.isnan(stack[[5, 7]]).all()
    np.testing.assert_allclose(stack[[0, 1, 2, 3, 4, 6]], make().transform(many[:6]), atol=1e-5)


def test_nan_rows_are_named_by_a_classifier(make, with_broken):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stack = make(on_error="nan").transform(with_broken)
    with pytest.raises(ValueError, match=r"sample 5.*could not be read"):
        LayerProbeClassifier().fit(stack, [0, 1] * 4)


def test_nan_of_images_only_that_cannot_be_read(make, tmp_path):
    with pytest.warns(UserWarning, match="1 of 1 images"):
        assert np.isnan(make(on_error="nan").transform([tmp_path / "missing.png"])).all()


def test_a_failing_data_set_is_named_and_can_be_nan(make, many):
    class Failing(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            if index == 1:
                raise RuntimeError("no such row")
            return many[index], 0

    with pytest.raises(ValueError, match="Image 1 cannot be used: no such row"):
        make().transform(Failing())
    with pytest.warns(UserWarning, match="no such row"):
        assert np.isnan(make(on_error="nan").transform(Failing())).any(axis=(1, 2)).tolist() == [False, True, False]


def test_a_picture_too_narrow_to_be_resized_is_refused(make, many):
    line = np.zeros((1, 200_000, 3), np.uint8)
    with pytest.raises(ValueError, match=r"Image 1 \(.*too narrow to be resized to a shorter side of 36"):
        make().transform([many[0], line])


# ---- threads, order and memory


def test_a_data_set_is_read_in_order_and_in_the_callers_thread(make, many):
    seen = []

    class Recording(Dataset):
        def __len__(self):
            return len(many)

        def __getitem__(self, index):
            seen.append((index, threading.current_thread()))
            return many[index]

    make(n_threads=3, batch_size=3).transform(Recording())
    assert seen == [(index, threading.current_thread()) for index in range(20)]


def test_no_more_images_are_read_ahead_than_needed(make, many, computed):
    asked = []

    class Recording(Dataset):
        def __len__(self):
            return len(many)

        def __getitem__(self, index):
            asked.append((index, sum(computed)))
            return many[index]

    make(n_threads=1, batch_size=2).transform(Recording())
    assert max(index - done for index, done in asked) <= 10


def test_threads_end_with_the_call(make, many, tmp_path):
    with pytest.raises(ValueError, match="missing"):
        make(n_threads=2).transform([*many, tmp_path / "missing.png"])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("skvfusion")]


@pytest.fixture
def little_memory(monkeypatch):
    """More than 3 images at once raise what CUDA raises."""
    sizes, original = [], recipe.layer_tokens

    def fail(backbone, batch, *args):
        sizes.append(len(batch))
        if len(batch) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return original(backbone, batch, *args)

    monkeypatch.setattr(recipe, "layer_tokens", fail)
    return sizes


def test_a_batch_that_does_not_fit_is_halved_and_said_once(make, many, little_memory, caplog):
    with caplog.at_level(logging.WARNING, logger="skvfusion"):
        make(batch_size=8).transform(many)
    assert [record.getMessage() for record in caplog.records] == [
        "A batch of 8 images does not fit into the memory of cpu; going on with smaller ones. batch_size=4 avoids the "
        "attempt."
    ]
    # Halved twice, and never tried again.
    assert little_memory[:4] == [8, 4, 2, 2]
    assert max(little_memory[4:]) <= 4
    assert sum(size for size in little_memory if size <= 3) == 20


def test_halved_batches_give_the_same_result(make, many, little_memory, monkeypatch):
    halved = make(batch_size=8).transform(many)
    monkeypatch.undo()
    np.testing.assert_allclose(halved, make(batch_size=8).transform(many), atol=1e-5)


def test_a_single_image_that_does_not_fit_raises(make, many, monkeypatch):
    def fail(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(recipe, "layer_tokens", fail)
    with pytest.raises(torch.OutOfMemoryError):
        make(batch_size=4).transform(many)


def test_other_errors_of_the_backbone_are_not_hidden(make, many, monkeypatch, tmp_path):
    def fail(*args):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(recipe, "layer_tokens", fail)
    extractor = make(batch_size=4, cache=tmp_path)
    with pytest.raises(RuntimeError, match="mat1"):
        extractor.transform(many)
    monkeypatch.undo()
    assert make(cache=tmp_path).transform(many).shape == (20, 6, 64)  # no claim is left that would be waited for


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: ..."), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (RuntimeError("expected scalar type Float"), False),
    ],
)
def test_out_of_memory_is_told_from_other_errors(error, expected):
    assert recipe.is_out_of_memory(error) == expected


# ---- dtypes and devices


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_less_precision_gives_nearly_the_same_in_float32(make, many, dtype):
    reduced, full = make(dtype=dtype).fit(), make().fit()
    assert (reduced.dtype_, full.dtype_) == (dtype, "float32")
    a, b = reduced.transform(many), full.transform(many)
    assert a.dtype == np.float32
    assert np.abs(a - b).max() > 0
    assert np.linalg.norm(a - b) < 0.05 * np.linalg.norm(b)


@pytest.mark.parametrize(("capability", "expected"), [((8, 0), "bfloat16"), ((9, 0), "bfloat16"), ((7, 5), "float32")])
def test_automatic_dtype_is_bfloat16_on_gpus_that_have_it(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert recipe.resolve_dtype("auto", torch.device("cuda")) == getattr(torch, expected)
    assert recipe.resolve_dtype("auto", torch.device("cpu")) == torch.float32
    assert recipe.resolve_dtype("float32", torch.device("cuda")) == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "auto"])
@pytest.mark.parametrize("tap", ["block", "norm2"])
def test_a_gpu_gives_what_the_cpu_gives(make, many, tmp_path, dtype, tap):
    expected = make(tap=tap).transform(many)
    on_gpu = make(device="cuda", dtype=dtype, tap=tap, batch_size=4, cache=tmp_path).transform(many)
    tolerance = 1e-3 if dtype == "float32" else 0.05
    assert np.linalg.norm(on_gpu - expected) < tolerance * np.linalg.norm(expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_of_a_gpu_that_runs_out_is_survived(make, many):
    whole, free = torch.cuda.mem_get_info()[1], torch.cuda.mem_get_info()[0]
    torch.cuda.set_per_process_memory_fraction(min(1, 0.5 * 2**30 / whole) if free else 1)
    try:
        extractor = LayerwiseFeatureExtractor("in21k_b", weights="random", device="cuda", batch_size=512)
        big = np.random.default_rng(0).integers(0, 256, (512, 8, 8, 3), dtype=np.uint8)
        assert np.isfinite(extractor.transform(big)).all()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


class FakeGPU:
    """A recipe that computes the mean of an image, and notes when it is asked to start and to wait."""

    tokens = ["cls"]
    backbone = SimpleNamespace(
        device=torch.device("cuda"), depth=1, dim=1, shorter_side=None, pixels=lambda image: torch.tensor(image.size)
    )

    def __init__(self):
        self.events = []

    def start(self, pixels, layers):
        number = sum(event.startswith("start") for event in self.events)
        self.events.append(f"start {number}")

        def wait():
            self.events.append(f"wait {number}")
            return torch.stack(pixels)[:, :1].float().numpy()[:, None, None]

        return wait


def test_the_next_batch_is_started_before_a_gpu_is_waited_for():
    images = [Image.new("RGB", (width, 1)) for width in range(1, 11)]
    gpu, sink = FakeGPU(), ArraySink((10, 1, 1))
    Feed(ImageSequence(images), gpu, [0], sink, batch_size=3, n_threads=2, on_error="raise").run()
    assert gpu.events == ["start 0", "start 1", "wait 0", "start 2", "wait 1", "start 3", "wait 2", "wait 3"]
    np.testing.assert_array_equal(sink.rows[:, 0, 0], range(1, 11))


def test_joblib_hash_depends_on_parameters_only(make, many, tmp_path):
    extractor = make(cache=str(tmp_path))
    before = joblib.hash(extractor)
    extractor.fit_transform(many[:2])
    assert joblib.hash(extractor) == joblib.hash(clone(extractor)) == before
    assert joblib.hash(make()) != before


def test_backbone_fingerprints_differ_by_weights_and_architecture(tiny_vit):
    cpu = torch.device("cpu")
    prints = {
        get_backbone(tiny_vit(), None, None, cpu).fingerprint,
        get_backbone(tiny_vit(seed=1), None, None, cpu).fingerprint,
        get_backbone("test_vit", "random", 32, cpu).fingerprint,
        get_backbone("nano", None, None, cpu).fingerprint,
    }
    assert len(prints) == 4
