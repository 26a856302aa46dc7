"""The info of a dataset: signatures of its steps, and the specs of observations and actions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from birl.checks import check
from birl.dataset.episode import EpisodeBase, Signature, Spaces, check_episodes
from birl.dataset.validation import actions_of_log, check_stored, prepare_actions
from birl.dataset.writers import WriterPreprocessProtocol
from birl.errors import ConfigError, EmptyDataError, ShapeError
from birl.spaces import Actions, actions_from_space, parse_actions
from birl.spaces.conversion import Columns, to_array
from birl.spaces.observations import (
    fitting_columns,
    infer_observations,
    leaf_spaces,
    match_parts,
    merge_columns,
    observations_from_spaces,
    parse_observations,
    select_parts,
    shapes_of,
    widen_observations,
)
from birl.spaces.specs import single_spaces
from birl.types import ActionSize, ActionSpace, GymEnv, Tree, parts_like, tree_leaves, tree_map

_MAX_DIMENSIONS = 30  # of an observation; HDF5 has 32, one of them for steps


@dataclass(frozen=True)
class DatasetInfo:
    """Signatures, action space and action size of a dataset.

    Attributes:
        observation_signature, action_signature, reward_signature: signatures of one step.
        action_space: kind of the actions.
        action_size: number of dimensions or options, as the argument ``action_size`` of `birl.dataset.MDPDataset`.
        observations: spec of the observations, see `birl.spaces.observations`, in the order of the signature; numbers
            by default.
        columns: names of the columns of the tables that observations and actions come from, by the name of their array:
            ``observation``, ``observation.arm`` for a part, and ``action``. Empty if they come from arrays.
    """

    observation_signature: Signature
    action_signature: Signature
    reward_signature: Signature
    action_space: ActionSpace
    action_size: ActionSize
    observations: Tree = None
    columns: Columns = field(default_factory=dict)

    def __post_init__(self) -> None:
        signature, found = self.observation_signature, self.observations
        # Spaces sort the parts of dicts, but data need not. Files identify parts by their order.
        parsed = parse_observations(signature.tree_shape)  # refuses sizes below 1, as files of datasets do
        for leaf in tree_leaves(signature.tree):
            if len(leaf.shape) > _MAX_DIMENSIONS:
                raise ShapeError(
                    f"an observation has {len(leaf.shape)} dimensions; at most {_MAX_DIMENSIONS} can be stored: "
                    "reshape it"
                )
        found = parsed if found is None else match_parts(signature.tree, found)
        object.__setattr__(self, "observations", found)
        check("columns", self.columns, Mapping)  # type: ignore[type-abstract]
        if self.columns:
            shape = self.action_signature.as_row().tree.shape
            object.__setattr__(self, "columns", fitting_columns(self.columns, found, shape))

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[EpisodeBase],
        action_space: ActionSpace | None = None,
        action_size: ActionSize = None,
        observation_space: Tree = None,
    ) -> DatasetInfo:
        """Return the info of episodes.

        Specs that are not given are those of the datasets that the episodes are part of (`Episode.spaces`), and are
        inferred from the arrays of all other episodes.
        """
        check_episodes(episodes)
        if not episodes:
            raise EmptyDataError("there are no episodes to read: give one or more")
        first, (known, others, named) = episodes[0], _known_spaces(episodes, _fits_actions)
        if action_size is None and known and (action_space is None or action_space is known[0].actions.kind):
            kind = known[0].actions.kind
            found = [spaces.actions for spaces in known]
            found += [actions_of_log(episode.actions, kind) for episode in others]
            spec = functools.reduce(lambda one, other: one.widen(other), found)
            actions, _ = prepare_actions(first.actions, spec.kind, spec.size_argument)
        else:
            actions, spec = prepare_actions(first.actions, action_space, action_size)
            if action_size is None and spec.discrete:  # the largest action may be in any episode
                logged = (actions_of_log(episode.actions, spec.kind) for episode in episodes)
                spec = functools.reduce(lambda one, other: one.widen(other), logged)
        action, reward = Signature.of(actions, skip=1).as_row(), first.reward_signature.as_row()
        observations = parse_observations(observation_space) if observation_space is not None else None
        if observations is None:
            known, others, _ = _known_spaces(episodes, _fits_observations)
            inferred = [infer_observations(rows) for rows in _observations_of(others)]
            observations = functools.reduce(widen_observations, [*(spaces.observations for spaces in known), *inferred])
        columns: Columns = {}
        for each in named:
            columns = merge_columns(columns, each, "episodes", "others")
        return cls(first.observation_signature, action, reward, spec.kind, spec.size_argument, observations, columns)

    @classmethod
    def from_env(
        cls,
        env: GymEnv,
        writer: WriterPreprocessProtocol,
        reward: Signature,
        action_space: ActionSpace | None = None,
        action_size: ActionSize = None,
        observation_keys: Sequence[str] | None = None,
    ) -> DatasetInfo:
        """Return the info of an environment's steps as ``writer`` stores them.

        Args:
            env: environment or vector environment.
            writer: changes steps before they are stored.
            reward: signature of one reward.
            action_space: kind of the actions; must be the environment's or ``None``.
            action_size: replaces the environment's action size; ``None`` to use that.
            observation_keys: names of the stored parts of the observations; ``None`` for all.
        """
        observation_space, env_action_space = single_spaces(env)
        leaves = select_parts(leaf_spaces(observation_space), observation_keys)
        observations = observations_from_spaces(leaves)
        unprocessed = tree_map(lambda space: np.zeros(space.shape, space.dtype), leaves)
        zero = parts_like(writer.process_observation(unprocessed), unprocessed)
        actions = actions_from_space(env_action_space)
        if action_space not in (None, actions.kind):
            raise ConfigError(
                f"action_space is {action_space}; it must be None or {actions.kind}, the environment's: leave it out"
            )
        if action_size is not None:
            actions = parse_actions(action_size, actions.kind)
        observation = Signature.of(tree_map(np.asarray, zero))
        unchanged = observation == Signature.of(unprocessed)
        return cls(
            observation,
            Signature.of(actions.storage_spec),
            reward,
            actions.kind,
            actions.size_argument,
            observations if unchanged else None,
        )

    @classmethod
    def from_signatures(
        cls,
        observation: Signature,
        action: Signature,
        reward: Signature,
        action_space: ActionSpace | None = None,
        action_size: ActionSize = None,
        observation_space: Tree = None,
    ) -> DatasetInfo:
        """Return the info of steps with these signatures; for the other arguments see `birl.dataset.MDPDataset`."""
        leaf = action.as_row().tree
        zeros, actions = prepare_actions(np.zeros((1, *leaf.shape), leaf.dtype), action_space, action_size)
        if actions.discrete and action_size is None:
            raise ConfigError("action_size is None; with signatures alone it must be the number of discrete actions")
        if zeros.shape[1:] != actions.storage_spec.shape:
            check_stored(actions, zeros)
        observations = None if observation_space is None else parse_observations(observation_space)
        if observations is not None and shapes_of(observations) != observation.tree_shape:
            raise ConfigError(
                f"observation_space is {observations}, but observation_signature has the shapes "
                f"{observation.tree_shape}: give both of the same steps"
            )
        return cls(observation, Signature.of(zeros, skip=1), reward, actions.kind, actions.size_argument, observations)

    @functools.cached_property
    def actions(self) -> Actions:
        """Spec of the actions."""
        return parse_actions(self.action_size, self.action_space)

    @functools.cached_property
    def spaces(self) -> Spaces:
        """The specs that episodes of the dataset keep."""
        return Spaces(self.observations, self.actions)


def _known_spaces(
    episodes: Sequence[EpisodeBase], fits: Callable[[Spaces, EpisodeBase], bool]
) -> tuple[list[Spaces], list[EpisodeBase], list[Columns]]:
    """Return the different `Spaces` of episodes, the episodes that do not fit them or have none, and all `columns`."""
    known: dict[int, tuple[Spaces, bool]] = {}
    others: list[EpisodeBase] = []
    named: dict[int, Columns] = {}
    for episode in episodes:
        spaces: Spaces | None = getattr(episode, "spaces", None)
        if spaces is not None and id(spaces) not in known:
            known[id(spaces)] = spaces, fits(spaces, episode)
        if spaces is None or not known[id(spaces)][1]:
            others.append(episode)
        if columns := getattr(episode, "columns", None):
            named[id(columns)] = columns
    return [spaces for spaces, fit in known.values() if fit], others, list(named.values())


def _fits_actions(spaces: Spaces, episode: EpisodeBase) -> bool:
    return bool(spaces.actions.storage_spec.shape == episode.action_signature.tree.shape)


def _fits_observations(spaces: Spaces, episode: EpisodeBase) -> bool:
    return bool(shapes_of(spaces.observations) == episode.observation_signature.tree_shape)


def _observations_of(episodes: Sequence[EpisodeBase]) -> Iterator[Tree]:
    """Yield the observations of episodes ``[T, …]``, and their final ones as ``[1, …]``."""
    for episode in episodes:
        yield episode.observations
        final = getattr(episode, "final_observation", None)
        if final is not None:
            yield tree_map(lambda x: to_array("final_observation", x)[None], final)
