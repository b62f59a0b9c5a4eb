import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from skvfusion import RecoverabilityDisplay

Y = np.array([0, 1, 1, 0])
LAYERS = np.array([[0, 0, 0, 1], [0, 1, 0, 1], [0, 1, 1, 1]])
FUSED = np.array([0, 1, 1, 0])


def legend(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def line(display, name):
    (found,) = (line for line in display.ax_.get_lines() if line.get_label().startswith(name))
    return found


def test_from_predictions_sets_the_numbers_it_draws():
    display = RecoverabilityDisplay.from_predictions(Y, LAYERS, FUSED)
    assert np.asarray(display.layer_accuracy).tolist() == [0.25, 0.5, 0.75]
    assert display.oracle_accuracy == 0.75
    assert display.fused_accuracy == 1.0
    assert display.fused_name == "VFusion"


def test_from_predictions_draws_the_curve_and_a_line_for_each_reference():
    display = RecoverabilityDisplay.from_predictions(Y, LAYERS, FUSED, fused_name="Mine")
    curve = line(display, "probe of one layer")
    assert curve.get_xdata().tolist() == [0, 1, 2]
    assert curve.get_ydata().tolist() == [0.25, 0.5, 0.75]
    assert list(line(display, "any-layer oracle").get_ydata()) == [0.75, 0.75]
    assert list(line(display, "Mine").get_ydata()) == [1.0, 1.0]
    assert list(line(display, "last layer").get_ydata()) == [0.75, 0.75]
    assert len(display.ax_.get_lines()) == 4


def test_labels_and_legend():
    display = RecoverabilityDisplay.from_predictions(Y, LAYERS, FUSED, fused_name="Mine")
    assert display.ax_.get_xlabel() == "layer"
    assert "accuracy" in display.ax_.get_ylabel()
    assert display.ax_.get_xticks().tolist() == [0, 1, 2]
    assert legend(display) == ["probe of one layer", "any-layer oracle 75.0%", "Mine 100.0%", "last layer 75.0%"]


def test_without_fused_predictions_there_is_no_line_for_them():
    display = RecoverabilityDisplay.from_predictions(Y, LAYERS)
    assert display.fused_accuracy is None
    assert legend(display) == ["probe of one layer", "any-layer oracle 75.0%", "last layer 75.0%"]


def test_string_labels():
    names = np.array(["cat", "dog"])
    display = RecoverabilityDisplay.from_predictions(names[Y], names[LAYERS], names[FUSED])
    assert (display.oracle_accuracy, display.fused_accuracy) == (0.75, 1.0)


def test_the_constructor_alone_draws_nothing():
    display = RecoverabilityDisplay([0.5, 0.7])
    assert not hasattr(display, "ax_")
    assert not hasattr(display, "figure_")


def test_plot_returns_the_display_and_leaves_out_what_is_not_known():
    display = RecoverabilityDisplay([0.5, 0.7])
    assert display.plot() is display
    assert legend(display) == ["probe of one layer", "last layer 70.0%"]


def test_an_accuracy_of_zero_is_drawn():
    display = RecoverabilityDisplay([0.0, 0.0], oracle_accuracy=0.0, fused_accuracy=0.0).plot()
    assert legend(display) == ["probe of one layer", "any-layer oracle 0.0%", "VFusion 0.0%", "last layer 0.0%"]


def test_one_layer(tmp_path):
    display = RecoverabilityDisplay.from_predictions(Y, LAYERS[-1:])
    assert line(display, "probe of one layer").get_xdata().tolist() == [0]
    display.figure_.savefig(tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("draw", ["plot", "from_predictions"])
def test_a_given_axes_is_drawn_on(draw):
    left, right = Figure().subplots(1, 2)
    if draw == "plot":
        display = RecoverabilityDisplay([0.5, 0.7]).plot(ax=right)
    else:
        display = RecoverabilityDisplay.from_predictions(Y, LAYERS, ax=right)
    assert display.ax_ is right
    assert display.figure_ is right.figure
    assert right.get_lines()
    assert not left.get_lines()


def test_plotting_again_makes_a_fresh_figure():
    display = RecoverabilityDisplay([0.5, 0.7])
    first = display.plot().ax_
    second = display.plot().ax_
    assert first is not second
    assert len(first.get_lines()) == len(second.get_lines()) == 2


def test_pyplots_figures_and_backend_are_left_alone():
    import matplotlib
    import matplotlib.pyplot as plt

    numbers, backend = plt.get_fignums(), matplotlib.get_backend()
    RecoverabilityDisplay.from_predictions(Y, LAYERS, FUSED)
    assert plt.get_fignums() == numbers
    assert matplotlib.get_backend() == backend


def test_plotting_does_not_change_the_parameters():
    accuracy = [0.5, 0.7]
    display = RecoverabilityDisplay(accuracy).plot()
    assert display.layer_accuracy is accuracy
    assert accuracy == [0.5, 0.7]


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    for module in ["matplotlib", *(name for name in sys.modules if name.startswith("matplotlib."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"needs matplotlib.*skvfusion\[plot\]"):
        RecoverabilityDisplay.from_predictions(Y, LAYERS)


def test_shapes_that_do_not_fit_raise():
    with pytest.raises(ValueError, match="do not fit"):
        RecoverabilityDisplay.from_predictions(Y[:3], LAYERS)
