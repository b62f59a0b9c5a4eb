import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import weakref
from gc import collect

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data import create_transform

from skvfusion import LayerwiseFeatureExtractor
from skvfusion.extraction import ALIASES, backbones, cache_info
from skvfusion.extraction.backbones import get_backbone

CPU = torch.device("cpu")
ALTERNATIVES = "'nano', 'dinov2_s'.*ALIASES.*CLS token"


def extractor(backbone="test_vit", **parameters):
    return LayerwiseFeatureExtractor(backbone, **{"weights": "random", "device": "cpu", **parameters})


def extract(images, weights, backbone="test_vit", image_size=32, **parameters):
    return extractor(backbone, weights=weights, image_size=image_size, **parameters).transform(images)


@pytest.fixture
def one_image(images):
    return images[:1]


@pytest.fixture
def write(tmp_path):
    """Return a function that saves a state dict under a name, in the format that its suffix stands for."""

    def save(state, name="weights.safetensors"):
        path = tmp_path / name
        save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
        return path

    return save


def test_every_alias_is_a_pretrained_timm_model():
    assert set(ALIASES.values()) <= set(timm.list_models(pretrained=True))


def test_aliases_are_those_of_the_design():
    families = {"dinov2": "sblg", "dinov2_reg": "sblg", "dinov3": "sbl", "in21k": ["ti", *"sbl"], "deit3": "sbl"}
    expected = {f"{family}_{size}" for family, sizes in families.items() for size in sizes}
    assert set(ALIASES) == expected | {"clip_b32", "clip_b16", "clip_l14", "mae_b", "mae_l"}
    assert len(set(ALIASES.values())) == len(ALIASES)


def test_alias_stands_for_its_model(monkeypatch, no_shared_backbones, one_image):
    monkeypatch.setitem(ALIASES, "tiny", "test_vit.r160_in1k")
    np.testing.assert_array_equal(extract(one_image, "random", "tiny"), extract(one_image, "random"))


@pytest.mark.parametrize(
    ("backbone", "shape"),
    [("test_vit", (6, 64)), ("deit_tiny_distilled_patch16_224", (12, 192)), ("nano", (12, 128))],
)
def test_model_with_cls_token_is_accepted(one_image, backbone, shape):
    assert extract(one_image, "random", backbone).shape == (1, *shape)


@pytest.mark.parametrize("backbone", ["test_vit2", "test_vit3"])
@pytest.mark.parametrize("tokens", ["cls", "cls+mean"])
def test_register_is_not_taken_for_a_cls_token(backbone, tokens):
    message = rf"'{backbone}' has only 1 register tokens and no CLS token\. Use tokens='mean'.*{ALTERNATIVES}"
    with pytest.raises(ValueError, match=message):
        extractor(backbone, image_size=32, tokens=tokens).fit()


@pytest.mark.parametrize("pool", ["map", "avg"])
def test_model_without_prefix_tokens_is_refused_for_cls(tiny_vit, pool):
    backbone = tiny_vit(class_token=False, global_pool=pool)
    with pytest.raises(ValueError, match=rf"{backbone}' has no CLS token\. Use tokens='mean'.*{ALTERNATIVES}"):
        extractor(backbone, weights=None).fit()


@pytest.mark.parametrize("backbone", ["test_vit2", "test_vit3"])
def test_model_without_cls_token_is_accepted_for_mean(one_image, backbone):
    dim = {"test_vit2": 64, "test_vit3": 96}[backbone]
    assert extract(one_image, "random", backbone, tokens="mean", layers=[0, -1]).shape == (1, 2, dim)


@pytest.mark.parametrize("backbone", ["resnet18", "test_convnext", "swin_tiny_patch4_window7_224"])
@pytest.mark.parametrize("tokens", ["cls", "mean"])
def test_model_of_several_widths_is_refused(backbone, tokens):
    with pytest.raises(ValueError, match=rf"backbone='{backbone}' .*works in stages.*Use {ALTERNATIVES}"):
        extractor(backbone, tokens=tokens).fit()


@pytest.mark.parametrize("backbone", ["cait_xxs24_224", "xcit_nano_12_p16_224"])
def test_model_whose_cls_token_joins_late_is_refused_for_cls(backbone):
    message = rf"backbone='{backbone}' has .*no CLS token per layer\. Use tokens='mean'.*{ALTERNATIVES}"
    with pytest.raises(ValueError, match=message):
        extractor(backbone, image_size=32).fit()


