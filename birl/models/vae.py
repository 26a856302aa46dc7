"""A conditional variational auto-encoder of the actions in the data (Sohn et al. 2015; arXiv:1812.02900, section 4).

The encoder maps a state and an action to a distribution over latents; the decoder maps a state and a latent back to an
action. Latents from a standard normal decode to actions like those in the data.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from birl.models.distributions import Normal
from birl.models.encoders import EncoderFactory
from birl.models.networks import LinearNetwork, eval_mode
from birl.spaces import Continuous
from birl.spaces.specs import Spec
from birl.types import Inputs

LATENT_LIMIT = 0.5
"""Random latents are clipped to ``[-LATENT_LIMIT, LATENT_LIMIT]``, so that only likely actions are decoded."""


class VAEEncoder(LinearNetwork):
    """``q(z|s, a)``: the distribution of the latent of an action.

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the action-conditioned encoder.
        latent_size: number of latent dimensions ``L``.
        log_std_range: clamp of the natural logarithm of the standard deviation.
    """

    def __init__(
        self,
        spec: Spec,
        encoder_factory: EncoderFactory,
        latent_size: int,
        log_std_range: tuple[float, float] = (-4.0, 15.0),
    ) -> None:
        super().__init__(spec, encoder_factory, 2 * latent_size, with_action=True)
        self.log_std_range = log_std_range

    def forward(self, inputs: Inputs, action: Tensor) -> Normal:
        """Return Gaussian with parameters ``[..., L]`` for actions ``[..., action_size]``."""
        mean, log_std = self.linear(self.encode(inputs, action)).chunk(2, -1)
        return Normal(mean, log_std.clamp(*self.log_std_range))


class VAEDecoder(LinearNetwork):
    """``p(a|s, z)``: the action of a latent.

    Args:
        spec: shapes of observations and actions.
        encoder_factory: makes the encoder, which reads the latent as if it were an action.
        latent_size: number of latent dimensions ``L``.
    """

    def __init__(self, spec: Spec, encoder_factory: EncoderFactory, latent_size: int) -> None:
        latent = replace(spec, actions=Continuous(latent_size))
        super().__init__(latent, encoder_factory, spec.actions.size, with_action=True)
        self.latent_size = latent_size

    def forward(self, inputs: Inputs, latent: Tensor, *, squash: bool = True) -> Tensor:
        """Return actions ``[..., action_size]``.

        Args:
            inputs: the states.
            latent: ``[..., L]``; may have more leading dimensions than the states (many actions for each state).
            squash: whether to apply a tanh, for actions in [-1, 1].
        """
        action: Tensor = self.linear(self.encode(inputs, latent))
        return action.tanh() if squash else action

    @torch.no_grad()
    def sample(self, inputs: Inputs, n: int | None = None, *, squash: bool = True) -> Tensor:
        """Sample actions like those in the data, from random latents, without gradients, dropout or batch statistics.

        Args:
            inputs: the states.
            n: number of actions for each state, or ``None`` for one without an extra dimension.
            squash: see `forward`.

        Returns:
            ``[(n,) ..., action_size]``.
        """
        leading = self._leading(inputs.observation)
        shape = (*leading, self.latent_size) if n is None else (n, *leading, self.latent_size)
        with eval_mode(self):
            action: Tensor = self(inputs, random_latents(shape, self.linear.weight), squash=squash)
        return action


def random_latents(shape: tuple[int, ...], like: Tensor | None = None) -> Tensor:
    """Return standard normal numbers, clipped to `LATENT_LIMIT` as in arXiv:1812.02900.

    Args:
        shape: shape of the latents.
        like: tensor with their dtype and device.
    """
    dtype, device = (None, None) if like is None else (like.dtype, like.device)
    return torch.randn(shape, dtype=dtype, device=device).clamp(-LATENT_LIMIT, LATENT_LIMIT)
