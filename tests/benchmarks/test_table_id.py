import pandas as pd
import pytest

from benchmarks import table_id
from skvfusion.methods import METHODS

pytestmark = pytest.mark.usefixtures("one_thread", "short_training")


def test_quick_mode_fills_every_cell_and_resumes(tmp_path, capsys):
    words = ["--quick", "--out", str(tmp_path), "--cache", str(tmp_path / "cache"), "--device", "cpu", "--shots", "2"]
    words += ["--sets", "digits"]
    table_id.main(words)
    cells = pd.read_csv(tmp_path / "table_id.csv")
    assert cells["error"].isna().all()
    assert cells["method"].tolist() == [method.label for method in table_id.methods()]
    assert {method.label for method in METHODS.values()} < set(cells["method"])
    assert cells["accuracy"].between(0.15, 1).all()
    accuracy = cells.set_index("method")["accuracy"]
    assert accuracy[table_id.ORACLE] >= accuracy[table_id.HINDSIGHT] >= accuracy[table_id.LAST]
    assert accuracy[table_id.HINDSIGHT] >= accuracy[table_id.BEST]
    before = (tmp_path / "table_id.csv").read_text(), (tmp_path / "table_id.md").read_text()
    table_id.main(words)
    assert ((tmp_path / "table_id.csv").read_text(), (tmp_path / "table_id.md").read_text()) == before
    assert f"| {table_id.VFUSION} |" in before[1]
    assert str(tmp_path) not in before[1]
    assert (tmp_path / "table_id.json").exists()


def test_rows_may_be_chosen(tmp_path, capsys):
    words = ["--quick", "--out", str(tmp_path), "--cache", str(tmp_path / "cache"), "--shots", "2", "--sets", "patches"]
    table_id.main([*words, "--methods", table_id.LAST, table_id.SUPER_LEARNER])
    assert pd.read_csv(tmp_path / "table_id.csv")["method"].tolist() == [table_id.LAST, table_id.SUPER_LEARNER]
    with pytest.raises(SystemExit, match="2"):
        table_id.main([*words, "--methods", "first layer"])
    assert "invalid choice: 'first layer'" in capsys.readouterr().err


def test_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        table_id.main(["--help"])
    assert "python -m benchmarks.table_id --quick" in capsys.readouterr().out
