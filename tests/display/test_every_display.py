"""What holds for every display: scikit-learn's convention, no global state, nothing cut off and nothing overlapping."""

import copy
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from matplotlib.figure import Figure

import skvfusion
from skvfusion import (
    AttentionDisplay,
    FirstCorrectLayerDisplay,
    LatentCorrelationDisplay,
    LayerAgreementDisplay,
    LayerWeightsDisplay,
    RecoverabilityDisplay,
    SeverityDisplay,
)

LONG = "VFusion of all the layers there are, orthogonality 0.1, class weights balanced"
METHODS = ["last layer, linear probe", LONG, *(f"method number {i}" for i in range(9))]


def rising(n):
    return np.linspace(0.2, 0.9, n)


def shares(n, seed):
    return np.random.default_rng(seed).dirichlet(np.ones(n))


def recoverability(n):
    return RecoverabilityDisplay(rising(n), oracle_accuracy=0.97, fused_accuracy=0.93, fused_name=LONG)


def recoverability_with_rates(n):
    return RecoverabilityDisplay(
        rising(n), oracle_accuracy=0.97, fused_accuracy=0.93, layer_recovery=rising(n) / 3, layer_harm=1 - rising(n)
    )


def agreement(n):
    rate = np.abs(np.subtract.outer(rising(n), rising(n)))
    return LayerAgreementDisplay(rate)


def first_correct(n):
    return FirstCorrectLayerDisplay(np.arange(1000, 1000 + n), never=31, lost=np.arange(n))


def weights(n):
    names = ["Super Learner", "Mixture of Experts", LONG]
    curves = {name: shares(n, i) for i, name in enumerate(names)}
    return LayerWeightsDisplay(curves, spread={LONG: [0.8 * curves[LONG], 1.2 * curves[LONG]]})


def attention(n):
    names = ["EuroSAT: land use and land cover classification", *(f"data set {i}" for i in range(6))]
    return AttentionDisplay({name: shares(2 * n, i).reshape(n, 2) for i, name in enumerate(names)})


def latent(n):
    return LatentCorrelationDisplay(np.eye(n))


def severity(n):
    return SeverityDisplay({name: rising(n)[::-1] for name in METHODS})


MAKERS = [
    recoverability,
    recoverability_with_rates,
    agreement,
    first_correct,
    weights,
    attention,
    latent,
    severity,
]
every_display = pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)


def boxes(figure):
    """The extents in pixels of the texts that are shown, by what they say."""
    figure.draw_without_rendering()
    texts = []
    for ax in figure.axes:
        # Ticks outside of the limits keep a label that is not drawn.
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
            texts += [label for place, label in ticks if low <= place <= high]
        texts += [ax.xaxis.label, ax.yaxis.label, ax.title, *ax.texts]
        if ax.get_legend():
            texts += ax.get_legend().get_texts()
    return [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text() and text.get_visible()]


