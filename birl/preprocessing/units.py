"""Conversion of minibatches to `Batch`: on the training device, in the units of the networks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from birl.dataset.minibatch import MiniBatch, TrajectoryMiniBatch
from birl.preprocessing import ActionScaler, ObservationScaler, RewardScaler
from birl.types import Array, Batch, Tree, tree_map

_DOUBLE = np.dtype(np.float64)


class Units:
    """Conversion between the units of environments and datasets and those of networks.

    Args:
        device: training device.
        discrete: whether actions are integers.
        observation_scaler, action_scaler, reward_scaler: fitted scalers or ``None``.
    """

    def __init__(
        self,
        device: torch.device,
        discrete: bool,
        observation_scaler: ObservationScaler | None,
        action_scaler: ActionScaler | None,
        reward_scaler: RewardScaler | None,
    ) -> None:
        self.device, self.discrete = device, discrete
        self.observation_scaler, self.action_scaler = observation_scaler, action_scaler
        self.reward_scaler = reward_scaler

    def tensor(self, array: Array | Tensor) -> Tensor:
        """Move to the device in its own dtype: pixels travel as bytes.

        Copies to a CUDA device go through pinned memory, so that they do not wait for the device. Torch's host
        allocator reuses a freed pinned block only after the copies from it are done, so the block need not be kept
        here. (It finds the block by the address of its first byte, where a place begins to gather.)
        """
        if not isinstance(array, Tensor):
            array = np.asarray(array)
            if array.dtype == _DOUBLE:
                array = array.astype(np.float32)
            array = torch.from_numpy(array if array.flags.writeable else array.copy())
        if array.device == self.device:
            return array
        if self.device.type == "cuda" and array.device.type == "cpu" and not array.is_pinned():
            array = array.pin_memory()
        return array.to(self.device, non_blocking=True)

    def observation(self, observation: Tree) -> Tree:
        """Observations as float tensors, scaled."""
        tree = tree_map(self.tensor, observation)
        if self.observation_scaler is not None:
            return self.observation_scaler.transform(tree)
        return tree_map(_to_float, tree)

    def action(self, action: Array | Tensor) -> Tensor:
        """Actions ``[..., A]`` in the policy's range, or ``[..., 1]`` integers as int64 ``[...]``."""
        tensor = self.tensor(action)
        if self.discrete:
            return tensor.select(-1, 0).to(torch.int64)
        tensor = _to_float(tensor)
        return tensor if self.action_scaler is None else self.action_scaler.transform(tensor)

    def column(self, array: Array | Tensor) -> Tensor:
        """Numbers ``[..., 1]`` as floats ``[...]``."""
        return _to_float(self.tensor(array).select(-1, 0))

    def environment_action(self, action: Tensor) -> Tensor:
        """Inverse of `action`."""
        return action if self.action_scaler is None else self.action_scaler.reverse_transform(action)

    def reward(self, reward: Array | Tensor) -> Tensor:
        """Rewards ``[..., 1]`` as scaled floats ``[...]``."""
        tensor = self.column(reward)
        return tensor if self.reward_scaler is None else self.reward_scaler.transform(tensor)


def _to_float(x: Tensor) -> Tensor:
    return x.to(torch.float32)


_EXTRA = {"next_action": Units.action, "next_action_known": Units.column, "return_to_go": Units.column}


def to_batch(minibatch: MiniBatch, units: Units, gamma: float) -> Batch:
    """Convert a minibatch of transitions, sequences or trajectories.

    Columns that algorithms ask for are in ``extra``: ``next_action`` and ``next_action_known``, ``return_to_go``, and
    for trajectories ``returns_to_go`` and ``timestep``. The tensors may share memory with the minibatch: do not write
    to them.
    """
    given = minibatch.extra
    extra = {name: read(units, given[name]) for name, read in _EXTRA.items() if name in given}
    following: Tree = None
    if isinstance(minibatch, TrajectoryMiniBatch):
        extra = {
            "returns_to_go": units.reward(minibatch.returns_to_go),
            "timestep": units.tensor(minibatch.timesteps).to(torch.int64),
        }
    else:
        following = units.observation(minibatch.next_observations)
    reward, is_first = units.reward(minibatch.rewards), minibatch.is_first
    power = gamma if minibatch.intervals is None else torch.pow(gamma, units.column(minibatch.intervals))
    weight = torch.ones_like(reward) if minibatch.weights is None else units.column(minibatch.weights)
    if minibatch.masks is not None:
        weight = weight * _to_float(units.tensor(minibatch.masks))
    return Batch(
        units.observation(minibatch.observations),
        units.action(minibatch.actions),
        reward,
        following,
        torch.rsub(units.column(minibatch.terminals), 1).mul_(power),
        weight,
        None if is_first is None else units.tensor(is_first).to(torch.bool),
        {name: units.tensor(value) for name, value in minibatch.start_states.items()} or None,
        extra,
    )


def rollout_batch(rollout: Any, units: Units, gamma: float) -> tuple[Batch, Tensor]:
    """Convert a rollout ``[T, N, …]``.

    Returns:
        The batch, with weight 0 where a row is not a real step, and float ``[T, N]``: 1 where a recursion over time
        stops.
    """
    action = rollout.extra.get("policy_action", rollout.action)  # what the policy chose, before any clipping
    action = units.tensor(action)
    action = action.to(torch.int64) if units.discrete else action.to(torch.float32)
    valid = units.tensor(rollout.valid).to(torch.float32)
    terminated = units.tensor(rollout.terminated).to(torch.float32)
    ended = torch.maximum(torch.maximum(terminated, units.tensor(rollout.truncated).to(torch.float32)), 1 - valid)
    batch = Batch(
        observation=units.observation(rollout.observation),
        action=action,
        reward=units.reward(rollout.reward[..., None]),
        next_observation=units.observation(rollout.next_observation),
        discount=gamma * (1 - terminated),
        weight=valid,
        is_first=units.tensor(rollout.is_first).to(torch.bool),
        state={name: units.tensor(value) for name, value in rollout.start_state.items()} or None,
        extra={name: units.tensor(value) for name, value in rollout.extra.items() if name.startswith("state.")},
    )
    return batch, ended


def fold_sequences(batch: Batch, length: int) -> Batch:
    """Cut ``[T, N, …]`` into sequences of ``length`` steps ``[length, ceil(T / length) * N, …]``.

    Each starts from the recurrent state stored with its first step (``state.<network>`` in ``extra``). The last ones
    are padded with steps of weight 0.
    """
    steps = batch.reward.shape[0]
    count = -(-steps // length)
    stored = {name.removeprefix("state."): batch.extra[name] for name in batch.extra if name.startswith("state.")}

    def fold(x: Tensor) -> Tensor:
        padded = torch.cat([x, x.new_zeros(count * length - steps, *x.shape[1:])])
        return padded.unflatten(0, (count, length)).transpose(0, 1).flatten(1, 2)

    extra = {name: value for name, value in batch.extra.items() if not name.startswith("state.")}
    state = {name: value[::length].flatten(0, 1) for name, value in stored.items()}
    return replace(replace(batch, extra=extra).map(fold), state=state or None)
