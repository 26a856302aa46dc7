"""Building an algorithm for a dataset or an environment, and argument checks before training starts."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces

from birl.algorithm.learner import KNOWN, Definition, Learner
from birl.algorithm.protocols import OnlineAlgorithm
from birl.checks import check
from birl.config import AlgorithmConfig
from birl.dataset import ReplayBufferBase
from birl.dataset.flags import UNKNOWN
from birl.dataset.reader import Reader
from birl.envs import ExternalEnv
from birl.errors import (
    ActionRangeWarning,
    ConfigError,
    EnvironmentMismatchError,
    ObservationRangeWarning,
    ShapeError,
    UnusedOptionWarning,
    outside_birl,
)
from birl.logging.logger import LOG
from birl.preprocessing import MinMaxActionScaler, PixelObservationScaler
from birl.run.hooks import Hooks, with_run
from birl.run.options import ONLINE_DEFAULTS
from birl.spaces import Actions, Composite, Continuous, parse_actions
from birl.spaces.observations import (
    Choices,
    Numbers,
    accepts_observations,
    choices_to_json,
    leaf_spaces,
    map_named_leaves,
    match_parts,
    minibatch_observations,
    part_names,
    select_parts,
)
from birl.spaces.specs import Spec, environment_spec, single_spaces
from birl.types import ActionSize, ActionSpace, Array, Environment, Shape, Tree, is_shape, tree_leaves, tree_map

_BEYOND: Final = 1.25
"""Largest absolute value of scaled actions of other data that is not warned of, as samples of one range differ."""

_FAR: Final = 10.0
"""Observations whose scaled mean is further from 0 than this are not those that the scaler was fitted to."""

_LOOK: Final = 256
"""Number of observations of each storage that are compared with the range of a scaler."""

_NARROW: Final = 0.9
"""Share of the environment's range of actions below which the range of an action scaler is worth a line in the log."""

_LEAST_SIDE: Final = 32
"""Smallest side of images whose bytes are surely brightness."""


def check_fit_arguments(
    dataset: object, evaluators: object, callback: object = None, epoch_callback: object = None
) -> None:
    """Catch common mistakes in calls of `Algorithm.fit`."""
    Hooks.of(callback)
    if epoch_callback is not None and not callable(epoch_callback):
        raise ConfigError(f"epoch_callback is {epoch_callback!r:.80}; it must be a function (algo, epoch, step)")
    if epoch_callback is not None:
        with_run(epoch_callback, 3)
    check_source("fit", dataset)
    if evaluators is not None and not (isinstance(evaluators, Mapping) and all(map(callable, evaluators.values()))):
        raise ConfigError("evaluators must be a dict from names to evaluators: {'td_error': TDErrorEvaluator()}")
    for name, evaluator in (evaluators or {}).items():
        if inspect.isclass(evaluator):
            raise ConfigError(f"the evaluator {name!r} is a class: give an object, {evaluator.__name__}(…)")
        with_run(evaluator, 2)


def report_unused_memory(learner: Any) -> None:
    """Warn of settings of sequences if no network has a memory."""
    if learner.recurrent:
        return
    known = {field.name: field.default for field in dataclasses.fields(learner.config)}
    names = ("sequence_length",) if learner.experience.on_policy else ("sequence_length", "burn_in")  # else refused
    unused = [name for name in names if getattr(learner.config, name, None) != known.get(name)]
    if unused:
        given = " and ".join(f"{name}={getattr(learner.config, name)}" for name in unused)
        warnings.warn(
            f"{given} has no effect, because no network of this {learner.name} has a memory: give an encoder with one, "
            "such as 'gru', or leave it out",
            UnusedOptionWarning,
            stacklevel=outside_birl(),
        )


