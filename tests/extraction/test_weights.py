import http.server
import json
import re
import socket
import threading
import time

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed

from skvfusion import LayerwiseFeatureExtractor
from skvfusion.extraction import weights as weights_module
from skvfusion.extraction.backbones import get_backbone
from skvfusion.extraction.taps import layer_tokens

CPU = torch.device("cpu")
CLOSED_PORT = "http://127.0.0.1:9"


@pytest.fixture
def load(tmp_path):
    """Return a function that saves a state dict, loads it into a backbone and returns the network's state."""

    def load(state, backbone="test_vit", image_size=None):
        path = tmp_path / f"weights{len(list(tmp_path.iterdir()))}.pt"
        torch.save(state, path)
        return get_backbone(backbone, path, image_size, CPU).model.state_dict()

    return load


def assert_equal_states(actual, expected):
    assert set(actual) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=0, atol=0, msg=name)


def prefixed(state, prefix):
    return {f"{prefix}{name}": value for name, value in state.items()}


HEAD = {"classifier.weight": torch.zeros(3, 64), "classifier.bias": torch.zeros(3)}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: prefixed(state, "timm_model."),
        lambda state: prefixed(state, "backbone."),
        lambda state: prefixed(state, "model."),
        lambda state: prefixed(state, "_orig_mod.module.model.backbone."),
        lambda state: {**prefixed(state, "timm_model."), **HEAD},
        lambda state: {"state_dict": {**prefixed(state, "model."), "head.weight": torch.zeros(3, 64)}},
        lambda state: {**state, **HEAD},
        lambda state: prefixed(state, "visual.trunk."),
        lambda state: {**prefixed(state, "visual.trunk."), "text.token_embedding.weight": torch.zeros(2, 2)},
    ],
)
def test_prefixes_of_wrappers_and_heads_beside_the_backbone_are_stripped(load, state_dict, wrap):
    assert_equal_states(load(wrap(state_dict())), state_dict())


def test_prefix_that_only_some_parameters_have_is_an_error(load, state_dict):
    state = state_dict()
    state["backbone.cls_token"] = state.pop("cls_token")
    with pytest.raises(ValueError, match=r"1 parameters are missing.*'cls_token'.*1 in it.*'backbone\.cls_token'"):
        load(state)


def test_blocks_in_chunks_are_loaded(load, state_dict):
    chunked = {re.sub(r"^blocks\.(\d+)\.", r"blocks.0.\1.", name): value for name, value in state_dict().items()}
    assert "blocks.0.5.norm1.weight" in chunked
    assert_equal_states(load(chunked), state_dict())


def test_original_dinov2_is_loaded(load, state_dict):
    assert_equal_states(load({**state_dict(), "mask_token": torch.zeros(1, 64)}), state_dict())


def test_original_dinov2_with_registers_is_loaded(load, tiny_vit, state_dict):
    arguments = {"reg_tokens": 4, "no_embed_class": True}
    expected = state_dict(img_size=32, **arguments)
    original = dict(expected)
    original["register_tokens"] = original.pop("reg_token")
    original["mask_token"] = torch.zeros(1, 64)
    position = torch.full((1, 1, 64), 0.5)
    original["pos_embed"] = torch.cat([position, expected["pos_embed"]], dim=1)
    expected["cls_token"] = original["cls_token"] + position
    assert_equal_states(load(original, tiny_vit(**arguments)), expected)


