"""The loss of the variational auto-encoder that imitates the data's actions."""

from __future__ import annotations

from birl.models.vae import VAEDecoder, VAEEncoder
from birl.types import Batch, Loss, weighted_mean


def vae_loss(encoder: VAEEncoder, decoder: VAEDecoder, batch: Batch, kl_weight: float) -> Loss:
    """``E[(a - D(s, z))^2 + kl_weight * KL(q(z|s, a) || N(0, 1))]`` with ``z ~ q(z|s, a)`` (arXiv:1812.02900).

    The squared error is averaged over the dimensions of the action, and the divergence over the dimensions of the
    latent, as in the authors' code.

    Args:
        encoder, decoder: the two halves.
        batch: states, actions in [-1, 1] and weights.
        kl_weight: weight of the divergence.
    """
    posterior = encoder(batch.inputs, batch.action)
    decoded = decoder(batch.inputs, posterior.sample()[0])
    error = (decoded - batch.action).square().mean(-1)
    variance = (2.0 * posterior.log_std).exp()
    divergence = (0.5 * (posterior.mean.square() + variance - 1.0) - posterior.log_std).mean(-1)
    return Loss(weighted_mean(error + kl_weight * divergence, batch.weight))
