"""Matrix products of training, through oneDNN where it is faster.

Torch multiplies float32 matrices on the CPU with MKL, which does not use AVX-512 on AMD processors. oneDNN, which is
also part of torch, does. Zen 5 processors have arithmetic units of 512 bits, so oneDNN is faster even for small
products. Zen 4 splits AVX-512 operations into halves, so oneDNN is faster only for large products, such as those of a
transformer. To compare machines exactly, set ``BIRL_PRODUCTS=mkl`` or ``=onednn`` in the environment.

Only updates use oneDNN, inside `products`. Acting and exports use torch's own products.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from birl.errors import ConfigError

LEAST_FEATURES: Final = 8
"""A product with fewer inputs or outputs takes less time than oneDNN's setup."""


class Threshold(NamedTuple):
    """The number of multiplications from which a product is faster through oneDNN."""

    single: float
    stacked: float
    """The number for each member of an ensemble."""


NEVER: Final = Threshold(math.inf, math.inf)
FULL_WIDTH: Final = Threshold(5e6, 5e6)
HALF_WIDTH: Final = Threshold(1e8, math.inf)

ZEN_5: Final = 26
"""The first family of AMD processors with AVX-512 of full width; Zen 4 is family 25."""

_threshold = NEVER
_updates, _lock = 0, Lock()  # number of updates in progress, in all threads

_library = torch.library.Library("birl", "FRAGMENT")
_library.define("product(Tensor x, Tensor weight, Tensor? bias) -> Tensor")


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``x @ weight.T + bias`` by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


_library.impl("product", _product, "CPU")


@torch.library.register_fake("birl::product")  # type: ignore[untyped-decorator]
def _shape_of_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if torch.compiler.is_compiling():
        # oneDNN needs a contiguous first factor; the compiler's transposition is several times as fast as torch's.
        # The compiler supports oneDNN's own operation only with constant weights.
        return torch.ops.birl.product(x.contiguous(), weight, bias)
    return _product(x, weight, bias)


def _stacked(members: list[Tensor]) -> Tensor:
    return torch.stack(members) if len(members) > 1 else members[0].unsqueeze(0)


class _Linear(torch.autograd.Function):
    """``x [N or 1, M, in] @ weight [N, in, out] + bias [N, 1, out]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        last = x.shape[0] - 1
        members = range(weight.shape[0])
        return _stacked([_multiply(x[min(i, last)], weight[i].t(), bias[i, 0]) for i in members])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        last, members = x.shape[0] - 1, range(weight.shape[0])
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = _stacked([_multiply(gradient[i], weight[i]) for i in members])
            of_x = of_x.sum(0, keepdim=True) if x.shape[0] < weight.shape[0] else of_x
        if ctx.needs_input_grad[1]:
            of_weight = _stacked([_multiply(x[min(i, last)].t(), gradient[i].t()) for i in members])
        if ctx.needs_input_grad[2]:
            of_bias = gradient.sum(1, keepdim=True)
        return of_x, of_weight, of_bias


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute ``x [N or 1, M, in] @ weight [N, in, out] + bias [N, 1, out]`` by oneDNN."""
    result: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


def applies(x: Tensor, weight: Tensor, *, flat: bool = False) -> bool:
    """Return whether ``x [..., M, in]`` times ``weight`` uses oneDNN: inside `products`, if that is faster.

    With ``flat``, all dimensions of ``x`` but the last are rows of one product.
    """
    if _threshold is NEVER:
        return False  # before any comparison of sizes, whose result an exporter would record as a constant
    *members, n_inputs, n_outputs = weight.shape
    if n_inputs < LEAST_FEATURES or n_outputs < LEAST_FEATURES:
        return False
    rows = x.shape[:-1].numel() if flat else x.shape[-2]
    least = _threshold.stacked if members and members[0] > 1 else _threshold.single
    return rows * n_inputs * n_outputs >= least and x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32


@contextmanager
def products(least: Threshold) -> Iterator[None]:
    """Use oneDNN for products of at least this size inside the context.

    With `NEVER` all products are torch's own, whose gradients can be differentiated; `threshold` is the fastest choice.
    """
    global _threshold
    before, _threshold = _threshold, least
    try:
        yield
    finally:
        _threshold = before


@contextmanager
def fast_products() -> Iterator[None]:
    """Use `products` with the `threshold` of this machine for a whole update.

    Several threads may make updates at the same time: the last thread to finish restores torch's own products.
    """
    global _threshold, _updates
    with _lock:
        _updates, _threshold = _updates + 1, threshold()
    try:
        yield
    finally:
        with _lock:
            _updates -= 1
            if _updates == 0:
                _threshold = NEVER


@cache
def threshold() -> Threshold:
    """Return the size from which oneDNN is clearly faster than torch's own product, `NEVER` on most machines.

    It depends on the processor, not on a measurement: timing noise would make the choice, and so rounding, random.

    Raises:
        ConfigError: if ``BIRL_PRODUCTS`` is set to something unknown.
    """
    wish = os.environ.get("BIRL_PRODUCTS", "")
    if wish not in ("", "mkl", "onednn"):
        raise ConfigError(f"BIRL_PRODUCTS is {wish!r}; it must be 'mkl', 'onednn' or not set")
    if wish:
        return FULL_WIDTH if wish == "onednn" else NEVER
    # the operation is private to torch and may disappear
    there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not there or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return NEVER
    vendor, family = _processor()
    if vendor != "AuthenticAMD":
        return NEVER
    return FULL_WIDTH if family >= ZEN_5 else HALF_WIDTH


def _processor() -> tuple[str, int]:
    """Return the processor's vendor and family, where Linux reports them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "", 0
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    family = values.get("cpu family", "")
    return values.get("vendor_id", ""), int(family) if family.isdecimal() else 0
