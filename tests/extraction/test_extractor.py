import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
import timm
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils._param_validation import InvalidParameterError
from timm.data import create_transform, resolve_data_config

from skvfusion import LayerProbeClassifier, LayerwiseFeatureExtractor
from skvfusion.extraction import extractor as extractor_module
from skvfusion.extraction import recipe as recipe_module
from skvfusion.extraction.backbones import get_backbone
from skvfusion.extraction.taps import layer_tokens

N_LAYERS, DIM = 6, 64
CPU = torch.device("cpu")


@pytest.fixture
def make(tiny_vit):
    """Return a function that makes an extractor over the tiny backbone."""

    def build(**parameters):
        return LayerwiseFeatureExtractor(**{"backbone": tiny_vit(), "device": "cpu", **parameters})

    return build


def reference(backbone, images, image_size=32):
    """Each block's output by forward hooks, the final features and the network, built with timm alone."""
    model = timm.create_model(backbone, pretrained=True, num_classes=0, img_size=image_size).eval()
    transform = create_transform(**resolve_data_config({"input_size": (3, image_size, image_size)}, model=model))
    blocks = []
    for block in model.blocks:
        block.register_forward_hook(lambda _module, _inputs, output: blocks.append(output))
    with torch.inference_mode():
        final = model.forward_features(torch.stack([transform(Image.fromarray(image)) for image in images]))
    return blocks, final, model


def normed(model, blocks):
    with torch.inference_mode():
        return [model.norm(block) for block in blocks]


def stacked(tokens):
    return torch.stack(tokens, dim=1).numpy()


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_stack_has_an_axis_of_layers_and_is_float32(make, images):
    stack = make().fit_transform(images)
    assert isinstance(stack, np.ndarray)
    assert stack.shape == (len(images), N_LAYERS, DIM)
    assert stack.dtype == np.float32
    assert np.isfinite(stack).all()


def test_images_and_layers_differ(make, images):
    stack = make(norm="all").fit_transform(images)
    assert np.abs(np.diff(stack, axis=0)).mean(axis=(1, 2)).min() > 0.1
    assert np.abs(np.diff(stack, axis=1)).mean(axis=(0, 2)).min() > 0.1


def test_cls_of_every_layer_is_what_hooks_see(make, tiny_vit, images):
    blocks, _, _ = reference(tiny_vit(), images)
    assert_close(make(norm="none").fit_transform(images), stacked([block[:, 0] for block in blocks]))


@pytest.mark.parametrize("norm", ["last", "all"])
def test_last_layer_is_the_ordinary_feature(make, tiny_vit, images, norm):
    _, final, model = reference(tiny_vit(), images)
    last = make(norm=norm).fit_transform(images)[:, -1]
    assert_close(last, final[:, 0].numpy())
    with torch.inference_mode():
        assert_close(last, model.forward_head(final).numpy())


def test_default_norm_leaves_inner_layers_alone(make, images):
    default, none = make().fit_transform(images), make(norm="none").fit_transform(images)
    assert_close(default[:, :-1], none[:, :-1])
    assert not np.allclose(default[:, -1], none[:, -1], atol=0.1)


def test_inner_layer_is_not_normed_as_if_it_were_the_last(make, images):
    assert_close(make(layers=[2]).fit_transform(images), make(layers=[2], norm="none").fit_transform(images))


def test_norm_of_all_layers_is_the_final_norm(make, tiny_vit, images):
    blocks, _, model = reference(tiny_vit(), images)
    expected = stacked([block[:, 0] for block in normed(model, blocks)])
    assert_close(make(norm="all").fit_transform(images), expected)


@pytest.mark.parametrize(
    "model_args",
    [{}, {"reg_tokens": 4}, {"class_token": False, "global_pool": "map"}, {"class_token": False, "reg_tokens": 1}],
    ids=["cls", "cls and registers", "patches only", "registers only"],
)
def test_mean_is_of_patch_tokens_only(make, tiny_vit, images, model_args):
    if not model_args.get("class_token", True):
        model_args = {"global_pool": "map", **model_args}
    backbone = tiny_vit(**model_args)
    blocks, _, model = reference(backbone, images)
    patches = [block[:, -4:] for block in blocks]
    expected = stacked([block.mean(1) for block in patches])
    assert_close(make(backbone=backbone, tokens="mean", norm="none").fit_transform(images), expected)
    if model.num_prefix_tokens:
        assert not np.allclose(stacked([block.mean(1) for block in blocks]), expected, atol=0.1)