@pytest.mark.parametrize(
    ("backbone", "close"),
    [("vit_base_patch14", "vit_base_patch14_dinov2"), ("resnet1", "resnet18|resnet10"), ("test_vi", "test_vit")],
)
def test_unknown_backbone_raises_and_suggests_close_names(backbone, close):
    message = rf"'{backbone}' is neither an alias nor a timm model; close: .*({close}).*Use {ALTERNATIVES}"
    with pytest.raises(ValueError, match=message):
        extractor(backbone).fit()


@pytest.mark.parametrize("backbone", ["no_such_model", "hf-hub:someone/something", "dinov2_xs", "folder/test_vit"])
def test_unknown_backbone_without_close_names_raises(backbone):
    with pytest.raises(ValueError, match=rf"'{backbone}' is neither an alias nor a timm model\. Use {ALTERNATIVES}"):
        extractor(backbone).fit()


def test_unknown_pretrained_tag_raises_and_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'vit_small_patch14_dinov2\.imagenet'.*vit_small_patch14_dinov2\.lvd142m"):
        extractor("vit_small_patch14_dinov2.imagenet").fit()


@pytest.mark.parametrize(("image_size", "expected"), [(None, 224), (224, 224), (252, 252), (518, 518)])
def test_dinov2_gets_images_of_the_size_it_was_built_for(image_size, expected, one_image):
    dinov2 = extractor("vit_small_patch14_dinov2", image_size=image_size, layers=[0])
    assert dinov2.fit_transform(one_image).shape == (1, 1, 384)
    assert dinov2.image_size_ == expected
    backbone = get_backbone("vit_small_patch14_dinov2", "random", image_size, CPU)
    assert backbone.transform(Image.fromarray(one_image[0])).shape == (3, expected, expected)
    assert backbone.model.patch_embed.grid_size == (expected // 14, expected // 14)


@pytest.mark.parametrize(("backbone", "expected"), [("test_vit", 160), ("nano", 32)])
def test_default_image_size_is_the_models_own(backbone, expected):
    assert extractor(backbone).fit().image_size_ == expected


@pytest.mark.parametrize(
    ("backbone", "image_size", "nearest"),
    [
        ("vit_small_patch14_dinov2", 230, "patch size 14 .* use 224 or 238"),
        ("test_vit", 170, "patch size 16 .* use 160 or 176"),
        ("test_vit", 5, "patch size 16 .* use 16"),
        ("nano", 36, "patch size 8 .* use 32 or 40"),
    ],
)
def test_image_size_that_is_no_multiple_of_the_patch_is_refused(backbone, image_size, nearest):
    with pytest.raises(ValueError, match=rf"image_size={image_size} is not a multiple of the {nearest}\.$"):
        extractor(backbone, image_size=image_size).fit()


def test_image_size_of_a_model_that_takes_none_is_refused():
    with pytest.raises(ValueError, match=r"'test_convnext' takes no image_size=64.*Leave image_size=None"):
        extractor("test_convnext", image_size=64).fit()


def test_image_size_changes_the_number_of_patches():
    assert [get_backbone("test_vit", "random", size, CPU).n_tokens for size in (32, 64)] == [5, 17]


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth"])
@pytest.mark.parametrize("as_path", [str, lambda path: path], ids=["str", "Path"])
def test_weights_are_loaded_from_a_file(one_image, state_dict, write, suffix, as_path):
    path = write(state_dict(), f"weights.{suffix}")
    loaded = extract(one_image, as_path(path))
    np.testing.assert_array_equal(loaded, extract(one_image, write(state_dict(), "other.safetensors")))
    assert not np.allclose(loaded, extract(one_image, "random"), atol=0.1)


def test_loaded_weights_are_those_of_the_file(state_dict, write):
    state = state_dict()
    model = get_backbone("test_vit", write(state), None, CPU).model
    assert set(model.state_dict()) == set(state)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"model": state, "epoch": 3},
        lambda state: {"state_dict": state},
        lambda state: {f"module.{name}": value for name, value in state.items()},
    ],
    ids=["model", "state_dict", "module."],
)
def test_weights_in_a_training_checkpoint_are_found(one_image, state_dict, write, wrap):
    checkpoint = write(wrap(state_dict()), "checkpoint.pth")
    np.testing.assert_array_equal(extract(one_image, checkpoint), extract(one_image, write(state_dict())))


