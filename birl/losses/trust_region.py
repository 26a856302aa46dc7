"""Steps within a trust region: natural gradients and line searches, without an optimiser.

Schulman et al. 2015 (arXiv:1502.05477, appendix C). Directions are vectors ``[P]`` of all parameters, one after the
other. All functions are pure: networks are evaluated with parameters that are given (`torch.func.functional_call`), and
nothing is written. Each count is fixed, so nothing waits for the device; what has converged or failed is masked.

Fisher products differentiate twice, which networks with ``birl.models.matmul.products`` or fused recurrent kernels do
not allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]  # of a symmetric positive definite matrix and a vector [P]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers of tensors as one vector ``[P]``."""
    return torch.cat([x.reshape(-1) for x in tensors])


def unflat(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `flat`: views of ``vector`` with the shapes of ``like``."""
    parts = vector.split([x.numel() for x in like])
    return [part.view(x.shape) for part, x in zip(parts, like, strict=True)]


def fisher_product(
    divergence: Tensor, parameters: Sequence[Tensor], damping: float, reduce: Product | None = None
) -> Product:
    """The products of the Fisher information, ``v -> (F + damping) v`` with ``F v = grad(grad KL . v)`` (appendix C.1).

    Args:
        divergence: the mean ``KL(old || new)``, ``[]``, with the graph of ``new``'s parameters. Where both are equal,
            its second derivative is the Fisher information.
        parameters: of ``new``.
        damping: added to the diagonal, at least 0.
        reduce: mean of vectors over processes that have a part of the batch each; applied to each product.
    """
    gradient = flat(torch.autograd.grad(divergence, parameters, create_graph=True, materialize_grads=True))

    def product(vector: Tensor) -> Tensor:
        along = gradient @ vector
        found = flat(torch.autograd.grad(along, parameters, retain_graph=True, materialize_grads=True))
        return (found if reduce is None else reduce(found)) + damping * vector

    return product


def conjugate_gradients(
    product: Product, right: Tensor, n_steps: int, tolerance: float = 1e-10
) -> tuple[Tensor, Tensor]:
    """Solve ``A x = right`` in ``n_steps`` steps, with one product each.

    Args:
        product: of ``A``.
        right: ``[P]``.
        n_steps: number of steps; those after convergence change nothing.
        tolerance: converged once the squared residual is not above so much of that of ``right``.

    Returns:
        ``x`` and ``A x``, ``[P]``: the latter without another product.
    """
    x, residual, direction = torch.zeros_like(right), right, right
    size = right @ right
    enough = tolerance * size
    for _ in range(n_steps):
        image = product(direction)
        curvature = direction @ image
        live = (size > enough) & (curvature > 0)
        share = torch.where(live, size / curvature, 0.0)
        x, residual = x + share * direction, residual - share * image
        previous, size = size, residual @ residual
        direction = residual + torch.where(live, size / previous, 0.0) * direction
    return x, right - residual


def natural_step(gradient: Tensor, product: Product, max_kl: float, n_steps: int) -> Tensor:
    """The natural gradient's direction, as far as the quadratic model of the divergence allows (appendix C).

    ``sqrt(2 max_kl / (x . A x)) x`` with ``A x = gradient`` by conjugate gradients. 0 where the gradient is.

    Args:
        gradient: of what is maximised, ``[P]``.
        product: of ``A``; see `fisher_product`.
        max_kl: bound of the mean divergence, at least 0.
        n_steps: number of steps of conjugate gradients.

    Returns:
        The step ``[P]``, to be added to the parameters.
    """
    x, image = conjugate_gradients(product, gradient, n_steps)
    curvature = x @ image
    return torch.where(curvature > 0, (2.0 * max_kl / curvature).sqrt(), 0.0) * x


class Searched(NamedTuple):
    """What a `line_search` ends with.

    Attributes:
        parameters: those accepted; else those of the start, bit for bit.
        accepted: bool ``[]``: whether any step was.
        share: ``[]``, the accepted share of the step; 0 if none.
        gain: ``[]``, by how much the surrogate rose.
        divergence: ``[]``, at the accepted parameters; 0 if none.
    """

    parameters: list[Tensor]
    accepted: Tensor
    share: Tensor
    gain: Tensor
    divergence: Tensor


@torch.no_grad()
def line_search(
    evaluate: Callable[[list[Tensor]], tuple[Tensor, Tensor]],
    start: Sequence[Tensor],
    step: Tensor,
    max_kl: float,
    n_steps: int = 10,
    shrink: float = 0.5,
) -> Searched:
    """The longest of the steps ``shrink**k step`` that keeps within the bound and gains (appendix C).

    All are evaluated. The first is taken whose surrogate is finite and above that of the start, and whose divergence is
    at most ``max_kl``.

    Args:
        evaluate: parameters to the surrogate, which is maximised, and the mean divergence from the old policy, ``[]``.
        start: the parameters before the step.
        step: ``[P]``.
        max_kl: bound of the mean divergence.
        n_steps: number of lengths, ``k = 0 ... n_steps - 1``.
        shrink: in (0, 1).
    """
    before = flat(start)
    base, _ = evaluate(unflat(before, start))
    chosen, accepted = before, torch.zeros_like(base, dtype=torch.bool)
    share, gain, divergence = torch.zeros_like(base), torch.zeros_like(base), torch.zeros_like(base)
    for k in range(n_steps):
        candidate = before + shrink**k * step
        surrogate, distance = evaluate(unflat(candidate, start))
        good = surrogate.isfinite() & (surrogate > base) & (distance <= max_kl) & ~accepted
        chosen = torch.where(good, candidate, chosen)
        share = torch.where(good, shrink**k, share)
        gain, divergence = torch.where(good, surrogate - base, gain), torch.where(good, distance, divergence)
        accepted = accepted | good
    return Searched(unflat(chosen, start), accepted, share, gain, divergence)
