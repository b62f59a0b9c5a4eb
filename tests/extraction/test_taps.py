"""Taps against hooks on timm's own networks."""

import numpy as np
import pytest
import timm
import torch

from skvfusion import LayerwiseFeatureExtractor
from skvfusion.extraction.backbones import get_backbone

DEPTH = 6


@pytest.fixture(scope="module")
def make(tiny_vit):
    def build(**parameters):
        return LayerwiseFeatureExtractor(**{"backbone": tiny_vit(), "device": "cpu", **parameters})

    return build


def hooked(backbone, images):
    """Return what every norm2 and the final norm put out in timm's ordinary forward pass."""
    outputs = []
    model = backbone.model
    modules = [*(block.norm2 for block in model.blocks), model.norm]
    handles = [module.register_forward_hook(lambda _, __, output: outputs.append(output)) for module in modules]
    try:
        with torch.no_grad():
            model.forward_features(torch.stack([backbone.transform(image) for image in images]))
    finally:
        for handle in handles:
            handle.remove()
    return outputs


def pil(images):
    from PIL import Image

    return [Image.fromarray(image) for image in images]


@pytest.mark.parametrize("model_args", [{}, {"reg_tokens": 4}], ids=["cls", "cls and registers"])
def test_norm2_is_read_where_attentive_layer_fusion_reads(make, tiny_vit, images, model_args):
    name = tiny_vit(**model_args)
    stack = make(backbone=name, tap="norm2", tokens="cls+mean").fit_transform(images)
    outputs = hooked(get_backbone(name, None, None, torch.device("cpu")), pil(images))[1:]
    n_prefix = 1 + model_args.get("reg_tokens", 0)
    assert stack.shape == (len(images), DEPTH, 2, 64)
    for layer, output in enumerate(outputs):
        np.testing.assert_allclose(stack[:, layer, 0], output[:, 0].numpy(), atol=1e-4)
        np.testing.assert_allclose(stack[:, layer, 1], output[:, n_prefix:].mean(1).numpy(), atol=1e-4)


def test_the_last_layer_of_both_taps_is_the_ordinary_feature(make, images):
    np.testing.assert_array_equal(
        make(tap="norm2").fit_transform(images)[:, -1], make(tap="block").fit_transform(images)[:, -1]
    )


def test_inner_layers_of_the_taps_differ(make, images):
    norm2, block = (make(tap=tap).fit_transform(images) for tap in ("norm2", "block"))
    assert (np.abs(norm2 - block).max(axis=(0, 2))[:-1] > 0.1).all()


@pytest.mark.parametrize("layers", ["last", [0], [0, 3], [2, -1], "second_half"])
def test_selected_layers_are_those_of_the_whole_stack(make, images, layers):
    whole = make(tap="norm2").fit_transform(images)
    selected = make(tap="norm2", layers=layers).fit(images)
    np.testing.assert_allclose(selected.transform(images), whole[:, selected.layers_], atol=1e-5)


def test_blocks_above_the_deepest_layer_are_not_computed(make, tiny_vit, images):
    model, computed = get_backbone(tiny_vit(), None, None, torch.device("cpu")).model, []
    handles = [
        block.register_forward_hook(lambda *_, index=index: computed.append(index))
        for index, block in enumerate(model.blocks)
    ]
    try:
        make(tap="norm2", layers=[0, 2]).transform(images)
    finally:
        for handle in handles:
            handle.remove()
    assert sorted(set(computed)) == [0, 1, 2, 3]


def test_layers_are_named_by_where_they_are_read(make):
    assert make(tap="norm2").fit().layer_names_ == [*(f"block{block}.norm2" for block in range(1, DEPTH)), "norm"]
    assert make(tap="block", layers=[0, -1]).fit().layer_names_ == ["block0", "block5"]


def test_norm_none_leaves_the_last_layer_as_it_is(make, images):
    raw = make(tap="norm2", norm="none").fit_transform(images)
    np.testing.assert_array_equal(raw[:, -1], make(norm="none").fit_transform(images)[:, -1])
    np.testing.assert_array_equal(raw[:, :-1], make(tap="norm2").fit_transform(images)[:, :-1])


@pytest.mark.parametrize("method", ["fit", "transform"])
def test_norm_all_makes_no_sense_with_norm2(make, images, method):
    with pytest.raises(ValueError, match=r"norm='all' does not go with tap='norm2'.*norm='last'"):
        getattr(make(tap="norm2", norm="all"), method)(images)


def test_no_hooks_are_left_behind(make, tiny_vit, images):
    make(tap="norm2").transform(images)
    model = get_backbone(tiny_vit(), None, None, torch.device("cpu")).model
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_blocks_that_norm_after_the_mlp_are_refused(images):
    """In vit_relpos with ResPostRelPosBlock and the like, norm2 comes after the MLP."""
    with torch.random.fork_rng(devices=[]):
        model = timm.create_model("test_vit", img_size=32, block_fn=timm.models.vision_transformer.ResPostBlock)
    from skvfusion.extraction import backbones, taps

    built = get_backbone("test_vit", "random", 32, torch.device("cpu"))
    post = backbones.Backbone(**{**vars_of(built), "model": model.eval()})
    with pytest.raises(ValueError, match="has no norm2 in front of each block's MLP"):
        taps.layer_tokens(post, torch.zeros(1, 3, 32, 32), [0, 1], ["cls"], "norm2", "last")


def vars_of(instance):
    import dataclasses

    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}


@pytest.mark.parametrize("backbone", ["mixer_s32_224", "cait_xxs24_224"])
def test_models_without_such_norms_are_refused(backbone, monkeypatch, images):
    extractor = LayerwiseFeatureExtractor(backbone, weights="random", tokens="mean", tap="norm2", device="cpu")
    if backbone.startswith("cait"):  # has both, in front of the MLP
        assert extractor.fit_transform(images[:1]).shape == (1, 24, 192)
    else:
        with pytest.raises(ValueError, match=r"norm2.*tap='block'"):
            extractor.fit()


@pytest.mark.parametrize("tap", ["block", "norm2"])
def test_threads_that_share_a_network_do_not_mix(make, images, tap):
    from concurrent.futures import ThreadPoolExecutor

    extractor = make(tap=tap, batch_size=1)
    inputs = [images[i : i + 2] for i in range(4)]
    expected = [extractor.transform(part) for part in inputs]
    with ThreadPoolExecutor(4) as pool:
        for result, reference in zip(pool.map(extractor.transform, inputs * 3), expected * 3, strict=True):
            np.testing.assert_array_equal(result, reference)