def test_mean_of_the_last_layer_is_of_normed_patches(make, tiny_vit, images):
    blocks, final, model = reference(tiny_vit(), images)
    assert_close(make(tokens="mean").fit_transform(images)[:, -1], final[:, 1:].mean(1).numpy())
    expected = stacked([block[:, 1:].mean(1) for block in normed(model, blocks)])
    assert_close(make(tokens="mean", norm="all").fit_transform(images), expected)


def test_cls_is_not_a_register(make, tiny_vit, images):
    backbone = tiny_vit(reg_tokens=4)
    blocks, _, _ = reference(backbone, images)
    assert blocks[0].shape[1] == 1 + 4 + 4
    cls = make(backbone=backbone, norm="none").fit_transform(images)
    assert_close(cls, stacked([block[:, 0] for block in blocks]))
    for register in range(1, 5):
        assert not np.allclose(cls, stacked([block[:, register] for block in blocks]), atol=0.1)


@pytest.mark.parametrize("norm", ["last", "all", "none"])
def test_cls_and_mean_have_an_axis_of_their_own(make, images, norm):
    both = make(tokens="cls+mean", norm=norm).fit_transform(images)
    assert both.shape == (len(images), N_LAYERS, 2, DIM)
    assert both.dtype == np.float32
    assert_close(both[:, :, 0], make(tokens="cls", norm=norm).fit_transform(images))
    assert_close(both[:, :, 1], make(tokens="mean", norm=norm).fit_transform(images))


def test_dinov3_gives_the_cls_token_though_its_forward_averages_patches(images):
    backbone = get_backbone("vit_tiny_patch16_dinov3_qkvb", "random", 32, CPU)
    batch = torch.stack([backbone.transform(Image.fromarray(image)) for image in images])
    with torch.inference_mode():
        final, pooled = backbone.model.forward_features(batch), backbone.model(batch)
    dinov3 = LayerwiseFeatureExtractor(
        "vit_tiny_patch16_dinov3_qkvb", weights="random", image_size=32, device="cpu", layers="last"
    )
    assert_close(dinov3.fit_transform(images)[:, 0], final[:, 0].numpy())
    assert not np.allclose(pooled.numpy(), final[:, 0].numpy(), atol=0.1)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("all", [0, 1, 2, 3, 4, 5]),
        ("second_half", [3, 4, 5]),
        ("strided", [1, 3, 5]),
        ("strided:3", [2, 5]),
        ("quarterly", [1, 3, 4, 5]),
        ("last", [5]),
        ("last:4", [2, 3, 4, 5]),
        (-1, [5]),
        (2, [2]),
        ([4, 0], [0, 4]),
        (np.array([1, -1]), [1, 5]),
        (slice(None, None, 2), [0, 2, 4]),
    ],
    ids=str,
)
def test_selected_layers_are_those_of_the_whole_stack(make, images, layers, expected):
    chosen = make(layers=layers)
    stack = chosen.fit_transform(images)
    assert_close(stack, make().fit_transform(images)[:, expected])
    assert chosen.layers_ == expected
    assert chosen.layer_names_ == [f"block{layer}" for layer in expected]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("everything", "'everything' is not a layer selection"),
        (6, "there are 6 layers"),
        ([0, 9], "there are 6 layers"),
        ([], "selects none of the 6 layers"),
        ([0, 0], "names a layer twice"),
        ([0.5], "not a layer selection"),
    ],
)
@pytest.mark.parametrize("method", ["fit", "transform"])
def test_layers_that_do_not_exist_raise(make, images, layers, message, method):
    with pytest.raises(ValueError, match=message):
        getattr(make(layers=layers), method)(images)


def test_blocks_above_the_deepest_layer_are_not_computed(make, tiny_vit, images):
    ran = []
    blocks = get_backbone(tiny_vit(), None, 32, CPU).model.blocks
    handles = [
        block.register_forward_hook(lambda *_, index=index: ran.append(index)) for index, block in enumerate(blocks)
    ]
    try:
        make(layers=[0, 2], image_size=32, batch_size=len(images)).transform(images)
    finally:
        for handle in handles:
            handle.remove()
    assert ran == [0, 1, 2]


