import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from skvfusion import LayerVotingClassifier, RecoverabilityDisplay
from skvfusion.recoverability import RecoverabilityScorer

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


def rates(**options):
    return RecoverabilityDisplay([0.5, 0.7], layer_recovery=[0.2, 0.0], layer_harm=[0.4, 0.0], **options)


def rate_lines(display):
    return {line.get_label().split(":")[0]: line.get_ydata().tolist() for line in display.rates_ax_.get_lines()}


def test_recovery_and_harm_get_a_panel_below():
    display = rates().plot()
    assert display.figure_.axes == [display.ax_, display.rates_ax_]
    assert rate_lines(display) == {"recovery": [0.2, 0.0], "harm": [0.4, 0.0]}
    assert legend(display) == ["probe of one layer", "last layer 70.0%"]


def test_one_of_recovery_and_harm_will_do():
    display = RecoverabilityDisplay([0.5, 0.7], layer_harm=[0.4, 0.0]).plot()
    assert rate_lines(display) == {"harm": [0.4, 0.0]}


def test_without_recovery_and_harm_there_is_one_panel():
    display = RecoverabilityDisplay([0.5, 0.7]).plot()
    assert display.rates_ax_ is None
    assert display.figure_.axes == [display.ax_]


def test_recovery_and_harm_go_into_the_second_of_two_axes():
    upper, lower = Figure().subplots(2)
    display = rates().plot(ax=(upper, lower))
    assert (display.ax_, display.rates_ax_) == (upper, lower)
    assert len(upper.get_lines()) == len(lower.get_lines()) == 2


def test_recovery_and_harm_share_a_single_axes():
    ax = Figure().add_subplot()
    display = rates().plot(ax=ax)
    assert display.ax_ is display.rates_ax_ is ax
    assert len(ax.get_lines()) == 4
    assert ax.get_ylabel() == "share"


def test_more_than_two_axes_raise():
    with pytest.raises(ValueError, match="ax holds 3 axes; pass one, or two"):
        rates().plot(ax=Figure().subplots(3))


def test_recovery_from_a_last_layer_without_errors_is_named_and_not_drawn():
    display = RecoverabilityDisplay.from_predictions(LAYERS[2], LAYERS, rates=True)
    assert np.isnan(display.layer_recovery).all()
    names = [text.get_text() for text in display.rates_ax_.get_legend().get_texts()]
    assert names[0].endswith("(never)")
    assert not names[1].endswith("(never)")


def test_from_predictions_adds_recovery_and_harm_if_asked():
    display = RecoverabilityDisplay.from_predictions(Y, LAYERS, rates=True)
    assert display.layer_recovery.tolist() == [0, 0, 0]
    assert display.layer_harm == pytest.approx([2 / 3, 1 / 3, 0])
    assert RecoverabilityDisplay.from_predictions(Y, LAYERS).layer_recovery is None


def test_layers_are_called_what_they_are_called():
    display = RecoverabilityDisplay.from_predictions(Y, LAYERS, layers=[3, 7, 11])
    assert [label.get_text() for label in display.ax_.get_xticklabels()] == ["3", "7", "11"]


def test_from_estimator_evaluates_the_scorer_and_the_fusion(make_stack):
    X, y = make_stack()
    scorer = RecoverabilityScorer("linear", layers=[0, 2, 5], random_state=0).fit(X[:30], y[:30])
    fusion = LayerVotingClassifier().fit(X[:30], y[:30])
    display = RecoverabilityDisplay.from_estimator(scorer, X[30:], y[30:], fused=fusion, fused_name="vote", rates=True)
    result = scorer.evaluate(X[30:], y[30:])
    assert display.layers == [0, 2, 5]
    assert display.layer_accuracy.tolist() == result.layer_accuracy.tolist()
    assert display.oracle_accuracy == result.oracle_accuracy
    assert display.fused_accuracy == fusion.score(X[30:], y[30:])
    assert display.layer_recovery.tolist() == result.layer_recovery.tolist()
    assert display.layer_harm.tolist() == result.layer_harm.tolist()
    assert any(name.startswith("vote") for name in legend(display))


def test_from_estimator_takes_out_of_fold_predictions(make_stack):
    X, y = make_stack()
    scorer = RecoverabilityScorer("linear", cv=2, random_state=0).fit(X, y)
    display = RecoverabilityDisplay.from_estimator(scorer)
    assert display.layer_accuracy.tolist() == scorer.evaluate().layer_accuracy.tolist()
    with pytest.raises(ValueError, match="fused needs images"):
        RecoverabilityDisplay.from_estimator(scorer, fused=LayerVotingClassifier())
