"""Conversion of minibatches and rollouts to `Batch`, on the training device and scaled for the networks."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from birl.checks import check
from birl.dataset.minibatch import MiniBatch, TrajectoryMiniBatch
from birl.engine import Engine
from birl.engine.stacked_engine import StackedEngine
from birl.preprocessing.units import Units, to_float
from birl.run.protocols import Rollout
from birl.types import Batch, Tree, tree_map

_EXTRA = {"next_action": Units.action, "next_action_known": Units.column, "discounted_return": Units.column}


def to_batch(minibatch: MiniBatch, units: Units, gamma: float) -> Batch:
    """Convert a minibatch of transitions, sequences or trajectories.

    ``extra`` contains the columns that the algorithm requested: ``next_action`` and ``next_action_known``,
    ``discounted_return``, and for trajectories ``returns_to_go`` and ``timestep``. The tensors may share memory with
    the minibatch, so do not write to them.
    """
    check("batch", minibatch, MiniBatch, ": sample one with algo.sample_minibatch(dataset)")
    given = minibatch.extra
    extra = {name: read(units, given[name]) for name, read in _EXTRA.items() if name in given}
    observation, following = units.observation(minibatch.observations), None
    if isinstance(minibatch, TrajectoryMiniBatch):
        extra = {
            "returns_to_go": units.reward(minibatch.returns_to_go),
            "timestep": units.tensor(minibatch.timesteps).to(torch.int64),
        }
    else:
        following = units.observation(minibatch.next_observations)
    if minibatch.augmentation is not None:
        numbers = units.tensor(minibatch.augmented)
        observation = minibatch.augmentation(observation, numbers[..., 0, :])
        following = minibatch.augmentation(following, numbers[..., 1, :])
    reward, is_first = units.reward(minibatch.rewards), minibatch.is_first
    power = gamma if minibatch.intervals is None else torch.pow(gamma, units.column(minibatch.intervals))
    weight = torch.ones_like(reward) if minibatch.weights is None else units.column(minibatch.weights)
    if minibatch.masks is not None:
        weight = weight * to_float(units.tensor(minibatch.masks))
    return Batch(
        observation,
        units.action(minibatch.actions),
        reward,
        following,
        torch.rsub(units.column(minibatch.terminals), 1).mul_(power),
        weight,
        None if is_first is None else units.tensor(is_first).to(torch.bool),
        {name: units.tensor(value) for name, value in minibatch.start_states.items()} or None,
        extra,
        _later(minibatch, units),
    )


def _later(minibatch: MiniBatch, units: Units) -> Tensor | None:
    """Return the extra steps of n-step next observations in sequences."""
    if minibatch.is_first is None or minibatch.intervals is None:
        return None
    return (units.column(minibatch.intervals) - 1).to(torch.int64)


def rollout_batch(rollout: Rollout, units: Units, gamma: float) -> tuple[Batch, Tensor]:
    """Convert a rollout ``[T, N, …]``.

    Returns:
        The batch, with weight 0 where a row is not a valid step, and float ``[T, N]``, 1 where a recursion over time
        stops.
    """
    unclipped, lead = rollout.extra.get("policy_action"), rollout.valid.shape
    if unclipped is None:
        action = units.actions.from_stored(
            units.tensor(rollout.action).reshape(*lead, *units.actions.storage_spec.shape)
        )
    else:
        action = units.tensor(unclipped).reshape(*lead, *units.actions.shape)
    valid = units.tensor(rollout.valid).to(torch.float32)
    terminated = units.tensor(rollout.terminated).to(torch.float32)
    ended = torch.maximum(torch.maximum(terminated, units.tensor(rollout.truncated).to(torch.float32)), 1 - valid)
    batch = Batch(
        observation=_scaled_observation(units, rollout.observation, rollout.inputs),
        action=action,
        reward=units.reward(rollout.reward[..., None]),
        next_observation=_scaled_observation(units, rollout.next_observation, rollout.next_inputs),
        discount=gamma * (1 - terminated),
        weight=valid,
        is_first=units.tensor(rollout.is_first).to(torch.bool),
        state={name: units.tensor(value) for name, value in rollout.start_state.items()} or None,
        extra={name: units.tensor(x) for name, x in rollout.extra.items() if _is_batch_column(name)},
    )
    return batch, ended


def _is_batch_column(name: str) -> bool:
    """Return whether a batch has this column of its rollout: a recurrent state, or the parameters of the policy."""
    return name == "policy" or name.startswith("state.")


def _scaled_observation(units: Units, observation: Tree, inputs: Tree | None) -> Tree:
    """Return scaled observations: ``inputs``, scaled at each step, if they were stored."""
    return units.observation(observation) if inputs is None else tree_map(units.tensor, inputs)


def fold_sequences(batch: Batch, length: int) -> Batch:
    """Cut ``[T, N, …]`` into sequences of ``length`` steps ``[length, ceil(T / length) * N, …]``.

    Each sequence starts from the recurrent state stored with its first step (``state.<network>`` in ``extra``). The
    last sequences are padded with steps of weight 0.
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


def update_priorities(minibatch: MiniBatch | Rollout | Batch, batch: Batch, engine: Engine | StackedEngine) -> None:
    """Pass the priorities of an update to the minibatch's samplers, if they use priorities.

    The priority of a sequence is 0.9 times the maximum plus 0.1 times the mean over its steps (Kapturowski et al. 2019,
    R2D2, section 2.3).

    Args:
        minibatch: the minibatch.
        batch: the batch of the minibatch, ``[…, B]``, or ``[S, …, B]`` for several seeds.
        engine: the engine that made the update.
    """
    priority: Tensor | None = engine.priority
    if priority is None:
        return
    if batch.is_first is not None:  # over the steps of sequences
        real = batch.weight > 0
        mean = (priority * real).sum(0) / real.sum(0).clamp(min=1)
        priority = 0.9 * (priority * real).amax(0) + 0.1 * mean
    if not isinstance(minibatch, Rollout | Batch):
        minibatch.update_priorities(priority.flatten())