def test_classification_head_in_the_file_is_ignored(one_image, state_dict, write):
    with_head = state_dict(num_classes=7)
    assert {"head.weight", "head.bias"} <= set(with_head)
    without_head = {name: value for name, value in with_head.items() if not name.startswith("head.")}
    actual = extract(one_image, write(with_head, "with.safetensors"))
    np.testing.assert_array_equal(actual, extract(one_image, write(without_head, "without.safetensors")))


def test_weights_of_nano_can_be_replaced(one_image, write):
    state = {name: value + 1 for name, value in get_backbone("nano", "random", None, CPU).model.state_dict().items()}
    replaced = extract(one_image, write(state), "nano", image_size=None)
    assert not np.allclose(replaced, extract(one_image, "random", "nano", image_size=None), atol=0.1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda state: state.pop("pos_embed"), r"1 parameters are missing.*'pos_embed'.*0 in it are unknown"),
        (lambda state: state.update(extra=torch.zeros(1)), r"0 parameters are missing.*1 in it are unknown.*'extra'"),
        (lambda state: state.clear(), "78 parameters are missing"),
        (lambda state: state.update(cls_token=torch.zeros(1, 1, 9)), "other shapes.*(?s:.*)cls_token"),
    ],
    ids=["missing", "unexpected", "empty", "shape"],
)
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_weights_that_do_not_fit_raise_naming_the_file(one_image, state_dict, write, change, named, suffix):
    state = state_dict()
    change(state)
    path = write(state, f"weights.{suffix}")
    with pytest.raises(ValueError, match=rf"The weights in '{re.escape(str(path))}' .*{named}"):
        extract(one_image, path)


def test_weights_of_another_backbone_raise(one_image, state_dict, write):
    with pytest.raises(ValueError, match=r"weights\.safetensors' (have other shapes than|are not of) 'nano'"):
        extract(one_image, write(state_dict()), "nano")


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize(
    "damage", [lambda content: content[:5000], lambda content: b"garbage" * 9, lambda content: b""]
)
def test_damaged_weights_raise_naming_the_file(one_image, state_dict, write, suffix, damage):
    path = write(state_dict(), f"weights.{suffix}")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"weights='{re.escape(str(path))}' is not a state dict that can be read"):
        extract(one_image, path)


@pytest.mark.parametrize("content", [[1, 2], torch.zeros(3)], ids=["list", "tensor"])
def test_file_without_a_state_dict_raises(one_image, write, content):
    path = write(content, "weights.pt")
    with pytest.raises(ValueError, match=rf"weights='{re.escape(str(path))}' is not a state dict"):
        extract(one_image, path)


def test_weights_file_that_would_execute_code_is_refused(one_image, tmp_path, write):
    class Touch:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    with pytest.raises(ValueError, match="is not a state dict that can be read"):
        extract(one_image, write({"cls_token": Touch()}, "weights.pt"))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["missing.safetensors", "pretrained", ""])
@pytest.mark.parametrize("backbone", ["test_vit", "nano"])
def test_weights_that_are_no_file_raise(one_image, name, backbone):
    with pytest.raises(ValueError, match=rf"weights='{name}' is no file; pass a state dict, None .* or 'random'"):
        extract(one_image, name, backbone)


def test_folder_as_weights_raises(one_image, tmp_path):
    with pytest.raises(ValueError, match="is no file"):
        extract(one_image, tmp_path)


def test_rewritten_weights_are_loaded_again(one_image, state_dict, write):
    path = write(state_dict(seed=0))
    first, size, time = extract(one_image, path), path.stat().st_size, path.stat().st_mtime_ns
    write(state_dict(seed=1))
    os.utime(path, ns=(time, time + 10**9))
    assert path.stat().st_size == size
    second = extract(one_image, path)
    assert not np.allclose(first, second, atol=0.1)
    np.testing.assert_array_equal(second, extract(one_image, write(state_dict(seed=1), "copy.safetensors")))


@pytest.mark.parametrize("backbone", ["test_vit", "nano"])
def test_random_weights_are_always_the_same(monkeypatch, one_image, backbone):
    results = []
    for seed in (1, 2):
        monkeypatch.setattr(backbones, "_recent", type(backbones._recent)())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            results.append(extract(one_image, "random", backbone))
    np.testing.assert_array_equal(*results)


