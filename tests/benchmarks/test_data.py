"""The image sets: every entry of the registry on a tiny fake of what lies on disk, and the bundled ones."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from torchvision import datasets

from benchmarks.data import BUNDLED, REGISTRY, SetNotFound, read_set
from benchmarks.data.__main__ import main, markdown
from benchmarks.data.split import draw_split
from skvfusion import LayerwiseFeatureExtractor
from skvfusion.extraction.images import ImageSequence

_spec = importlib.util.spec_from_file_location("benchmark_fakes", Path(__file__).with_name("fakes.py"))
fakes = sys.modules.setdefault("benchmark_fakes", importlib.util.module_from_spec(_spec))
_spec.loader.exec_module(fakes)

# Training images, test images, test labels, and the number of classes where these differ from the usual fake.
USUAL = (4, [0, 1], 2)
SIZES = {
    "cifar10": (10, [0, 1], 2),
    "cifar100": (2, [0, 1], 2),
    "caltech101": (60, [0, 1, 1, 1], 2),
    "mnist": (4, [0, 1], 10),
    "flowers102": (4, [0, 1], 102),
    "imagenet1k": (6, [0, 1, 2], 3),
    "imagenet200": (4, [0, 1], 200),
    "imagenet200_c": (4, [0, 1] * 75, 200),
    "cifar10_c": (10, [0, 1] * 75, 2),
    "cifar100_c": (2, [0, 1] * 75, 2),
    "pathmnist": (4, [0, 1], 9),
    "bloodmnist": (4, [0, 1], 8),
    "dermamnist": (4, [0, 1], 7),
}
FIRST_GROUPS = {
    "celeba": ["not blond, male", "blond, female"],
    "waterbirds": ["landbird on water", "waterbird on land"],
    "cifar10_c": ["gaussian_noise-1", "gaussian_noise-1"],
    "cifar100_c": ["gaussian_noise-1", "gaussian_noise-1"],
    "imagenet200_c": ["gaussian_noise-1", "gaussian_noise-1"],
}


@pytest.fixture
def unchecked(monkeypatch):
    """Let torchvision accept the fakes: their MD5 sums are not those of the real files."""
    for module in ("cifar", "celeba", "flowers102", "stl10", "svhn", "mnist"):
        monkeypatch.setattr(getattr(datasets, module), "check_integrity", lambda path, md5=None: Path(path).exists())


@pytest.mark.parametrize("name", REGISTRY)
def test_every_set_is_read_from_its_form_on_disk(name, tmp_path, unchecked):
    fakes.make(REGISTRY[name], tmp_path)
    split = read_set(name, tmp_path)
    n_train, labels, n_classes = SIZES.get(name, USUAL)
    assert len(split.images) == len(split.y) == n_train
    assert set(split.y) == set(labels)
    assert len(split.images_test) == len(split.y_test)
    assert split.y_test.tolist() == labels
    assert len(split.classes) == n_classes
    assert split.y.dtype.kind == split.y_test.dtype.kind == "i"
    assert (split.groups_test is not None) == REGISTRY[name].groups
    for images in (ImageSequence(split.images), ImageSequence(split.images_test)):
        pixels = np.asarray(images[len(images) - 1])
        assert pixels.shape[2] == 3
        assert abs(pixels.astype(int) - fakes.GREY).max() <= 2  # JPEG rounds


@pytest.mark.parametrize("name", FIRST_GROUPS)
def test_groups_are_those_of_the_test_images(name, tmp_path, unchecked):
    fakes.make(REGISTRY[name], tmp_path)
    split = read_set(name, tmp_path)
    assert split.groups_test[:2].tolist() == FIRST_GROUPS[name]
    assert len(split.groups_test) == len(split.y_test)
    if name.endswith("_c"):
        names, counts = np.unique(split.groups_test, return_counts=True)
        assert len(names) == 75
        assert set(counts) == {2}
        assert split.groups_test[-1] == "jpeg_compression-5"


@pytest.mark.parametrize("name", REGISTRY)
def test_a_missing_set_says_how_to_get_it(name, tmp_path):
    with pytest.raises(SetNotFound) as raised:
        read_set(name, tmp_path)
    assert f"python -m benchmarks.data {name} --root {tmp_path}" in str(raised.value)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", REGISTRY)
def test_an_empty_folder_of_a_set_says_how_to_get_it(name, tmp_path):
    for folder in REGISTRY[name].folders:
        path = tmp_path / folder
        (path.parent if path.suffix == ".npz" else path).mkdir(parents=True)
    with pytest.raises(SetNotFound, match=f"benchmarks.data {name} --root"):
        read_set(name, tmp_path)


def test_the_registry_holds_the_sets_of_both_papers():
    assert sum("alf" in item.papers for item in REGISTRY.values()) == 20
    assert {name for name, item in REGISTRY.items() if item.kind == "ood"} == {
        "cifar10_c",
        "cifar100_c",
        "imagenet200_c",
        "celeba",
        "waterbirds",
    }


def test_the_documented_table_is_the_registry():
    page = Path(main.__code__.co_filename).parents[1] / "DATA.md"
    assert markdown() in page.read_text(encoding="utf-8"), "run python -m benchmarks.data --markdown"


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_sets_hold_as_many_images_as_they_say(name):
    split = read_set(name)
    assert f"{len(split.y)} / {len(split.y_test)}" in BUNDLED[name][1]
    assert set(split.y) == set(split.y_test) == set(range(len(split.classes)))
    assert len(split.images) == len(split.y) < 1000
    assert len(split.images_test) == len(split.y_test)


def test_patches_can_be_learned_from_nanos_last_layer_but_not_perfectly():
    from sklearn.linear_model import LogisticRegression

    split = read_set("patches")
    extractor = LayerwiseFeatureExtractor("nano", layers=[-1], device="cpu").fit(split.images)
    X, X_test = (extractor.transform(images).reshape(len(images), -1) for images in (split.images, split.images_test))
    accuracy = LogisticRegression(max_iter=2000).fit(X, split.y).score(X_test, split.y_test)
    assert 0.6 < accuracy < 0.95


def test_folders_per_class_are_read_by_path_and_by_bare_name(tmp_path):
    for part, n in (("train", 3), ("test", 1)):
        for label in ("cat", "dog"):
            for row in range(n):
                fakes.picture(tmp_path / f"pair/{part}/{label}/{row}.png")
    by_path, by_name = read_set(f"folder:{tmp_path / 'pair'}"), read_set("pair", tmp_path)
    for split in (by_path, by_name):
        assert split.classes == ["cat", "dog"]
        assert split.y.tolist() == [0, 0, 0, 1, 1, 1]
        assert split.y_test.tolist() == [0, 1]
        assert all("/train/" in path for path in split.images)


def test_a_folder_without_parts_is_split_alike_each_time(tmp_path):
    for label in ("cat", "dog"):
        for row in range(10):
            fakes.picture(tmp_path / f"whole/{label}/{row}.png")
    first, second = read_set("whole", tmp_path), read_set("whole", tmp_path)
    assert first.images == second.images
    assert np.bincount(first.y_test).tolist() == [2, 2]
    assert not set(first.images) & set(first.images_test)


def test_names_that_stand_for_nothing_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no set 'nothing'.*digits.*cifar10"):
        read_set("nothing", tmp_path)
    with pytest.raises(SetNotFound, match="no folder"):
        read_set(f"folder:{tmp_path / 'nothing'}")
    with pytest.raises(SetNotFound, match=r"python -m benchmarks\.data cifar10 --root ROOT"):
        read_set("cifar10")


def test_drawn_splits_are_stratified_and_whole():
    train, test = draw_split(np.repeat([0, 1], 50), 0.2)
    assert sorted([*train, *test]) == list(range(100))
    assert (test < 50).sum() == 10


def test_the_list_names_every_set(capsys):
    main(["--list"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in [*REGISTRY, *BUNDLED])


def test_downloads_need_a_root_and_known_names(capsys):
    for arguments, message in ((["cifar10"], "--root FOLDER is needed"), (["none", "--root", "x"], "no set none")):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err