@pytest.mark.parametrize("tokens", ["cls", "mean", "cls+mean"])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 100, "auto", np.int64(2)])
def test_batch_size_does_not_change_the_result(make, images, tokens, batch_size):
    expected = make(tokens=tokens, batch_size=5).fit_transform(images)
    np.testing.assert_allclose(make(tokens=tokens, batch_size=batch_size).fit_transform(images), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("batch_size", "image_size", "expected"),
    [(2, 32, [2, 2, 1]), (5, 32, [5]), (100, 32, [5]), ("auto", 32, [5]), ("auto", 512, [2, 2, 1])],
)
def test_batches_are_as_large_as_asked_for(make, tiny_vit, images, batch_size, image_size, expected):
    sizes = []
    model = get_backbone(tiny_vit(), None, image_size, CPU).model
    handle = model.patch_embed.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    try:
        make(batch_size=batch_size, image_size=image_size).transform(images)
    finally:
        handle.remove()
    assert sizes == expected


@pytest.mark.parametrize("tokens", [["cls"], ["mean"], ["cls", "mean"]])
def test_kept_tokens_do_not_keep_all_others_in_memory(tiny_vit, tokens):
    kept = layer_tokens(get_backbone(tiny_vit(), None, None, CPU), torch.rand(2, 3, 32, 32), [1, 4], tokens, "last")
    assert kept.shape == (2, 2, len(tokens), DIM)
    assert kept.untyped_storage().nbytes() == kept.numel() * kept.element_size()


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")], ids=repr)
@pytest.mark.parametrize("method", ["fit", "transform"])
def test_device_that_is_not_there_raises(monkeypatch, make, images, device, method):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"device=.*cuda.*is not available here.*device='auto' or 'cpu'"):
        getattr(make(device=device), method)(images)


def test_automatic_device_falls_back_to_the_cpu(monkeypatch, make, images):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    automatic = make(device="auto")
    np.testing.assert_array_equal(automatic.fit_transform(images), make(device=CPU).fit_transform(images))
    assert automatic.device_ == "cpu"


def test_nothing_is_built_before_it_is_needed(monkeypatch, make, images):
    def fail(*args):
        raise AssertionError("a backbone was built")

    monkeypatch.setattr(extractor_module, "get_backbone", fail)
    lazy = make(layers="last")
    for untouched in (lazy, clone(lazy), copy.deepcopy(lazy), pickle.loads(pickle.dumps(lazy))):
        assert untouched.get_params() == lazy.get_params()
        assert "LayerwiseFeatureExtractor" in repr(untouched)
        joblib.hash(untouched)
    with pytest.raises(AssertionError, match="a backbone was built"):
        lazy.transform(images)


def test_pickle_is_small_and_works(make, images):
    used = make(tokens="cls+mean")
    expected = used.fit_transform(images)
    content = pickle.dumps(used)
    assert len(content) < 20_000
    np.testing.assert_array_equal(pickle.loads(content).transform(images), expected)


def test_fitted_attributes_are_plain_python(make, images):
    fitted = make(layers=[0, -1], tokens="cls+mean").fit(images)
    assert {name: value for name, value in vars(fitted).items() if name.endswith("_")} == {
        "layers_": [0, 5],
        "layer_names_": ["block0", "block5"],
        "token_names_": ["cls", "mean"],
        "dim_": DIM,
        "image_size_": 32,
        "device_": "cpu",
        "dtype_": "float32",
    }
    assert set(vars(fitted)) == set(fitted.get_params()) | {name for name in vars(fitted) if name.endswith("_")}


def test_hash_is_not_changed_by_use(make, images):
    used = make()
    before = joblib.hash(used)
    used.transform(images)
    assert joblib.hash(used) == before
    used.fit(images)
    assert joblib.hash(used) == before
    assert joblib.hash(clone(used)) == joblib.hash(copy.deepcopy(used)) == before
    assert joblib.hash(make(layers="last")) != before


@pytest.mark.parametrize("duplicate", [clone, copy.copy, copy.deepcopy])
def test_copy_gives_the_same_stack(make, images, duplicate):
    original = make(layers=[1, 4], tokens="mean", norm="all", image_size=64, batch_size=2)
    expected = original.fit_transform(images)
    copied = duplicate(original)
    assert copied.get_params() == original.get_params()
    np.testing.assert_array_equal(copied.fit_transform(images), expected)


def test_clone_is_not_fitted(make):
    assert not hasattr(clone(make().fit()), "layers_")