def summary(algorithm: Any) -> str:
    """Return the text that ``print`` shows for an algorithm."""
    state = f"{algorithm.spec}, {algorithm.grad_step} updates" if algorithm.built else "no networks yet"
    name = type(algorithm).__name__
    if algorithm.evaluates:
        name += f" of {type(algorithm.algo).__name__} after {algorithm.algo.grad_step} updates"
    return f"<{name}: {state}, on {algorithm.torch_device}>"


def check_source(name: str, dataset: object, *, or_reader: bool = False) -> None:
    """Raise `ConfigError` if the argument of the method ``name`` is not a dataset (or, if allowed, a reader of one)."""
    if or_reader and isinstance(dataset, Reader):
        return
    if isinstance(dataset, str):
        raise ConfigError(
            f"{name} takes a dataset, got the text {dataset!r:.80}: birl.datasets.get_dataset(name) gives a published "
            "one, ReplayBuffer.load(file) reads a file; to learn in an environment, call fit_online(env)"
        )
    if hasattr(dataset, "reset") and hasattr(dataset, "step"):
        raise ConfigError(
            f"{name} takes a dataset, got the environment {dataset!s:.80}: call fit_online(env) to learn in it, or "
            "collect(env) for a dataset of its episodes"
        )
    if not isinstance(dataset, ReplayBufferBase):
        raise ConfigError(
            f"{name} takes a dataset, got {type(dataset).__name__}: make one with birl.dataset.MDPDataset("
            "observations, actions, rewards, terminals, timeouts)"
        )


def check_rollout_options(name: str, **options: object) -> None:
    """Reject options of `Algorithm.fit_online` and `agent` that do not apply to learning from rollouts."""
    defaults = {"buffer": None, "explorer": None, "deterministic": False, **ONLINE_DEFAULTS}
    schedule = ("update_interval", "n_updates", "update_start_step", "random_steps", "overlap")
    replay = ("buffer", "explorer", "deterministic", *schedule)
    unused = [option for option in replay if options.get(option, defaults[option]) != defaults[option]]
    if unused:
        raise ConfigError(
            f"{name} learns from rollouts of its own policy and does not use {', '.join(unused)}: leave "
            f"{'it' if len(unused) == 1 else 'them'} out"
        )


def check_demonstrations(definition: Definition, given: object) -> None:
    """Raise `ConfigError` if needed demonstrations are missing, or demonstrations are given but not used."""
    if not definition.learns_from.needs_demonstrations:
        if given is not None:
            raise ConfigError(
                f"{definition.name} does not use demonstrations: leave them out, or use GAIL. A "
                "birl.dataset.MixedReplayBuffer holds an expert's steps as well as the algorithm's own"
            )
        return
    if not isinstance(given, ReplayBufferBase) or given.transition_count == 0:
        text = "none were given" if given is None else f"got {given!r:.80}"
        raise ConfigError(
            f"{definition.name} imitates demonstrations, and {text}: give demonstrations=dataset with an expert's "
            'steps, such as birl.dataset.ReplayBuffer.load("expert.h5", birl.dataset.InfiniteBuffer()) of what birl '
            "collect wrote, or expert.collect(env, n_episodes=20, deterministic=True)"
        )


def check_picker(dataset: object, config: AlgorithmConfig) -> None:
    """Reject n-step returns that the algorithm cannot use, or that do not fit its discount or reward scaling.

    Raises:
        ConfigError: if they do not fit; the message names both settings.
    """
    picker, scaler = getattr(dataset, "transition_picker", None), config.reward_scaler
    gamma, n_steps = getattr(picker, "gamma", None), getattr(picker, "n_steps", 1)
    if n_steps > 1 and config.algorithm.learns_from.one_step:
        raise ConfigError(
            f"the dataset's {type(picker).__name__} makes transitions of up to {n_steps} steps, but "
            f"{config.algorithm.__name__} learns from single steps: make the dataset without it, or use another "
            "algorithm"
        )
    if picker is None or gamma is None:
        return
    if gamma != config.gamma:
        raise ConfigError(
            f"the dataset's {type(picker).__name__} discounts with gamma={gamma}, {type(config).__name__} with "
            f"gamma={config.gamma}: give both the same"
        )
    if n_steps > 1 and scaler is not None and not scaler.additive:
        raise ConfigError(
            f"{type(scaler).__name__} cannot be used with n-step returns: scaling the sum is not the sum of scaled "
            "rewards. Use MultiplyRewardScaler, ReturnBasedRewardScaler or RunningRewardScaler(clip=None), or single "
            "steps"
        )