def test_layer_scale_of_original_deit3_is_loaded(load, tiny_vit, state_dict):
    expected = state_dict(img_size=32, init_values=1e-5)
    original = {re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", name): value for name, value in expected.items()}
    assert "blocks.0.gamma_2" in original
    assert_equal_states(load(original, tiny_vit(init_values=1e-5)), expected)


def test_openai_clip_is_loaded(load, tiny_vit, state_dict):
    expected = state_dict(img_size=32, pre_norm=True)
    names = [
        (r"^patch_embed\.proj", "conv1"),
        (r"^pos_embed", "positional_embedding"),
        (r"^cls_token", "class_embedding"),
        (r"^norm_pre", "ln_pre"),
        (r"^norm\.", "ln_post."),
        (r"\.norm", ".ln_"),
        (r"^blocks\.", "transformer.resblocks."),
        (r"qkv\.", "in_proj_"),
        (r"attn\.proj", "attn.out_proj"),
        ("fc1", "c_fc"),
        ("fc2", "c_proj"),
    ]
    original = {"logit_scale": torch.ones([]), "token_embedding.weight": torch.zeros(2, 2)}
    for name, value in expected.items():
        clip_name = name
        for pattern, replacement in names:
            clip_name = re.sub(pattern, replacement, clip_name)
        original[f"visual.{clip_name}"] = value
    original["visual.proj"] = torch.zeros(64, 32)
    original["visual.class_embedding"] = original["visual.class_embedding"][0, 0]
    original["visual.positional_embedding"] = original["visual.positional_embedding"][0]
    assert_equal_states(load(original, tiny_vit(pre_norm=True)), expected)


def test_original_dinov3_is_loaded_and_nothing_is_printed(load, capsys):
    backbone = "vit_small_patch16_dinov3"
    expected = dict(get_backbone(backbone, "random", 32, CPU).model.state_dict())
    original = {"mask_token": torch.zeros(1, 384), "rope_embed.periods": torch.ones(16)}
    for name, value in expected.items():
        original[re.sub(r"gamma_([12])$", r"ls\1.gamma", name.replace("reg_token", "storage_tokens"))] = value + 1
        if name.endswith("qkv.weight"):
            original[name.replace("weight", "bias")] = torch.zeros(3 * 384)
            original[name.replace("weight", "bias_mask")] = torch.zeros(3 * 384)
    assert_equal_states(load(original, backbone, 32), {name: value + 1 for name, value in expected.items()})
    assert capsys.readouterr().out == ""


def test_position_embeddings_of_another_size_are_resampled(load, state_dict):
    state = state_dict()
    expected = resample_abs_pos_embed(state["pos_embed"], [4, 4], num_prefix_tokens=1)
    torch.testing.assert_close(load(state, image_size=64)["pos_embed"], expected)


def as_transformers(kind, **changes):
    """Return a tiny random model of transformers, and the timm model with its settings as a folder's arguments."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 16}
    config = getattr(transformers, f"{kind}Config")(**sizes, layer_norm_eps=1e-6, **changes)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter.dim() == 1) + 0.2 * torch.randn(parameter.shape, generator=generator))
    arguments = {"img_size": 32, "embed_dim": 64, "depth": 2, "num_heads": 2, "mlp_ratio": 4}
    if kind.startswith("Dinov2"):
        arguments["init_values"] = 1.0
    if kind.endswith("Registers"):
        arguments |= {"reg_tokens": 4, "no_embed_class": True}
    return model, arguments


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("ViT", {"intermediate_size": 256}),
        ("DeiT", {"intermediate_size": 256}),
        ("Dinov2", {}),
        ("Dinov2", {"use_swiglu_ffn": True}),
        ("Dinov2WithRegisters", {}),
    ],
    ids=["ViT", "DeiT", "Dinov2", "Dinov2 with SwiGLU", "Dinov2WithRegisters"],
)
@pytest.mark.parametrize("prefix", ["", "vit."], ids=["bare", "below a head"])
@pytest.mark.parametrize("saved_by", ["save_pretrained", "torch.save"])
def test_vits_of_transformers_give_their_hidden_states(kind, changes, prefix, saved_by, write_folder, tmp_path, rng):
    original, arguments = as_transformers(kind, **changes)
    state = original.state_dict()
    if saved_by == "save_pretrained":
        original.save_pretrained(tmp_path / "saved")
        state = weights_module.load_state_dict(str(tmp_path / "saved" / "model.safetensors"))
    state = prefixed(state, prefix) | (HEAD if prefix else {})
    torch.save(state, tmp_path / "weights.pt")
    architecture = {"DeiT": "deit_tiny_distilled_patch16_224"}.get(kind, "test_vit")
    if "use_swiglu_ffn" in changes:
        architecture, arguments["patch_size"] = "vit_giant_patch14_dinov2", 16
        # timm counts both halves of the hidden layer; transformers rounds 2/3 of four widths up to a multiple of 8.
        arguments["mlp_ratio"] = 2 * 176 / 64
    backbone = get_backbone(write_folder(arguments, architecture), tmp_path / "weights.pt", None, CPU)
    batch = torch.from_numpy(rng.normal(size=(2, 3, 32, 32)).astype(np.float32))
    with torch.no_grad():
        hidden = original(batch, output_hidden_states=True)
    tokens = layer_tokens(backbone, batch, [0, 1], ["cls"])[:, :, 0]
    expected = torch.stack([hidden.hidden_states[1][:, 0], hidden.last_hidden_state[:, 0]], dim=1)
    torch.testing.assert_close(tokens, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture
def write_folder(tmp_path):
    """Return a function that writes a folder with settings only, and names it."""

    def write(arguments, architecture="test_vit"):
        folder = tmp_path / "settings"
        folder.mkdir(exist_ok=True)
        config = {"architecture": architecture, "num_classes": 0, "model_args": arguments}
        (folder / "config.json").write_text(json.dumps(config | {"pretrained_cfg": {"input_size": [3, 32, 32]}}))
        return f"local-dir:{folder}"

    return write


def test_another_model_of_transformers_raises_and_says_which_are_converted(load):
    foreign = {"vision_model.embeddings.class_embedding": torch.zeros(64), "vision_model.post_layernorm": torch.ones(1)}
    with pytest.raises(ValueError, match=r"are not of 'test_vit'.*only ViT, DeiT and DINOv2 are converted"):
        load(foreign)


def test_rewritten_local_folder_is_loaded_again(images, write_folder, state_dict):
    backbone = write_folder({"img_size": 32})
    results = []
    for seed in (0, 1):
        save_file(state_dict(seed, img_size=32), f"{backbone.removeprefix('local-dir:')}/model.safetensors")
        results.append(LayerwiseFeatureExtractor(backbone, device="cpu").transform(images[:1]))
    assert not np.allclose(*results, atol=0.1)


def test_rewritten_settings_of_a_local_folder_are_noticed(write_folder):
    backbone = write_folder({"img_size": 32})
    assert get_backbone(backbone, "random", None, CPU).depth == 6
    assert get_backbone(write_folder({"img_size": 32, "depth": 2}), "random", None, CPU).depth == 2


def test_other_files_in_a_local_folder_do_not_matter(write_folder):
    backbone = write_folder({"img_size": 32})
    before = get_backbone(backbone, "random", None, CPU)
    with open(f"{backbone.removeprefix('local-dir:')}/notes.txt", "w") as file:
        file.write("of no importance")
    assert get_backbone(backbone, "random", None, CPU) is before


@pytest.fixture
def hub_cache(monkeypatch, tmp_path):
    """Return a function that puts weights into an otherwise empty cache of the hub, which cannot be reached."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", CLOSED_PORT)

    def put(repository, state, file="model.safetensors", revision="main"):
        folder = tmp_path / f"models--{repository.replace('/', '--')}"
        (folder / "snapshots" / "0123").mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / revision).write_text("0123")
        path = folder / "snapshots" / "0123" / file
        save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)

    return put


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("offline", [False, True])
def test_weights_in_the_hubs_cache_need_no_network(
    monkeypatch, no_shared_backbones, hub_cache, state_dict, file, offline
):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    hub_cache("timm/test_vit.r160_in1k", state_dict(num_classes=1000), file)
    model = get_backbone("test_vit", None, 64, CPU).model
    expected = resample_abs_pos_embed(state_dict()["pos_embed"], [4, 4], num_prefix_tokens=1)
    torch.testing.assert_close(model.pos_embed.data, expected)
    assert torch.equal(model.blocks[3].norm1.weight, state_dict()["blocks.3.norm1.weight"])


