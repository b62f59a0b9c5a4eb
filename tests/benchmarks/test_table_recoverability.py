"""The table of recoverability holds its identities, and says how recovery goes with the rest across sets."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.table_recoverability import FIGURES, by_pair, correlations, main, summary


def made_up(recovery, entropy):
    rows = [
        {"backbone": "nano", "set": str(i), "seed": 0, **dict.fromkeys(FIGURES, 0.5), "recovery": r, "entropy_A": e}
        for i, (r, e) in enumerate(zip(recovery, entropy, strict=True))
    ]
    return pd.DataFrame(rows)


def test_quick_mode_gives_figures_that_fit_each_other(tmp_path, capsys):
    arguments = ["--quick", "--probe", "linear", "--out", str(tmp_path), "--cache", str(tmp_path / "cache")]
    main(arguments)
    frame = pd.read_csv(tmp_path / "table_recoverability.csv")
    assert frame["set"].tolist() == ["digits", "patches"]
    assert frame["error"].isna().all()
    np.testing.assert_allclose(frame["recovery"], (frame["oracle"] - frame["last"]) / (1 - frame["last"]))
    assert (frame["oracle"] >= frame["best_validation"]).all()
    assert (frame["harm_max"] >= frame["harm_mean"]).all()
    assert (frame["entropy_C"] <= frame["entropy_B"] + 1e-12).all()
    assert "18 % to 76 %" in capsys.readouterr().out
    main(arguments)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "table_recoverability.csv"), frame)


def test_recovery_that_rises_with_entropy_correlates_positively():
    table = correlations(by_pair(made_up([0.2, 0.4, 0.6, 0.9], [0.1, 0.2, 0.3, 0.4])))
    row = table.loc[("nano", "entropy_A")]
    assert row["Spearman"] == pytest.approx(1)
    assert 0.9 < row["Pearson"] < 1
    assert row["pairs"] == 4


def test_what_has_no_correlation_is_nan():
    assert np.isnan(correlations(by_pair(made_up([0.2, 0.4], [0.1, 0.2]))).loc[("nano", "entropy_A"), "Pearson"])
    constant = correlations(by_pair(made_up([0.2, 0.4, 0.6], [0.1, 0.1, 0.1])))
    assert np.isnan(constant.loc[("nano", "entropy_A"), "Spearman"])


def test_summary_gives_the_range_and_the_number_of_sets():
    assert "Recovery here: 20 % to 60 % over 3" in summary(made_up([0.2, 0.4, 0.6], [0.1, 0.2, 0.3]), "mlp")


def test_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "--probe" in capsys.readouterr().out
