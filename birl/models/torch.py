"""d3rlpy's base classes of encoder modules. Modules that derive from ``nn.Module`` alone serve as well."""

from torch import nn

__all__ = ["Encoder", "EncoderWithAction"]


class Encoder(nn.Module):
    """Your own encoder: ``forward(x [M, *observation_shape]) -> [M, F]``. Make it in `EncoderFactory.create`."""


class EncoderWithAction(nn.Module):
    """Your own action-conditioned encoder: ``forward(x [M, *observation_shape], action [M, A]) -> [M, F]``.

    Make it in `EncoderFactory.create_with_action`.
    """