@pytest.mark.parametrize(("revision", "found"), [("main", False), ("v2", True)])
def test_revision_of_the_weights_is_the_one_that_is_named(monkeypatch, hub_cache, state_dict, revision, found):
    config = timm.get_pretrained_cfg("test_vit")
    config.hf_hub_id = "timm/test_vit.r160_in1k@v2"
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda name: config)
    hub_cache("timm/test_vit.r160_in1k", state_dict(), revision=revision)
    if found:
        assert weights_module.pretrained_overlay("test_vit")["file"].endswith("model.safetensors")
    else:
        with pytest.raises(OSError, match="cannot be reached"):
            weights_module.pretrained_overlay("test_vit")


def test_unreachable_hub_raises_at_once_and_names_what_works_offline(hub_cache, no_shared_backbones):
    start = time.perf_counter()
    message = (
        r"'vit_tiny_patch16_224\.augreg_in21k' can be neither downloaded.*127\.0\.0\.1.*another machine "
        r"\(.*timm/vit_tiny_patch16_224\.augreg_in21k\).*weights='.*local-dir:.*'nano'"
    )
    with pytest.raises(OSError, match=message):
        LayerwiseFeatureExtractor("in21k_ti", device="cpu").fit()
    assert time.perf_counter() - start < 10


def test_hub_that_must_not_be_asked_is_not_asked(monkeypatch, hub_cache, no_shared_backbones):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(weights_module, "_check_reachable", None)
    with pytest.raises(OSError, match=r"HF_HUB_OFFLINE is set.*another machine"):
        get_backbone("in21k_ti", None, None, CPU)


