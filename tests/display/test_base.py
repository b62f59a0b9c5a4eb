import numpy as np
import pytest

from skvfusion.display.base import PALETTE, draw_map, label_layers, line_style, new_axes, new_figure, share_axis


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, [0]),
        (12, list(range(12))),
        (24, [*range(0, 21, 2), 23]),
        (40, [*range(0, 37, 4), 39]),
        (128, [*range(0, 111, 10), 127]),
    ],
)
def test_as_many_layers_are_labelled_as_fit_the_last_always(n, expected):
    ax = new_axes()
    label_layers(ax.xaxis, list(range(n)))
    assert ax.get_xticks().tolist() == expected
    assert labels(ax.xaxis) == [str(layer) for layer in expected]


def test_layers_are_called_what_they_are_called():
    ax = new_axes()
    label_layers(ax.xaxis, [3, 6, 9, 11])
    assert ax.get_xticks().tolist() == [0, 1, 2, 3]
    assert labels(ax.xaxis) == ["3", "6", "9", "11"]


def test_names_too_long_to_stand_side_by_side_are_turned():
    ax = new_axes()
    label_layers(ax.xaxis, ["dinov2_s", "dinov2_b"])
    assert {label.get_rotation() for label in ax.get_xticklabels()} == {0}
    label_layers(ax.xaxis, ["dinov2_s", "dinov2_b"] * 6)
    assert {label.get_rotation() for label in ax.get_xticklabels()} == {90}


def test_lines_differ_beyond_the_colours():
    styles = [tuple(line_style(i).values()) for i in range(20)]
    assert len(set(styles)) == 20
    assert {style[0] for style in styles} == set(PALETTE)


def luminance(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4) @ [
        0.2126,
        0.7152,
        0.0722,
    ]


@pytest.mark.parametrize("colour", PALETTE)
def test_every_colour_shows_on_white(colour):
    assert 1.05 / (luminance(colour) + 0.05) > 2


def test_what_is_nan_is_hatched_and_the_rest_keeps_its_scale():
    ax = new_axes()
    bar = draw_map(ax, np.array([[0.2, np.nan], [0.6, 0.4]]), "share")
    (image,) = ax.get_images()
    assert image.get_array().mask.tolist() == [[False, True], [False, False]]
    assert image.get_clim() == (0.2, 0.6)
    assert ax.patch.get_hatch() == "////"
    assert bar.ax.get_ylabel() == "share"


def test_a_map_without_a_number_is_drawn():
    ax = new_axes()
    draw_map(ax, np.full((2, 2), np.nan), "share")
    ax.figure.draw_without_rendering()
    assert ax.get_images()[0].get_clim() == (0, 1)


def test_the_map_is_perceptual_and_unsmoothed():
    ax = new_axes()
    draw_map(ax, np.eye(2), "share")
    assert ax.get_images()[0].get_cmap().name == "cividis"
    assert ax.get_images()[0].get_interpolation() == "nearest"


def test_shares_end_near_0_and_1():
    ax = new_axes()
    ax.plot([0, 1])
    share_axis(ax)
    low, high = ax.get_ylim()
    assert -0.05 < low < 0
    assert 1 < high < 1.05


def test_limits_within_0_and_1_are_left_to_matplotlib():
    ax = new_axes()
    ax.plot([0.4, 0.5])
    share_axis(ax)
    assert ax.get_autoscaley_on()


def test_a_new_figure_is_600_pixels_wide_and_has_a_canvas():
    figure = new_figure()
    assert figure.bbox.size.tolist() == [600, 400]
    assert figure.canvas.get_renderer() is not None
