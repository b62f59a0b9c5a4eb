"""What the displays share: figures, colours, legends, layers along an axis, matrices as maps."""

from collections.abc import Mapping
from textwrap import fill

import numpy as np
from sklearn.utils.validation import check_is_fitted

# The Okabe-Ito palette, which colour-blind readers can tell apart; without its yellow, which fades on white.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
BLACK, GREY = "#000000", "#555555"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, "#56B4E9", "#E69F00", BLACK)

# Lengths differ, so that a picture of many lines repeats colours but not their combination with a marker.
_MARKERS = "os^DvP*X<>"
_DASHES = ("-", "--", ":")

# In inches, at the default size: a letter on average, a line, a legend's symbol, the number of a layer.
_LETTER, _LINE, _SYMBOL, _NUMBER = 0.076, 0.2, 0.5, 0.3
_DEFAULT_WIDTH = 4.65  # of the only axes of a new figure
_BESIDE = 26  # letters of a name beside the axes


def new_figure(height=4):
    """Return an empty matplotlib figure that pyplot does not know; ImportError without matplotlib.

    It is 600 pixels wide, and ``height`` inches of 100 pixels high.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Drawing needs matplotlib; install it with: pip install 'skvfusion[plot]'") from error
    figure = Figure(figsize=(6, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_axes(height=4):
    """Return the only axes of a new figure."""
    return new_figure(height).add_subplot()


def line_style(i):
    """Return colour, marker and dashes of the i-th of several lines."""
    return {
        "color": PALETTE[i % len(PALETTE)],
        "marker": _MARKERS[i % len(_MARKERS)],
        "linestyle": _DASHES[i // len(PALETTE) % len(_DASHES)],
    }


def legend_height(names):
    """Return the height in inches of a legend of these names above the only axes of a new figure."""
    columns, letters = _legend_layout(names, _DEFAULT_WIDTH)
    lines = sum(fill(name, letters).count("\n") + 1 for name in map(str, names))
    return _LINE * -(-lines // columns)


def legend_above(ax):
    """Add a legend above the axes, because there is no corner that no curve can reach."""
    handles, names = ax.get_legend_handles_labels()
    columns, letters = _legend_layout(names, inches(ax)[0])
    ax.legend(
        handles,
        [fill(name, letters) for name in names],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=columns,
        frameon=False,
    )


def _legend_layout(names, width):
    """Return how many columns of how many letters fit above axes so many inches wide."""
    width *= 1.1  # what stands left of the axes leaves room
    letters = int((width / 2 - _SYMBOL) / _LETTER)
    if all(len(str(name)) <= letters for name in names):
        return 2, max(letters, 1)
    return 1, max(int((width - _SYMBOL) / _LETTER), 12)


def inches(ax):
    """Return width and height of axes, before a layout is found for them."""
    size = ax.get_window_extent()
    return size.width / ax.figure.dpi, size.height / ax.figure.dpi


def row_height(names):
    """Return the height in inches that the rows of a map need for their names."""
    return max(0.32, *(0.05 + _LINE * (fill(str(name), _BESIDE).count("\n") + 1) for name in names))


def name_rows(ax, names):
    """Name the rows of a map, long names on several lines."""
    ax.set_yticks(range(len(names)), [fill(str(name), _BESIDE) for name in names])


def percent_axis(axis):
    """Label an axis of shares in percent."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1))


def share_axis(ax, lowest=0):
    """Label the y axis in percent, and cut off what no share can be: far above 1, and far below ``lowest``."""
    percent_axis(ax.yaxis)
    low, high = ax.get_ylim()
    if low < lowest - 0.015 or high > 1.03:
        ax.set_ylim(max(low, lowest - 0.015), min(high, 1.03))


def layer_names(layers, n_layers):
    """Return what to call the layers; None numbers them from 0."""
    if layers is None:
        return list(range(n_layers))
    if len(layers) != n_layers:
        raise ValueError(f"layers names {len(layers)} layers but there are {n_layers}; name each once.")
    return list(layers)


