"""Where torch computes: one rule for the backbones and the heads."""

import torch


def resolve_device(device):
    """Turn a ``device`` parameter into a torch device.

    Parameters
    ----------
    device : str or torch.device
        ``"auto"`` takes CUDA, then Apple's MPS, then the CPU. Anything else is meant literally: it is never replaced
        by another device.

    Returns
    -------
    torch.device

    Raises
    ------
    ValueError
        If the device is unknown, or is not available on this machine.
    """
    if isinstance(device, str) and device == "auto":
        return torch.device(
            "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device={device!r} is not a device; use 'auto', 'cpu', 'cuda', 'cuda:0', 'mps' or a torch.device."
        ) from error
    if not _is_available(resolved):
        raise ValueError(
            f"device={device!r} is not available here ({torch.cuda.device_count()} CUDA devices, MPS "
            f"{'' if torch.backends.mps.is_available() else 'not '}available); use device='auto' or 'cpu'."
        )
    return resolved


def _is_available(device):
    if device.type == "cuda":
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    if device.type == "mps":
        return torch.backends.mps.is_available()
    return device.type == "cpu"
