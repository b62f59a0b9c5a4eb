import pytest
import torch

from skvfusion.devices import resolve_device


@pytest.fixture
def machine(monkeypatch):
    """Pretend to be a machine with so many CUDA devices, and MPS or not."""

    def pretend(cuda=0, mps=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return pretend


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"), [(0, False, "cpu"), (1, False, "cuda"), (2, True, "cuda"), (0, True, "mps")]
)
def test_auto_takes_cuda_then_mps_then_cpu(machine, cuda, mps, expected):
    machine(cuda, mps)
    assert resolve_device("auto") == torch.device(expected)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_cpu_is_cpu_even_where_there_is_a_gpu(machine, device):
    machine(cuda=1, mps=True)
    assert resolve_device(device) == torch.device("cpu")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1", torch.device("cuda", 1)], ids=str)
def test_cuda_devices_that_are_there(machine, device):
    machine(cuda=2)
    resolved = resolve_device(device)
    assert isinstance(resolved, torch.device)
    assert resolved == torch.device(device)


def test_mps_where_it_is(machine):
    machine(mps=True)
    assert resolve_device("mps") == torch.device("mps")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7", "mps", torch.device("cuda"), "meta", "xpu"], ids=str)
def test_an_unavailable_device_raises_and_is_never_replaced(machine, device):
    machine()
    with pytest.raises(ValueError, match=r"not available here \(0 CUDA devices, MPS not available\).*'auto' or 'cpu'"):
        resolve_device(device)


@pytest.mark.parametrize("device", ["cuda:2", "cuda:7", torch.device("cuda", 2)], ids=str)
def test_an_index_beyond_the_devices_that_are_there_raises(machine, device):
    machine(cuda=2, mps=True)
    with pytest.raises(ValueError, match=r"not available here \(2 CUDA devices, MPS available\)") as error:
        resolve_device(device)
    assert repr(device) in str(error.value)


@pytest.mark.parametrize("device", ["gpu", "foo", "", "AUTO", "cuda:x", "cuda:-1", None, 3.5], ids=repr)
def test_nonsense_is_named_with_what_is_allowed(machine, device):
    machine()
    with pytest.raises(ValueError, match="is not a device; use 'auto', 'cpu', 'cuda'") as error:
        resolve_device(device)
    assert f"device={device!r}" in str(error.value)