def test_random_weights_are_not_the_embedded_ones(one_image):
    assert not np.allclose(extract(one_image, "random", "nano"), extract(one_image, None, "nano"), atol=0.1)


@pytest.mark.parametrize(("backbone", "weights"), [("test_vit", "random"), ("nano", "random"), ("nano", None)])
def test_global_generators_are_left_untouched(no_shared_backbones, global_rngs_untouched, one_image, backbone, weights):
    state = random.getstate()
    extract(one_image, weights, backbone)
    assert len(backbones._recent) == 1
    assert random.getstate() == state


def test_local_folder_is_loaded(one_image, tiny_vit, write, state_dict):
    from_folder = extractor(tiny_vit(), weights=None).fit()
    assert from_folder.image_size_ == 32
    expected = extract(one_image, write(state_dict(img_size=32)), tiny_vit())
    np.testing.assert_array_equal(from_folder.transform(one_image), expected)


def test_preprocessing_of_a_local_folder_is_used(tiny_vit):
    grey = Image.new("RGB", (32, 32), (255, 255, 255))
    transformed = get_backbone(tiny_vit(), None, None, CPU).transform(grey)
    torch.testing.assert_close(transformed, torch.full((3, 32, 32), (1 - 0.5) / 0.25))


def test_local_folder_takes_an_image_size(tiny_vit):
    assert extractor(tiny_vit(), weights=None, image_size=64).fit().image_size_ == 64


def test_local_folder_can_be_built_with_random_or_other_weights(one_image, tiny_vit, write, state_dict):
    results = [extract(one_image, weights, tiny_vit()) for weights in (None, "random", write(state_dict(seed=5)))]
    assert not any(np.allclose(results[i], results[j], atol=0.1) for i, j in [(0, 1), (0, 2), (1, 2)])


def test_classification_head_in_a_local_folder_is_ignored(one_image, tiny_vit):
    with_head = extractor(tiny_vit(num_classes=7), weights=None).fit_transform(one_image)
    assert with_head.shape == (1, 6, 64)
    assert np.isfinite(with_head).all()


def test_missing_local_folder_raises(tmp_path):
    with pytest.raises(ValueError, match=r"local-dir:.*nowhere'.*no such folder"):
        extractor(f"local-dir:{tmp_path / 'nowhere'}", weights=None).fit()


def test_extractors_share_one_network(monkeypatch, no_shared_backbones, one_image):
    built = []
    monkeypatch.setattr(timm, "create_model", functools.partial(count_and_build, built, timm.create_model))
    for parameters in ({}, {"layers": "last"}, {"tokens": "mean"}, {"norm": "all"}, {"batch_size": 1}):
        extract(one_image, "random", **parameters)
    assert built == ["test_vit"]


def count_and_build(built, create_model, name, **arguments):
    built.append(name)
    return create_model(name, **arguments)


def test_backbone_is_shared_until_two_others_were_used(no_shared_backbones):
    first, second = (get_backbone("test_vit", "random", size, CPU) for size in (32, 48))
    assert get_backbone("test_vit", "random", 32, CPU) is first
    get_backbone("test_vit", "random", 64, CPU)
    assert get_backbone("test_vit", "random", 32, CPU) is first
    assert get_backbone("test_vit", "random", 48, CPU) is not second


def test_third_backbone_frees_the_memory_of_the_first(no_shared_backbones):
    model = weakref.ref(get_backbone("test_vit", "random", 32, CPU).model)
    get_backbone("test_vit", "random", 48, CPU)
    collect()
    assert model() is not None
    get_backbone("test_vit", "random", 64, CPU)
    collect()
    assert model() is None


@pytest.mark.parametrize("backbone", ["test_vit", "nano"])
def test_network_is_frozen_and_in_eval_mode(backbone):
    model = get_backbone(backbone, "random", 32, CPU).model
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_extraction_records_no_gradients(one_image, monkeypatch):
    recording = []
    model = get_backbone("test_vit", "random", 32, CPU).model
    handle = model.blocks[0].register_forward_hook(lambda *_: recording.append(torch.is_grad_enabled()))
    try:
        extract(one_image, "random")
    finally:
        handle.remove()
    assert recording == [False]


