import pytest

from benchmarks.backbones import PAPER_BACKBONES, Backbone, read_backbone, read_backbones
from skvfusion.extraction import ALIASES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nano", Backbone("nano", "nano")),
        ("mine=dinov2_s", Backbone("mine", "dinov2_s")),
        ("mine=dinov2_s:some/weights.pt", Backbone("mine", "dinov2_s", "some/weights.pt")),
        ("control=nano:random", Backbone("control", "nano", "random")),
        ("mine=local-dir:some/folder", Backbone("mine", "local-dir:some/folder")),
    ],
)
def test_reads_names_models_and_weights(text, expected):
    assert read_backbone(text) == expected


@pytest.mark.parametrize("text", ["", "=nano", "mine=", "mine=nano:"])
def test_an_empty_part_is_refused_with_what_to_write(text):
    with pytest.raises(ValueError, match="NAME=TIMM_NAME:WEIGHTS"):
        read_backbone(text)


def test_what_is_published_has_no_folder():
    assert read_backbone("mine=dinov2_s:/home/me/weights.pt").public == "mine=dinov2_s:WEIGHTS/weights.pt"
    assert read_backbone("nano").public == "nano"
    assert read_backbone("control=nano:random").public == "control=nano:random"


def test_papers_stands_for_the_backbones_of_both_each_once():
    found = [backbone.name for backbone in read_backbones(["papers", "nano"])]
    assert len(found) == len(set(found))
    assert set(found) == {*PAPER_BACKBONES["vfusion"], *PAPER_BACKBONES["alf"], "nano"}
    assert all(name in ALIASES or name.startswith("vit_") for name in found[:-1])


def test_two_backbones_of_one_name_are_refused():
    with pytest.raises(ValueError, match="tell them apart"):
        read_backbones(["mine=nano", "mine=dinov2_s"])
