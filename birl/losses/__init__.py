"""Pure tensor functions that two or more algorithms use."""

from birl.losses.multistep import (
    VTrace,
    backward_recursion,
    generalized_advantage,
    lambda_returns,
    n_step_returns,
    retrace,
    upgo_returns,
    vtrace,
)
from birl.losses.sharing import shared
from birl.losses.temperature import temperature_loss
from birl.losses.temporal_difference import td_loss
from birl.losses.vae import vae_loss
from birl.types import Loss

__all__ = [
    "Loss",
    "VTrace",
    "backward_recursion",
    "generalized_advantage",
    "lambda_returns",
    "n_step_returns",
    "retrace",
    "shared",
    "td_loss",
    "temperature_loss",
    "upgo_returns",
    "vae_loss",
    "vtrace",
]
