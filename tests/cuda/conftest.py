"""These tests need a CUDA device: `make test-cuda` runs them, `make test` does not."""

from __future__ import annotations

import pytest
import torch


def pytest_configure() -> None:
    if not torch.cuda.is_available():
        pytest.exit("tests/cuda needs a CUDA device and a PyTorch that finds it", returncode=2)
