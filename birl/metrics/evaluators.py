"""Evaluators that need no environment.

An evaluator is called with ``(algo, dataset)``. All evaluators take ``episodes``: test episodes to use instead of the
training dataset.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, cast

import numpy as np

from birl.dataset import DatasetInfo, EpisodeBase, InfiniteBuffer, ReplayBuffer, ReplayBufferBase, TransitionMiniBatch
from birl.dataset.reader import Reader
from birl.dataset.replay_buffer import ReplayBufferOptions
from birl.dataset.transitions import TransitionPickerProtocol
from birl.errors import ConfigError, EmptyDataError
from birl.preprocessing import RewardScaler
from birl.spaces import fill_empty_masks
from birl.spaces.conversion import Columns, to_array
from birl.spaces.observations import merge_columns, order_actions
from birl.types import ActionSpace, Array, Tree


class PredictingAlgorithm(Protocol):
    """An algorithm that predicts greedy actions."""

    def predict(self, x: Tree) -> Array:
        """Return the greedy actions for observations ``[B, *shape]``."""


class ValueAlgorithm(PredictingAlgorithm, Protocol):
    """An algorithm that estimates action values."""

    @property
    def gamma(self) -> float:
        """Discount factor."""

    @property
    def reward_scaler(self) -> RewardScaler | None:
        """Reward scaler, if the algorithm has one."""

    def predict_value(self, x: Tree, action: Array) -> Array:
        """Return the values ``[B]`` of observations and actions."""


class EvaluatorProtocol(Protocol):
    """Evaluator, which computes a metric of an algorithm."""

    def __call__(self, algo: ValueAlgorithm, dataset: ReplayBufferBase) -> float:
        """Compute the metric.

        Args:
            algo: algorithm.
            dataset: dataset that it is trained on.
        """


class OverTransitions(EvaluatorProtocol):
    """Mean of a quantity over all transitions.

    Args:
        episodes: episodes to evaluate on; by default those of the training dataset.

    Attributes:
        direction: ``"maximize"`` if higher values are better, or ``"minimize"``; see ``score_direction`` in
            `birl.run.Options`.
        parts: names of the values that it returns in addition to the mean.
    """

    direction: str = "maximize"
    parts: tuple[str, ...] = ()
    _kind: ActionSpace | None = None
    _sibling = ""

    def __init__(self, episodes: Sequence[EpisodeBase] | None = None) -> None:
        self._episodes, self._columns = episodes, cast(Columns, {})
        self._copy: tuple[TransitionPickerProtocol, Reader] | None = None

    def _reader(self, dataset: ReplayBufferBase) -> Reader:
        """Return a reader of the transitions. The episodes of the constructor are copied only once."""
        if not isinstance(dataset, ReplayBufferBase):
            name = type(self).__name__
            raise ConfigError(f"{name} takes a dataset, got {dataset!r:.80}: give an MDPDataset or ReplayBuffer")
        if self._episodes is None:
            return dataset.reader
        picker = dataset.transition_picker
        if self._copy is None or self._copy[0] is not picker:
            # These episodes may have actions that the dataset, whose number of actions may be a guess, does not have.
            if not self._episodes:
                raise EmptyDataError("the list of episodes is empty: give at least one episode")
            info = DatasetInfo.from_episodes(self._episodes, dataset.dataset_info.action_space)
            merge_columns(dataset.dataset_info.columns, info.columns, "the dataset", "the evaluator's episodes")
            options = ReplayBufferOptions(action_space=info.action_space, action_size=info.action_size)
            copy = ReplayBuffer(InfiniteBuffer(), picker, episodes=self._episodes, **options)
            self._copy = picker, copy.reader
        return self._copy[1]

    def _batches(self, dataset: ReplayBufferBase) -> Iterator[TransitionMiniBatch]:
        return self._reader(dataset).all_transitions()

    def __call__(self, algo: ValueAlgorithm, dataset: ReplayBufferBase) -> float:
        if self._kind is not None:
            self._check_kind(algo, dataset, self._kind)
        self._check_columns(algo, dataset)
        return self._summary(algo, dataset)

    def _check_columns(self, algo: object, dataset: ReplayBufferBase) -> None:
        """Keep the names of the dataset's columns, which must be those that an algorithm learned from."""
        if isinstance(dataset, ReplayBufferBase):
            self._columns = dataset.dataset_info.columns
            if isinstance(columns := getattr(algo, "columns", None), Mapping):
                merge_columns(columns, self._columns, f"this {type(algo).__name__}", "the dataset")

    def _summary(self, algo: ValueAlgorithm, dataset: ReplayBufferBase) -> float:
        """Return the result: the mean of the quantity."""
        quantities = np.concatenate([self._quantity(algo, batch) for batch in self._batches(dataset)])
        return float(quantities.mean(dtype=np.float64))

    def _greedy(self, algo: PredictingAlgorithm, batch: TransitionMiniBatch) -> Array:
        """Return the actions of ``algo``, which may be a user's object that returns tables."""
        name = "predicted actions"
        return to_array(name, order_actions(name, algo.predict(batch.observations), self._columns))

    def _check_kind(self, algo: object, dataset: object, kind: ActionSpace) -> None:
        info, action_type = getattr(dataset, "dataset_info", None), getattr(algo, "get_action_type", None)
        for owner, found in (("dataset", info and info.action_space), ("algorithm", action_type and action_type())):
            if isinstance(found, ActionSpace) and not kind & found:
                raise ConfigError(
                    f"the {owner} has {found.label} actions, {type(self).__name__} takes "
                    f"{kind.label} ones: use {self._sibling}"
                )

    @abc.abstractmethod
    def _quantity(self, algo: ValueAlgorithm, batch: TransitionMiniBatch) -> Array:
        """Return the quantity ``[B]`` of each transition."""

    def _reference(self, batch: TransitionMiniBatch) -> Array:
        """Return the actions that greedy actions are compared with."""
        return _actions(batch)