def test_failing_download_raises_naming_what_works_offline(monkeypatch, hub_cache, no_shared_backbones):
    def fail(*args, pretrained=False, **kwargs):
        raise OSError("the connection broke")

    monkeypatch.setattr(weights_module, "_check_reachable", lambda url: None)
    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(OSError, match=r"neither downloaded.*the connection broke.*'nano'") as raised:
        get_backbone("in21k_ti", None, None, CPU)
    assert str(raised.value.__cause__) == "the connection broke"


@pytest.mark.parametrize("backbone", ["resnet18", "swin_tiny_patch4_window7_224"])
def test_model_that_cannot_be_tapped_is_refused_before_its_weights_are_fetched(monkeypatch, backbone):
    monkeypatch.setattr("skvfusion.extraction.backbones.pretrained_overlay", None)
    with pytest.raises(ValueError, match=rf"'{backbone}'.*works in stages"):
        get_backbone(backbone, None, None, CPU)


def test_model_without_pretrained_weights_is_refused_before_it_is_built(hub_cache):
    with pytest.raises(ValueError, match=r"timm has no pretrained weights for it; pass weights=.*tags: none"):
        get_backbone("vit_small_patch16_36x1_224", None, None, CPU)


def test_weights_from_another_host_are_looked_for_in_torchs_cache(monkeypatch, hub_cache, tmp_path):
    config = timm.get_pretrained_cfg("test_vit")
    config.hf_hub_id, config.url = None, f"{CLOSED_PORT}/folder/weights.pth"
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda name: config)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(OSError, match=r"127\.0\.0\.1:9 cannot be reached"):
        weights_module.pretrained_overlay("test_vit")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "weights.pth").touch()
    assert weights_module.pretrained_overlay("test_vit") == {}


@pytest.fixture
def no_proxies(monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", dict)


@pytest.mark.parametrize("status", [200, 404, 500])
def test_any_answer_means_that_a_host_can_be_reached(no_proxies, status):
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        weights_module._check_reachable(f"http://127.0.0.1:{server.server_port}")
    assert len(asked) == 1


def test_host_that_accepts_but_never_answers_is_given_up(monkeypatch, no_proxies):
    monkeypatch.setattr(weights_module, "_PATIENCE", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(OSError, match=r"does not answer within|timed"),
    ):
        weights_module._check_reachable(f"http://127.0.0.1:{server.getsockname()[1]}")


def test_name_that_is_looked_up_for_long_is_given_up(monkeypatch, no_proxies):
    given_up = threading.Event()
    monkeypatch.setattr(weights_module, "_PATIENCE", 0.2)
    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **kwargs: given_up.wait(30))
    with pytest.raises(OSError, match=r"https://hub\.example does not answer within 0\.2 seconds"):
        weights_module._check_reachable("https://hub.example")
    given_up.set()


def test_socks_proxy_is_left_to_the_downloader(monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"all": "socks5://127.0.0.1:9"})
    monkeypatch.setattr("urllib.request.urlopen", None)
    assert weights_module._check_reachable("https://hub.example") is None


@pytest.mark.parametrize(("arguments", "size"), [({"img_size": 28}, 28), ({}, 224)])
def test_folder_that_names_an_image_size_means_it(write_folder, arguments, size):
    folder = write_folder({**arguments, "embed_dim": 64, "depth": 1, "num_heads": 2}, "vit_small_patch14_dinov2")
    backbone = get_backbone(folder, "random", None, CPU)
    assert backbone.image_size == size
    assert backbone.n_tokens == (size // 14) ** 2 + 1