def check_scalers(config: AlgorithmConfig, spec: Spec) -> None:
    """Prepare scalers. Reject scalers of discrete actions or of wrong shapes, which broadcasting would hide.

    Raises:
        ShapeError: if a scaler has the wrong shape.
        ConfigError: if discrete actions are to be scaled.
    """
    if spec.actions.discrete and config.action_scaler is not None:
        raise ConfigError(
            f"action_scaler is a {type(config.action_scaler).__name__}, but the actions are discrete: indices of "
            "choices cannot be scaled; leave action_scaler out"
        )
    scaler, parts = config.observation_scaler, spec.encoder_observation(spec.observations)
    part_scalers = getattr(scaler, "observation_scalers", None)
    pairs = [(scaler, parts)]
    if isinstance(part_scalers, dict) and isinstance(parts, dict):
        pairs = [(part_scalers.get(name), part) for name, part in parts.items()]
    elif isinstance(part_scalers, list) and isinstance(parts, tuple) and len(part_scalers) == len(parts):
        pairs = list(zip(part_scalers, parts, strict=True))
    for part_scaler, part in pairs:
        if part_scaler is not None and all(isinstance(leaf, Choices) for leaf in tree_leaves(part)):
            raise ConfigError(
                f"observation_scaler has a {type(part_scaler).__name__} for observations {part}: choices cannot be "
                "scaled; leave it out (None for a part of a tuple or dict)"
            )
    _prepare(config, spec)
    own_shape = spec.encoder_observation(spec.data_shape)
    for name, shape in {"observation_scaler": own_shape, "action_scaler": spec.actions.shape}.items():
        scaler = getattr(config, name)
        fitted: Any = getattr(scaler, "minimum", getattr(scaler, "mean", None))
        fitted_shape = np.shape(fitted)
        stacked = len(fitted_shape) == 3  # a scaler for one frame also scales stacked frames
        if scaler is not None and scaler.built and fitted_shape and not stacked and fitted_shape != shape:
            raise ShapeError(f"{name} has parameters of shape {fitted_shape}, but what it scales has shape {shape}")


def _prepare(config: AlgorithmConfig, spec: Spec) -> None:
    for scaler in (config.observation_scaler, config.reward_scaler):
        if scaler is not None:
            scaler.prepare(spec.encoder_observation(spec.data_shape), config.gamma)


def checked_spec(kind: Definition, shape: Shape, action_size: ActionSize | Actions, discrete: bool | None) -> Spec:
    """Return the spec that an algorithm's networks are built for.

    Raises:
        ConfigError: if a size is not allowed, or the algorithm does not support the kind of actions.
    """
    requested = ActionSpace.DISCRETE if discrete else ActionSpace.CONTINUOUS
    if isinstance(action_size, int | np.integer | float):  # a number may count dimensions or options
        action_size = check("action_size", action_size, int, low=1)
        supported = [option for option in (ActionSpace.CONTINUOUS, ActionSpace.DISCRETE) if option in kind.actions]
        if discrete is None and len(supported) != 1:
            raise ConfigError(f"{kind.name} supports both kinds of actions: give discrete_action=True or False")
        actions = parse_actions(action_size, supported[0] if discrete is None else requested)
    else:
        actions = parse_actions(action_size)
        if discrete is not None and actions.discrete != discrete:
            raise ConfigError(
                f"discrete_action is {discrete}, but action_size={action_size!s:.100} describes {actions}"
            )
    if actions.kind not in kind.actions:
        raise ConfigError(_unsupported_actions(kind, actions))
    return Spec(shape, actions)


