import numpy as np
import pandas as pd
import pytest

from benchmarks.summaries import (
    compared,
    gap_closed,
    mean_table,
    paired_difference,
    points,
    to_markdown,
    worst_differences,
)


@pytest.fixture
def frame():
    values = {
        ("x", "last"): [0.5, 0.7],
        ("x", "fused"): [0.6, 0.8],
        ("x", "oracle"): [0.8, 0.8],
        ("y", "last"): [0.9, 0.9],
        ("y", "fused"): [0.8, 0.9],
        ("y", "oracle"): [1.0, 1.0],
    }
    rows = [
        {"set": name, "backbone": "nano", "seed": seed, "method": method, "accuracy": value}
        for (name, method), by_seed in values.items()
        for seed, value in enumerate(by_seed)
    ]
    return pd.DataFrame(rows)


def test_means_over_seeds_and_sets_in_percent_with_ranks(frame):
    table = mean_table(frame)
    assert table.index.tolist() == ["last", "fused", "oracle"]
    assert table.columns.tolist() == [("nano", "x"), ("nano", "y"), ("", "mean"), ("", "mean rank")]
    assert table.loc["fused"].to_numpy() == pytest.approx([70, 85, 77.5, 2.5])
    assert table["", "mean rank"].tolist() == [2.5, 2.5, 1]


def test_a_set_that_a_method_lacks_is_left_out_of_all_means(frame):
    frame = frame[~((frame["set"] == "y") & (frame["method"] == "fused"))]
    table = mean_table(frame)
    assert np.isnan(table.loc["fused", ("nano", "y")])
    assert table["", "mean"].to_numpy() == pytest.approx([60, 70, 80])


def test_paired_differences_are_bracketed_by_those_of_the_sets(frame):
    mean, low, high = paired_difference(frame, "fused", "last")
    assert mean == pytest.approx((0.1 - 0.05) / 2)
    assert low < mean < high
    assert low >= -0.1
    assert high <= 0.1 + 1e-12
    assert paired_difference(frame, "fused", "last") == (mean, low, high)


def test_equal_differences_have_no_width(frame):
    only_x = frame[frame["set"] == "x"]
    assert np.array(paired_difference(only_x, "fused", "last")) == pytest.approx([0.1, 0.1, 0.1])


def test_a_method_that_is_absent_has_no_difference(frame):
    assert np.isnan(paired_difference(frame, "fused", "nothing")).all()
    assert worst_differences(frame, "fused", "nothing").empty


def test_the_largest_loss_comes_first(frame):
    losses = worst_differences(frame, "fused", "last")
    assert losses.index.tolist() == [("nano", "y"), ("nano", "x")]
    assert losses.to_numpy() == pytest.approx([-0.05, 0.1])


def test_the_gap_is_averaged_in_both_ways(frame):
    closed = gap_closed(frame, "fused", "last", "oracle")
    assert closed.mean_of_ratios == pytest.approx((0.1 / 0.2 - 0.05 / 0.1) / 2, abs=1e-9)
    assert closed.ratio_of_means == pytest.approx(0.025 / 0.15)
    assert np.isnan(gap_closed(frame, "nothing", "last", "oracle")).all()


def test_markdown_has_a_row_for_each_row():
    table = pd.DataFrame({("nano", "x"): [1.25, np.nan], ("", "mean"): [2.0, 3.0]}, index=["a|b", "c"])
    assert to_markdown(table, 1).splitlines() == [
        "|  | nano, x | mean |",
        "| --- | --: | --: |",
        "| a\\|b | 1.2 | 2.0 |",
        "| c |  | 3.0 |",
    ]


def test_points_have_signs():
    assert points((0.012, -0.0049, 0.03)) == "+1.2 [-0.5, +3.0]"


def rows(accuracies):
    return pd.DataFrame(
        [
            {"set": name, "backbone": "nano", "seed": seed, "method": method, "accuracy": accuracy}
            for (name, seed, method), accuracy in accuracies.items()
        ]
    )


def test_a_method_is_compared_where_both_have_a_result():
    frame = rows({("x", 0, "a"): 0.5, ("x", 0, "b"): 0.6, ("y", 0, "a"): 0.9, ("y", 0, "b"): 0.7, ("z", 0, "b"): 0.0})
    row = compared(frame, "a", "b")
    assert row["accuracy"] == "70.0"
    assert row["difference [95 %]"].startswith("+5.0 [")
    assert row["worst set"] == "x, nano (-10.0)"
    assert row["pairs"] == "2"


def test_the_reference_itself_has_no_difference():
    row = compared(rows({("x", 0, "b"): 0.6}), "b", "b")
    assert (row["accuracy"], row["difference [95 %]"], row["worst set"]) == ("60.0", "", "")


def test_a_method_without_results_has_an_empty_row():
    assert compared(rows({("x", 0, "b"): 0.6}), "a", "b")["pairs"] == "0"


def test_one_cell_has_no_interval():
    assert points((0.0125, 0.0125, 0.0125)) == "+1.2"
    assert points((0.0125, -0.02, 0.03)) == "+1.2 [-2.0, +3.0]"
