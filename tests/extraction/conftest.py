"""Tiny backbones whose weights are far from their initial ones, so that tokens, layers and images differ clearly."""

import functools
import json
from collections import OrderedDict

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from skvfusion.extraction import backbones, recipe

PRETRAINED_CFG = {
    "input_size": [3, 32, 32],
    "mean": [0.5, 0.5, 0.5],
    "std": [0.25, 0.25, 0.25],
    "fixed_input_size": True,
    "first_conv": "patch_embed.proj",
    "classifier": "head",
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Networks this small are many times slower on several threads when other programs use the cores too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def images():
    return np.random.default_rng(0).integers(0, 256, (5, 40, 48, 3), dtype=np.uint8)


@pytest.fixture(scope="session")
def state_dict():
    """Return a function that makes a state dict of timm's ``test_vit`` (64 dims, 6 blocks)."""

    def build(seed=0, **model_args):
        with torch.random.fork_rng(devices=[]):
            model = timm.create_model("test_vit", **{"num_classes": 0, **model_args})
        generator = torch.Generator().manual_seed(seed)
        return {
            name: torch.zeros_like(value) + (value.dim() == 1) + 0.2 * torch.randn(value.shape, generator=generator)
            for name, value in model.state_dict().items()
        }

    return build


@pytest.fixture(scope="session")
def tiny_vit(tmp_path_factory, state_dict):
    """Return a function that writes a 32-pixel ``test_vit`` to a folder, as timm does, and names it."""

    @functools.cache
    def build(seed=0, **model_args):
        model_args = {"img_size": 32, **model_args}
        folder = tmp_path_factory.mktemp("backbone")
        save_file(state_dict(seed, **model_args), folder / "model.safetensors")
        config = {
            "architecture": "test_vit",
            "num_classes": model_args.get("num_classes", 0),
            "model_args": model_args,
            "pretrained_cfg": PRETRAINED_CFG,
        }
        (folder / "config.json").write_text(json.dumps(config))
        return f"local-dir:{folder}"

    return build


@pytest.fixture
def no_shared_backbones(monkeypatch):
    monkeypatch.setattr(backbones, "_recent", OrderedDict())


@pytest.fixture
def computed(monkeypatch):
    """The sizes of all batches that went through a backbone."""
    sizes, original = [], recipe.layer_tokens

    def count(backbone, batch, *args):
        sizes.append(len(batch))
        return original(backbone, batch, *args)

    monkeypatch.setattr(recipe, "layer_tokens", count)
    return sizes
