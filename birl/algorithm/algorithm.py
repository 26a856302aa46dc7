"""The class that users work with: a configuration, a learner, training loops and files."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Generic, Self, TypeVar, Unpack

from torch import Tensor, nn

from birl import distributed
from birl.acting.actor import NetworkActor
from birl.acting.built_policy import BuiltPolicy
from birl.acting.policy import Policy
from birl.algorithm import building, environments, persistence
from birl.algorithm.definition import check_definition, check_named_networks, named_parts
from birl.algorithm.learner import KNOWN, Definition, EvaluationTarget, Experience, Learner
from birl.algorithm.policy_api import PolicyAPI
from birl.checks import check, named_arguments
from birl.config import AlgorithmConfig
from birl.dataset import ReplayBufferBase
from birl.dataset.discounted_returns import DiscountedReturns
from birl.dataset.log_record import LogRecord, merge_records
from birl.dataset.reader import MinibatchSource
from birl.devices import resolve_device
from birl.engine import Engine, Step, check_steps
from birl.engine.gradient_exchange import ComputedGradients
from birl.errors import ConfigError, NotBuiltError
from birl.habits import explain_attributes, value_hint
from birl.logging.logger import LOG
from birl.preprocessing.units import Units
from birl.run import data_collection as collect
from birl.run import offline
from birl.run.agent import Agent
from birl.run.options import AgentOptions, EnvironmentOptions, FitOptions, Options, check_options
from birl.run.protocols import (
    EnvironmentLike,
    Evaluator,
    Exploration,
    ExplorerProtocol,
    Minibatch,
    StepBuffer,
)
from birl.spaces import Actions
from birl.spaces.observations import merge_columns
from birl.spaces.specs import Spec
from birl.types import ActionSize, ActionSpace, Array, Batch, Environment, Shape, State, Tree

ConfigT = TypeVar("ConfigT", bound=AlgorithmConfig)
NetsT = TypeVar("NetsT", bound=nn.Module)


@explain_attributes("algorithm")
class Algorithm(PolicyAPI, Generic[ConfigT, NetsT]):
    """Base of all algorithms. Make one with ``SomeConfig(...).create(device=...)``.

    A concrete algorithm, ``class X(Algorithm[XConfig, XNets])``, has two type arguments: the class of its
    configuration, and an ``nn.Module`` class, which is constructed with ``(spec, config)`` and has the networks as
    children. It has four values, ``actions``, ``learns_from``, ``acts`` and ``steps``, and defines no method.

    Attributes:
        actions: the kind of actions it can take.
        learns_from: what it learns from.
        acts: how it acts.
        steps: what an update does, in order.
        exploration: the explorer of the last `fit_online` and its number of steps, with which the next one continues.
    """

    actions: ClassVar[ActionSpace]
    learns_from: ClassVar[Experience]
    acts: ClassVar[Policy]
    steps: ClassVar[tuple[Step, ...]] = ()
    evaluates: ClassVar[bool] = False  # whether it evaluates the policy of another algorithm
    config_class: ClassVar[type[AlgorithmConfig]]
    networks: ClassVar[Callable[[Spec, Any], nn.Module]]

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        config_class, networks = named_parts(cls, Algorithm)
        if isinstance(config_class, TypeVar) or isinstance(networks, TypeVar):
            return  # a generic base class
        check_definition(cls, config_class)
        check_steps(cls.steps, config_class)
        check_named_networks(cls, networks)
        cls.config_class, cls.networks = config_class, networks
        config_class.set_algorithm(cls)
        KNOWN[config_class.get_type()] = cls.definition()

    def __init__(
        self,
        config: ConfigT | None = None,
        device: bool | int | str | None = False,
        enable_ddp: bool = False,
        **fields: Any,
    ) -> None:
        if config is not None and not isinstance(config, self.config_class):
            name, wanted = type(self).__name__, self.config_class.__name__
            raise ConfigError(
                f"{name} takes a {wanted}, got {config!r:.80}{value_hint(config)}; make it with {wanted}(…).create()"
            )
        self._config: ConfigT = (self.config_class(**fields) if config is None else config).copy()  # type: ignore[assignment]
        self.torch_device = resolve_device(device)
        self.enable_ddp = check("enable_ddp", enable_ddp, bool)
        self._learner: Learner | None = None
        self.exploration: Exploration | None = None

    @classmethod
    def definition(cls) -> Definition:
        """Return the values that define it."""
        values = cls.actions, cls.learns_from, cls.acts, cls.steps, cls.evaluates
        return Definition(cls.__name__, cls.config_class, cls.networks, *values)

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def config(self) -> ConfigT:
        """The configuration. Its scalers belong to this algorithm only and are fitted in place."""
        return self._config if self._learner is None else self._learner.config

    @property
    def original_config(self) -> ConfigT:
        """The configuration of the networks when they were made: `config` before any `retune`."""
        return self._config

    @property
    def learner(self) -> Learner:
        """The networks with everything that trains them. Raises `NotBuiltError` before the networks exist."""
        if self._learner is None:
            raise NotBuiltError(
                f"this {type(self).__name__} has no networks yet: call fit(…), build_with_dataset(dataset), "
                "build_with_env(env) or create_impl(observation_shape, action_size) first"
            )
        return self._learner

    @property
    def impl(self) -> Learner | None:
        """The learner, or ``None`` before the networks exist."""
        return self._learner

    @property
    def built(self) -> bool:
        """Whether the networks exist."""
        return self._learner is not None

    @property
    def engine(self) -> Engine:
        """The networks, their optimisers and their updates."""
        return self.learner.engine

    @property
    def nets(self) -> NetsT:
        """The networks."""
        return self.learner.nets  # type: ignore[no-any-return]

    @property
    def units(self) -> Units:
        """Conversion between the units of data and environments and those of the networks."""
        return self.learner.units

    @property
    def returns(self) -> DiscountedReturns | None:
        """Computes the discounted returns of a dataset; ``None`` if the algorithm does not learn from them."""
        return None if self._learner is None else self._learner.returns

    @property
    def spec(self) -> Spec:
        """The observations and actions for which the networks were built."""
        return self.learner.spec

    @property
    def observation_shape(self) -> Shape | None:
        """Observation shape, or ``None`` before the networks exist."""
        return None if self._learner is None else self._learner.spec.observation_shape

    @property
    def action_size(self) -> int | None:
        """Number of action dimensions (continuous) or of actions (discrete); ``None`` before the networks exist."""
        return None if self._learner is None else self._learner.spec.actions.size

    __repr__ = building.summary
    batch_size = property(attrgetter("config.batch_size"), doc="Minibatch size.")
    gamma = property(attrgetter("config.gamma"), doc="Discount factor.")
    observation_scaler = property(attrgetter("config.observation_scaler"), doc="Observation scaler or ``None``.")
    action_scaler = property(attrgetter("config.action_scaler"), doc="Action scaler or ``None``.")
    reward_scaler = property(attrgetter("config.reward_scaler"), doc="Reward scaler or ``None``.")

    @property
    def grad_step(self) -> int:
        """Number of updates so far, over all calls and files."""
        return 0 if self._learner is None else self._learner.engine.grad_step

    def set_grad_step(self, grad_step: int) -> None:
        """Set the number of updates so far, on which delayed updates and target copies depend."""
        self.engine.grad_step = check("grad_step", grad_step, int, low=0)

    def get_action_type(self) -> ActionSpace:
        """Return the kind of actions; for algorithms that support several, the kind they were built for."""
        return self.actions if self._learner is None else self.spec.actions.kind

    @property
    def logs(self) -> LogRecord | None:
        """The logs from which it has learned; ``None`` if its datasets were not made from logs."""
        return None if self._learner is None else self._learner.logs

    @property
    def is_recurrent(self) -> bool:
        """Whether a network is recurrent, so that training needs sequences."""
        return self.learner.recurrent

    @property
    def compiled(self) -> bool:
        """Whether updates are compiled: by ``compile_graph=True``, or by "auto" in a long run."""
        return self._learner is not None and self._learner.engine.compiled

    def replace_config(self, **fields: Any) -> None:
        """Change fields of the configuration before the networks exist."""
        if self.built:
            raise ConfigError(f"this {type(self).__name__} is built already: call retune({', '.join(fields)}=…)")
        self._config = dataclasses.replace(self._config, **fields)

    # -- building --------------------------------------------------------------------------------------------------

    def create_impl(
        self, observation_shape: Shape, action_size: ActionSize | Actions, *, discrete_action: bool | None = None
    ) -> None:
        """Build networks and optimisers.

        Existing networks are kept if they are untrained and have the same shapes; otherwise they are replaced, with a
        warning.

        Args:
            observation_shape: such as ``(3,)``, a space of Gymnasium, or a tuple or dict of them.
            action_size: number of action dimensions or of discrete actions; for several discrete actions at once, a
                list with the number of options of each; or an action space.
            discrete_action: only for algorithms that can do both.
        """
        spec = building.checked_spec(self.definition(), observation_shape, action_size, discrete_action)
        if self._learner is not None:
            if spec == self.spec and self.grad_step == 0:
                return
            building.warn_of_new_networks(self._learner)
        self._learner = self._build(spec)
        building.report_unused_memory(self._learner)

    def _build(self, spec: Spec, evaluated: EvaluationTarget | None = None) -> Learner:
        self._config = self.config
        building.check_scalers(self.config, spec)
        return Learner(self.definition(), self.config, spec, self.torch_device, evaluated)

    def build_with_dataset(self, dataset: ReplayBufferBase) -> None:
        """Build for a dataset's shapes, or check them against the networks if built.

        Fits scalers that are not fitted yet. If the dataset was made from a table, model files record its columns, and
        later tables must have the same ones, in any order. Columns of a later dataset must have the same order, too.
        """
        building.check_source("build_with_dataset", dataset)
        logs = merge_records(self.logs, dataset.logs, f"this {type(self).__name__}", "the dataset")
        known = {} if self._learner is None else self._learner.policy.columns
        columns = merge_columns(known, dataset.dataset_info.columns, f"this {type(self).__name__}", "the dataset")
        trained = self.grad_step > 0
        spec = building.fit_to_dataset(self.definition(), self.config, dataset, trained)
        self._build_or_check(spec, building.check_dataset)
        building.warn_of_other_ranges(self.definition(), self.config, spec, dataset)
        self.learner.logs = logs
        self.learner.policy.columns.update(self.spec.fitting_columns(columns))

    def build_with_env(self, env: Environment) -> None:
        """Build for an environment's spaces, or check them against the networks if built.

        Fits scalers that the environment's bounds determine and that are not fitted yet. New networks get a
        `MinMaxActionScaler` if the policy acts in [-1, 1] and actions have other bounds, and a `PixelObservationScaler`
        if observations are images of bytes (32 pixels or more on a side), unless the configuration has scalers.

        Raises:
            EnvironmentMismatchError: if actions have no bounds, but the policy acts in [-1, 1].
        """
        spec = building.env_spec(self, env)
        building.check_actions(self.definition(), spec.actions, "the environment")
        if not self.built:
            self.replace_config(**building.environment_scalers(self.definition(), self.config, spec, env))
        building.fit_to_env(self.definition(), self.config, spec, env, self.built)
        self._build_or_check(spec, building.check_env)

    def _build_or_check(self, spec: Spec, check: Callable[[Definition, Spec, Spec], None]) -> None:
        if self.built:
            check(self.definition(), self.spec, spec)
        else:
            self.create_impl(spec.observations, spec.actions)

    def check_env(self, env: Environment) -> None:
        """Raise `EnvironmentMismatchError` if the environment's spaces are not those of the networks."""
        building.check_env(self.definition(), self.spec, building.env_spec(self, env))

    # -- learning --------------------------------------------------------------------------------------------------

    def fitter(
        self,
        dataset: ReplayBufferBase,
        n_steps: int,
        n_steps_per_epoch: int = 10000,
        experiment_name: str | None = None,
        with_timestamp: bool = True,
        *,
        evaluators: Mapping[str, Evaluator] | None = None,
        enable_ddp: bool = False,
        **options: Unpack[FitOptions],
    ) -> Generator[tuple[int, dict[str, float]], None, None]:
        """Train on a dataset, one epoch at each iteration. See `fit`."""
        self.learns_from.check_loop(type(self).__name__, "fit")
        building.check_fit_arguments(dataset, evaluators, options.get("callback"), options.get("epoch_callback"))
        run: Options = {
            "n_steps_per_epoch": n_steps_per_epoch,
            "experiment_name": experiment_name,
            "with_timestamp": with_timestamp,
            **options,
        }
        if check("enable_ddp", enable_ddp, bool) or self.enable_ddp:
            self.build_with_dataset(dataset)
            with distributed.data_parallel(self, dataset, n_steps, {**run}) as own:
                yield from offline.fitter(self, dataset, n_steps, evaluators=evaluators, **own)
        else:
            yield from offline.fitter(self, dataset, n_steps, evaluators=evaluators, **run)
        self.engine.check_finite()

    @named_arguments
    def fit(
        self,
        dataset: ReplayBufferBase,
        n_steps: int,
        n_steps_per_epoch: int = 10000,
        experiment_name: str | None = None,
        with_timestamp: bool = True,
        *,
        evaluators: Mapping[str, Evaluator] | None = None,
        enable_ddp: bool = False,
        **options: Unpack[FitOptions],
    ) -> list[tuple[int, dict[str, float]]]:
        """Train on a dataset.

        Args:
            dataset: replay buffer or dataset.
            n_steps: number of updates, exact whatever the epoch length.
            n_steps_per_epoch: updates between evaluations, logging and models.
            experiment_name: name of the run folder; by default the class name.
            with_timestamp: whether the time is added to the name.
            evaluators: functions ``(algorithm, dataset) -> metric``, or objects of `birl.metrics`, by name; they are
                called after each epoch.
            enable_ddp: whether to learn together with other processes; see `birl.distributed`.
            **options: see `birl.run.Options`.

        Returns:
            ``(epoch, metrics)`` for each epoch.
        """
        check_options("fit", options, inspect.signature(self.fitter).parameters)
        epochs = self.fitter(
            dataset,
            n_steps,
            n_steps_per_epoch=n_steps_per_epoch,
            experiment_name=experiment_name,
            with_timestamp=with_timestamp,
            evaluators=evaluators,
            enable_ddp=enable_ddp,
            **options,
        )
        return list(epochs)

    @named_arguments
    def fit_online(
        self,
        env: EnvironmentLike,
        buffer: StepBuffer | None = None,
        explorer: ExplorerProtocol | Sequence[ExplorerProtocol] | None = None,
        n_steps: int = 1000000,
        n_steps_per_epoch: int = 10000,
        update_interval: int = 1,
        **options: Unpack[EnvironmentOptions],
    ) -> None:
        """Train in an environment or a vector environment.

        Args:
            env: Gymnasium environment, vector environment in any autoreset mode, or a name such as
                ``"CartPole-v1"`` or ``"module:factory"`` (see `birl.envs.make_env`).
            buffer: replay buffer; by default one of a million steps. Of the on-policy algorithms, only ACER and IMPALA
                use one.
            explorer: replaces greedy actions by exploring ones; by default the policy samples.
            n_steps: number of environment steps over all environments.
            n_steps_per_epoch: steps between evaluations, logging and models.
            update_interval: number of steps between updates.
            **options: see `birl.run.OnlineOptions`; ``callback`` is called after each step.
        """
        run: Any = {"n_steps_per_epoch": n_steps_per_epoch, "update_interval": update_interval, **options}
        environments.fit_online(self, env, buffer, explorer, n_steps, run)

    @named_arguments
    def collect(
        self,
        env: Environment | str,
        buffer: StepBuffer | None = None,
        explorer: ExplorerProtocol | None = None,
        deterministic: bool = False,
        n_steps: int = 1000000,
        show_progress: bool = True,
        seed: int | None = None,
        n_episodes: int | None = None,
        expert: Callable[[Tree], Array] | None = None,
        expert_share: float = 0.0,
    ) -> ReplayBufferBase:
        """Collect experience without learning; the arguments are those of `birl.run.data_collection.collect`.

        Returns:
            The buffer with ``n_steps`` more steps, or ``n_episodes`` more episodes; a new one if none was given.
        """
        options: Any = {"n_steps": n_steps, "n_episodes": n_episodes, "show_progress": show_progress, "seed": seed}
        options |= {"deterministic": deterministic, "expert": expert, "expert_share": expert_share}
        return collect.collect(self, env, buffer, explorer, **options)

    def reset_optimizer_states(self) -> None:
        """Reset the optimisers' moments and schedules, for example before fine-tuning."""
        self.engine.reset_optimizers()

    # -- single updates --------------------------------------------------------------------------------------------

    def sample_minibatch(self, dataset: MinibatchSource) -> Any:
        """Sample the kind of minibatch that this algorithm learns from."""
        building.check_source("sample_minibatch", dataset, or_reader=True)
        return self.learner.sample(dataset)

    def update(self, batch: Minibatch | Batch) -> dict[str, Tensor]:
        """Learn from a minibatch, a `Batch`, or a rollout, if it learns from those.

        Usually this is one update, which performs every step that is due.

        Returns:
            Losses and metrics as scalar tensors on the device; ``float(value)`` waits for the device.
        """
        self._check_learns()
        return self.learner.update(batch)

    def compute_gradients(self, batch: Minibatch | Batch) -> dict[str, ComputedGradients]:
        """Compute the gradients of the next `update` from a minibatch, all at the current parameters.

        No parameter, optimiser, target or counter changes; only the random generators of losses advance. `update`
        differs if an algorithm has several gradient steps: there, each step uses the parameters that earlier steps have
        changed.

        Args:
            batch: as for `update`.

        Returns:
            A dict with an entry for each gradient step that is due, by its name (steps of temperatures and dual
            variables included). An entry has ``gradients``, by parameter name, and ``loss``, with its metrics.

        Raises:
            UnsupportedError: if the algorithm makes several updates from a minibatch, has steps other than gradient
                steps and target updates, or if its networks change buffers while they learn.
        """
        self._check_learns()
        return self.learner.compute_gradients(batch)

    def apply_gradients(self, computed: Mapping[str, ComputedGradients]) -> dict[str, Tensor]:
        """Make one update with the result of `compute_gradients`, here or in another process.

        Args:
            computed: gradients by the name of the gradient step. They are clipped here, so average them before if there
                are several.

        Returns:
            The losses and metrics that came with the gradients.

        Raises:
            ConfigError: if they do not belong to the steps that are due. Nothing has changed then.
        """
        return self.learner.apply_gradients(computed)

    def watch_gradients(self, watch: Callable[[str, Sequence[str], Tensor], None] | None) -> None:
        """Call ``watch(step, parameter names, statistics [n, 4])`` after every update; ``None`` stops this.

        The statistics are the minimum, maximum, mean and standard deviation of each parameter's gradient, on the
        device; if one call makes ``k`` updates, they are ``[k, n, 4]``.
        """
        self.engine.watch = watch

    def retune(self, **fields: object) -> None:
        """Change fields of the configuration of a built algorithm, also during a run (from a callback).

        Fields that affect neither networks nor the steps of an update can change: learning rates, ``tau``, ``gamma``,
        intervals, clip ranges, coefficients and others. Parameters, moments and counters continue, and a schedule
        continues as if it had started with the new value. Compiled updates are compiled again, unless only learning
        rates change. Checkpoints and ``params.json`` record the changes, and model files have the new values.

        Args:
            **fields: new values by name, as in the configuration.

        Raises:
            ConfigError: if a field is unknown, a value is not allowed, or it cannot change. Nothing has changed then.
            UnsupportedError: while several seeds, workers or processes learn together.
        """
        learner = self.learner
        learner.check_alone()
        change = learner.tuning.change_to(fields)
        building.check_picker(learner, change.config)
        if change.fields:
            learner.retune(change)
            learner.tuning.record(change, learner.engine.grad_step)
            text = ", ".join(f"{name}={value!r:.60}" for name, value in fields.items())
            LOG.info("after %d updates: %s", learner.engine.grad_step, text)

    def _check_learns(self) -> None:
        if not self.learns_from.loops:
            self.learns_from.check_loop(type(self).__name__, "fit")

    # -- acting ----------------------------------------------------------------------------------------------------

    @property
    def acting(self) -> BuiltPolicy:
        """The policy by which it acts, with networks and units."""
        return self.learner.policy

    def predict_value(self, x: Tree, action: Array | None = None) -> Array:
        """Return estimated action-values ``[B]``.

        Args:
            x: observations ``[B, *shape]``.
            action: ``[B, A]`` in environment units, or integers ``[B]``. It may be omitted if the algorithm has state
                values only.
        """
        return self.learner.policy.value(x, action)

    def actor(self, *, greedy: bool, n: int = 1, values: bool = False) -> NetworkActor:
        """Return an actor for ``n`` environments that keeps recurrent states, and `action_values`, between steps."""
        return NetworkActor(self.acting, greedy, n, self.learns_from.stores, values)

    @named_arguments
    def agent(
        self,
        n: int = 1,
        buffer: StepBuffer | None = None,
        explorer: ExplorerProtocol | None = None,
        *,
        env: Environment | None = None,
        **options: Unpack[AgentOptions],
    ) -> Agent:
        """Make an agent for a loop of your own, where birl does not step the environment.

        Args:
            n: number of environments in which it acts at once.
            buffer, explorer: as in `fit_online`; the buffer has ``n`` lanes.
            env: an object with the spaces of one environment, for example a `birl.envs.ExternalEnv`; it is never
                stepped. By default the spaces are those of the networks.
            **options: see `birl.run.AgentOptions`. The agent of an algorithm that learns only from logged data does not
                learn: it acts, and stores steps if there is a buffer.
        """
        return environments.agent(self, n, buffer, explorer, env, options)

    # -- transfer --------------------------------------------------------------------------------------------------

    def copy_policy_from(self, algo: Algorithm[Any, Any]) -> None:
        """Copy the policy network (and its target) of another algorithm."""
        self.learner.copy_network(_learner_of(algo), "actor", "policy")

    def copy_q_function_from(self, algo: Algorithm[Any, Any]) -> None:
        """Copy the Q-functions (and their targets) of another algorithm."""
        self.learner.copy_network(_learner_of(algo), "critic", "Q-function")

    def copy_policy_optim_from(self, algo: Algorithm[Any, Any]) -> None:
        """Copy the state of the policy's optimiser."""
        self.learner.copy_optimizer(_learner_of(algo), "actor")

    def copy_q_function_optim_from(self, algo: Algorithm[Any, Any]) -> None:
        """Copy the state of the Q-functions' optimiser."""
        self.learner.copy_optimizer(_learner_of(algo), "critic")

    # -- files -----------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """Return everything that training reads or writes. Raises `NonFiniteError` for a state that is not finite."""
        return self.learner.get_state()

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`, for an algorithm of the same configuration and shapes."""
        self.learner.set_state(state)
        building.check_scalers(self.config, self.spec)

    def describe(self) -> dict[str, Any]:
        """Return the configuration and shapes in JSON form, as in ``params.json`` and model files."""
        return self.learner.describe()

    def save(self, fname: str | Path | BinaryIO) -> None:
        """Write configuration, networks, optimisers and step counter to one file; see `load_learnable`.

        The file is written completely or not at all: a failure leaves an existing file unchanged.

        Raises:
            NonFiniteError: if a parameter, or a moment of its optimiser, is NaN or infinite: such a file cannot be
                loaded.
            WriteError: if the file cannot be written.
        """
        persistence.save(self.learner, fname)

    def save_model(self, fname: str | Path | BinaryIO) -> None:
        """Write networks, optimisers and step counter, without the configuration; see `load_model`."""
        persistence.save_model(self.learner, fname)

    def load_model(self, fname: str | Path | BinaryIO) -> None:
        """Load what `save_model` wrote into an algorithm with the same configuration and shapes."""
        persistence.load_model(self.learner, fname)

    @classmethod
    def from_json(cls, fname: str | Path, device: bool | int | str | None = False) -> Self:
        """Make an untrained algorithm from a run's ``params.json``."""
        return persistence.from_json(cls, fname, device)


def _learner_of(algo: object) -> Learner:
    if not isinstance(algo, Algorithm):
        raise ConfigError(f"algo is {algo!r:.80}; it must be an algorithm with networks (load_learnable reads one)")
    return algo.learner
