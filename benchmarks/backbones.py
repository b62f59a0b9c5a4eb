"""The backbones that benchmarks run on: short names, the papers' models, and weights of one's own."""

from dataclasses import dataclass
from pathlib import Path

from skvfusion.extraction import ALIASES

#: What VFusion (arXiv 2607.10391) and Attentive Layer Fusion (arXiv 2601.09322) name. Which CLIP models VFusion has is
#: not known, as there is no small one; ALF takes the same DINOv2 and CLIP weights from other packages than timm.
PAPER_BACKBONES = {
    "vfusion": ("dinov2_s", "dinov2_b", "dinov2_l", "in21k_s", "in21k_b", "in21k_l", "clip_b16", "clip_l14"),
    "alf": (
        "vit_small_patch16_224.augreg_in21k_ft_in1k",
        "vit_base_patch16_224.augreg2_in21k_ft_in1k",
        "vit_large_patch16_224.augreg_in21k_ft_in1k",
        "dinov2_s",
        "dinov2_b",
        "dinov2_l",
        "clip_b32",
        "clip_b16",
        "clip_l14",
    ),
}
_FOLDER = "local-dir:"


class BackboneNotFound(OSError):
    """The weights of a backbone are not here, cannot be read or do not fit."""


@dataclass(frozen=True)
class Backbone:
    """A backbone as tables name it.

    Attributes
    ----------
    name : str
        What tables call it.
    model, weights : str, str or None
        The ``backbone`` and ``weights`` of LayerwiseFeatureExtractor.
    """

    name: str
    model: str
    weights: str | None = None

    @property
    def public(self):
        """How it was given, without the folder that its weights lie in."""
        if self.weights is None:
            return self.model if self.name == self.model else f"{self.name}={self.model}"
        weights = self.weights if self.weights == "random" else f"WEIGHTS/{Path(self.weights).name}"
        return f"{self.name}={self.model}:{weights}"


def read_backbone(text):
    """Return the backbone that an option describes.

    Parameters
    ----------
    text : str
        An alias such as ``dinov2_b`` or ``nano``, a timm name, ``NAME=TIMM_NAME`` or ``NAME=TIMM_NAME:WEIGHTS``, where
        NAME is what tables call it and WEIGHTS the file of a state dict, or "random".

    Returns
    -------
    Backbone

    Raises
    ------
    ValueError
        If a part is empty.

    Examples
    --------
    >>> from benchmarks.backbones import read_backbone
    >>> read_backbone("clip=vit_base_patch16_clip_quickgelu_224:clip.safetensors").weights
    'clip.safetensors'
    """
    name, named, rest = text.partition("=")
    if not named:
        return Backbone(_filled(name, text), name)
    if rest.startswith(_FOLDER):
        return Backbone(_filled(name, text), rest)
    model, has_weights, weights = rest.partition(":")
    return Backbone(_filled(name, text), _filled(model, text), _filled(weights, text) if has_weights else None)


def read_backbones(texts):
    """Return the backbones of several options; ``papers``, ``vfusion`` and ``alf`` stand for those of the papers.

    Parameters
    ----------
    texts : list of str
        As :func:`read_backbone` takes them.

    Returns
    -------
    list of Backbone
        Each once.

    Raises
    ------
    ValueError
        If two different ones have the same name.
    """
    groups = PAPER_BACKBONES | {"papers": tuple(name for names in PAPER_BACKBONES.values() for name in names)}
    found = list(dict.fromkeys(read_backbone(each) for text in texts for each in groups.get(text, (text,))))
    names = [backbone.name for backbone in found]
    if len(set(names)) < len(names):
        raise ValueError(f"Backbones {names} have equal names; tell them apart as NAME=TIMM_NAME:WEIGHTS.")
    return found


def _filled(part, text):
    if not part:
        known = ", ".join(["nano", *ALIASES])
        raise ValueError(f"backbone {text!r} has an empty part; write NAME=TIMM_NAME:WEIGHTS, or one of {known}.")
    return part