class TDErrorEvaluator(OverTransitions):
    r"""Mean squared temporal-difference error of the greedy policy; larger on test episodes if it overfits.

    .. math::
        E_D[(Q(s_t, a_t) - \sum_{k<n} \gamma^k r_{t+k} - \gamma^n Q(s_{t+n}, \pi(s_{t+n})))^2]

    Differs from d3rlpy, which uses :math:`\gamma` for any number of steps :math:`n`.
    """

    direction = "minimize"

    def _quantity(self, algo: ValueAlgorithm, batch: TransitionMiniBatch) -> Array:
        value = algo.predict_value(batch.observations, _actions(batch, algo))
        following, spec = batch.next_observations, getattr(algo, "spec", None)
        if spec is not None:
            following, _ = fill_empty_masks(spec.actions, following)  # masks after an episode's end may allow no action
        next_value = algo.predict_value(following, algo.predict(following))
        reward = batch.rewards[:, 0]
        if algo.reward_scaler is not None:
            reward = algo.reward_scaler.transform_numpy(reward)
        discount = algo.gamma ** batch.intervals[:, 0] * (1.0 - batch.terminals[:, 0])
        return np.square(value - reward - discount * next_value)


class DiscountedSumOfAdvantageEvaluator(OverTransitions):
    r"""Mean over steps of the discounted sum of the data's advantages until the episode's end.

    .. math::
        E_D[\sum_{t' \ge t} \gamma^{t' - t} (Q(s_{t'}, a_{t'}) - Q(s_{t'}, \pi(s_{t'})))]

    Small values mean that the algorithm rates its greedy actions above those of the data (Murphy 2005, "A
    generalization error for Q-learning", JMLR 6). Differs from d3rlpy, which cuts episodes into windows of 1024 steps.
    """

    direction = "minimize"

    def _summary(self, algo: ValueAlgorithm, dataset: ReplayBufferBase) -> float:
        found = [(self._quantity(algo, batch), batch.extra["episode"]) for batch in self._batches(dataset)]
        advantages, episodes = (np.concatenate(part) for part in zip(*found, strict=True))
        sums, total, previous = np.zeros(len(advantages)), 0.0, -1
        for index in range(len(advantages) - 1, -1, -1):
            total = float(advantages[index]) + (algo.gamma * total if episodes[index] == previous else 0.0)
            sums[index], previous = total, episodes[index]
        return float(sums.mean())

    def _quantity(self, algo: ValueAlgorithm, batch: TransitionMiniBatch) -> Array:
        greedy = algo.predict(batch.observations)
        value: Array = algo.predict_value(batch.observations, _actions(batch, algo))
        return value - algo.predict_value(batch.observations, greedy)


class AverageValueEstimationEvaluator(OverTransitions):
    r"""Mean value of the greedy policy, :math:`E_D[Q(s_t, \pi(s_t))]`: very large if values are overestimated.

    For an evaluation (`birl.ope.FQE`), it is the expectation over the policy's actions.
    """

    def _quantity(self, algo: ValueAlgorithm, batch: TransitionMiniBatch) -> Array:
        if (expected := getattr(algo, "policy_value", None)) is not None:
            return np.asarray(expected(batch.observations))
        value: Array = algo.predict_value(batch.observations, algo.predict(batch.observations))
        return value


