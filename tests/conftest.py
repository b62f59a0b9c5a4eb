"""Fixtures shared by all tests."""

import numpy as np
import pytest
import torch
from hypothesis import settings
from threadpoolctl import threadpool_limits

# The same examples on every run: what fails should fail for whoever changes something, not for the next one.
settings.register_profile("same examples", derandomize=True)
settings.load_profile("same examples")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def make_stack():
    """Return a maker of stacks whose classes differ in some layers only."""

    def make(n_per_class=20, n_classes=3, n_layers=6, dim=8, signal_layers=(2,), strength=3.0, seed=0):
        rng = np.random.default_rng(seed)
        y = rng.permutation(np.repeat(np.arange(n_classes), n_per_class))
        X = rng.normal(size=(len(y), n_layers, dim)).astype(np.float32)
        for layer in signal_layers:
            X[:, layer, :n_classes] += strength * np.eye(n_classes, dtype=np.float32)[y]
        return X, y

    return make


@pytest.fixture
def global_rngs_untouched():
    """Fail if the test moves numpy's or torch's global generator."""
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    yield
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state[1])  # noqa: NPY002
    assert np.random.get_state()[2] == numpy_state[2]  # noqa: NPY002


@pytest.fixture(scope="module")
def one_thread():
    """Compute on one thread, which is faster for so little, the more so on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)
