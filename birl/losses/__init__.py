"""Pure tensor functions that two or more algorithms use."""

from birl.losses.gae import generalized_advantage
from birl.losses.sharing import shared
from birl.losses.temperature import temperature_loss
from birl.losses.temporal_difference import td_loss
from birl.losses.vae import vae_loss
from birl.types import Loss

__all__ = ["Loss", "generalized_advantage", "shared", "td_loss", "temperature_loss", "vae_loss"]