def env_spec(algorithm: OnlineAlgorithm, env: Environment) -> Spec:
    """Return the spec of an environment, for the observations that the algorithm's networks read."""
    current = algorithm.spec.observations if algorithm.built else None
    return environment_spec(env, algorithm.config.observation_keys, current)


def dataset_spec(dataset: ReplayBufferBase, keys: Sequence[str] | None) -> Spec:
    """Return the spec of the selected observation keys of a dataset (all for ``None``).

    Raises:
        ConfigError: if a key is not a part of the observations, or the picker stacks frames of choices.
    """
    info = dataset.dataset_info
    observations = minibatch_observations(info.observations, dataset.observation_shape)
    if observations is not info.observations and any(choices_to_json(info.observations)):
        raise ConfigError(
            f"the {type(dataset.transition_picker).__name__} changes the shape of observations {info.observations}, "
            "some of which are choices: use a picker that leaves them unchanged"
        )
    return Spec(select_parts(observations, keys), info.actions)


def warn_of_new_networks(learner: Learner) -> None:
    """Warn that ``create_impl`` replaces trained networks, as in d3rlpy."""
    warnings.warn(
        f"create_impl replaces the networks of this {learner.name} (built for {learner.spec}, "
        f"{learner.engine.grad_step} updates) by untrained ones: to keep them, make another with config.create()",
        stacklevel=3,
    )


def fit_to_dataset(kind: Definition, config: AlgorithmConfig, dataset: ReplayBufferBase, trained: bool) -> Spec:
    """Check that the algorithm can learn from a dataset, and fit the scalers that are not fitted.

    Args:
        kind: the algorithm.
        config: its configuration.
        dataset: the dataset.
        trained: whether the networks have learned, so that it is too late for a scaler.

    Returns:
        The spec of the dataset.
    """
    spec = dataset_spec(dataset, config.observation_keys)
    check_actions(kind, spec.actions, "the dataset")
    check_picker(dataset, config)
    _prepare(config, spec)
    action_scaler = None if spec.actions.discrete else config.action_scaler
    if isinstance(spec.actions, Composite) and action_scaler is not None and not action_scaler.built:
        action_scaler.fit_with_env(_boxed(*dataset.action_bounds()))  # the discrete parts are not scaled
    for scaler in (config.observation_scaler, action_scaler, config.reward_scaler):
        if scaler is not None and not scaler.built:
            scaler.fit_with_dataset(dataset)
    if not spec.actions.discrete and config.action_scaler is None:
        minimum, maximum = dataset.action_bounds()
        # actions may span less than the range
        _warn_of_range(kind, np.minimum(minimum, -1), np.maximum(maximum, 1), "the dataset")
    if not trained:
        _check_bytes(config, spec, dataset.dataset_info.observation_signature.tree, "the dataset")
    return spec


def warn_of_other_ranges(kind: Definition, config: AlgorithmConfig, spec: Spec, dataset: ReplayBufferBase) -> None:
    """Warn if scalers that were given, or fitted to other data, do not fit the actions and observations of a dataset.

    Args:
        kind: the algorithm.
        config: its configuration, with scalers that are fitted.
        spec: the spec of the dataset.
        dataset: the dataset; some hundred of its observations are read.
    """
    scaler = config.action_scaler
    if isinstance(scaler, MinMaxActionScaler) and isinstance(spec.actions, Continuous) and kind.acts.bounded:
        low, high = dataset.action_bounds()
        scaled = scaler.transform(torch.tensor(np.stack([low, high]), dtype=torch.float64))
        if bool((scaled.abs() > _BEYOND).any()):
            warnings.warn(
                f"actions of the dataset reach from {low.min():g} to {high.max():g}, beyond the range of the action "
                f"scaler, which was fitted to other data or given ({scaler.minimum.min():g} to "
                f"{scaler.maximum.max():g} at most): {kind.name}'s policy never acts there. Give bounds of all data, "
                "MinMaxActionScaler(minimum=…, maximum=…), to a new algorithm",
                ActionRangeWarning,
                stacklevel=outside_birl(),
            )
    found = _far_observation(config, spec, dataset)
    if found:
        warnings.warn(found, ObservationRangeWarning, stacklevel=outside_birl())


