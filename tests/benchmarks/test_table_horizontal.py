"""The table of backbones side by side."""

import numpy as np
import pandas as pd
import pytest

from benchmarks import table_horizontal as table
from benchmarks.features import Features

pytestmark = pytest.mark.usefixtures("one_thread", "short_training")


def features(backbone, n_layers, dim, rng, y=(0, 1, 0, 1)):
    X = rng.normal(size=(len(y), n_layers, 2, dim)).astype(np.float32)
    return Features("made up", backbone, X, np.array(y), X[:2], np.array(y[:2]), fingerprint=backbone.upper())


def test_help_names_the_script(capsys):
    with pytest.raises(SystemExit, match="0"):
        table.main(["--help"])
    assert "benchmarks.table_horizontal" in capsys.readouterr().out


def test_narrow_layers_are_filled_up_with_zeros(rng):
    wide, narrow = features("wide", 3, 6, rng), features("narrow", 2, 4, rng)
    joined = table.join([wide, narrow])
    assert joined.X.shape == (4, 5, 2, 6)
    assert joined.X_test.shape == (2, 5, 2, 6)
    np.testing.assert_array_equal(joined.X[:, :3], wide.X)
    np.testing.assert_array_equal(joined.X[:, 3:, :, :4], narrow.X)
    assert not joined.X[:, 3:, :, 4:].any()
    assert (joined.backbone, joined.fingerprint) == ("wide + narrow", "WIDE + NARROW")


def test_horizontal_methods_get_the_last_layer_of_each(rng):
    wide, narrow = features("wide", 3, 6, rng), features("narrow", 2, 4, rng)
    joined = table.join([wide, narrow], slice(-1, None))
    assert joined.X.shape == (4, 2, 2, 6)
    np.testing.assert_array_equal(joined.X[:, 0], wide.X[:, -1])
    np.testing.assert_array_equal(joined.X[:, 1, :, :4], narrow.X[:, -1])


def test_features_of_other_images_are_not_joined(rng):
    with pytest.raises(ValueError, match="labels of other are not those of one"):
        table.join([features("one", 2, 4, rng), features("other", 2, 4, rng, y=(1, 0, 0, 1))])


def test_one_backbone_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        table.main(["--backbone", "nano", "--out", str(tmp_path)])
    assert "two backbones or more" in capsys.readouterr().err


def test_quick_computes_every_cell_once_and_says_that_it_is_a_trial(tmp_path, capsys):
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
    first = (tmp_path / "table_horizontal.csv").read_text()
    frame = pd.read_csv(tmp_path / "table_horizontal.csv")
    assert frame["error"].isna().all()
    assert frame["accuracy"].between(0.1, 1).all()
    counts = frame["backbone"].value_counts().to_dict()
    several = len(table.HORIZONTAL) + len(table.BOTH)
    assert counts == {"nano": 2, "untrained": 2, "nano + untrained": several}
    table.main(command)
    assert (tmp_path / "table_horizontal.csv").read_text() == first
    printed = capsys.readouterr().out
    assert "one of the backbones is untrained" in printed
    assert "| HFusion |" in printed
