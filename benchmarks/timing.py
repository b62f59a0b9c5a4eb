"""Timing alternatives side by side, so that a busy machine slows all of them alike."""

import time

import numpy as np


def interleaved(alternatives, repetitions, warm_up=True, inputs=lambda repetition: ()):
    """Time each callable in turn, ``repetitions`` times over; return the seconds of each by name.

    ``inputs(repetition)`` are the arguments of all of them in that repetition; a warm-up is given those of the first.
    """
    seconds = {name: [] for name in alternatives}
    for repetition in range(-int(warm_up), repetitions):
        arguments = inputs(max(repetition, 0))
        for name, run in alternatives.items():
            start = time.perf_counter()
            run(*arguments)
            if repetition >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: np.array(values) for name, values in seconds.items()}


def report(title, seconds):
    """Print medians of the seconds and of the paired ratios to the first row."""
    reference = next(iter(seconds))
    print(f"\n{title}")
    print(f"{'':46} {'seconds':>8} {'ratio':>7}")
    for name, values in seconds.items():
        print(f"{name:46} {np.median(values):8.3f} {np.median(values / seconds[reference]):7.3f}")
