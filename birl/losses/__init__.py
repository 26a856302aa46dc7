"""Pure tensor functions that several algorithms share."""

from birl.errors import explain_missing_names
from birl.losses.averages import explained_variance, old_policy, rollout_metrics, shares, standardized
from birl.losses.multistep import (
    VTrace,
    backward_recursion,
    finished,
    generalized_advantage,
    lambda_returns,
    last_steps,
    n_step_returns,
    retrace,
    upgo_returns,
    vtrace,
)
from birl.losses.sharing import shared
from birl.losses.temperature import temperature_loss
from birl.losses.temporal_difference import td_loss
from birl.losses.trust_region import Searched, conjugate_gradients, fisher_product, line_search, natural_step
from birl.losses.vae import vae_loss
from birl.types import Loss

__all__ = [
    "Loss",
    "Searched",
    "VTrace",
    "backward_recursion",
    "conjugate_gradients",
    "explained_variance",
    "finished",
    "fisher_product",
    "generalized_advantage",
    "lambda_returns",
    "last_steps",
    "line_search",
    "n_step_returns",
    "natural_step",
    "old_policy",
    "retrace",
    "rollout_metrics",
    "shared",
    "shares",
    "standardized",
    "td_loss",
    "temperature_loss",
    "upgo_returns",
    "vae_loss",
    "vtrace",
]

explain_missing_names(__name__, __all__)
