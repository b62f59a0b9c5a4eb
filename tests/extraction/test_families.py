"""What each family of timm's models gives, with random weights, and which are refused."""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.models.vision_transformer import VisionTransformer

from skvfusion import LayerwiseFeatureExtractor
from skvfusion.extraction import ALIASES, backbones
from skvfusion.extraction.aliases import ALIAS_FACTS, alias_table
from skvfusion.extraction.backbones import check_tokens, get_backbone
from skvfusion.extraction.taps import layer_tokens

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]


@dataclass(frozen=True)
class Family:
    name: str
    image_size: int
    depth: int
    dim: int
    n_patches: int
    n_prefix: int = 1
    cls: bool = True


WITH_CLS = [
    Family("test_vit", 32, 6, 64, 4),
    Family("nano", 32, 12, 128, 16),
    Family("deit_tiny_distilled_patch16_224", 32, 12, 192, 4, n_prefix=2),
    Family("deit3_small_patch16_224", 32, 12, 384, 4),
    Family("vit_small_patch14_dinov2", 28, 12, 384, 4),
    Family("vit_small_patch14_reg4_dinov2", 28, 12, 384, 4, n_prefix=5),
    Family("vit_small_patch16_dinov3", 48, 12, 384, 9, n_prefix=5),
    Family("eva02_tiny_patch14_224", 28, 12, 192, 4),
    Family("beit_base_patch16_224", 32, 12, 768, 4),
    Family("vit_xsmall_patch16_clip_224", 32, 10, 256, 4),
    Family("vit_tiny_r_s16_p8_224", 64, 12, 192, 4),
    Family("flexivit_small", 32, 12, 384, 4),
    Family("tnt_s_legacy_patch16_224", 32, 12, 384, 4),
]
REGISTERS_ONLY = [
    Family("test_vit2", 32, 8, 64, 4, cls=False),
    Family("test_vit3", 32, 9, 96, 4, cls=False),
    Family("test_vit4", 32, 9, 96, 4, cls=False),
    Family("naflexvit_base_patch16_gap", 32, 12, 768, 4, n_prefix=4, cls=False),
]
CLS_JOINS_LATE = [
    Family("cait_xxs24_224", 32, 24, 192, 4, n_prefix=0, cls=False),
    Family("xcit_nano_12_p16_224", 32, 12, 128, 4, n_prefix=0, cls=False),
]
if hasattr(timm.models.convit.ConVit, "forward_intermediates"):  # not in timm 1.0.22
    CLS_JOINS_LATE.append(Family("convit_tiny", 32, 12, 192, 4, n_prefix=0, cls=False))
NO_PREFIX = [
    Family("vit_relpos_small_patch16_224", 32, 12, 384, 4, n_prefix=0, cls=False),
    Family("vit_base_patch16_siglip_224", 32, 12, 768, 4, n_prefix=0, cls=False),
    Family("gmixer_12_224", 32, 12, 384, 4, n_prefix=0, cls=False),
    Family("resmlp_12_224", 32, 12, 384, 4, n_prefix=0, cls=False),
    Family("samvit_base_patch16_224", 32, 12, 768, 4, n_prefix=0, cls=False),
]
WITHOUT_CLS = REGISTERS_ONLY + CLS_JOINS_LATE + NO_PREFIX
EVERY = WITH_CLS + WITHOUT_CLS


def families(cases, devices=("cpu",)):
    ids = [family.name for family in cases]
    return lambda test: pytest.mark.parametrize("family", cases, ids=ids, scope="module")(
        pytest.mark.parametrize("device", devices, scope="module")(test)
    )


@pytest.fixture(scope="module", autouse=True)
def own_backbones():
    """Keep backbones that are changed here from other tests."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(backbones, "_recent", OrderedDict())
        yield


@pytest.fixture(scope="module")
def backbone(family, device):
    """The family's network; scales and prefix tokens that begin near zero are raised, so that layers differ."""
    built = get_backbone(family.name, "random", family.image_size, torch.device(device))
    for parameter in built.model.parameters():
        if parameter.dim() == 1 and 0 < parameter.abs().max() < 0.01:
            parameter.fill_(0.5)
    generator = torch.Generator().manual_seed(0)
    for token in ("cls_token", "reg_token", "dist_token"):
        parameter = getattr(built.model, token, None)
        if parameter is not None:
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return built


