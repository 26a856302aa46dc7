"""Devices, as users and files specify them."""

from __future__ import annotations

import torch

from birl.errors import ConfigError


def resolve_device(device: bool | int | str | None) -> torch.device:
    """``False``/``None``: CPU; ``True``: first GPU; int: that GPU; str: a torch device, index optional.

    Returns:
        The device as tensors on it name theirs, so equal devices compare equal: ``"cpu:0"`` is the CPU, ``"cuda"``
        the GPU in use.
    """
    if device is None or device is False:
        return torch.device("cpu")
    if device is True:
        device = 0
    try:
        return torch.empty(0, device=f"cuda:{device}" if isinstance(device, int) else device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(f"device {device!r} cannot be used: {_reason(error)}. {_usable_devices()}") from None


def _reason(error: Exception) -> str:
    """PyTorch's reason without its lists of everything that it might have been built with."""
    words = str(error).splitlines()[0]
    return "PyTorch knows no such kind" if words.startswith("Expected one of") else words.split(". ")[0].rstrip(".")


def _usable_devices() -> str:
    count = torch.cuda.device_count()
    usable = ["'cpu' (or False)"]
    usable += [f"a GPU's number below {count}, True or 'cuda' (GPU 0), 'cuda:0' and so on"] if count else []
    usable += ["'mps'"] if torch.backends.mps.is_available() else []
    missing = "" if count else " (this PyTorch finds no GPU, which would be 'cuda')"
    return f"Devices that can be used here: {'; '.join(usable)}{missing}"
