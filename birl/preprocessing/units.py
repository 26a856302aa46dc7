"""Conversion of unscaled data to scaled tensors on the training device, and back."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from birl.preprocessing import ActionScaler, ObservationScaler, RewardScaler
from birl.spaces import Actions
from birl.spaces.observations import Choices, match_parts
from birl.types import Array, ArrayOrTensor, Tree, map_unmasked, tree_leaves, tree_map

_DOUBLE = np.dtype(np.float64)


class Units:
    """Converter between the units of environments and datasets and the units of networks.

    Args:
        device: training device.
        actions: spec of the actions.
        observation_scaler, action_scaler, reward_scaler: fitted scalers or ``None``.
        observations: spec of the observations, see `birl.spaces.observations`; ``None`` if all are numbers.
    """

    def __init__(
        self,
        device: torch.device,
        actions: Actions,
        observation_scaler: ObservationScaler | None,
        action_scaler: ActionScaler | None,
        reward_scaler: RewardScaler | None,
        observations: Tree = None,
    ) -> None:
        self.device, self.actions, self.observations = device, actions, observations
        self._has_choices = any(isinstance(leaf, Choices) for leaf in tree_leaves(observations))
        self.observation_scaler, self.action_scaler = observation_scaler, action_scaler
        self.reward_scaler = reward_scaler

    def tensor(self, array: Array | Tensor) -> Tensor:
        """Copy an array to the device in its own dtype: pixels stay uint8.

        Copies to a CUDA device go through pinned memory, so that they do not wait for the device. Torch's host
        allocator reuses a freed pinned block only after the copies from it are done, so no reference to the block is
        needed. (It finds the block by the address of its first byte, which is where a `PinnedPlace` gathers to.)
        """
        if not isinstance(array, Tensor):
            array = np.asarray(array)
            if array.dtype == _DOUBLE:
                array = array.astype(np.float32)
            array = torch.from_numpy(array if array.flags.writeable else array.copy())
        return self._send(array)

    def _send(self, tensor: Tensor) -> Tensor:
        if tensor.device == self.device:
            return tensor
        if self.device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def observation(self, observation: Tree) -> Tree:
        """Convert observations to scaled float32 tensors, choices to one-hot vectors. Drops unused parts of dicts.

        A scaler gets float64 observations as they are: in float32 the differences of large numbers are lost.
        """
        parts = match_parts(self.observations, observation)
        if self.observation_scaler is None:
            return self.as_input(tree_map(self.tensor, parts))
        return tree_map(to_float, self.as_input(tree_map(self._exact_tensor, parts)))

    def _exact_tensor(self, array: Array | Tensor) -> Tensor:
        """Copy an array to the device; numbers that float32 may round in float64."""
        if isinstance(array, Tensor) or self.device.type == "mps":  # which has no float64
            return self.tensor(array)
        array = np.asarray(array)
        if array.dtype != _DOUBLE and (array.dtype.kind not in "iu" or array.dtype.itemsize < 4):
            return self.tensor(array)
        return self._send(torch.from_numpy(array.astype(_DOUBLE)))

    def as_input(self, tensors: Tree) -> Tree:
        """Convert observations that are tensors on the device, see `observation`. Action masks are not scaled."""
        if self.observation_scaler is None:
            numbers = tree_map(to_float, tensors)
        else:
            scale = self.observation_scaler.transform
            numbers = map_unmasked(scale, tensors) if self.actions.options else scale(tensors)
        if not self._has_choices:
            return numbers
        return tree_map(
            lambda leaf, raw, number: leaf.as_input(raw) if isinstance(leaf, Choices) else number,
            *(self.observations, tensors, numbers),
        )

    def action(self, action: Array | Tensor) -> Tensor:
        """Convert stored actions ``[..., *actions.storage_spec.shape]`` to the policy's actions in its range."""
        tensor = self.actions.from_stored(self.tensor(action))
        return tensor if self.action_scaler is None else self.action_scaler.transform(tensor)

    def column(self, array: Array | Tensor) -> Tensor:
        """Convert numbers ``[..., 1]`` to floats ``[...]``."""
        return to_float(self.tensor(array).select(-1, 0))

    def environment_action(self, action: Tensor) -> Tensor:
        """Convert the policy's actions to those of the environment, the inverse of `action`."""
        action = action if self.action_scaler is None else self.action_scaler.reverse_transform(action)
        return self.actions.to_environment(action)

    def log_slope(self, action: Tensor) -> Tensor:
        """Return the logarithm of the slope of `environment_action` at the policy's actions ``[..., A]``."""
        if self.action_scaler is None:
            return torch.zeros_like(action, dtype=torch.float64)
        return self.action_scaler.log_slope(action.to(torch.float64))

    def reward(self, reward: Array | Tensor) -> Tensor:
        """Convert rewards ``[..., 1]`` to scaled floats ``[...]``."""
        tensor = self.column(reward)
        return tensor if self.reward_scaler is None else self.reward_scaler.transform(tensor)


def copy_array(leaf: ArrayOrTensor) -> ArrayOrTensor:
    """Copy an array or tensor."""
    return leaf.clone() if isinstance(leaf, Tensor) else np.array(leaf)


def to_float(x: Tensor) -> Tensor:
    """Convert to float32."""
    return x.to(torch.float32)