@pytest.fixture
def batch(family, rng):
    return torch.from_numpy(rng.normal(size=(2, 3, family.image_size, family.image_size)).astype(np.float32))


@families(EVERY)
def test_facts_of_a_backbone_are_those_of_its_model(family, backbone):
    assert (backbone.depth, backbone.dim, backbone.image_size) == (family.depth, family.dim, family.image_size)
    assert (backbone.n_patches, backbone.n_tokens) == (family.n_patches, family.n_patches + family.n_prefix)
    assert (backbone.has_prefix, backbone.has_cls) == (family.n_prefix > 0, family.cls)
    assert backbone.pixels(Image.new("RGB", (50, 70))).shape == (3, family.image_size, family.image_size)


@families(EVERY, DEVICES)
def test_mean_is_that_of_the_patches_that_each_block_returns(family, backbone, batch):
    outputs = []
    hooks = [block.register_forward_hook(lambda *args: outputs.append(args[-1])) for block in backbone.model.blocks]
    try:
        means = layer_tokens(backbone, batch, list(range(family.depth)), ["mean"], norm="none")[:, :, 0]
    finally:
        for hook in hooks:
            hook.remove()
    # TNT's blocks return pixel tokens first, SAM's a map; a CLS token and registers are in front.
    outputs = [output[-1] if isinstance(output, tuple) else output for output in outputs]
    patches = [output.reshape(2, -1, family.dim)[:, -family.n_patches :] for output in outputs]
    expected = torch.stack([tokens.mean(1) for tokens in patches], dim=1)
    assert expected.shape == (2, family.depth, family.dim)
    torch.testing.assert_close(means, expected, rtol=1e-5, atol=1e-5)
    assert not any(torch.allclose(a, b, atol=1e-3) for a, b in pairwise(expected.unbind(1)))


