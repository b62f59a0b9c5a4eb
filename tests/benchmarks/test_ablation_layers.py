"""The ablation of layer selections."""

import pandas as pd
import pytest

from benchmarks import ablation_layers as table
from skvfusion import AttentiveFusionClassifier

pytestmark = pytest.mark.usefixtures("one_thread", "short_training")


def rows(accuracies):
    return pd.DataFrame(
        [
            {"set": name, "backbone": "nano", "seed": seed, "method": method, "accuracy": accuracy}
            for (name, seed, method), accuracy in accuracies.items()
        ]
    )


def test_help_names_the_script(capsys):
    with pytest.raises(SystemExit, match="0"):
        table.main(["--help"])
    assert "benchmarks.ablation_layers" in capsys.readouterr().out


def test_every_fusion_is_tried_on_every_selection():
    assert len({method.label for method in table.methods()}) == 3 * 7
    made = table.make("ALF", "last:2", random_state=3, device="cpu")
    assert isinstance(made, AttentiveFusionClassifier)
    assert (made.layers, made.random_state) == ("last:2", 3)


def test_the_papers_differences_stand_beside_vfusion_only():
    text = table.summary(rows({("x", 0, "VFusion, all"): 0.6, ("x", 0, "VFusion, second_half"): 0.5}))
    assert text.count("the paper's difference") == 1
    line = next(line for line in text.splitlines() if line.startswith("| second_half"))
    assert "| -10.0 |" in line
    assert line.endswith("| -0.3 |")


def test_quick_computes_every_cell_once(tmp_path, capsys):
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
    first = (tmp_path / "ablation_layers.csv").read_text()
    frame = pd.read_csv(tmp_path / "ablation_layers.csv")
    assert len(frame) == 3 * len(table.QUICK_SELECTIONS)
    assert frame["error"].isna().all()
    assert frame["accuracy"].between(0.2, 1).all()
    table.main(command)
    assert (tmp_path / "ablation_layers.csv").read_text() == first
    assert "## Super Learner" in capsys.readouterr().out
