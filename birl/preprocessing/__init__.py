"""Scalers of observations, actions and rewards."""

from __future__ import annotations

from birl.errors import explain_missing_names
from birl.preprocessing.action_scalers import ActionScaler, MinMaxActionScaler, register_action_scaler
from birl.preprocessing.base import Scaler
from birl.preprocessing.observation_scalers import (
    DictObservationScaler,
    MinMaxObservationScaler,
    ObservationScaler,
    PixelObservationScaler,
    StandardObservationScaler,
    TupleObservationScaler,
    register_observation_scaler,
)
from birl.preprocessing.reward_scalers import (
    ClipRewardScaler,
    ConstantShiftRewardScaler,
    MinMaxRewardScaler,
    MultiplyRewardScaler,
    ReturnBasedRewardScaler,
    RewardScaler,
    StandardRewardScaler,
    register_reward_scaler,
)
from birl.preprocessing.running_scalers import RunningObservationScaler, RunningRewardScaler

__all__ = [
    "ActionScaler",
    "ClipRewardScaler",
    "ConstantShiftRewardScaler",
    "DictObservationScaler",
    "MinMaxActionScaler",
    "MinMaxObservationScaler",
    "MinMaxRewardScaler",
    "MultiplyRewardScaler",
    "ObservationScaler",
    "PixelObservationScaler",
    "ReturnBasedRewardScaler",
    "RewardScaler",
    "RunningObservationScaler",
    "RunningRewardScaler",
    "Scaler",
    "StandardObservationScaler",
    "StandardRewardScaler",
    "TupleObservationScaler",
    "register_action_scaler",
    "register_observation_scaler",
    "register_reward_scaler",
]

explain_missing_names(__name__, __all__)