class InitialStateValueEstimationEvaluator(AverageValueEstimationEvaluator):
    r"""Mean value of the greedy policy in the first state of each episode: an estimate of its return.

    .. math::
        E_{s_0 \sim D}[Q(s_0, \pi(s_0))]

    See Paine et al. 2020, arXiv:2007.09055. Differs from d3rlpy, which treats every 1024th step of an episode as a
    first one.
    """

    def _batches(self, dataset: ReplayBufferBase) -> Iterator[TransitionMiniBatch]:
        return self._reader(dataset).all_transitions(initial=True)


class SoftOPCEvaluator(OverTransitions):
    r"""Soft off-policy classification: the difference of the mean values of successful episodes and of all.

    .. math::
        E_{D_{success}}[Q(s, a)] - E_D[Q(s, a)]

    See Irpan et al. 2019, arXiv:1906.01624. NaN if no episode is successful.

    Args:
        return_threshold: an episode is successful if its undiscounted return is at least this.
        episodes: episodes to evaluate on; by default those of the training dataset.
    """

    def __init__(self, return_threshold: float, episodes: Sequence[EpisodeBase] | None = None) -> None:
        super().__init__(episodes)
        self._return_threshold = return_threshold

    def _summary(self, algo: ValueAlgorithm, dataset: ReplayBufferBase) -> float:
        reader = self._reader(dataset)
        successful = reader.episode_returns() >= self._return_threshold
        batches = reader.all_transitions()
        values = [(self._quantity(algo, batch), successful[batch.extra["episode"]]) for batch in batches]
        value, success = (np.concatenate(part) for part in zip(*values, strict=True))
        value = value.astype(np.float64)
        return float(value[success].mean() - value.mean()) if success.any() else float("nan")

    def _quantity(self, algo: ValueAlgorithm, batch: TransitionMiniBatch) -> Array:
        value: Array = algo.predict_value(batch.observations, _actions(batch, algo))
        return value


class ContinuousActionDiffEvaluator(OverTransitions):
    r"""Mean squared distance of greedy actions from the data's, :math:`E_D[|a_t - \pi(s_t)|^2]`."""

    direction = "minimize"
    _kind = ActionSpace.CONTINUOUS
    _sibling = "DiscreteActionMatchEvaluator"

    def _quantity(self, algo: ValueAlgorithm, batch: TransitionMiniBatch) -> Array:
        difference: Array = self._greedy(algo, batch) - self._reference(batch)
        return np.square(difference).sum(1)


class DiscreteActionMatchEvaluator(OverTransitions):
    r"""Share of steps at which the greedy action is the data's, :math:`P_D(a_t = \pi(s_t))`."""

    _kind = ActionSpace.CHOICES
    _sibling = "ContinuousActionDiffEvaluator"

    def _quantity(self, algo: ValueAlgorithm, batch: TransitionMiniBatch) -> Array:
        greedy = self._greedy(algo, batch)
        return (greedy == self._reference(batch).reshape(greedy.shape)).reshape(len(greedy), -1).all(1)


class _TwoAlgorithms(OverTransitions):
    """Comparison with the greedy actions of another algorithm, not with the data's actions."""

    def __init__(self, base_algo: PredictingAlgorithm, episodes: Sequence[EpisodeBase] | None = None) -> None:
        super().__init__(episodes)
        self._base_algo = base_algo

    def _reference(self, batch: TransitionMiniBatch) -> Array:
        return self._greedy(self._base_algo, batch)

    def _check_columns(self, algo: object, dataset: ReplayBufferBase) -> None:
        super()._check_columns(algo, dataset)
        super()._check_columns(self._base_algo, dataset)


class CompareContinuousActionDiffEvaluator(_TwoAlgorithms, ContinuousActionDiffEvaluator):
    r"""Mean squared distance of the greedy actions of two algorithms, :math:`E_D[|\pi_1(s_t) - \pi_2(s_t)|^2]`.

    Args:
        base_algo: algorithm to compare with.
        episodes: episodes to evaluate on; by default those of the training dataset.
    """

    _sibling = "CompareDiscreteActionMatchEvaluator"


class CompareDiscreteActionMatchEvaluator(_TwoAlgorithms, DiscreteActionMatchEvaluator):
    r"""Share of steps at which the greedy actions of two algorithms agree, :math:`P_D(\pi_1(s_t) = \pi_2(s_t))`.

    Args:
        base_algo: algorithm to compare with.
        episodes: episodes to evaluate on; by default those of the training dataset.
    """

    _sibling = "CompareContinuousActionDiffEvaluator"


def _actions(batch: TransitionMiniBatch, algo: object = None) -> Array:
    """Return actions ``[B, A]``, or integers ``[B]``."""
    actions: Array = batch.actions
    spec = getattr(algo, "spec", None)  # only birl's algorithms have one
    if spec is not None:
        return actions.reshape(len(actions), *spec.actions.shape)
    return actions[:, 0] if actions.dtype.kind in "iu" and actions.shape[1] == 1 else actions