def _far_observation(config: AlgorithmConfig, spec: Spec, dataset: ReplayBufferBase) -> str:
    """Return why scaled observations of a dataset are far from the range that networks expect; ``""`` if they fit."""
    scaler, shape = config.observation_scaler, dataset.dataset_info.observation_signature.tree_shape
    own = scaler is not None and type(scaler).__module__.startswith("birl.") and not scaler.running
    if scaler is None or not own or dataset.observation_shape != shape:  # a scaler for stacks does not fit frames
        return ""
    for storage in dataset.reader.storages:
        rows = storage.rows(*storage.live())
        rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _LOOK)).astype(np.int64)]
        rows = rows[(storage.flags[rows] & UNKNOWN) == 0]
        if not len(rows):
            continue
        sample = select_parts(storage.observation(storage.place.indices(rows)), config.observation_keys)
        given = tree_map(lambda leaf: torch.as_tensor(leaf).cpu(), spec.encoder_observation(sample))
        leaves = zip(part_names(given) or ("",), tree_leaves(given), tree_leaves(scaler.transform(given)), strict=True)
        for name, leaf, scaled in leaves:
            where = f"observations{f'[{name!r}]' if name else ''}"
            if isinstance(scaler, PixelObservationScaler):
                if leaf.is_floating_point() and float(leaf.max()) <= 1.0:
                    return _scaled_twice(f"{where} of the dataset")
                continue
            mean = scaled.double().mean(0)
            if float(mean.abs().max()) > _FAR and not torch.equal(scaled, leaf.to(scaled.dtype)):
                return (
                    f"{where} of the dataset are {float(mean.flatten()[mean.abs().argmax()]):.3g} on average after the "
                    f"{type(scaler).__name__}, which was fitted to other data or given, so that it does not bring them "
                    "near the range of -1 to 1: make a new algorithm, whose scaler is fitted to these data, or give "
                    "the scaler parameters for all data"
                )
    return ""


def _scaled_twice(what: str) -> str:
    return (
        f"{what} are floats up to 1, which PixelObservationScaler, made for bytes, divides by 255: leave "
        "observation_scaler out"
    )


def check_dataset(kind: Definition, expected: Spec, spec: Spec) -> None:
    """Raise `ShapeError` if a dataset does not fit the networks. The data may lack the last discrete actions."""
    if not expected.accepts(spec):
        masks = _missing_masks_hint(expected, spec, "give the data their action_masks=")
        more = _missing_choices_hint(expected, spec) or masks
        raise ShapeError(f"the dataset has {spec}, but this {kind.name} was built for {expected}{more}")
    if spec.masked and not expected.masked:
        warnings.warn(
            f"the dataset has masks of actions, but this {kind.name} was built without: it learns as if all actions "
            "were allowed. Build it from these data, or leave the masks out",
            UserWarning,
            stacklevel=4,
        )


def environment_scalers(
    kind: Definition, config: AlgorithmConfig, spec: Spec, env: Environment | ExternalEnv
) -> dict[str, Any]:
    """Return the scalers that the spaces of an environment determine, for scalers that the configuration lacks.

    Networks that are built for an environment get these scalers: of actions, if the policy's range [-1, 1] differs from
    the bounds, and of observations, if they are images of bytes.
    """
    found: dict[str, Any] = {}
    unbounded = _needs_bounds(kind, config, spec.actions)
    if not (kind.evaluates or unbounded) and needs_action_scaler(kind, config, spec.actions):
        found["action_scaler"] = MinMaxActionScaler()
    leaves = leaf_spaces(single_spaces(env)[0])
    if has_pixels(config, spec, leaves):
        found["observation_scaler"] = PixelObservationScaler()
    return found