def label_layers(axis, names, blocks=1):
    """Put the layers' names at 0, 1, ... of an axis: as many as fit, the first and the last among them.

    Parameters
    ----------
    axis : matplotlib XAxis or YAxis
        The axis to label.
    names : list
        What to call the layers, shallow to deep.
    blocks : int, default=1
        How often the layers are repeated along the axis.
    """
    room = inches(axis.axes)[axis.axis_name == "y"] / blocks
    shown = _spread(len(names), max(2, int(room / (_NUMBER if axis.axis_name == "x" else _LINE))))
    # The last layer of a block and the first of the next one are too close for both to be labelled, if others are too.
    later = shown if len(shown) == len(names) else shown[1:]
    places = [block * len(names) + i for block in range(blocks) for i in (later if block else shown)]
    axis.set_ticks(places, [str(names[place % len(names)]) for place in places])
    longest = max(len(str(name)) for name in names)
    if axis.axis_name == "x" and longest * _LETTER > room / len(shown):
        axis.set_tick_params(rotation=90)


def _spread(n, most):
    """Return up to about ``most`` of 0, ..., n - 1 in even steps, the first and the last among them."""
    steps = (base * 10**power for power in range(9) for base in (1, 2, 4, 5))
    step = next(step for step in steps if n <= most * step)
    shown = list(range(0, n, step))
    if shown[-1] < n - 1:
        if len(shown) > 1 and n - 1 - shown[-1] < 0.75 * step:
            shown.pop()
        shown.append(n - 1)
    return shown


def draw_map(ax, matrix, label, *, colorbar="right", **options):
    """Draw a matrix as a map with a colour bar; what is NaN is hatched.

    Parameters
    ----------
    ax : matplotlib Axes
        Where to draw.
    matrix : ndarray of shape (n_rows, n_columns)
        The numbers.
    label : str
        What they are.
    colorbar : {"right", "bottom"}, default="right"
        Where the colour bar goes.
    **options : dict
        Passed to ``imshow``.
    """
    known = np.isfinite(matrix)
    if not known.all():
        ax.patch.set(facecolor="white", hatch="////", edgecolor=GREY, linewidth=0)
    if not known.any():
        options = {"vmin": 0, "vmax": 1} | options
    image = ax.imshow(np.ma.masked_where(~known, matrix), **{"cmap": "cividis", "interpolation": "nearest"} | options)
    return ax.figure.colorbar(image, ax=ax, label=label, location=colorbar)


def read_numbers(values, name, shape):
    """Return an array of floats, or raise a ValueError that names the shape it should have.

    Parameters
    ----------
    values : array-like
        What came.
    name : str
        The parameter it came as.
    shape : tuple of str or int
        The length of each axis; a str names one of any length but 0.
    """
    array = np.asarray(values, dtype=float)
    fits = array.ndim == len(shape) and all(
        got > 0 if isinstance(want, str) else got == want for got, want in zip(array.shape, shape, strict=False)
    )
    if not fits:
        wanted = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        raise ValueError(f"{name} has shape {array.shape}; pass one of shape ({wanted}) that is not empty.")
    return array


def read_dict(values, name):
    """Return the keys of a dict of arrays in its order, or raise a ValueError if there are none."""
    if not isinstance(values, Mapping) or not values:
        raise ValueError(f"{name} is {values!r:.60}; pass a dict of arrays, by the name to draw.")
    return list(values)


def by_name(estimator):
    """Return fitted classifiers by name; a single one is named after its class."""
    if isinstance(estimator, Mapping):
        if not estimator:
            raise ValueError("estimator is an empty dict; pass a fitted classifier, or several by name.")
        return dict(estimator)
    return {type(estimator).__name__: estimator}


def last_step(estimator, X):
    """Return the fitted classifier and what it reads: of a Pipeline, the last step and X as transformed for it."""
    check_is_fitted(estimator)
    if hasattr(estimator, "steps"):
        return estimator[-1], X if X is None else estimator[:-1].transform(X)
    return estimator, X


def evaluate_layers(estimator, X, y):
    """Return what a fitted RecoverabilityScorer, or a Pipeline that ends in one, finds on X and y."""
    estimator, X = last_step(estimator, X)
    if not hasattr(estimator, "evaluate"):
        raise TypeError(f"{type(estimator).__name__} has no probe for each layer; pass a fitted RecoverabilityScorer.")
    return estimator.evaluate(X, y)
