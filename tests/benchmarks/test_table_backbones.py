"""The table of backbones."""

import pandas as pd
import pytest

from benchmarks import table_backbones as table

pytestmark = pytest.mark.usefixtures("one_thread", "short_training")


def rows(name, backbone, accuracies, shots="all"):
    return [
        {"set": name, "backbone": backbone, "shots": shots, "seed": 0, "method": method, "accuracy": accuracy}
        for method, accuracy in zip(table.LABELS, accuracies, strict=True)
    ]


def test_help_names_the_script(capsys):
    with pytest.raises(SystemExit, match="0"):
        table.main(["--help"])
    assert "benchmarks.table_backbones" in capsys.readouterr().out


def test_means_are_over_the_sets_that_all_backbones_have():
    x_of_one = rows("x", "one", [0.5, 0.6, 0.6, 0.7, 0.9])
    x_of_two = rows("x", "two", [0.4, 0.4, 0.5, 0.6, 0.8])
    y_of_one = rows("y", "one", [0.1, 0.1, 0.1, 0.1, 0.1])
    text = table.summary(pd.DataFrame(x_of_one + x_of_two + y_of_one))
    assert "over x, gains" in text
    one = next(line for line in text.splitlines() if line.startswith("| one"))
    assert "| 50.0 | 60.0 | 60.0 | 70.0 | 90.0 | +20.0 | +10.0 |" in one


def test_a_failed_method_takes_its_set_out():
    frame = pd.DataFrame(rows("x", "one", [0.5, 0.6, None, 0.7, 0.9]))
    assert "No set has a result" in table.summary(frame)


def test_rows_of_another_table_are_read(tmp_path):
    source = tmp_path / "table_id.csv"
    figures = [0.5, 0.6, 0.6, 0.7, 0.9]
    pd.DataFrame(rows("x", "one", figures) + rows("x", "one", [0.0] * 5, "5")).to_csv(source, index=False)
    assert table.read(source, None)["accuracy"].tolist() == figures
    assert table.read(source, 5)["accuracy"].tolist() == [0.0] * 5


def test_a_table_without_these_methods_is_refused(tmp_path):
    source = tmp_path / "other.csv"
    pd.DataFrame(rows("x", "one", [0.5] * 5)[1:]).to_csv(source, index=False)
    with pytest.raises(ValueError, match=r"other.csv has no rows of \['last layer'\]"):
        table.read(source, None)


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
    first = (tmp_path / "table_backbones.csv").read_text()
    accuracy = pd.read_csv(tmp_path / "table_backbones.csv").set_index("method")["accuracy"]
    assert list(accuracy.index) == list(table.LABELS)
    assert accuracy.max() == accuracy[table.ORACLE]
    assert accuracy.min() > 0.2
    table.main(command)
    assert (tmp_path / "table_backbones.csv").read_text() == first
    assert "| nano |" in capsys.readouterr().out