def fit_to_env(
    kind: Definition, config: AlgorithmConfig, spec: Spec, env: Environment | ExternalEnv, built: bool
) -> None:
    """Fit the scalers that an environment's bounds determine and that are not fitted.

    Args:
        kind: the algorithm.
        config: its configuration.
        spec: spec of the environment.
        env: the environment.
        built: whether there are networks already.

    Raises:
        EnvironmentMismatchError: if actions have no bounds, and networks are to be built whose policy needs them.
    """
    space, action_space = single_spaces(env)
    if config.action_scaler is None and _needs_bounds(kind, config, spec.actions):
        _refuse_unbounded(kind, action_space, built)
    if config.observation_scaler is not None and not config.observation_scaler.built:
        config.observation_scaler.fit_with_env(env)
    if config.action_scaler is not None and not (spec.actions.discrete or config.action_scaler.built):
        config.action_scaler.fit_with_env(env if spec.actions.bounds is None else _boxed(*spec.actions.bounds))
    if spec.actions.bounds is not None and config.action_scaler is None:
        _warn_of_range(kind, *spec.actions.bounds, "the environment")
    if not built:
        _check_bytes(config, spec, leaf_spaces(space), "the environment")
    _report_narrow_range(kind, config, spec)
    if isinstance(config.observation_scaler, PixelObservationScaler):
        read = tree_leaves(spec.encoder_observation(match_parts(spec.observations, leaf_spaces(space))))
        if any(each.dtype.kind == "f" and np.max(each.high) <= 1 for each in read if isinstance(each, spaces.Box)):
            text = _scaled_twice("observations of the environment")
            warnings.warn(text, ObservationRangeWarning, stacklevel=outside_birl())


def _report_narrow_range(kind: Definition, config: AlgorithmConfig, spec: Spec) -> None:
    """Log a warning if a scaler that was fitted to data keeps the policy from a part of the environment's actions."""
    scaler, bounds = config.action_scaler, spec.actions.bounds
    if not isinstance(scaler, MinMaxActionScaler) or bounds is None or not kind.acts.bounded:
        return
    low, high = bounds
    share = (np.minimum(scaler.maximum, high) - np.maximum(scaler.minimum, low)) / np.maximum(high - low, 1e-12)
    if np.isfinite(share).all() and (share < _NARROW).any():
        index = int(share.argmin())
        LOG.warning(
            "%s acts only from %g to %g in action[%d], the range of its action scaler; the environment takes actions "
            "from %g to %g: give MinMaxActionScaler(minimum=…, maximum=…) with these bounds to a new algorithm to use "
            "all of them",
            *(
                kind.name,
                scaler.minimum.flat[index],
                scaler.maximum.flat[index],
                index,
                low.flat[index],
                high.flat[index],
            ),
        )


def _needs_bounds(kind: Definition, config: AlgorithmConfig, actions: Actions) -> bool:
    """Return whether actions lack bounds, and the policy has the range [-1, 1]."""
    squashed = kind.acts.bounded or getattr(getattr(config, "distribution_factory", None), "bounded", False)
    parts = actions.parts if isinstance(actions, Composite) else (actions,)
    unbounded = any(isinstance(part, Continuous) and part.bounds is None for part in parts)
    return squashed and unbounded and not kind.evaluates


