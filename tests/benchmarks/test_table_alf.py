import pandas as pd
import pytest

from benchmarks import table_alf

pytestmark = pytest.mark.usefixtures("one_thread", "short_training")


@pytest.mark.parametrize("more", [[], ["--tap", "norm2", "--search"]])
def test_quick_mode_fills_every_cell(more, tmp_path, capsys):
    words = [
        "--quick",
        "--out",
        str(tmp_path),
        "--cache",
        str(tmp_path / "cache"),
        "--device",
        "cpu",
        "--sets",
        "digits",
    ]
    table_alf.main([*words, *more])
    cells = pd.read_csv(tmp_path / "table_alf.csv")
    assert cells["error"].isna().all()
    assert cells["method"].tolist() == [method.label for method in table_alf.methods(search=bool(more))]
    assert set(cells["tap"]) == {"norm2" if more else "block"}
    assert cells["balanced_accuracy"].between(0.2, 1).all()
    text = (tmp_path / "table_alf.md").read_text()
    assert "the paper's gain" in text
    assert "+3.80" in text
    assert ("+5.54" in text) == bool(more)


def test_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        table_alf.main(["--help"])
    assert "--tap" in capsys.readouterr().out
