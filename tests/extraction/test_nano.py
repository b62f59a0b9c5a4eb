import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config

from skvfusion import LayerwiseFeatureExtractor
from skvfusion.extraction.nano import WEIGHTS, build_nano, nano_metadata, nano_state_dict


def test_nano_has_12_blocks_of_width_128_and_a_cls_token():
    model = build_nano()
    assert len(model.blocks) == 12
    assert model.embed_dim == 128
    assert model.cls_token.shape == (1, 1, 128)
    assert model.num_prefix_tokens == 1
    assert model.patch_embed.num_patches == 16


def test_nano_has_a_head_only_when_asked_for():
    images = torch.zeros(2, 3, 32, 32)
    assert build_nano().eval()(images).shape == (2, 128)
    assert build_nano(num_classes=10).eval()(images).shape == (2, 10)


def test_nano_pools_the_cls_token():
    model = build_nano().eval()
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(model(images), model.forward_features(images)[:, 0])


def test_other_image_size_makes_other_patches():
    assert build_nano(img_size=64).patch_embed.num_patches == 64


def test_further_arguments_reach_the_network():
    rates = [getattr(block.drop_path1, "drop_prob", 0) for block in build_nano(drop_path_rate=0.1).blocks]
    assert rates[-1] == pytest.approx(0.1)


def test_preprocessing_fits_32_pixels():
    config = resolve_data_config({}, model=build_nano())
    assert config["input_size"] == (3, 32, 32)
    assert config["crop_pct"] == 1
    assert config["interpolation"] == "bicubic"


def test_models_do_not_share_their_configuration():
    first, second = build_nano(), build_nano()
    first.pretrained_cfg["input_size"] = (3, 64, 64)
    assert second.pretrained_cfg["input_size"] == (3, 32, 32)


def test_shipped_weights_fit_exactly():
    model, state = build_nano(), nano_state_dict()
    model.load_state_dict(state, strict=True)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_shipped_weights_are_float32_and_finite():
    tensors = [tensor for tensor in nano_state_dict().values() if tensor.is_floating_point()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    assert all(tensor.isfinite().all() for tensor in tensors)


def test_shipped_weights_are_not_initial_ones():
    state = nano_state_dict()
    assert not torch.equal(state["norm.weight"], torch.ones(128))
    assert state["cls_token"].abs().max() > 1e-4


def test_shipped_file_has_at_most_4_megabytes():
    assert 0 < len(WEIGHTS.read_bytes()) <= 4_000_000


def test_metadata_tells_how_the_weights_came_about():
    metadata = nano_metadata()
    recipe = {"data", "optimizer", "learning_rate", "weight_decay", "schedule", "batch_size", "augmentation", "epochs"}
    assert recipe <= set(metadata)
    assert all(metadata[name] for name in recipe)
    assert isinstance(metadata["seed"], int)
    assert metadata["licence"]


def test_metadata_names_the_versions():
    assert {"torch", "timm", "scikit-learn"} <= set(nano_metadata()["versions"])
    assert all(version[0].isdigit() for version in nano_metadata()["versions"].values())


@pytest.mark.parametrize("name", ["linear_probe_test_accuracy", "linear_probe_test_accuracy_untrained"])
def test_metadata_states_accuracies_as_fractions(name):
    assert 0 < nano_metadata()[name] < 1


def test_shipped_weights_are_good():
    assert nano_metadata()["linear_probe_test_accuracy"] > 0.6


def test_extraction_uses_the_shipped_weights(images):
    nano = LayerwiseFeatureExtractor("nano", norm="all", device="cpu").fit()
    model = build_nano()
    model.load_state_dict(nano_state_dict())
    transform = create_transform(**resolve_data_config({}, model=model))
    batch = torch.stack([transform(image) for image in map(Image.fromarray, images)])
    with torch.inference_mode():
        expected = model.eval().forward_features(batch)[:, 0]
    np.testing.assert_allclose(nano.transform(images)[:, -1], expected.numpy(), atol=1e-5)
    assert nano.image_size_ == 32


@pytest.mark.parametrize("image_size", [32, 64])
def test_extraction_at_another_image_size(images, image_size):
    nano = LayerwiseFeatureExtractor("nano", image_size=image_size, device="cpu")
    stack = nano.fit_transform(images)
    assert stack.shape == (len(images), 12, 128)
    assert np.isfinite(stack).all()
    assert nano.image_size_ == image_size
