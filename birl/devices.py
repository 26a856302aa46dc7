"""Devices in arguments and files."""

from __future__ import annotations

import torch

from birl.errors import ConfigError
from birl.habits import value_hint


def resolve_device(device: bool | int | str | None) -> torch.device:
    """Return the torch device that an argument stands for.

    Args:
        device: ``False`` or ``None`` for the CPU, ``True`` for the first GPU, an int for that GPU, or a torch device
            string, with or without an index.

    Returns:
        The device that a tensor on it reports, so equal devices compare equal: ``"cpu:0"`` gives the CPU, ``"cuda"``
        the current GPU.

    Raises:
        ConfigError: if the device cannot be used; the message lists the usable ones.
    """
    if device is None or device is False:
        return torch.device("cpu")
    if device is True:
        device = 0
    try:
        return torch.empty(0, device=f"cuda:{device}" if isinstance(device, int) else device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = f"{_reason(error)}{_hint(device)}"
        raise ConfigError(f"device {device!r:.80} cannot be used: {reason}. {_usable_devices()}") from None


def _hint(device: object) -> str:
    if device in ("auto", "gpu"):
        return "; torch.cuda.is_available() tells whether device=True, the first GPU, can be used"
    return value_hint(device)


def _reason(error: Exception) -> str:
    """Return PyTorch's reason without its lists of backends."""
    message = str(error).splitlines()[0]
    return "PyTorch has no such kind" if message.startswith("Expected one of") else message.split(". ")[0].rstrip(".")


def _usable_devices() -> str:
    count = torch.cuda.device_count()
    usable = ["'cpu' (or False)"]
    usable += [f"a GPU's number below {count}, True or 'cuda' (GPU 0), 'cuda:0' and so on"] if count else []
    usable += ["'mps'"] if torch.backends.mps.is_available() else []
    missing = "" if count else " (this PyTorch finds no GPU, which would be 'cuda')"
    return f"Devices that can be used here: {'; '.join(usable)}{missing}"
