"""What of a forward pass is kept: where the blocks are tapped, which tokens, and which of them are normed."""

import torch

TAPS = ("block", "norm2")
TOKENS = ("cls", "mean", "cls+mean")
NORMS = ("last", "all", "none")


def tap_names(tap, depth):
    """Return a name for each layer, shallow to deep: where in the network it was tapped."""
    if tap == "block":
        return [f"block{block}" for block in range(depth)]
    return [*(f"block{block}.norm2" for block in range(1, depth)), "norm"]


def check_tap(backbone, tap, norm, name):
    """Raise ValueError if the model's blocks cannot be tapped there, or if the norm makes no sense there."""
    if tap == "block":
        return
    if norm == "all":
        raise ValueError(
            "norm='all' does not go with tap='norm2': what is tapped there has been normed already. Use norm='last', "
            "or tap='block'."
        )
    blocks = getattr(backbone.model, "blocks", [None])
    if not all(hasattr(block, "norm2") and hasattr(block, "mlp") for block in blocks):
        raise ValueError(_no_norm2(backbone, name))


@torch.inference_mode()
def layer_tokens(backbone, batch, layers, tokens, tap="block", norm="last"):
    """Run a batch through a backbone once and return the chosen layers' tokens.

    Parameters
    ----------
    backbone : Backbone
        The network.
    batch : tensor of shape (n, 3, size, size)
        Normalised images.
    layers : list of int
        Layers to keep, in ascending order.
    tokens : list of {"cls", "mean"}
        Tokens to keep of each.
    tap : {"block", "norm2"}, default="block"
        Where to tap, see :class:`skvfusion.LayerwiseFeatureExtractor`.
    norm : {"last", "all", "none"}, default="last"
        Where to apply the final norm.

    Returns
    -------
    tensor of shape (n, n_layers, n_tokens, dim)
        float32, on the backbone's device; a copy, so that the patch tokens can be freed.
    """
    read = _read_blocks if tap == "block" else _read_norm2
    return read(backbone, batch.to(backbone.device, torch.float32), layers, tokens, norm)


def _read_blocks(backbone, batch, layers, tokens, norm):
    stack = []
    for layer, output in zip(layers, _intermediates(backbone, batch, layers), strict=True):
        normed = norm == "all" or (norm == "last" and layer == backbone.depth - 1)
        stack.append(_pool(*output, tokens, backbone.norms if normed else None))
    return torch.stack(stack, dim=1)


def _read_norm2(backbone, batch, layers, tokens, norm):
    """Read what the MLPs are fed with, and after the last of them the final norm.

    timm returns block outputs only, hence the hooks. They belong to the network, which threads may share.
    """
    model, last = backbone.model, backbone.depth - 1
    kept, fed = {}, {}

    def keep(layer):
        def hook(_, __, output):
            n_prefix = model.num_prefix_tokens
            kept[layer] = _pool(output[:, n_prefix:], output[:, :n_prefix], tokens, None)
            fed[layer] = output

        return hook

    def check(layer):
        def hook(_, inputs):
            if fed.pop(layer, None) is not inputs[0]:
                raise ValueError(_no_norm2(backbone, type(model).__name__))

        return hook

    with backbone.lock:
        handles = []
        try:
            for layer in layers:
                if layer < last:
                    block = model.blocks[layer + 1]
                    handles += [
                        block.norm2.register_forward_hook(keep(layer)),
                        block.mlp.register_forward_pre_hook(check(layer)),
                    ]
            (output,) = _intermediates(backbone, batch, [min(layers[-1] + 1, last)])
        finally:
            for handle in handles:
                handle.remove()
    if layers[-1] == last:
        kept[last] = _pool(*output, tokens, backbone.norms if norm == "last" else None)
    return torch.stack([kept[layer] for layer in layers], dim=1)


def _intermediates(backbone, batch, blocks):
    """Return (patch tokens, prefix tokens or None) of some blocks; those above the deepest are not computed."""
    outputs = backbone.model.forward_intermediates(
        batch,
        indices=blocks,
        stop_early=True,
        output_fmt=backbone.output_fmt,
        intermediates_only=True,
        # Some of timm's models fail when asked for prefix tokens that they do not have.
        **({"return_prefix_tokens": True} if backbone.has_prefix else {}),
    )
    outputs = [output if isinstance(output, tuple) else (output, None) for output in outputs]
    return [(maps.flatten(2).transpose(1, 2) if maps.ndim == 4 else maps, prefix) for maps, prefix in outputs]


def _pool(patches, prefix, tokens, norms):
    """Return the tokens of a layer, (n, n_tokens, dim); ``norms`` are those of every and of a pooled token, or None."""
    kept = []
    for token in tokens:
        values = prefix[:, :1] if token == "cls" else patches
        if norms is None:
            kept.append(values.float().mean(1))
        else:
            token_norm, pooled_norm = norms
            kept.append(pooled_norm(token_norm(values).float().mean(1)).float())
    return torch.stack(kept, dim=1)


def _no_norm2(backbone, name):
    return (
        f"backbone={name!r} ({type(backbone.model).__name__}) has no norm2 in front of each block's MLP, which "
        "tap='norm2' reads; use tap='block'."
    )
