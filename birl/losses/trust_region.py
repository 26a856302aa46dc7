"""Steps within a trust region: natural gradients and line searches, without an optimiser.

Schulman et al. 2015 (arXiv:1502.05477, appendix C). Directions are vectors ``[P]`` of all parameters, concatenated. All
functions are pure: they evaluate networks with given parameters (`torch.func.functional_call`) and write nothing. The
number of iterations is fixed, so nothing waits for the device; iterations after convergence or failure are masked.

Fisher products need second derivatives, which ``birl.models.matmul.products`` and fused recurrent kernels do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]  # multiplies a symmetric positive definite matrix with a vector [P]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate all numbers of tensors to one vector ``[P]``."""
    return torch.cat([x.reshape(-1) for x in tensors])


def unflat(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Invert `flat`: return views of ``vector`` with the shapes of ``like``."""
    parts = vector.split([x.numel() for x in like])
    return [part.view(x.shape) for part, x in zip(parts, like, strict=True)]


def fisher_product(
    divergence: Tensor, parameters: Sequence[Tensor], damping: float, reduce: Product | None = None
) -> Product:
    """Return the function ``v -> (F + damping) v`` with ``F v = grad(grad KL . v)`` (appendix C.1).

    ``F`` is the Fisher information.

    Args:
        divergence: the mean ``KL(old || new)``, ``[]``, with the graph of ``new``'s parameters. Where both policies are
            equal, its second derivative is the Fisher information.
        parameters: parameters of ``new``.
        damping: number that is added to the diagonal, at least 0.
        reduce: averages vectors over processes, each of which has a part of the batch. Applied to each product.
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
        product: multiplies ``A`` with a vector.
        right: the right-hand side ``[P]``.
        n_steps: number of steps. Steps after convergence change nothing.
        tolerance: the solution has converged when the squared residual is at most ``tolerance`` times the squared norm
            of ``right``.

    Returns:
        ``x`` and ``A x``, ``[P]``; ``A x`` needs no further product.
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
    """Return the longest step along the natural gradient within the quadratic model of the divergence (appendix C).

    The step is ``sqrt(2 max_kl / (x . A x)) x`` with ``A x = gradient``, solved by conjugate gradients. It is 0 if the
    gradient is 0.

    Args:
        gradient: gradient ``[P]`` of the objective, which is maximised.
        product: multiplies ``A`` with a vector; see `fisher_product`.
        max_kl: bound of the mean divergence, at least 0.
        n_steps: number of steps of conjugate gradients.

    Returns:
        The step ``[P]``, which is added to the parameters.
    """
    x, image = conjugate_gradients(product, gradient, n_steps)
    curvature = x @ image
    return torch.where(curvature > 0, (2.0 * max_kl / curvature).sqrt(), 0.0) * x


class Searched(NamedTuple):
    """Result of `line_search`.

    Attributes:
        parameters: the accepted parameters; the start, bit for bit, if no step was accepted.
        accepted: bool ``[]``: whether a step was accepted.
        share: ``[]``, the accepted share of the step; 0 if none was accepted.
        gain: ``[]``, increase of the surrogate.
        divergence: ``[]``, divergence at the accepted parameters; 0 if none were accepted.
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
    """Find the longest of the steps ``shrink**k step`` that stays within the bound and improves (appendix C).

    All steps are evaluated. The first one is accepted whose surrogate is finite and above the surrogate of the start,
    and whose divergence is at most ``max_kl``.

    Args:
        evaluate: returns for parameters the surrogate, which is maximised, and the mean divergence from the old policy,
            both ``[]``.
        start: the parameters before the step.
        step: the full step ``[P]``.
        max_kl: bound of the mean divergence.
        n_steps: number of step lengths, ``k = 0 ... n_steps - 1``.
        shrink: factor between step lengths, in (0, 1).
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