def test_nano_needs_neither_timms_registry_nor_the_hub(monkeypatch, no_shared_backbones, one_image):
    monkeypatch.setattr(timm, "create_model", None)
    assert LayerwiseFeatureExtractor("nano", device="cpu").fit_transform(one_image).shape == (1, 12, 128)


def test_an_unknown_pretrained_tag_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"cannot be built.*vit_tiny_patch16_224\.augreg_in21k"):
        LayerwiseFeatureExtractor("vit_tiny_patch16_224.nope").fit()


def test_a_local_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="there is no such folder"):
        LayerwiseFeatureExtractor(f"local-dir:{tmp_path / 'nowhere'}").fit()


def test_a_local_folder_without_weights_or_with_broken_settings_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"architecture": "test_vit"}')
    with pytest.raises(ValueError, match=f"local-dir:{re.escape(str(tmp_path))}.*cannot be loaded"):
        LayerwiseFeatureExtractor(f"local-dir:{tmp_path}").fit()
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(ValueError, match=r"config.json names no architecture"):
        LayerwiseFeatureExtractor(f"local-dir:{tmp_path}").fit()


@pytest.mark.parametrize(
    "state",
    [
        {"pos_embed": torch.zeros(3)},
        {"patch_embed.proj.weight": torch.zeros(5)},
        {"cls_token": torch.tensor(torch.nan)},
    ],
)
def test_malformed_weights_are_named(state, tmp_path):
    save_file(state, tmp_path / "bad.safetensors")
    with pytest.raises(ValueError, match=r"bad\.safetensors"):
        LayerwiseFeatureExtractor("test_vit", weights=tmp_path / "bad.safetensors").fit()


@pytest.mark.parametrize("name", ["test_vit2", "test_vit4"])
def test_mean_of_a_model_that_pools_is_its_ordinary_feature(name, rng):
    extractor = LayerwiseFeatureExtractor(name, weights="random", tokens="mean", device="cpu")
    image = Image.fromarray(rng.integers(0, 255, (160, 160, 3), dtype=np.uint8))
    backbone = get_backbone(name, "random", None, torch.device("cpu"))
    if backbone.model.global_pool != "avg":
        pytest.fail(f"{name} was expected to pool patches")
    with torch.no_grad():
        expected = backbone.model(backbone.transform(image)[None]).numpy()
    np.testing.assert_allclose(extractor.transform([image])[:, -1], expected, atol=1e-5)


def test_a_model_without_prefix_tokens_gives_its_mean():
    images = np.zeros((1, 32, 32), dtype=np.uint8)
    stack = LayerwiseFeatureExtractor("test_vit_relpos", weights="random", tokens="mean").transform(images)
    assert np.isfinite(stack).all()


def test_a_size_that_a_hybrid_cannot_take_is_refused():
    with pytest.raises(ValueError, match="image_size=72"):
        LayerwiseFeatureExtractor("vit_tiny_r_s16_p8_224", weights="random", image_size=72).fit()


CONFIGS = [
    {},
    {"crop_pct": 0.9, "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.6, 0.7], "interpolation": "bilinear"},
    {"crop_pct": 0.95, "crop_mode": "squash"},
    {"crop_pct": 0.9, "crop_mode": "border"},
]


@pytest.fixture
def preprocessing(tmp_path):
    """Return a function that gives a tiny random backbone with preprocessing settings of one's own."""

    def build(changes):
        config = {"architecture": "test_vit", "num_classes": 0, "model_args": {"img_size": 64, "depth": 1}}
        config["pretrained_cfg"] = {"input_size": [3, 64, 64], **changes}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return get_backbone(f"local-dir:{tmp_path}", "random", None, CPU)

    return build


@pytest.mark.parametrize("changes", CONFIGS)
@pytest.mark.parametrize("size", [(64, 64), (90, 70), (31, 200), (1, 1)])
def test_pixels_and_normalize_are_timms_transform_to_the_bit(preprocessing, changes, size, rng):
    image = Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8))
    backbone = preprocessing(changes)
    expected = create_transform(**backbone.config, is_training=False)(image)
    pixels = backbone.pixels(image)
    assert (pixels.dtype, pixels.shape) == (torch.uint8, (3, 64, 64))
    before = pixels.clone()
    normalised = backbone.normalize(torch.stack([pixels, pixels]))
    assert torch.equal(normalised, torch.stack([expected, expected]))
    assert torch.equal(backbone.transform(image), expected)
    assert torch.equal(pixels, before)
    assert expected.dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pixels_are_normalised_where_they_are(preprocessing, rng):
    pixels = torch.from_numpy(rng.integers(0, 256, (2, 3, 64, 64), dtype=np.uint8))
    backbone = preprocessing(CONFIGS[1])
    normalised = backbone.normalize(pixels.cuda())
    assert normalised.is_cuda
    torch.testing.assert_close(normalised.cpu(), backbone.normalize(pixels))


