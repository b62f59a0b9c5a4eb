"""Timing alternatives side by side, so that a busy machine slows all of them alike, and their peaks of memory."""

import multiprocessing
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch


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


def peak_mib(prepare, *arguments):
    """Return by how many MiB a run raises the peak of a fresh process's memory.

    Parameters
    ----------
    prepare : callable
        ``prepare(*arguments)`` makes the data and returns what to run, a callable without arguments. It is sent to the
        process by name, so it stands at the top of an importable module.
    arguments
        Whatever can be pickled.

    Returns
    -------
    float
        The peak after the run less that before it, when everything has been imported and the data has been made.
    """
    # From a server that has imported the module and done nothing else: a process started by this one would begin with
    # this one's peak as its own, and import everything anew.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([prepare.__module__])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_rise_of_the_peak, torch.get_num_threads(), prepare, arguments).result()


def _rise_of_the_peak(n_threads, prepare, arguments):
    torch.set_num_threads(n_threads)
    run = prepare(*arguments)
    before = _peak()
    run()
    return _peak() - before


def _peak():
    # In KiB, but in bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
