"""The ablation of VFusion's parameters."""

import pandas as pd
import pytest

from benchmarks import ablation_vfusion as table
from skvfusion import VFusionClassifier

pytestmark = pytest.mark.usefixtures("one_thread", "short_training")


def test_help_names_the_script(capsys):
    with pytest.raises(SystemExit, match="0"):
        table.main(["--help"])
    assert "benchmarks.ablation_vfusion" in capsys.readouterr().out


def test_every_variant_differs_from_the_default_in_one_parameter():
    default = VFusionClassifier().get_params()
    for label, params in table.changes(default).items():
        changed = VFusionClassifier(**params).get_params()
        assert [name for name in default if changed[name] != default[name]] == [label.partition("=")[0]]


def test_the_papers_encoder_is_tried_with_every_scaling():
    found = table.as_in_the_paper(VFusionClassifier().get_params())
    assert {params.get("scaling", "layer") for params in found.values()} == {"standard", "layer", "token", "l2", None}
    assert all(params["probe_share"] == params["layer_emphasis"] == 0 for params in found.values())


def test_another_default_changes_only_which_of_its_values_is_left_out():
    default = VFusionClassifier().get_params()
    before, after = table.changes(default | {"dropout": 0.3}), table.changes(default | {"dropout": 0.5})
    assert set(before) ^ set(after) == {"dropout=0.3", "dropout=0.5"}


def test_a_list_is_the_default_that_is_a_tuple_or_a_single_width():
    default = VFusionClassifier().get_params()
    found = table.changes(default | {"hidden": [512], "layer_norm": ["hidden", "latent"]})
    assert "hidden=512" not in found
    assert "layer_norm=('hidden', 'latent')" not in found
    assert "hidden=256" in found


def test_quick_tries_a_value_of_each_parameter_and_other_features(tmp_path, capsys):
    command = [
        "--quick",
        "--sets",
        "digits",
        "--shots",
        "2",
        "--out",
        str(tmp_path),
        "--cache",
        str(tmp_path / "cache"),
    ]
    table.main(command)
    first = (tmp_path / "ablation_vfusion.csv").read_text()
    frame = pd.read_csv(tmp_path / "ablation_vfusion.csv").set_index("method")
    assert len(frame) == 1 + len(table.VALUES) + 1 + 1 + len(table.EXTRACTIONS)
    assert frame["error"].isna().all()
    assert frame["accuracy"].between(0.2, 1).all()
    # The other features are others, so the same classifier is not equally sure.
    assert frame.loc[[table.DEFAULT, *table.EXTRACTIONS], "nll"].nunique() == 3
    table.main(command)
    assert (tmp_path / "ablation_vfusion.csv").read_text() == first
    assert "| tap=norm2 |" in capsys.readouterr().out