@pytest.mark.parametrize(("changes", "side"), list(zip(CONFIGS, [73, 71, None, None], strict=True)))
def test_shorter_side_is_what_images_are_resized_to_before_the_crop(preprocessing, changes, side):
    assert preprocessing(changes).shorter_side == side


@pytest.mark.parametrize(("name", "size", "side"), [("nano", None, 32), ("test_vit", 32, 33), ("test_vit", None, 168)])
def test_shorter_side_follows_the_image_size(name, size, side):
    assert get_backbone(name, "random", size, CPU).shorter_side == side


def fingerprint(name="test_vit", weights="random", image_size=32):
    return get_backbone(name, weights, image_size, CPU).fingerprint


def test_fingerprint_is_32_bytes_and_the_same_for_two_builds(monkeypatch, no_shared_backbones):
    first = fingerprint()
    assert (type(first), len(first)) == (bytes, 32)
    monkeypatch.setattr(backbones, "_recent", type(backbones._recent)())
    assert fingerprint() == first


def test_fingerprint_is_the_same_in_another_process(write, state_dict):
    path = write(state_dict())
    code = (
        "import sys, torch; from skvfusion.extraction.backbones import get_backbone; "
        "print(get_backbone('test_vit', sys.argv[1], 32, torch.device('cpu')).fingerprint.hex())"
    )
    result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == fingerprint(weights=path).hex()


def test_fingerprint_differs_with_weights_architecture_image_size_and_folder(write, state_dict, tiny_vit):
    nearly = state_dict()
    nearly["blocks.5.mlp.fc2.bias"][-1] += 1e-6
    prints = [
        fingerprint(),
        fingerprint(image_size=48),
        fingerprint("test_vit2"),
        fingerprint("nano"),
        fingerprint("nano", None),
        fingerprint(weights=write(state_dict(), "a.safetensors")),
        fingerprint(weights=write(nearly, "b.safetensors")),
        fingerprint(tiny_vit(), None),
        fingerprint(tiny_vit(seed=1), None),
    ]
    assert len(set(prints)) == len(prints)


def test_fingerprint_does_not_depend_on_where_the_same_weights_lie(write, state_dict):
    paths = [write(state_dict(), "a.safetensors"), write(state_dict(), "b.pt")]
    assert fingerprint(weights=paths[0]) == fingerprint(weights=paths[1])


@pytest.mark.parametrize("changes", CONFIGS[1:])
def test_fingerprint_differs_with_the_preprocessing(preprocessing, changes):
    assert preprocessing({}).fingerprint != preprocessing(changes).fingerprint


def test_fingerprint_differs_with_arguments_that_no_module_shows(tmp_path, write, state_dict):
    prints = set()
    for scale in (0.1, 0.2):
        config = {"architecture": "test_vit", "model_args": {"img_size": 32, "pos_drop_rate": 0.0, "qk_norm": False}}
        config["model_args"]["drop_path_rate"] = scale
        (tmp_path / "config.json").write_text(json.dumps(config | {"num_classes": 0, "pretrained_cfg": {}}))
        prints.add(fingerprint(f"local-dir:{tmp_path}", write(state_dict(), "weights.pt")))
    assert len(prints) == 2


