"""Matrix products through oneDNN: equal to torch's, in every form in which training uses them."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import birl
from birl.algos import SACConfig
from birl.errors import ConfigError
from birl.models import VectorEncoderFactory, matmul
from birl.models.layers import DenseLayer, EnsembleLinear
from birl.optimizers import AdamFactory
from birl.types import Batch
from tests.tiers import slow_but


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BIRL_PRODUCTS", "onednn")
    monkeypatch.setattr(matmul, "FULL_WIDTH", matmul.Threshold(1, 1))  # these tests' products are small
    matmul.threshold.cache_clear()
    yield
    matmul.threshold.cache_clear()


def _both(module: torch.nn.Module, x: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    found = []
    for fast in (False, True):
        inputs = [x.clone().requires_grad_(), *module.parameters()]
        if fast:
            with matmul.products(matmul.threshold()):
                y = module(inputs[0])
                gradients = torch.autograd.grad(y.square().sum(), inputs)
        else:
            y = module(inputs[0])
            gradients = torch.autograd.grad(y.square().sum(), inputs)
        found.append([y.detach(), *gradients])
    return found[0], found[1]


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("n", [None, 1, 3])
@pytest.mark.parametrize("shape", [(32, 64), (1, 32, 64), (3, 32, 64), (3, 2, 5, 64)])
def test_values_and_gradients(n: int | None, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    if n == 1 and shape[0] == 3:
        shape = shape[-2:]
    calls = []
    plain = matmul._product
    monkeypatch.setattr(matmul, "_product", lambda *args: calls.append(1) or plain(*args))
    module: Any = DenseLayer(64, 80) if n is None else EnsembleLinear(n, 64, 80)
    slow, fast = _both(module, torch.randn(shape))
    assert calls, "oneDNN was not used"
    for one, other in zip(slow, fast, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_only_where_it_gains_and_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "threshold", lambda: matmul.FULL_WIDTH)
    large, small = torch.ones(2000, 64), torch.ones(10_000, 7)
    double = large.double()
    weight = torch.ones(2, 64, 64)
    assert not matmul.applies(large, weight)
    with matmul.products(matmul.threshold()):
        assert matmul.applies(large, weight)
        assert not matmul.applies(small, torch.ones(7, 64))
        assert not matmul.applies(double, weight)
        assert not matmul.applies(double, weight.double())
        assert not matmul.applies(large[:100], weight)  # too few rows
        with matmul.products(matmul.threshold()):
            pass
        assert matmul.applies(large, weight)
    assert not matmul.applies(large, weight)


def test_on_zen_4_only_large_single_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "threshold", lambda: matmul.HALF_WIDTH)
    few, many = torch.ones(256, 256), torch.ones(2000, 256)
    with matmul.products(matmul.threshold()):
        assert matmul.applies(many, torch.ones(256, 256), flat=True)
        assert matmul.applies(many, torch.ones(1, 256, 256))
        assert not matmul.applies(few, torch.ones(256, 256), flat=True)
        assert not matmul.applies(many, torch.ones(2, 256, 256))


def test_which_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIRL_PRODUCTS", raising=False)
    for processor, instructions, least in (
        (("AuthenticAMD", 26), "AVX512", matmul.FULL_WIDTH),  # Zen 5
        (("AuthenticAMD", 25), "AVX512", matmul.HALF_WIDTH),  # Zen 4
        (("AuthenticAMD", 25), "AVX2", matmul.NEVER),
        (("GenuineIntel", 6), "AVX512", matmul.NEVER),
        (("", 0), "DEFAULT", matmul.NEVER),
    ):
        monkeypatch.setattr(matmul, "_processor", lambda processor=processor: processor)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda instructions=instructions: instructions)
        matmul.threshold.cache_clear()
        assert matmul.threshold() is least
    monkeypatch.setenv("BIRL_PRODUCTS", "blas")
    matmul.threshold.cache_clear()
    with pytest.raises(ConfigError, match="BIRL_PRODUCTS is 'blas'; it must be 'mkl', 'onednn' or not set"):
        matmul.threshold()
    monkeypatch.undo()
    matmul.threshold.cache_clear()
    assert matmul.threshold() in (matmul.FULL_WIDTH, matmul.HALF_WIDTH, matmul.NEVER)
    if Path("/proc/cpuinfo").exists() and platform.machine() == "x86_64":
        vendor, family = matmul._processor()
        assert vendor and family > 0


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("compiled", slow_but([False], [False, True]))
def test_updates_are_equal(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for library in ("mkl", "onednn"):
        monkeypatch.setenv("BIRL_PRODUCTS", library)
        matmul.threshold.cache_clear()
        birl.seed(0)
        widths = VectorEncoderFactory([64, 64])
        # Adam's first steps have the size of the learning rate whatever the gradient: rounding decides signs near zero.
        adam = AdamFactory(eps=1e-2)
        sac = SACConfig(
            actor_encoder_factory=widths,
            critic_encoder_factory=widths,
            actor_optim_factory=adam,
            critic_optim_factory=adam,
            compile_graph=compiled and library == "onednn",
        ).create()
        sac.create_impl((5,), 2)
        for _ in range(4):
            action = torch.rand(16, 2) * 2 - 1
            ones = torch.ones(16)
            sac.update(Batch(torch.randn(16, 5), action, torch.randn(16), torch.randn(16, 5), 0.9 * ones, ones))
        found.append(sac.nets.state_dict())
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-3, atol=1e-5)


def test_updates_of_two_threads_leave_torchs_own_products_behind() -> None:
    first, second = matmul.fast_products(), matmul.fast_products()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert matmul._threshold is matmul.threshold()
    second.__exit__(None, None, None)
    assert matmul._threshold is matmul.NEVER