def _refuse_unbounded(kind: Definition, space: object, built: bool) -> None:
    """Raise `EnvironmentMismatchError` for actions without bounds; only warn if there are networks already."""
    text = (
        f"actions of the environment have no bounds ({space!s:.150}), but {kind.name}'s "
        "policy acts in [-1, 1]: give the range in which it is to act, such as action_scaler="
        "birl.preprocessing.MinMaxActionScaler(minimum=[-5.0], maximum=[5.0]) (-1 and 1 change nothing), or bounds in "
        "the action space"
    )
    if not built:
        raise EnvironmentMismatchError(text)
    warnings.warn(text, ActionRangeWarning, stacklevel=5)


def _boxed(low: Array, high: Array) -> ExternalEnv:
    """Return a dummy environment with this Box action space."""
    return ExternalEnv(spaces.Box(-1.0, 1.0, (1,)), spaces.Box(low, high, dtype=low.dtype.type))


def needs_action_scaler(kind: Definition, config: AlgorithmConfig, actions: Actions) -> bool:
    """Return whether a policy needs its actions scaled to the environment's bounds.

    An unbounded policy that is clipped always does, so that it is clipped to [-1, 1].
    """
    if actions.bounds is None or config.action_scaler is not None:
        return False
    clipped = kind.acts.clipped and not kind.acts.bounded
    return clipped or (kind.acts.bounded and not _is_unit_range(*actions.bounds))


def has_pixels(config: AlgorithmConfig, spec: Spec, leaves: Tree) -> bool:
    """Return whether observations are images of bytes that birl's encoders read and that nothing scales.

    Bytes of smaller arrays may be symbols, as in grid worlds.

    Args:
        config: the configuration.
        spec: spec of the observations.
        leaves: their spaces or array specs.
    """
    shape = spec.encoder_shape
    large = is_shape(shape) and len(shape) == 3 and sorted(shape)[1] >= _LEAST_SIDE
    return large and bool(_unscaled_images(config, spec, leaves))


def _unscaled_images(config: AlgorithmConfig, spec: Spec, leaves: Tree) -> list[str]:
    """Return the names of parts that are images of bytes and that nothing scales; ``""`` for a single array."""
    encoders = [value for name, value in vars(config).items() if name.endswith("encoder_factory")]
    encoders += [getattr(each, "encoder_factory", None) for each in encoders]
    own = any(each is not None and not type(each).__module__.startswith("birl.") for each in encoders)
    if own or config.observation_scaler is not None:  # a user's own encoder may scale them
        return []
    images: list[str] = []

    def look(kind: Any, leaf: Any, name: str) -> None:
        shape: Shape = kind.shape
        large = not name or (len(shape) == 3 and sorted(shape)[1] >= _LEAST_SIDE)  # small parts are symbols
        if getattr(leaf, "dtype", None) == np.uint8 and len(shape) == 3 and np.max(getattr(leaf, "high", 255)) == 255:
            images.extend([name] * large)

    _visit_parts(look, spec, leaves)
    return images


def _visit_parts(look: Callable[[Any, Any, str], None], spec: Spec, leaves: Tree) -> None:
    """Call ``look(leaf of the spec, its space or array spec, name)`` for each part of observations."""
    named = map_named_leaves(lambda leaf, name: (leaf, name), match_parts(spec.observations, leaves))
    tree_map(lambda leaf, pair: look(leaf, *pair), spec.observations, named)


def _check_bytes(config: AlgorithmConfig, spec: Spec, leaves: Tree, source: str) -> None:
    """Warn of images that nothing scales.

    Raises:
        ConfigError: if `PixelObservationScaler` would also scale parts of observations that are no bytes.
    """
    if isinstance(config.observation_scaler, PixelObservationScaler) and not is_shape(spec.encoder_shape):
        _refuse_numbers(spec, leaves, source)
    for name in _unscaled_images(config, spec, leaves)[:1]:
        single = is_shape(spec.encoder_shape)
        remedy = "set observation_scaler=birl.preprocessing.PixelObservationScaler(), which divides them by 255"
        warnings.warn(
            f"images of {source}{f' ({name!r})' if name else ''} are bytes, which networks read as numbers from 0 to "
            f"255: {remedy if single else 'scale this part, for example in a wrapper of the environment'}, unless they "
            "are symbols",
            ObservationRangeWarning,
            stacklevel=4,
        )


