"""A step within a trust region: natural gradients and a line search, in place of an optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from birl.engine import LossModule, Training, Update
from birl.engine.steps import check_loss, parameter_gradients
from birl.errors import ConfigError
from birl.logging.averages import FAILED_SEARCH
from birl.losses.trust_region import fisher_product, flat, line_search, natural_step
from birl.models import eval_mode
from birl.models.matmul import NEVER, products
from birl.types import Batch


@dataclass(frozen=True)
class TrustRegion(Training):
    """The longest step along the natural gradient that lowers the loss and stays near the old policy.

    Schulman et al. 2015 (arXiv:1502.05477), appendix C: conjugate gradients give the direction, the quadratic model of
    the divergence gives the length, and a line search finds the longest part of the step that lowers the loss and
    respects the bound. If there is none, the parameters do not change, bit for bit. Nothing is read on the host, and
    all numbers of iterations are fixed. With several processes, gradients, Fisher products and line searches are means
    over all processes. Networks are evaluated as they act, without dropout.

    The step logs the loss after it, the loss's other metrics before it, its divergence, ``step_share``, the share of
    the whole step that was made (0 if none), and ``failed_search``, which is 1 if the line search failed although the
    gradient promised a gain. A run ends after ten failures in a row, when metrics are read
    (`birl.errors.StalledError`).

    Attributes:
        name, loss, of, metric, when, splits: see `Training`.
        divergence: name of the loss's metric with the mean ``KL(old || new)`` between the policy that collected the
            data and the trained policy, with its graph.
        max_kl: name of the config field with the bound of the divergence.
        damping, n_directions: names of the config fields with the number that is added to the diagonal of the Fisher
            information, and with the number of steps of conjugate gradients.
        n_lengths, shrink: names of the config fields with the number of tried lengths, and with the ratio of successive
            lengths.
    """

    divergence: str = "kl"
    max_kl: str = "max_kl"
    damping: str = "conjugate_gradient_damping"
    n_directions: str = "conjugate_gradient_steps"
    n_lengths: str = "line_search_steps"
    shrink: str = "line_search_shrink"

    eager_only = "it evaluates its networks with parameters that they do not have"

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the config fields that it reads."""
        return self.max_kl, self.damping, self.n_directions, self.n_lengths, self.shrink

    def __call__(self, on: Update, batch: Batch) -> Batch:
        """Perform the step, and report its metrics."""
        max_kl, damping, n_directions, n_lengths, shrink = (getattr(on.config, name) for name in self.fields)
        trained = {
            f"{network}.{name}": parameter
            for network in self.networks
            for name, parameter in on.nets.get_submodule(network).named_parameters()
            if parameter.requires_grad
        }
        with_others = LossModule(self.loss, on.nets, on.config)

        def reduce(vector: Tensor) -> Tensor:
            return on.reduce({self.name: vector})[self.name]

        def evaluate(parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
            tensors = {f"nets.{name}": tensor for name, tensor in zip(trained, parameters, strict=True)}
            loss = functional_call(with_others, tensors, (batch,))
            value, divergence = reduce(torch.stack((loss.value, loss.metrics[self.divergence])))
            return -value, divergence

        with products(NEVER), eval_mode(on.nets):  # oneDNN's products have no second derivatives
            loss = check_loss(self.loss, self.loss(on.nets, batch, on.config))
            divergence = loss.metrics.get(self.divergence)
            if divergence is None or not divergence.requires_grad:
                raise ConfigError(
                    f"the loss of the step {self.name!r} has no metric {self.divergence!r} with a gradient: it must be "
                    "the mean KL(old || new), as in Loss(value, {'kl': weighted_mean(old.kl(policy), batch.weight)})"
                )
            gradients = parameter_gradients(self.loss, loss.value, trained, retain_graph=True)
            trained = {name: trained[name] for name in gradients}
            start = list(trained.values())
            uphill = reduce(-flat(list(gradients.values())))
            step = natural_step(uphill, fisher_product(divergence, start, damping, reduce), max_kl, n_directions)
            searched = line_search(evaluate, start, step, max_kl, n_lengths, shrink)
        on.assign(dict(zip(trained, searched.parameters, strict=True)))
        loss = loss.detached()
        # In a solved task the promised gain is below the loss's rounding error: that is not a failed search.
        hidden = 10 * torch.finfo(step.dtype).eps * loss.value.abs().clamp(min=1.0)
        failed = ((uphill @ step > hidden) & ~searched.accepted).to(searched.share.dtype)
        moved = {self.divergence: searched.divergence, "step_share": searched.share, FAILED_SEARCH: failed}
        on.report({self.logged: loss.value - searched.gain, **loss.metrics, **moved})
        return loss.shared_with(batch)