def overlapping(figure):
    found = boxes(figure)
    return [
        (one, other)
        for (one, a), (other, b) in combinations(found, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]


def outside(figure):
    width, height = figure.bbox.width, figure.bbox.height
    return [
        text for text, box in boxes(figure) if box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1
    ]


@every_display
@pytest.mark.parametrize("n", [1, 2, 6, 12, 24, 40, 128])
def test_at_600_pixels_no_text_overlaps_another_or_is_cut_off(make, n):
    # Corruptions come in five severities, not in dozens.
    figure = make(min(n, 24) if make is severity else n).plot().figure_
    assert figure.bbox.width == 600
    assert outside(figure) == []
    assert overlapping(figure) == []


@pytest.mark.parametrize("make", [recoverability, agreement, first_correct, weights], ids=lambda make: make.__name__)
@pytest.mark.parametrize("n", [12, 24])
def test_half_the_width_suffices_for_a_given_axes(make, n):
    from skvfusion.display import new_figure

    figure = new_figure()
    left, right = figure.subplots(1, 2)
    make(n).plot(ax=left)
    right.plot([0, 1])
    assert overlapping(figure) == []


def test_the_overlaps_are_found():
    figure = Figure()
    ax = figure.add_subplot()
    ax.text(0.5, 0.5, "here")
    ax.text(0.51, 0.5, "there")
    ax.text(3, 0.5, "away")
    assert overlapping(figure) == [("here", "there")]
    assert outside(figure) == ["away"]


@every_display
def test_plot_returns_the_display_with_axes_and_figure(make):
    display = make(12)
    assert not hasattr(display, "ax_")
    assert display.plot() is display
    assert display.ax_ in display.figure_.axes
    assert display.ax_.has_data()


@every_display
def test_a_given_axes_is_drawn_on(make):
    left, right = Figure(layout="constrained").subplots(1, 2)
    display = make(12).plot(ax=right)
    assert display.ax_ is right
    assert display.figure_ is right.figure
    assert right.has_data()
    assert not left.has_data()


@every_display
def test_a_subfigure_will_do(make):
    upper, _ = Figure(layout="constrained").subfigures(2)
    ax = upper.add_subplot()
    assert make(12).plot(ax=ax).ax_ is ax


@every_display
def test_plotting_again_makes_a_fresh_figure_and_changes_no_parameter(make):
    display = make(12)
    before = copy.deepcopy(vars(display))
    first = display.plot().figure_
    second = display.plot().figure_
    assert first is not second
    assert len(first.axes) == len(second.axes)
    for name, value in before.items():
        np.testing.assert_equal(getattr(display, name), value)


@every_display
def test_pyplot_and_the_settings_are_left_alone(make):
    import matplotlib
    import matplotlib.pyplot as plt

    numbers, backend, settings = plt.get_fignums(), matplotlib.get_backend(), dict(matplotlib.rcParams)
    make(12).plot()
    assert plt.get_fignums() == numbers
    assert matplotlib.get_backend() == backend
    assert dict(matplotlib.rcParams) == settings


@every_display
def test_without_matplotlib_the_error_names_the_extra(make, monkeypatch):
    for module in ["matplotlib", *(name for name in sys.modules if name.startswith("matplotlib."))]:
        monkeypatch.setitem(sys.modules, module, None)
    display = make(12)
    with pytest.raises(ImportError, match=r"needs matplotlib.*skvfusion\[plot\]"):
        display.plot()


@every_display
def test_the_picture_is_a_png(make, tmp_path):
    make(12).plot().figure_.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_importing_the_package_loads_no_matplotlib():
    code = "import sys, skvfusion.display; sys.exit(any(name.split('.')[0] == 'matplotlib' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_display_is_public_and_covered_here():
    public = {name for name in skvfusion.__all__ if name.endswith("Display")}
    assert public == {type(make(3)).__name__ for make in MAKERS}


@pytest.mark.parametrize("kind", [LayerWeightsDisplay, AttentionDisplay, SeverityDisplay])
@pytest.mark.parametrize("values", [{}, [0.5, 0.5]])
def test_curves_without_names_raise(kind, values):
    with pytest.raises(ValueError, match="pass a dict"):
        kind(values).plot()


@pytest.mark.parametrize(
    "display",
    [
        RecoverabilityDisplay([]),
        RecoverabilityDisplay([[0.5]]),
        RecoverabilityDisplay([0.5, 0.7], layer_harm=[0.5]),
        LayerAgreementDisplay([[0.0, 0.5]]),
        LatentCorrelationDisplay(np.ones((3, 2))),
        FirstCorrectLayerDisplay([1, 2], lost=[0]),
        LayerWeightsDisplay({"one": [0.5, 0.5], "other": [1.0]}),
        LayerWeightsDisplay({"one": [0.5, 0.5]}, spread={"one": [0.5, 0.5]}),
        AttentionDisplay({"one": [0.5, 0.5], "other": [[0.5, 0.5]]}),
        AttentionDisplay({"one": np.ones((1, 1, 1))}),
        SeverityDisplay({"one": [0.5, 0.5], "other": [1.0]}),
        SeverityDisplay({"one": [0.5, 0.5]}, severities=[1]),
    ],
)
def test_shapes_that_do_not_fit_raise(display):
    with pytest.raises(ValueError, match=r"has shape \(.*\); pass one of shape \("):
        display.plot()


@pytest.mark.parametrize(
    "display",
    [
        RecoverabilityDisplay([0.5, 0.7], layers=[0]),
        LayerAgreementDisplay(np.eye(2), layers=[0]),
        FirstCorrectLayerDisplay([1, 2], layers=[0]),
        LayerWeightsDisplay({"one": [0.5, 0.5]}, layers=[0]),
        AttentionDisplay({"one": [0.5, 0.5]}, layers=[0]),
    ],
)
def test_layers_of_another_number_raise(display):
    with pytest.raises(ValueError, match="names 1 layers but there are 2"):
        display.plot()