def test_fingerprint_tells_activations_apart(tmp_path):
    names = ("vit_base_patch16_clip_224", "vit_base_patch16_clip_quickgelu_224")
    tiny = {"img_size": 32, "depth": 1, "embed_dim": 64, "num_heads": 2}
    prints, states = [], []
    for name in names:
        config = {"architecture": name, "num_classes": 0, "model_args": tiny, "pretrained_cfg": {}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        backbone = get_backbone(f"local-dir:{tmp_path}", "random", None, CPU)
        prints.append(backbone.fingerprint)
        states.append(backbone.model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert prints[0] != prints[1]


def test_fingerprint_takes_counters_of_batch_norms():
    assert len(fingerprint("xcit_nano_12_p16_224")) == 32


def rewritten(tiny_vit, tmp_path, change=None, **config):
    """Return a copy of the tiny backbone's folder with other settings or weights."""
    folder = tmp_path / "rewritten"
    shutil.copytree(tiny_vit().removeprefix("local-dir:"), folder)
    settings = json.loads((folder / "config.json").read_text())
    settings["pretrained_cfg"] |= config.pop("pretrained_cfg", {})
    (folder / "config.json").write_text(json.dumps(settings | config))
    if change is not None:
        state = load_file(folder / "model.safetensors")
        change(state)
        save_file(state, folder / "model.safetensors")
    return f"local-dir:{folder}"


def test_a_folder_with_nan_among_its_weights_is_refused(tiny_vit, tmp_path):
    name = rewritten(tiny_vit, tmp_path, lambda state: state["norm.bias"].fill_(torch.nan))
    with pytest.raises(ValueError, match="NaN or infinite in float32"):
        LayerwiseFeatureExtractor(name, device="cpu").fit()


def test_weights_too_large_for_float32_are_refused(state_dict, write, one_image):
    state = state_dict(img_size=32)
    state["norm.weight"] = state["norm.weight"].double() * 1e300
    with pytest.raises(ValueError, match="NaN or infinite in float32"):
        extract(one_image, write(state))


@pytest.mark.parametrize(
    ("pretrained_cfg", "message"),
    [
        ({"std": [0, 0, 0]}, "divides by zero"),
        ({"mean": ["a", 0, 0]}, "preprocessing that fails"),
        ({"interpolation": "psychic"}, "preprocessing that fails"),
    ],
)
def test_a_preprocessing_that_cannot_be_used_is_refused(tiny_vit, tmp_path, pretrained_cfg, message):
    with pytest.raises(ValueError, match=message):
        extractor(rewritten(tiny_vit, tmp_path, pretrained_cfg=pretrained_cfg), image_size=32).fit()


@pytest.mark.parametrize(
    "config", [{"architecture": None}, {"architecture": ["test_vit"]}, {"model_args": "img_size=32"}]
)
def test_settings_of_a_wrong_kind_are_named(tiny_vit, tmp_path, config):
    with pytest.raises(ValueError, match="names no architecture"):
        extractor(rewritten(tiny_vit, tmp_path, **config)).fit()


def test_a_folder_below_the_home_folder(tiny_vit, tmp_path, monkeypatch):
    rewritten(tiny_vit, tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert extractor("local-dir:~/rewritten", image_size=32).fit().dim_ == 64


def test_messages_about_shapes_are_short(state_dict, write, one_image):
    with pytest.raises(ValueError, match="other shapes") as raised:
        extract(one_image, write(state_dict(img_size=32)), backbone="deit_tiny_distilled_patch16_224", image_size=32)
    assert len(str(raised.value)) < 1000


def test_image_size_may_be_any_integer(tiny_vit, one_image, tmp_path, no_shared_backbones):
    for size in (32, np.int64(32), np.int32(32)):
        extractor(tiny_vit(), image_size=size, cache=tmp_path).transform(one_image)
        backbones._recent.clear()
    assert cache_info(tmp_path).n_computed == 1
    assert extractor(weights="random", image_size=np.int64(160)).transform(one_image).shape == (1, 6, 64)


@pytest.mark.parametrize("backbone", ["nano", "test_vit"])
def test_random_weights_do_not_depend_on_torchs_defaults(backbone, one_image, no_shared_backbones):
    expected = extractor(backbone, weights="random").transform(one_image)
    backbones._recent.clear()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            other = extractor(backbone, weights="random").transform(one_image)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(other, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_beside_a_thread_that_uses_a_backbone_does_not_hang(tiny_vit, no_shared_backbones):
    backbone = backbones.get_backbone(tiny_vit(), None, None, torch.device("cpu"))
    held, done = threading.Event(), threading.Event()

    def hold():
        with backbone.lock, backbones._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:  # without torch, whose own threads a fork does not copy either
        free = backbone.lock.acquire(timeout=5) and backbones._lock.acquire(timeout=5)
        os._exit(0 if free else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
