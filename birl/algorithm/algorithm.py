"""The one class that users hold: a configuration, networks, the engine, the loops and files."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Generic, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from birl import distributed
from birl._version import __version__
from birl.acting.actor import NetworkActor
from birl.acting.export import PolicyModule, export_policy
from birl.acting.fast import FlatPolicy
from birl.acting.policy import PolicyFunction, ValueFunction
from birl.algorithm.building import check_fit_arguments, check_picker, check_scalers, damaged_as_typed_errors
from birl.checks import check
from birl.config import AlgorithmConfig, read_json_config
from birl.dataset import ReplayBufferBase
from birl.dataset.return_to_go import DiscountedReturns
from birl.devices import resolve_device
from birl.engine import Engine, Step, check_steps
from birl.envs import environment_spec, single_spaces
from birl.errors import (
    ActionError,
    ActionRangeWarning,
    ConfigError,
    CorruptFileError,
    DataError,
    EnvironmentMismatchError,
    ForeignFileError,
    NonFiniteError,
    NotBuiltError,
    ShapeError,
    UnsupportedError,
)
from birl.files import load_archive, save_archive
from birl.logging import FileAdapterFactory, LoggerAdapterFactory, LoggingStrategy
from birl.models import set_acting
from birl.preprocessing.units import Units, to_batch
from birl.run import collect, offline, on_policy, online
from birl.run.protocols import OnPolicyLearner
from birl.spaces import as_shape, describe_spec, example_observation
from birl.types import ActionSpace, Array, Batch, Inputs, Shape, Spec, State, Tree, is_shape, leaf_shapes, tree_leaves

COMPILE_FROM = 10_000
"""Updates in a run by which compiling, which takes 5 to 60 seconds, has paid for itself with small networks, too."""

UPDATES_AT_ONCE = 10
"""Updates in one recording, on devices that replay recordings."""

ConfigT = TypeVar("ConfigT", bound=AlgorithmConfig)
NetsT = TypeVar("NetsT", bound=nn.Module)


class Algorithm(Generic[ConfigT, NetsT]):
    """Base of all algorithms. Make one with ``SomeConfig(...).create(device=...)``.

    A concrete algorithm fills in the class attributes and nothing else.

    Attributes:
        config_class: its configuration.
        networks: module class, called with ``(spec, config)``; its children are the networks.
        action_space: the actions it can take.
        acting: name of the network that acts.
        remembering: further recurrent networks whose state is kept while acting.
        steps: what an update consists of, in order.
        data: what it learns from: ``"transition"`` (sequences of them with a recurrent encoder), ``"trajectory"``
            slices, ``"tail"`` (steps with the rest of their episodes), its own ``"rollout"``, or ``"nothing"``.
        next_actions: whether it learns from the data's next actions, too: ``next_action`` and ``next_action_known`` in
            a batch's ``extra``.
        returns_to_go: whether it learns from the data's discounted returns, too: ``return_to_go`` in ``extra``.
        returns: makes them, once the networks exist; ``None`` where they are not asked for.
        imitates: whether it learns to act as the data does, so that its own experience teaches it nothing.
        differentiates: whether a loss holds gradients of its own, which cannot be stacked for several seeds.
        policy_mode, policy_sample: ``(nets, inputs) -> action``.
        action_value: ``(nets, inputs, action) -> [...]``.
        bounded_policy: whether the policy's own actions lie in ``[-1, 1]``.
        keeps_policy_action: whether the policy's own action must be kept beside the environment's.
    """

    config_class: ClassVar[type[AlgorithmConfig]]
    networks: ClassVar[Callable[..., nn.Module]]
    action_space: ClassVar[ActionSpace]
    acting: ClassVar[str] = ""
    remembering: ClassVar[tuple[str, ...]] = ()
    steps: tuple[Step, ...] = ()
    data: ClassVar[str] = "transition"
    next_actions: ClassVar[bool] = False
    returns_to_go: ClassVar[bool] = False
    imitates: ClassVar[bool] = False
    differentiates: ClassVar[bool] = False
    policy_mode: ClassVar[PolicyFunction]
    policy_sample: ClassVar[PolicyFunction]
    action_value: ClassVar[ValueFunction | None] = None
    bounded_policy: ClassVar[bool] = True
    keeps_policy_action: ClassVar[bool] = False

    _known: ClassVar[dict[str, type[Algorithm[Any, Any]]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "config_class" in cls.__dict__:
            check_steps(cls.steps, cls.config_class)
            cls.config_class.set_algorithm(cls)
            cls._known[cls.config_class.get_type()] = cls

    def __init__(
        self,
        config: ConfigT | None = None,
        device: bool | int | str | None = False,
        enable_ddp: bool = False,
        **fields: Any,
    ) -> None:
        if config is not None and not isinstance(config, self.config_class):
            raise ConfigError(
                f"{type(self).__name__} takes a {self.config_class.__name__}, got {type(config).__name__}"
            )
        given = self.config_class(**fields) if config is None else config
        self._config: ConfigT = given.copy()  # type: ignore[assignment]
        self.torch_device = resolve_device(device)
        self.enable_ddp = enable_ddp
        self._engine: Engine | None = None
        self._spec: Spec | None = None
        self._acting_mode = False
        self.returns: DiscountedReturns | None = None
        self._flat_policies: dict[PolicyFunction, FlatPolicy | None] = {}

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def config(self) -> ConfigT:
        """The configuration; its scalers are this algorithm's own and are fitted in place."""
        return self._config

    @property
    def engine(self) -> Engine:
        """The engine. Raises `NotBuiltError` before the networks exist."""
        if self._engine is None:
            raise NotBuiltError(
                f"this {type(self).__name__} has no networks yet: call fit(…), build_with_dataset(dataset), "
                "build_with_env(env) or create_impl(observation_shape, action_size) first"
            )
        return self._engine

    @property
    def impl(self) -> Engine | None:
        """The engine, or ``None`` before the networks exist."""
        return self._engine

    @property
    def nets(self) -> NetsT:
        """The networks."""
        return self.engine.nets  # type: ignore[return-value]

    @property
    def spec(self) -> Spec:
        """Shapes that the networks were built for."""
        self.engine  # noqa: B018  raises before the networks exist
        assert self._spec is not None
        return self._spec

    @property
    def observation_shape(self) -> Shape | None:
        """Observation shape, or ``None`` before the networks exist."""
        return None if self._spec is None else self._spec.observation_shape

    @property
    def action_size(self) -> int | None:
        """Number of action dimensions (continuous) or of actions (discrete); ``None`` before the networks exist."""
        return None if self._spec is None else self._spec.action_size

    @property
    def batch_size(self) -> int:
        """Minibatch size."""
        return self.config.batch_size

    @property
    def gamma(self) -> float:
        """Discount factor."""
        return self.config.gamma

    @property
    def observation_scaler(self) -> Any:
        """Observation scaler or ``None``."""
        return self.config.observation_scaler

    @property
    def action_scaler(self) -> Any:
        """Action scaler or ``None``."""
        return self.config.action_scaler

    @property
    def reward_scaler(self) -> Any:
        """Reward scaler or ``None``."""
        return self.config.reward_scaler

    @property
    def grad_step(self) -> int:
        """Number of updates so far, over all calls and files."""
        return 0 if self._engine is None else self._engine.grad_step

    def set_grad_step(self, grad_step: int) -> None:
        """Set the number of updates so far, on which delayed updates and target copies depend."""
        self.engine.grad_step = grad_step

    def get_action_type(self) -> ActionSpace:
        """Kind of actions: for algorithms that can do both, the kind they were built for."""
        if self.action_space is ActionSpace.BOTH and self._spec is not None:
            return ActionSpace.DISCRETE if self._spec.discrete_action else ActionSpace.CONTINUOUS
        return self.action_space

    @property
    def is_recurrent(self) -> bool:
        """Whether a network is recurrent, so that training needs sequences."""
        return bool(self.engine.recurrent)

    def replace_config(self, **fields: Any) -> None:
        """Change fields of the configuration before the networks exist."""
        if self.built:
            raise ConfigError(f"this {type(self).__name__} is built already: its configuration is fixed")
        self._config = dataclasses.replace(self._config, **fields)

    @property
    def built(self) -> bool:
        """Whether the networks exist."""
        return self._engine is not None

    # -- building --------------------------------------------------------------------------------------------------

    def create_impl(self, observation_shape: Shape, action_size: int, *, discrete_action: bool | None = None) -> None:
        """Build networks and optimisers. Networks of the same shapes that have not been trained are kept.

        Args:
            observation_shape: such as ``(3,)``, or a tuple or dict of shapes.
            action_size: number of action dimensions (continuous) or of actions (discrete).
            discrete_action: only for algorithms that can do both.
        """
        action_size = check("action_size", action_size, int, low=1)
        if self.action_space is ActionSpace.BOTH:
            if discrete_action is None:
                raise ConfigError(
                    f"{type(self).__name__} handles both kinds of actions: say discrete_action=True or False"
                )
        else:
            own = self.action_space is ActionSpace.DISCRETE
            if discrete_action not in (None, own):
                raise ConfigError(_other_actions(type(self), own))
            discrete_action = own
        spec = Spec(as_shape(observation_shape), action_size, bool(discrete_action))
        if self._engine is not None:
            if spec == self._spec and self.grad_step == 0:
                return
            raise ConfigError(f"this {type(self).__name__} has networks already; make a new one with config.create()")
        check_scalers(self.config, spec)
        self._spec = spec
        nets = self.networks(self._spec, self.config).to(self.torch_device)
        self._engine = Engine(nets, self.steps, self.config)
        config = self.config
        if config.compile_graph is True:
            self._engine.compile()
        scalers = config.observation_scaler, config.action_scaler, config.reward_scaler
        self.units = Units(self.torch_device, self._spec.discrete_action, *scalers)
        if self.returns_to_go:
            reward = config.reward_scaler
            scale = None if reward is None else lambda x: reward.transform(torch.from_numpy(x)).numpy()
            self.returns = DiscountedReturns(config.gamma, scale)
        self._set_mode(acting=False)

    def build_with_dataset(self, dataset: ReplayBufferBase) -> None:
        """Build for a dataset's shapes and fit the scalers that are not fitted; check that they fit if built."""
        info = dataset.dataset_info
        discrete = info.action_space is ActionSpace.DISCRETE
        shape = as_shape(dataset.observation_shape)
        self._check_actions(discrete, "the dataset")
        check_picker(dataset, self.config)
        config = self.config
        for scaler in (config.observation_scaler, None if discrete else config.action_scaler, config.reward_scaler):
            if scaler is not None and not scaler.built:
                scaler.fit_with_dataset(dataset)
        if not discrete and config.action_scaler is None:
            minimum, maximum = dataset.action_bounds()
            low, high = np.minimum(minimum, -1), np.maximum(maximum, 1)  # less than the range is fine
            self._warn_of_range(low, high, "the dataset")
        if self._engine is None:
            self.create_impl(shape, info.action_size, discrete_action=discrete)
        elif (
            shape != self.spec.observation_shape
            or info.action_size > self.spec.action_size
            or (not discrete and info.action_size != self.spec.action_size)
        ):
            raise ShapeError(
                f"the dataset has observations {shape} and {info.action_size} actions, but this "
                f"{type(self).__name__} was built for {self.spec.observation_shape} and {self.spec.action_size}"
            )

    def build_with_env(self, env: Any) -> None:
        """Build for an environment's spaces and fit the scalers that its bounds determine; check them if built."""
        spec = environment_spec(env)
        self._check_actions(spec.discrete_action, "the environment")
        for scaler in (self.config.observation_scaler, None if spec.discrete_action else self.config.action_scaler):
            if scaler is not None and not scaler.built:
                scaler.fit_with_env(env)
        if not spec.discrete_action and self.config.action_scaler is None:
            space: Any = single_spaces(env)[1]
            self._warn_of_range(space.low, space.high, "the environment")
        if self._engine is None:
            self.create_impl(spec.observation_shape, spec.action_size, discrete_action=spec.discrete_action)
        else:
            self.check_env(env)

    def _warn_of_range(self, low: Array, high: Array, source: str) -> None:
        bounded = np.isfinite(low).all() and np.isfinite(high).all()
        if self.bounded_policy and bounded and not (np.allclose(low, -1) and np.allclose(high, 1)):
            warnings.warn(
                f"actions of {source} reach from {low.min():g} to {high.max():g}, but {type(self).__name__}'s policy "
                "acts in [-1, 1]: set action_scaler=birl.preprocessing.MinMaxActionScaler()",
                ActionRangeWarning,
                stacklevel=3,
            )

    def check_env(self, env: Any) -> None:
        """Raise `EnvironmentMismatchError` if the environment's spaces are not those of the networks."""
        spec = environment_spec(env)
        if spec != self.spec:
            raise EnvironmentMismatchError(
                f"this {type(self).__name__} was built for {describe_spec(self.spec)}, the environment has "
                f"{describe_spec(spec)}: use the environment (or the model) that belongs to it"
            )

    def _check_actions(self, discrete: bool, source: str) -> None:
        if self.action_space is not ActionSpace.BOTH and discrete != (self.action_space is ActionSpace.DISCRETE):
            other = _other_actions(type(self), not discrete)
            raise ConfigError(f"{source} has {'discrete' if discrete else 'continuous'} actions: {other}")

    # -- learning --------------------------------------------------------------------------------------------------

    def begin_run(self, dataset: Any, n_updates: int, *, growing: bool = False) -> Any:
        """Called by loops: with ``compile_graph="auto"`` a run of `COMPILE_FROM` updates or more is compiled.

        Returns:
            What to sample from: ``dataset``, or what its ``placed_for`` makes of it for the training device.
        """
        if self.config.compile_graph == "auto" and n_updates >= COMPILE_FROM:
            self.engine.compile(required=False)
        placed = getattr(dataset, "placed_for", None)
        return dataset if placed is None else placed(self.torch_device, growing=growing)

    @property
    def compiled(self) -> bool:
        """Whether updates are compiled: by ``compile_graph=True``, or by "auto" in a long run."""
        return self._engine is not None and self._engine.compiled

    def updates_at_once(self, source: Any) -> int:
        """How many updates `update_many` should make: several where a device replays them and draws their batches."""
        drawn_there = getattr(source, "device_generator", None) is not None
        simple = self.data == "transition" and not self.is_recurrent
        return UPDATES_AT_ONCE if drawn_there and simple and self.engine.records else 1

    def update_many(self, source: Any, count: int) -> dict[str, Tensor]:
        """Updates with batches drawn from ``source`` on the device, without going back to Python between them.

        Args:
            source: what `begin_run` returned.
            count: number of updates.

        Returns:
            Losses and metrics ``[k]`` of the ``k`` updates that had them.
        """
        self._refuse_unlearnable()
        self._set_mode(acting=False)
        generator = source.device_generator
        return self.engine.update_many(
            lambda: self.make_batch(self.sample_minibatch(source)),
            count,
            [] if generator is None else [generator],
        )

    def sample_minibatch(self, dataset: ReplayBufferBase) -> Any:
        """Draw the kind of minibatch that this algorithm learns from."""
        config = self.config
        if self.data == "trajectory":
            return dataset.sample_trajectory_batch(config.batch_size, config.context_size)  # type: ignore[attr-defined]
        asked: dict[str, Any] = {"next_actions": True} if self.next_actions else {}
        asked |= {} if self.returns is None else {"returns": self.returns}
        if self.is_recurrent:
            return dataset.sample_sequence_batch(config.batch_size, config.sequence_length, config.burn_in, **asked)
        return dataset.sample_transition_batch(config.batch_size, **asked)

    def update(self, batch: Any) -> dict[str, Tensor]:
        """One update with a minibatch from a dataset (or a `Batch`).

        Returns:
            Losses and metrics as scalar tensors on the device; ``float(value)`` waits for the device.
        """
        self._refuse_unlearnable()
        engine = self.engine
        self._set_mode(acting=False)
        return engine.update(batch if isinstance(batch, Batch) else self.make_batch(batch))

    def make_batch(self, minibatch: Any) -> Batch:
        """What the engine learns from: a minibatch in the networks' units, without the steps that only warm up."""
        batch = to_batch(minibatch, self.units, self.config.gamma)
        if self.next_actions and "next_action" not in batch.extra:
            raise DataError(
                f"{type(self).__name__} learns from the data's next actions, which this minibatch does not have: draw "
                "it with algo.sample_minibatch(dataset), or dataset.sample_transition_batch(…, next_actions=True)"
            )
        if self.returns_to_go and "return_to_go" not in batch.extra:
            raise DataError(
                f"{type(self).__name__} learns from the data's returns, which this minibatch does not have: draw it "
                "with algo.sample_minibatch(dataset), or dataset.sample_transition_batch(…, returns=algo.returns)"
            )
        return self.engine.burn_in(batch, getattr(minibatch, "burn_in", 0))

    def watch_gradients(self, watch: Callable[[str, Sequence[str], Tensor], None] | None) -> None:
        """Call ``watch(step, parameter names, statistics [n, 4])`` after every update, or (``None``) no longer.

        The statistics are the minimum, maximum, mean and standard deviation of each parameter's gradient, on the
        device; after ``k`` updates at once they are ``[k, n, 4]``.
        """
        self.engine.watch = watch

    def _refuse_unlearnable(self, loop: str = "") -> None:
        if self.data == "nothing":
            raise UnsupportedError(f"{type(self).__name__} does not learn: use collect(), predict() or sample_action()")
        if loop == "fit" and self.data == "rollout":
            raise UnsupportedError(
                f"{type(self).__name__} learns only from its own fresh experience: use fit_online(env), or an offline "
                "algorithm such as IQL, CQL or DiscreteCQL for logged data"
            )
        if loop == "fit_online" and (self.data == "trajectory" or self.imitates):
            raise UnsupportedError(f"{type(self).__name__} learns only from logged data: use fit(dataset)")
        if loop == "fit_online" and self.enable_ddp:
            raise UnsupportedError("enable_ddp is for fit(dataset): several processes cannot learn online together")

    def fitter(
        self,
        dataset: ReplayBufferBase,
        n_steps: int,
        n_steps_per_epoch: int = 10000,
        experiment_name: str | None = None,
        with_timestamp: bool = True,
        logger_adapter: LoggerAdapterFactory | None = None,
        show_progress: bool = True,
        save_interval: int = 1,
        evaluators: Mapping[str, Any] | None = None,
        callback: Callable[[Self, int, int], None] | None = None,
        epoch_callback: Callable[[Self, int, int], None] | None = None,
        checkpoint: str | Path | None = None,
        enable_ddp: bool = False,
        logging_steps: int = 500,
        logging_strategy: LoggingStrategy = LoggingStrategy.EPOCH,
        log_gradients: bool = False,
    ) -> Generator[tuple[int, dict[str, float]], None, None]:
        """Train on a dataset, one epoch at each iteration. See `fit`."""
        self._refuse_unlearnable("fit")
        check_fit_arguments(dataset, evaluators, callback, epoch_callback)
        options: Any = {
            "n_steps_per_epoch": n_steps_per_epoch,
            "experiment_name": experiment_name,
            "with_timestamp": with_timestamp,
            "logger_adapter": logger_adapter or FileAdapterFactory(),
            "show_progress": show_progress,
            "save_interval": save_interval,
            "callback": callback,
            "epoch_callback": epoch_callback,
            "checkpoint": checkpoint,
            "logging_steps": logging_steps,
            "logging_strategy": logging_strategy,
            "log_gradients": log_gradients,
        }
        if enable_ddp or self.enable_ddp:
            self.build_with_dataset(dataset)
            with distributed.joined(self, dataset, n_steps, options) as own:
                yield from offline.fitter(self, dataset, n_steps, evaluators=evaluators, **own)
        else:
            yield from offline.fitter(self, dataset, n_steps, evaluators=evaluators, **options)
        self.engine.check_finite()

    def fit(
        self,
        dataset: ReplayBufferBase,
        n_steps: int,
        n_steps_per_epoch: int = 10000,
        experiment_name: str | None = None,
        with_timestamp: bool = True,
        **options: Any,
    ) -> list[tuple[int, dict[str, float]]]:
        """Train on a dataset.

        Args:
            dataset: replay buffer or dataset.
            n_steps: number of updates: exactly so many are made, whatever the epoch length.
            n_steps_per_epoch: updates between evaluations, logging and models.
            experiment_name: name of the run folder; by default the class name.
            with_timestamp: whether the time is added to the name.
            **options: ``logger_adapter``, ``show_progress``, ``save_interval`` (epochs between saved models),
                ``evaluators`` (name to evaluator), ``callback(algo, epoch, step)`` after each update,
                ``epoch_callback(algo, epoch, step)`` after each epoch, ``checkpoint`` (folder: the run's whole state
                is kept there, and training goes on from what is found there), ``enable_ddp`` (learn together with
                other processes, see `birl.distributed`), ``logging_strategy`` and ``logging_steps``
                (`LoggingStrategy.STEPS`: metrics are also written every so many updates), ``log_gradients`` (whether
                statistics of gradients are written, too).

        Returns:
            ``(epoch, metrics)`` for each epoch.
        """
        known = {**inspect.signature(self.fitter).parameters, **inspect.signature(Algorithm.fitter).parameters}
        for name in options:
            if name not in known:
                hint = "; d3rlpy's older `scorers` are `evaluators` now" if name == "scorers" else ""
                names = ", ".join(option for option in known if option not in ("self", "options"))
                raise ConfigError(f"fit has no option {name!r}{hint}. Options: {names}")
        named: dict[str, Any] = {
            "n_steps_per_epoch": n_steps_per_epoch,
            "experiment_name": experiment_name,
            "with_timestamp": with_timestamp,
        }
        return list(self.fitter(dataset, n_steps, **named, **options))

    def fit_online(
        self,
        env: Any,
        buffer: Any = None,
        explorer: Any = None,
        n_steps: int = 1000000,
        n_steps_per_epoch: int = 10000,
        update_interval: int = 1,
        *,
        n_updates: int = 1,
        update_start_step: int = 0,
        random_steps: int = 0,
        overlap: bool = False,
        eval_env: Any = None,
        eval_epsilon: float = 0.0,
        eval_n_trials: int = 10,
        save_interval: int = 1,
        experiment_name: str | None = None,
        with_timestamp: bool = True,
        logger_adapter: LoggerAdapterFactory | None = None,
        show_progress: bool = True,
        callback: Callable[[Self, int, int], None] | None = None,
        checkpoint: str | Path | None = None,
        seed: int | None = None,
        logging_steps: int = 500,
        logging_strategy: LoggingStrategy = LoggingStrategy.EPOCH,
        log_gradients: bool = False,
    ) -> None:
        """Train in an environment or a vector environment.

        Args:
            env: Gymnasium environment, or vector environment in any autoreset mode.
            buffer: replay buffer; by default one of a million steps. On-policy algorithms use none.
            explorer: chooses actions instead of the policy's own samples.
            n_steps: number of environment steps (over all environments).
            n_steps_per_epoch: steps between evaluations, logging and models.
            update_interval: number of steps between updates.
            n_updates: number of updates then.
            update_start_step: steps before the first update.
            random_steps: steps with uniformly random actions at the start of the run.
            overlap: whether updates are made while environments in processes of their own (`AsyncVectorEnv`) make the
                next step. Its actions are then chosen before these updates instead of after them.
            eval_env: environment to evaluate the greedy policy in; never the training one.
            eval_epsilon: share of random actions in evaluation.
            eval_n_trials: number of evaluation episodes.
            save_interval: number of epochs between saved models.
            experiment_name: name of the run folder; by default the class name with ``_online``.
            with_timestamp: whether the time is added to the name.
            logger_adapter: where metrics go; by default files.
            show_progress: whether a progress bar is shown (in a terminal).
            callback: called with ``(algo, epoch, step)`` after each step.
            checkpoint: folder of the run's whole state, from which it goes on if it is there.
            seed: seeds the environment's resets; by default drawn from `birl.seed`.
            logging_steps: steps between two writings of metrics with ``logging_strategy`` STEPS.
            logging_strategy: with `LoggingStrategy.STEPS` metrics are also written between the ends of epochs.
            log_gradients: whether statistics of the gradients of every parameter are written with the metrics.
        """
        self._refuse_unlearnable("fit_online")
        common: dict[str, Any] = {
            "n_steps": n_steps,
            "n_steps_per_epoch": n_steps_per_epoch,
            "eval_env": eval_env,
            "eval_epsilon": eval_epsilon,
            "eval_n_trials": eval_n_trials,
            "save_interval": save_interval,
            "experiment_name": experiment_name,
            "with_timestamp": with_timestamp,
            "logger_adapter": logger_adapter or FileAdapterFactory(),
            "show_progress": show_progress,
            "callback": callback,
            "checkpoint": checkpoint,
            "seed": seed,
            "logging_steps": logging_steps,
            "logging_strategy": logging_strategy,
            "log_gradients": log_gradients,
        }
        if self.data == "rollout":
            given = {"buffer": buffer, "explorer": explorer, "random_steps": random_steps or None}
            given |= {"update_start_step": update_start_step or None, "overlap": overlap or None}
            unused = [name for name, value in given.items() if value is not None]
            if unused:
                raise ConfigError(
                    f"{type(self).__name__} learns from rollouts of its own policy and has no use for "
                    f"{', '.join(unused)}: leave it out"
                )
            on_policy.fit_on_policy(cast(OnPolicyLearner, self), env, **common)
            return
        if buffer is not None:
            check_picker(buffer, self.config)
        online.fit_online(
            self,
            env,
            buffer,
            explorer,
            update_interval=update_interval,
            n_updates=n_updates,
            update_start_step=update_start_step,
            random_steps=random_steps,
            overlap=overlap,
            **common,
        )

    def collect(
        self,
        env: Any,
        buffer: Any = None,
        explorer: Any = None,
        deterministic: bool = False,
        n_steps: int = 1000000,
        show_progress: bool = True,
        seed: int | None = None,
    ) -> ReplayBufferBase:
        """Collect experience without learning.

        Returns:
            The buffer with ``n_steps`` more steps; a new one if none was given.
        """
        return collect.collect(
            self,
            env,
            buffer,
            explorer,
            deterministic=deterministic,
            n_steps=n_steps,
            show_progress=show_progress,
            seed=seed,
        )

    def reset_optimizer_states(self) -> None:
        """Forget the optimisers' moments and schedules: often right before fine-tuning."""
        self.engine.reset_optimizers()

    # -- acting ----------------------------------------------------------------------------------------------------

    def _set_mode(self, acting: bool) -> None:
        if acting != self._acting_mode or not self._mode_set:
            set_acting(self.nets, acting)
            for target in self.engine.targets:
                self.nets.get_submodule(target.target).eval()
            self._acting_mode, self._mode_set = acting, True

    _mode_set = False

    @contextlib.contextmanager
    def in_acting_mode(self) -> Iterator[None]:
        """Inside, dropout is off, batch norm uses its running statistics and IQN its fixed fractions."""
        self._set_mode(acting=True)
        yield

    def clip_policy_action(self, action: Tensor) -> Tensor:
        """Hook: confine a policy's action to what the environment takes. Squashed policies need none."""
        return action

    def to_environment(self, action: Tensor) -> Array:
        """A policy's actions as an array in environment units."""
        action = self.units.environment_action(self.clip_policy_action(action))
        return action.numpy() if action.device.type == "cpu" else action.cpu().numpy()

    def actor(self, *, greedy: bool, n: int = 1) -> NetworkActor:
        """An actor for ``n`` environments that keeps recurrent states between steps."""
        return NetworkActor(self, greedy, n)

    def flat_policy(self, function: PolicyFunction) -> FlatPolicy | None:
        """The quick form of `policy_mode` or `policy_sample`, or ``None`` if it has none: see `FlatPolicy`."""
        nets, flat = self.nets, self._flat_policies.get(function)
        if flat is None and function in self._flat_policies:
            return None
        if flat is None or flat.nets is not nets or not flat.current:
            flat = self._flat_policies[function] = FlatPolicy.of(nets, self.acting, function)
        return flat

    def _observation(self, x: Tree) -> Tree:
        shape = self.spec.observation_shape
        if type(x) is np.ndarray and x.shape[1:] == shape and x.dtype.kind == "f" and np.isfinite(np.vdot(x, x)):
            return x  # the usual case; one number that is not finite leaves no finite sum of squares
        if isinstance(x, list) and not is_shape(shape) and isinstance(shape, tuple):
            x = tuple(x)
        if isinstance(x, list):
            with_info = any(isinstance(row, tuple) and any(isinstance(part, dict) for part in row) for row in x)
            x = tuple(x) if with_info else np.asarray(x)
        if isinstance(x, tuple) and is_shape(shape):
            raise ShapeError(
                f"a tuple was given, but observations are single arrays {('batch', *shape)}: env.reset() returns "
                "(observation, info); give observation[None]"
            )
        leaves, shapes = list(tree_leaves(x)), list(leaf_shapes(shape))
        got = [np.shape(leaf) for leaf in leaves]
        if len(got) != len(shapes) or any(tuple(g[1:]) != tuple(s) for g, s in zip(got, shapes, strict=True)):
            wanted = [("batch", *s) for s in shapes]
            single = len(got) == len(shapes) and all(len(g) == len(s) for g, s in zip(got, shapes, strict=True))
            hint = ". A single observation needs a batch dimension: x[None]" if single else ""
            raise ShapeError(
                f"observations of shape {got if len(got) > 1 else got[0]} were given; {type(self).__name__} takes "
                f"{wanted if len(wanted) > 1 else wanted[0]}{hint}"
            )
        for leaf in leaves:
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "biuf":
                raise ShapeError(f"observations of dtype {leaf.dtype} were given; they must be numbers")
            if isinstance(leaf, np.ndarray) and not np.isfinite(leaf).all():
                raise NonFiniteError("an observation holds NaN or infinity: no action can be chosen for it")
        return x

    def predict(self, x: Tree) -> Array:
        """Greedy actions.

        Args:
            x: observations ``[B, *shape]`` (a tree of arrays for tuple and dict observations). Recurrent policies see
                each as the start of an episode; `actor` keeps their state.

        Returns:
            ``[B, A]`` in environment units, or integers ``[B]``.
        """
        return self._predict(x, True)

    def sample_action(self, x: Tree) -> Array:
        """Actions sampled from the policy; the greedy ones if it is deterministic. See `predict`."""
        return self._predict(x, False)

    def _predict(self, x: Tree, greedy: bool) -> Array:
        function = self.policy_mode if greedy else self.policy_sample
        flat, x = self.flat_policy(function), self._observation(x)
        if flat is not None:
            return self.to_environment(flat(self.units, x))
        with torch.no_grad(), self.in_acting_mode():
            return self.to_environment(function(self.nets, Inputs(self.units.observation(x))))

    def predict_value(self, x: Tree, action: Array) -> Array:
        """Estimated action-values ``[B]``.

        Args:
            x: observations ``[B, *shape]``.
            action: ``[B, A]`` in environment units, or integers ``[B]``.
        """
        action_value = type(self).action_value
        if action_value is None:
            raise UnsupportedError(f"{type(self).__name__} has no action-values")
        x, action = self._observation(x), np.asarray(action)
        rows = len(next(tree_leaves(x)))
        expected = (rows,) if self.spec.discrete_action else (rows, self.spec.action_size)
        if action.shape == (rows, 1) and self.spec.discrete_action:
            action = action[:, 0]
        if action.shape != expected:
            raise ShapeError(f"actions of shape {action.shape} were given; they must have shape {expected}")
        if self.spec.discrete_action and len(action) and not 0 <= action.min() <= action.max() < self.spec.action_size:
            raise ActionError(
                f"actions from {action.min()} to {action.max()} were given; they must be integers from 0 to "
                f"{self.spec.action_size - 1}"
            )
        with torch.no_grad(), self.in_acting_mode():
            inputs = Inputs(self.units.observation(x))
            tensor = self.units.action(action[:, None] if self.spec.discrete_action else action)
            return action_value(self.nets, inputs, tensor).cpu().numpy()

    # -- transfer --------------------------------------------------------------------------------------------------

    def copy_policy_from(self, algo: Algorithm[Any, Any]) -> None:
        """Copy the policy network (and its target) of another algorithm."""
        self._copy_networks(algo, ("actor", "actor_target"), "policy")

    def copy_q_function_from(self, algo: Algorithm[Any, Any]) -> None:
        """Copy the Q-functions (and their targets) of another algorithm."""
        self._copy_networks(algo, ("critic", "critic_target"), "Q-function")

    def copy_policy_optim_from(self, algo: Algorithm[Any, Any]) -> None:
        """Copy the state of the policy's optimiser."""
        self._copy_optimizer(algo, "actor")

    def copy_q_function_optim_from(self, algo: Algorithm[Any, Any]) -> None:
        """Copy the state of the Q-functions' optimiser."""
        self._copy_optimizer(algo, "critic")

    def _copy_networks(self, algo: Algorithm[Any, Any], names: tuple[str, ...], what: str) -> None:
        own, theirs = dict(self.nets.named_children()), dict(algo.nets.named_children())
        main, target = names
        for side, networks in ((self, own), (algo, theirs)):
            if main not in networks:
                raise UnsupportedError(f"{type(side).__name__} has no {what} to copy")
        for name in (main, target):
            if name in own:
                source = theirs[name if name in theirs else main]
                self._load_from(own[name], source, type(algo).__name__, what)

    def _load_from(self, network: nn.Module, source: nn.Module, origin: str, what: str) -> None:
        try:
            network.load_state_dict(source.state_dict())
        except RuntimeError as error:
            raise ShapeError(
                f"the {what} of {origin} does not fit {type(self).__name__}: both need the same encoder, head, "
                f"number of critics and shapes. ({str(error).splitlines()[-1].strip()})"
            ) from error

    def _copy_optimizer(self, algo: Algorithm[Any, Any], name: str) -> None:
        own, theirs = self.engine.optimizers.get(name), algo.engine.optimizers.get(name)
        if own is None or theirs is None:
            raise UnsupportedError(f"{type(self if own is None else algo).__name__} has no optimiser for its {name}")
        shapes = [[p.shape for group in side.param_groups for p in group["params"]] for side in (own, theirs)]
        if shapes[0] != shapes[1]:
            raise ShapeError(f"the {name} optimiser of {type(algo).__name__} does not fit {type(self).__name__}")
        self.engine.copy_optimizer(name, algo.engine)

    # -- files -----------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """Everything that training reads or writes; refuses a state that is not finite."""
        self.engine.check_finite()
        return {"engine": self.engine.get_state(), "scalers": self._scaler_state()}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`, for an algorithm of the same configuration and shapes."""
        self.engine.set_state(state["engine"])
        for name, params in state["scalers"].items():
            getattr(self.config, name).__init__(**params)

    def _scaler_state(self) -> State:
        names = ("observation_scaler", "action_scaler", "reward_scaler")
        scalers = {name: getattr(self.config, name) for name in names}
        return {name: scaler.serialize()["params"] for name, scaler in scalers.items() if scaler is not None}

    def describe(self) -> dict[str, Any]:
        """Configuration and shapes in JSON form: what ``params.json`` and model files hold."""
        return {
            "observation_shape": self.spec.observation_shape,
            "action_size": self.spec.action_size,
            "discrete_action": self.spec.discrete_action,
            "config": self.config.serialize(),
        }

    def save(self, fname: str | Path | BinaryIO) -> None:
        """Write configuration, networks, optimisers and step counter to one file; see `load_learnable`.

        The file is complete or not there: a failure leaves what was there before.

        Raises:
            NonFiniteError: if a parameter is NaN or infinite.
            WriteError: if the file cannot be written.
        """
        self.engine.check_finite()
        save_archive(fname, "model", {**self.describe(), "birl": __version__}, self.model_state())

    def model_state(self) -> State:
        """What a model file holds beside `describe`."""
        return self.engine.get_state()

    @classmethod
    def unbuilt(
        cls, config: Any, device: bool | int | str | None, data: dict[str, Any], state: State | None
    ) -> Algorithm[Any, Any]:
        """For files: an algorithm without networks.

        Args:
            config: its configuration.
            device: see `AlgorithmConfig.create`.
            data: what `describe` said.
            state: what `model_state` gave, or ``None`` where only the configuration is known.
        """
        algorithm: Algorithm[Any, Any] = config.create(device)
        return algorithm

    def save_model(self, fname: str | Path | BinaryIO) -> None:
        """Write networks, optimisers and step counter, without the configuration; see `load_model`."""
        self.engine.check_finite()
        save_archive(fname, "parameters", {"birl": __version__}, self.engine.get_state())

    def load_model(self, fname: str | Path | BinaryIO) -> None:
        """Load what `save_model` wrote into an algorithm with the same configuration and shapes."""
        _, state = load_archive(fname, "parameters")
        with damaged_as_typed_errors(fname):
            self.engine.set_state(state)

    def save_policy(self, fname: str | Path) -> None:
        """Export the greedy policy with its scalers: ``.pt`` (TorchScript), ``.onnx`` or ``.pt2`` (torch.export).

        The file needs no birl. It is checked against the policy itself before it gets its name.

        Raises:
            UnsupportedError: for recurrent policies, whose state an export does not carry.
        """
        if self.engine.recurrent:
            raise UnsupportedError("recurrent policies cannot be exported: an export carries no state between calls")
        example = example_observation(self.spec.observation_shape, self.torch_device)
        with self.in_acting_mode():
            export_policy(PolicyModule(self), example, fname)

    @classmethod
    def from_json(cls, fname: str | Path, device: bool | int | str | None = False) -> Self:
        """Make an untrained algorithm from a run's ``params.json``."""
        data = read_json_config(fname)
        name = data["config"].get("type")
        if name != cls.config_class.get_type():
            raise ForeignFileError(f"{fname} describes {name!r}, not {cls.config_class.get_type()!r}")
        return rebuild(data, device)  # type: ignore[no-any-return]


def load_learnable(fname: str | Path | BinaryIO, device: bool | int | str | None = False) -> Any:
    """Load an algorithm that `Algorithm.save` wrote, with its configuration, networks, optimisers and step counter.

    Args:
        fname: path or binary file.
        device: see `AlgorithmConfig.create`.
    """
    data, state = load_archive(fname, "model")
    with damaged_as_typed_errors(fname):
        algorithm = rebuild(data, device, state)
        algorithm.engine.set_state(state)
    return algorithm


def rebuild(data: dict[str, Any], device: bool | int | str | None, state: State | None = None) -> Any:
    """An algorithm with new networks, as `Algorithm.describe` said it.

    Args:
        data: what `Algorithm.describe` said.
        device: see `AlgorithmConfig.create`.
        state: what `Algorithm.model_state` gave: refused if it does not fit ``data``. It is not loaded here.
    """
    config = AlgorithmConfig.deserialize(data["config"])
    algorithm = config.algorithm.unbuilt(config, device, data, state)
    shape, action_size = as_shape(data["observation_shape"]), data["action_size"]
    discrete = algorithm.action_space is ActionSpace.DISCRETE or bool(data.get("discrete_action"))
    if discrete and algorithm.action_scaler is not None:
        algorithm.replace_config(action_scaler=None)  # older versions took one, and made no use of it
    if state is not None:  # sizes are compared before anything is allocated
        spec = Spec(shape, int(action_size), discrete)
        sizes = {name: x.shape for name, x in planned_networks(algorithm.config, spec).items()}
        if sizes != {name: x.shape for name, x in state["nets"].items()}:
            raise CorruptFileError("its parameters are not those of the networks that its configuration describes")
    algorithm.create_impl(shape, action_size, discrete_action=data.get("discrete_action"))
    return algorithm


def planned_networks(config: AlgorithmConfig, spec: Spec) -> dict[str, Tensor]:
    """Tensors of the networks that a configuration describes, without memory, whatever a file says of sizes."""
    with torch.device("meta"):
        return dict(config.algorithm.networks(spec, config).state_dict())


def _other_actions(algorithm: type[Algorithm[Any, Any]], discrete: bool) -> str:
    """An algorithm was given the other kind of actions: name the sibling, or what else there is."""
    name = algorithm.__name__
    sibling = name.removeprefix("Discrete") if discrete else f"Discrete{name}"
    if algorithm.data == "trajectory":
        sibling = "DecisionTransformer" if discrete else "DiscreteDecisionTransformer"
    elif sibling == name or sibling not in Algorithm._known:
        continuous, other = "SAC or TD3 online, CQL or IQL on logs", "DQN or DiscreteSAC online, DiscreteCQL on logs"
        sibling = continuous if discrete else other
    return f"{name} takes {'discrete' if discrete else 'continuous'} actions only; use {sibling}"