@pytest.mark.parametrize(
    ("changed", "shape"),
    [
        ({"backbone": "nano", "weights": None}, (12, 128)),
        ({"weights": "random"}, (6, 64)),
        ({"image_size": 64}, (6, 64)),
        ({"layers": "last"}, (1, 64)),
        ({"tokens": "cls+mean"}, (6, 2, 64)),
        ({"norm": "all"}, (6, 64)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("refit", [True, False])
def test_set_params_changes_the_output(make, images, changed, shape, refit):
    extractor = make()
    before = extractor.fit_transform(images)
    extractor.set_params(**changed)
    after = extractor.fit_transform(images) if refit else extractor.transform(images)
    np.testing.assert_array_equal(after, make(**changed).fit_transform(images))
    assert after.shape == (len(images), *shape)
    assert after.shape != before.shape or not np.allclose(after, before, atol=0.1)


def test_extractors_with_different_weights_do_not_mix(make, tiny_vit, images):
    first, second = make(backbone=tiny_vit(seed=0)), make(backbone=tiny_vit(seed=1))
    a, b = first.fit_transform(images), second.fit_transform(images)
    assert not np.allclose(a, b, atol=0.1)
    np.testing.assert_array_equal(first.transform(images), a)
    np.testing.assert_array_equal(second.transform(images), b)


def test_fit_returns_itself_and_reads_no_image(make):
    extractor = make()
    assert extractor.fit(["there is no such file.png"]) is extractor
    assert extractor.fit() is extractor


def test_transform_needs_no_fit(make, images):
    extractor = make()
    stack = extractor.transform(images)
    np.testing.assert_array_equal(stack, make().fit_transform(images))
    assert not hasattr(extractor, "layers_")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backbone", 3),
        ("backbone", None),
        ("layers", None),
        ("layers", 1.5),
        ("tokens", "patch"),
        ("tokens", ["cls"]),
        ("norm", "first"),
        ("norm", True),
        ("image_size", 0),
        ("image_size", 32.0),
        ("image_size", (32, 32)),
        ("weights", 3),
        ("device", 0),
        ("device", None),
        ("batch_size", 0),
        ("batch_size", 2.0),
        ("batch_size", "large"),
        ("batch_size", None),
        ("progress", "yes"),
        ("progress", None),
    ],
)
@pytest.mark.parametrize("method", ["fit", "transform"])
def test_parameter_of_another_kind_raises(make, images, name, value, method):
    with pytest.raises(InvalidParameterError, match=f"The '{name}' parameter of LayerwiseFeatureExtractor must be"):
        getattr(make(**{name: value}), method)(images)


def test_constructor_takes_no_check_and_no_copy():
    layers = [9, 9]
    extractor = LayerwiseFeatureExtractor(3, layers=layers)
    assert extractor.backbone == 3
    assert extractor.layers is layers


def test_parameters_are_not_changed_by_use(make, images):
    layers = [4, 0]
    extractor = make(layers=layers)
    before = dict(extractor.get_params())
    extractor.fit_transform(images)
    assert extractor.get_params() == before
    assert extractor.layers is layers
    assert layers == [4, 0]


def test_images_are_not_changed_by_use(make, images):
    given = images.copy()
    given.flags.writeable = False
    make().fit_transform(given)
    np.testing.assert_array_equal(given, images)


def test_kinds_of_collection_give_the_same_stack(make, images, tmp_path):
    for index, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{index}.png")
    expected = make().fit_transform(images)
    for same in (
        list(images),
        [tmp_path / f"{index}.png" for index in range(len(images))],
        torch.from_numpy(images).permute(0, 3, 1, 2),
        images / 255,
    ):
        np.testing.assert_array_equal(make().fit_transform(same), expected)


def test_images_may_differ_in_size(make, images):
    mixed = [images[0], Image.fromarray(images[1][:9, :30]), images[2][:1, :1]]
    stack = make().fit_transform(mixed)
    for row, image in enumerate(mixed):
        assert_close(stack[row], make().fit_transform([image])[0])


@pytest.mark.parametrize("X", [[], np.empty((0, 4, 4, 3), np.uint8)], ids=["list", "array"])
def test_no_images_raise(make, X):
    with pytest.raises(ValueError, match="it is empty"):
        make().fit_transform(X)


def test_unusable_image_of_a_later_batch_is_named(make, images, tmp_path):
    missing = tmp_path / "missing.png"
    with pytest.raises(ValueError, match=r"Image 3 \(.*missing\.png\).*there is no such file"):
        make(batch_size=2).fit_transform([*images[:3], missing, images[4]])


def test_progress_shows_a_bar_on_stderr(capsys, make, tiny_vit, images):
    make(progress=True, batch_size=2).fit_transform(images)
    output = capsys.readouterr()
    assert output.out == ""
    assert tiny_vit() in output.err
    assert "5/5" in output.err
    assert "100%" in output.err


def test_nothing_is_printed_by_default(capsys, make, images):
    make().fit_transform(images)
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "")