def _refuse_numbers(spec: Spec, leaves: Tree, source: str) -> None:
    """Raise `ConfigError` if a part of observations is neither bytes nor an image."""

    def look(leaf: Any, space: Any, name: str) -> None:
        if isinstance(leaf, Numbers) and len(leaf.shape) != 3 and getattr(space, "dtype", None) != np.uint8:
            raise ConfigError(
                f"PixelObservationScaler divides all parts of observations by 255, but the part {name!r} of {source} "
                "holds no bytes: give birl.preprocessing.DictObservationScaler({'image': PixelObservationScaler()}) "
                "with the names of the images (TupleObservationScaler for tuples)"
            )

    _visit_parts(look, spec, leaves)


def check_env(kind: Definition, expected: Spec, spec: Spec) -> None:
    """Raise `EnvironmentMismatchError` if an environment does not fit the networks."""
    if expected.actions != spec.actions or not accepts_observations(expected.observations, spec.observations):
        masks = _missing_masks_hint(expected, spec, "wrap the environment in birl.envs.ActionMask")
        more = _missing_choices_hint(expected, spec) or masks
        raise EnvironmentMismatchError(
            f"this {kind.name} was built for {expected}, the environment has {spec}: use the environment (or the "
            f"model) that belongs to it{more}"
        )


def _missing_choices_hint(expected: Spec, other: Spec) -> str:
    """Return a hint if the data may not contain all choices of an observation, else an empty string."""
    if expected.data_shape != other.data_shape or not any(choices_to_json(expected.observations)):
        return ""
    return (
        ". If the data do not contain all choices of an observation, give observation_space=env.observation_space "
        "when making or reading them"
    )


def _missing_masks_hint(expected: Spec, other: Spec, remedy: str) -> str:
    """Return a hint if masks of actions are missing, else an empty string."""
    missing = expected.masked and not other.masked
    return f". It was built with masks of actions, which are missing here: {remedy}" if missing else ""


def check_actions(kind: Definition, actions: Actions, source: str) -> None:
    """Raise `ConfigError` if an algorithm does not support the kind of actions of ``source``."""
    if actions.kind not in kind.actions:
        raise ConfigError(f"{source} has {actions.kind.label} actions: {_unsupported_actions(kind, actions)}")


def _warn_of_range(kind: Definition, low: Array, high: Array, source: str) -> None:
    if kind.acts.bounded and not _is_unit_range(low, high):
        warnings.warn(
            f"actions of {source} reach from {low.min():g} to {high.max():g}, but {kind.name}'s policy acts in "
            "[-1, 1]: set action_scaler=birl.preprocessing.MinMaxActionScaler()",
            ActionRangeWarning,
            stacklevel=4,
        )


def _is_unit_range(low: Array, high: Array) -> bool:
    return np.allclose(low, -1) and np.allclose(high, 1)


def _unsupported_actions(kind: Definition, actions: Actions) -> str:
    """Return a message that names a variant which supports these actions, or algorithms with the same loops."""
    experience = kind.learns_from
    supporting = [definition for definition in KNOWN.values() if actions.kind in definition.actions]
    names = {f"Discrete{kind.name}", kind.name.removeprefix("Discrete")}
    candidates = [definition.name for definition in supporting if definition.name in names] or sorted(
        definition.name
        for definition in supporting
        if not definition.evaluates
        and (definition.learns_from.loops, definition.learns_from.contexts) == (experience.loops, experience.contexts)
    )
    candidates = candidates or sorted(definition.name for definition in supporting if not definition.evaluates)
    sibling = candidates[0] if len(candidates) == 1 else f"one of {', '.join(candidates)}"
    return f"{kind.name} takes {kind.actions.label} actions only; use {sibling}"