@families(WITH_CLS, DEVICES)
def test_last_cls_is_the_normed_class_token(family, backbone, batch):
    with torch.no_grad():
        final = backbone.model.forward_features(batch.to(backbone.device))
        expected = backbone.norms[1](final[:, 0])
    tokens = layer_tokens(backbone, batch, list(range(family.depth)), ["cls"])
    assert tokens.shape == (2, family.depth, 1, family.dim)
    torch.testing.assert_close(tokens[:, -1, 0], expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(expected, final[:, 1], atol=1e-3)


@families(EVERY, DEVICES)
def test_some_layers_are_those_of_all_and_no_deeper_one_is_computed(family, backbone, batch):
    tokens = ["cls", "mean"] if family.cls else ["mean"]
    full = layer_tokens(backbone, batch, list(range(family.depth)), tokens)
    ran = []
    hooks = [block.register_forward_hook(lambda *args: ran.append(args[0])) for block in backbone.model.blocks]
    try:
        some = layer_tokens(backbone, batch, [1, 3], tokens)
    finally:
        for hook in hooks:
            hook.remove()
    torch.testing.assert_close(some, full[:, [1, 3]], rtol=1e-5, atol=1e-5)
    assert ran == list(backbone.model.blocks[:4])


@families(WITH_CLS)
def test_model_with_a_cls_token_is_accepted_for_both(family, backbone):
    assert check_tokens(backbone, "cls+mean", family.name) is None


@pytest.mark.parametrize("tokens", ["cls", "cls+mean"])
@families(WITHOUT_CLS)
def test_model_without_a_cls_token_per_layer_is_refused_for_cls(family, backbone, tokens):
    reason = "no CLS token"
    if family in REGISTERS_ONLY:
        reason = f"only {family.n_prefix} register tokens and no CLS token"
    if family in CLS_JOINS_LATE:
        reason = "a CLS token in its last blocks only, and so no CLS token per layer"
    with pytest.raises(ValueError, match=rf"'{family.name}' has {reason}\. Use tokens='mean'.*'nano'.*ALIASES"):
        check_tokens(backbone, tokens, family.name)
    assert check_tokens(backbone, "mean", family.name) is None


@pytest.mark.parametrize(
    "name",
    [
        "swin_tiny_patch4_window7_224",
        "test_convnext",
        "test_resnet",
        "test_efficientnet",
        "hiera_tiny_224",
        "mvitv2_tiny",
        "levit_128s",
        "crossvit_tiny_240",
        "twins_svt_small",
        "pit_ti_224",
        "sequencer2d_s",
        "mobilevit_xxs",
    ],
)
def test_model_of_several_widths_is_refused_for_all_tokens(name):
    # timm 1.0.22 does not let some of them be read at all.
    reason = "(works in stages|has no forward_intermediates)"
    message = rf"'{name}' .*{reason}.*Use 'nano'.*CLS token; or, for tokens='mean',.*such as SigLIP"
    with pytest.raises(ValueError, match=message):
        get_backbone(name, "random", None, torch.device("cpu"))


def test_model_whose_layers_cannot_be_read_is_refused(monkeypatch):
    monkeypatch.delattr(VisionTransformer, "forward_intermediates")
    with pytest.raises(ValueError, match=r"'test_vit' \(VisionTransformer\) does not let its inner layers be read"):
        get_backbone("test_vit", "random", 96, torch.device("cpu"))


def test_cls_token_of_a_naflexvit_is_found(tiny_vit, images):
    backbone = tiny_vit(use_naflex=True)
    built = get_backbone(backbone, "random", None, torch.device("cpu"))
    assert (type(built.model).__name__, built.has_cls, built.n_tokens) == ("NaFlexVit", True, 5)
    extractor = LayerwiseFeatureExtractor(backbone, weights="random", device="cpu", tokens="cls+mean")
    assert extractor.transform(images[:2]).shape == (2, 6, 2, 64)


@pytest.mark.parametrize("family", CLS_JOINS_LATE + NO_PREFIX[:1], ids=lambda family: family.name)
def test_mean_goes_through_the_extractor(family, images):
    extractor = LayerwiseFeatureExtractor(
        family.name, tokens="mean", weights="random", image_size=family.image_size, device="cpu", layers="last:2"
    )
    assert extractor.fit_transform(images[:1]).shape == (1, 2, family.dim)


@pytest.mark.parametrize("alias", ALIASES)
def test_facts_of_an_alias_are_those_of_its_model(alias):
    facts = ALIAS_FACTS[alias]
    size = {"img_size": 224} if alias.startswith("dinov2") else {}
    with torch.device("meta"):
        model = timm.create_model(facts.model.partition(".")[0], num_classes=0, **size)
    assert model.cls_token is not None
    assert (facts.depth, facts.dim) == (len(model.blocks), model.embed_dim)
    assert (facts.n_prefix, facts.n_patches) == (model.num_prefix_tokens, model.patch_embed.num_patches)
    assert (facts.image_size, facts.image_size) == model.patch_embed.img_size


@pytest.mark.parametrize("alias", ["nano", "dinov2_s", "dinov2_reg_s", "dinov3_s", "in21k_ti"])
def test_facts_of_an_alias_are_those_of_the_backbone(alias):
    weights, facts = (None if alias == "nano" else "random"), ALIAS_FACTS[alias]
    backbone = get_backbone(alias, weights, None, torch.device("cpu"))
    assert (backbone.depth, backbone.dim, backbone.image_size) == (facts.depth, facts.dim, facts.image_size)
    assert (backbone.n_patches, backbone.model.num_prefix_tokens) == (facts.n_patches, facts.n_prefix)


def test_alias_table_has_a_row_for_each_and_for_nano():
    table = alias_table()
    assert list(table.index) == [*ALIASES, "nano"]
    assert table.loc["dinov3_b", "model"] == ALIASES["dinov3_b"]
    assert table.loc["nano"].to_list() == ["embedded, no download", 12, 128, 1, 16, 32]
    assert (table.dtypes.drop("model") == "int64").all()


def test_table_in_the_documentation_is_that_of_the_code():
    text = (Path(__file__).parents[2] / "docs" / "backbones.md").read_text()
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line]
    rows = [row for row in rows if row[0] in ALIAS_FACTS]
    expected = []
    for alias, facts in ALIAS_FACTS.items():
        registers = f" + {facts.n_prefix - 1} registers" if facts.n_prefix > 1 else ""
        tokens = f"CLS{registers} + {facts.n_patches} patches"
        expected.append([alias, facts.model, str(facts.depth), str(facts.dim), tokens, str(facts.image_size)])
    assert rows == expected