@pytest.mark.parametrize("transform_output", ["pandas", "default"])
def test_global_output_setting_leaves_the_stack_an_array(make, images, transform_output):
    expected = make().fit_transform(images)
    with sklearn.config_context(transform_output=transform_output):
        stack = make().fit_transform(images)
    assert isinstance(stack, np.ndarray)
    np.testing.assert_array_equal(stack, expected)


def test_set_output_returns_the_extractor_and_leaves_the_stack_an_array(make, images):
    extractor = make()
    assert extractor.set_output(transform="pandas") is extractor
    assert isinstance(extractor.fit_transform(images), np.ndarray)


@pytest.mark.parametrize("globally", [True, False])
def test_pipeline_with_pandas_output_passes_the_stack_on(make, images, globally):
    mean = FunctionTransformer(lambda stack: pd.DataFrame(stack.mean(axis=2)))
    pipeline = Pipeline([("features", make()), ("mean", mean)])
    with sklearn.config_context(transform_output="pandas" if globally else "default"):
        if not globally:
            pipeline.set_output(transform="pandas")
        result = pipeline.fit_transform(images)
    assert isinstance(result, pd.DataFrame)
    np.testing.assert_allclose(result, make().fit_transform(images).mean(axis=2), rtol=1e-6)


@pytest.mark.parametrize("transform_output", ["pandas", "default"])
def test_pipeline_with_a_classifier_learns_from_images(make, transform_output):
    y = ["dark"] * 6 + ["light"] * 6
    X = np.random.default_rng(0).integers(0, 100, (12, 32, 32, 3), dtype=np.uint8)
    X[6:] += 150
    pipeline = Pipeline([("features", make()), ("classifier", LayerProbeClassifier())])
    pipeline.set_output(transform=transform_output).fit(X, y)
    assert pipeline.predict(list(X)).tolist() == y


def test_memory_of_a_pipeline_saves_the_second_pass(monkeypatch, make, images, tmp_path):
    y = [0, 1, 0, 1, 0]
    pipeline = Pipeline([("features", make()), ("classifier", LayerProbeClassifier())], memory=str(tmp_path))
    pipeline.fit(images, y)
    monkeypatch.setattr(recipe_module, "layer_tokens", None)
    clone(pipeline).set_params(classifier__layer=0).fit(images, y)
    with pytest.raises(TypeError, match="not callable"):
        clone(pipeline).set_params(features__norm="all").fit(images, y)


def test_threads_get_what_one_alone_gets(no_shared_backbones, make, tiny_vit, images):
    extractors = [
        make(),
        make(backbone=tiny_vit(seed=1), tokens="mean"),
        make(weights="random", layers="last"),
        make(batch_size=1),
    ]
    expected = [extractor.fit_transform(images) for extractor in extractors]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda extractor: extractor.transform(images), extractors * 5))
    for index, result in enumerate(results):
        assert_close(result, expected[index % len(extractors)])


def test_threads_build_one_network(monkeypatch, no_shared_backbones, make, images):
    built, create_model = [], timm.create_model

    def count_and_build(name, **arguments):
        built.append(name)
        return create_model(name, **arguments)

    monkeypatch.setattr(timm, "create_model", count_and_build)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda extractor: extractor.fit_transform(images), [make(), make()])
    assert_close(first, second)
    assert len(built) == 1


def test_same_images_give_the_same_bits(global_rngs_untouched, make, images):
    np.testing.assert_array_equal(make().fit_transform(images), make().fit_transform(images))


def test_nothing_is_written_to_the_working_folder(monkeypatch, make, images, tmp_path):
    monkeypatch.chdir(tmp_path)
    make().fit_transform(images)
    assert list(tmp_path.iterdir()) == []


def test_the_callers_default_dtype_does_not_matter(rng):
    images = rng.integers(0, 255, (2, 32, 32, 3), dtype=np.uint8)
    expected = LayerwiseFeatureExtractor("nano", device="cpu").transform(images)
    torch.set_default_dtype(torch.float64)
    try:
        # Another image size, so that the network is built anew under the other default.
        other = LayerwiseFeatureExtractor("nano", device="cpu", image_size=64).transform(images)
        again = LayerwiseFeatureExtractor("nano", device="cpu").transform(images)
    finally:
        torch.set_default_dtype(torch.float32)
    assert np.allclose(again, expected, atol=1e-4)
    assert np.allclose(
        LayerwiseFeatureExtractor("nano", device="cpu", image_size=64).transform(images), other, atol=1e-4
    )
