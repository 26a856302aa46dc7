"""Training of many seeds of one configuration in one process, at little more than the cost of one seed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from birl import seeding
from birl.algorithm.batches import update_priorities
from birl.algorithm.building import check_fit_arguments
from birl.algorithm.learner import COMPILE_FROM, UPDATES_AT_ONCE
from birl.checks import Allowed, named_arguments
from birl.config import AlgorithmConfig
from birl.dataset import ReplayBufferBase
from birl.dataset.minibatch import MiniBatch
from birl.dataset.reader import MinibatchSource, Reader
from birl.devices import resolve_device
from birl.engine.stacked_engine import StackedEngine, check_stackable
from birl.errors import ConfigError, NonFiniteError
from birl.incompatible import check_compatible
from birl.logging import BirlLogger, FileAdapterFactory, LoggerAdapterFactory
from birl.logging.logger import EpochAdapter, holds_run, optional
from birl.run import offline
from birl.run.evaluators import call_evaluator, check_names
from birl.run.hooks import Hook, Run, with_run
from birl.run.protocols import Callback, Evaluator, Stateful
from birl.run.session import requests_stop
from birl.types import Batch, State

if TYPE_CHECKING:
    from birl.algorithm.algorithm import Algorithm

Evaluators = Mapping[str, Evaluator]


@named_arguments
def fit_many(
    config: AlgorithmConfig,
    dataset: ReplayBufferBase,
    n_steps: int,
    seeds: Iterable[int] | int = range(16),
    *,
    device: bool | int | str | None = False,
    n_steps_per_epoch: int = 10000,
    experiment_name: str | None = None,
    with_timestamp: bool = True,
    logger_adapter: LoggerAdapterFactory | None = None,
    show_progress: bool = True,
    save_interval: int = 1,
    keep_models: int | None = None,
    evaluators: Evaluators | Callable[[int], Evaluators] | None = None,
    callback: Callback | None = None,
    epoch_callback: Callback | None = None,
    checkpoint: str | Path | None = None,
) -> list[Any]:
    """Train several seeds of one configuration on a dataset, all in one update.

    Each seed ends, up to the rounding of floats, where it would have ended alone::

        birl.seed(seed)
        dataset = …                      # made after the seed was set
        algorithm = config.create(device)
        algorithm.fit(dataset, n_steps, …)

    The data are stored once. The generators of ``dataset`` and the global generators do not change.

    Args:
        config: configuration of an algorithm that learns from transitions without recurrent networks. Algorithms whose
            experience gives a reason against it (`Experience.single_seed`) are not supported.
        dataset: replay buffer or dataset.
        n_steps: number of updates.
        seeds: the seeds, each of which trains one algorithm; 16 stands for ``range(16)``.
        device: see `AlgorithmConfig.create`.
        n_steps_per_epoch, save_interval, keep_models, show_progress: see `Algorithm.fit`.
        experiment_name: name of the folder of all runs; by default the algorithm's name with ``_seeds``. The run of
            seed 3 is called ``<experiment_name>/seed_3``.
        with_timestamp: whether the time is appended to ``experiment_name``.
        logger_adapter: makes an adapter for each seed's run; by default a `FileAdapterFactory`.
        evaluators: evaluators by name; or, for evaluators with a state, a function that makes them for a seed. They are
            called for each algorithm.
        callback, epoch_callback: called for each algorithm, see `Algorithm.fit`. If one returns ``False``, all runs
            end.
        checkpoint: folder for the state of all runs. If it holds a checkpoint, training continues from there.

    Returns:
        The trained algorithms in the order of the seeds.

    Raises:
        ConfigError: if an argument is out of range.
        UnsupportedError: for algorithms that do not support it; the message says what to do instead.
        NonFiniteError: if a loss, a parameter or a moment of a seed becomes NaN or infinite. It stops all seeds.
    """
    values = checked_seeds(seeds)
    if not isinstance(config, AlgorithmConfig):
        raise ConfigError(f"fit_many takes a configuration, such as birl.algos.IQLConfig(), got {config!r:.80}")
    check_fit_arguments(dataset, None if callable(evaluators) else evaluators, callback, epoch_callback)
    if isinstance(callback, list | tuple | Hook):
        check_compatible({"hooks": "a hook, or a list of callbacks,", "fit_many": "fit_many"})
    check_many(config.create(device))
    with seeding.preserve_seed(), seeding.preserve_random_state():
        reader = dataset.placed_for(resolve_device(device))
        if not isinstance(reader, Reader):
            check_compatible({"own reader": f"a {type(reader).__name__}", "fit_many": "fit_many"})
        stack = _Stack(config, [_Run(config, dataset, reader, seed, device, evaluators) for seed in values])
        epochs = offline.fitter(
            cast(Any, stack),  # the loop does not act
            dataset,
            n_steps,
            n_steps_per_epoch=n_steps_per_epoch,
            experiment_name=experiment_name or f"{type(stack.algorithms[0]).__name__}_seeds",
            with_timestamp=with_timestamp,
            logger_adapter=cast(Any, _AdapterFactory(logger_adapter or FileAdapterFactory(), values)),
            show_progress=show_progress,
            save_interval=save_interval,
            keep_models=keep_models,
            evaluators=stack.evaluators(),
            callback=callback and partial(stack.call_back, callback),
            epoch_callback=epoch_callback and partial(stack.call_back, epoch_callback),
            checkpoint=checkpoint,
        )
        list(epochs)
        stack.engine.release()
    for algorithm in stack.algorithms:
        algorithm.learner.shared = ""
        algorithm.engine.check_finite()
    return stack.algorithms


def check_many(algorithm: Algorithm[Any, Any]) -> None:
    """Raise `UnsupportedError` if the class shows that `fit_many` cannot train the algorithm."""
    name, experience = type(algorithm).__name__, algorithm.learns_from
    experience.check_loop(name, "fit_many")
    interval = getattr(algorithm.config, "reset_interval", None)
    if interval is not None:
        check_compatible({"reset_interval": f"reset_interval={interval}", "fit_many": "fit_many"})
    if algorithm.built:
        check_stackable(algorithm.engine)


def checked_seeds(seeds: Iterable[int] | int) -> list[int]:
    """Return seeds, given as a number or as seeds, as a list.

    Raises:
        ConfigError: if there are none, or they are too large, negative or not all different.
    """
    if not isinstance(seeds, Iterable) and Allowed(int, low=1).accepts(seeds):
        return list(range(seeds))
    values = list(seeds) if isinstance(seeds, Iterable) and not isinstance(seeds, str) else []
    if not values or not all(map(seeding.is_seed, values)) or len(set(values)) < len(values):
        raise ConfigError(
            f"seeds is {seeds!r:.80}; it must be a number of seeds, or different ints in [0, 2**32 - 1], such as "
            "(3, 5, 7)"
        )
    return [int(value) for value in values]


class _Run:
    """One seed: its algorithm and all random generators that it would have alone.

    Attributes:
        name: ``seed_<seed>``.
        algorithm: the algorithm, which the stack builds.
        evaluators: the evaluators by name.
        remembering: the evaluators that have a state, by name.
        reader: reads the dataset with this seed's generators.
        generator: generator of the losses, on the training device.
        random: state of the other global generators for this seed's callbacks and evaluators.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        dataset: ReplayBufferBase,
        reader: Reader,
        seed: int,
        device: bool | int | str | None,
        evaluators: Evaluators | Callable[[int], Evaluators] | None,
    ) -> None:
        seeding.seed(seed)
        self.seed, self.name = seed, f"seed_{seed}"
        self.reader = reader.renewed()
        self.algorithm: Any = config.create(device)
        self.evaluators: Evaluators = evaluators(seed) if callable(evaluators) else dict(evaluators or {})
        check_fit_arguments(dataset, self.evaluators)
        check_names(self.evaluators)
        self.remembering = {name: each for name, each in self.evaluators.items() if isinstance(each, Stateful)}
        if self.remembering and not callable(evaluators):
            name = next(iter(self.remembering))
            raise ConfigError(
                f"the evaluator {name!r} has a state, which seeds cannot share: give a function that makes evaluators "
                f"for a seed, evaluators=lambda seed: {{{name!r}: …}}"
            )
        self.generator = torch.Generator(self.algorithm.torch_device).manual_seed(seed)
        self.random = seeding.random_state()

    @contextlib.contextmanager
    def acting(self, *, keep: bool) -> Iterator[None]:
        """Switch the global generators to this seed's; with ``keep``, keep their new state on exit."""
        device = self.generator.device
        drawn_from = (
            torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]
        )
        with seeding.preserve_random_state():
            seeding.set_random_state(self.random)
            drawn_from.set_state(self.generator.get_state())
            try:
                yield
            finally:
                if keep:
                    self.random = seeding.random_state()
                    self.generator.set_state(drawn_from.get_state())

    def get_state(self) -> State:
        """Return the state that the run would have alone."""
        with self.acting(keep=False):
            return {
                "learner": self.algorithm.get_state(),
                "sampler": self.reader.get_state(),
                "random": seeding.random_state(),
            }

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        self.algorithm.set_state(state["learner"])
        self.reader.set_state(state["sampler"])
        with self.acting(keep=True):
            seeding.set_random_state(state["random"])


class _Stack:
    """All seeds with the interface of one algorithm. The object is also its learner and its configuration."""

    def __init__(self, config: AlgorithmConfig, runs: list[_Run]) -> None:
        self.learner = self.config = self
        self._config, self._runs, self.compiled = config, runs, config.compile_graph is True
        self.algorithms = [run.algorithm for run in runs]
        reader, *others = (run.reader for run in runs)
        self._source = SimpleNamespace(sample=partial(reader.sample, others=others))

    def serialize(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share."""
        return {**self._config.serialize(), **self.describe()}

    def describe(self) -> dict[str, Any]:
        """Return the seeds. Each run's ``params.json`` holds the rest."""
        return {"seeds": [run.seed for run in self._runs]}

    def build_with_dataset(self, dataset: ReplayBufferBase) -> None:
        """Build every algorithm as it would be built alone, and stack them."""
        for run in self._runs:
            with run.acting(keep=True):
                run.algorithm.build_with_dataset(dataset)
            run.algorithm.learner.shared = "several seeds learn in one update"
        self.engine = StackedEngine([a.engine for a in self.algorithms], [run.generator for run in self._runs])

    def start_run(
        self, source: MinibatchSource, count: int, *, growing: bool = False, lanes: int = 1
    ) -> MinibatchSource:
        """Return the dataset, which is already on the device."""
        self.algorithms[0].learner.check_sampler(source)
        if self.compiled or (self._config.compile_graph == "auto" and count >= COMPILE_FROM):
            self.engine.record()
        return source

    def updates_at_once(self, source: object) -> int:
        """Return the number of updates for `update_many`: several if the device samples batches and replays updates."""
        there = all(run.reader.device_generator is not None for run in self._runs)
        together = there and self.engine.records and self.algorithms[0].learner.experience.gathers
        return UPDATES_AT_ONCE if together else 1

    def update_many(self, source: MinibatchSource, count: int) -> dict[str, Tensor]:
        """Update every algorithm ``count`` times with batches from the device. Metrics are ``[k]``; see `update`."""
        self.engine.prioritised = False
        generators = [each for each in (run.reader.device_generator for run in self._runs) if each is not None]
        metrics = self.engine.update_many(lambda: self._batch(self.sample(source)), count, generators)
        return self._named({name: values.unbind(1) for name, values in metrics.items()})

    def _batch(self, minibatch: MiniBatch) -> Batch:
        batch: Batch = self.algorithms[0].learner.batch(minibatch)
        return batch.map(lambda x: x.unflatten(0, (len(self._runs), -1)))

    def _named(self, metrics: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
        """Return the metrics of all seeds, with names for the loop."""
        return {
            f"{run.name}/{name}": values[index]
            for index, run in enumerate(self._runs)
            for name, values in metrics.items()
        }

    def sample(self, source: MinibatchSource) -> MiniBatch:
        """Sample a minibatch for each seed, concatenated."""
        return self.algorithms[0].learner.sample(self._source)

    def update(self, minibatch: MiniBatch) -> dict[str, Tensor]:
        """Update every algorithm once. The metrics are called ``seed_<seed>/<name>``."""
        batch = self._batch(minibatch)
        self.engine.prioritised = minibatch.rows is not None
        metrics = {name: values.unbind() for name, values in self.engine.update(batch).metrics.items()}
        update_priorities(minibatch, batch, self.engine)
        return self._named(metrics)

    def check_finite(self) -> None:
        """Raise `NonFiniteError`, naming the seed, if a parameter or a moment of some seed is NaN or infinite."""
        try:
            self.engine.check_finite()
        except NonFiniteError as found:
            for run in self.runs():
                try:
                    run.algorithm.engine.check_finite()
                except NonFiniteError as error:
                    raise NonFiniteError(f"{run.name}: {error}") from found
            raise

    def evaluators(self) -> dict[str, Any]:
        """Return the evaluators of all seeds, for the loop."""
        return {
            f"{run.name}/{name}": (_Remembering if name in run.remembering else partial)(self._evaluate, run, each)
            for run in self._runs
            for name, each in run.evaluators.items()
        }

    def _evaluate(self, seed: _Run, evaluator: Evaluator, _: object, dataset: object, run: Run) -> object:
        self.engine.publish()
        with seed.acting(keep=False):  # evaluations do not advance the generators
            return call_evaluator(evaluator, seed.algorithm, dataset, run)

    def call_back(self, callback: Callback, _: object, epoch: int, step: int, run: Run) -> bool:
        """Call a user's callback for each algorithm. Return ``False`` if one of them returned ``False``."""
        answers, call = [], with_run(callback, 3)
        for seed in self.runs():
            with seed.acting(keep=True):
                answers.append(call(seed.algorithm, epoch, step, run))
        return not any(map(requests_stop, answers))

    def runs(self) -> list[_Run]:
        """Return the runs with current counters, moments and schedules."""
        self.engine.publish()
        return self._runs

    def get_state(self) -> State:
        """Return the states that the runs would have alone."""
        return {run.name: run.get_state() for run in self.runs()}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        for run in self._runs:
            run.set_state(state[run.name])
        self.engine.restack_optimizers()


class _Remembering(partial):  # type: ignore[type-arg]
    """A seed's evaluator with a state, which the loop restores if a signal interrupts an evaluation."""

    def get_state(self) -> State:
        return self.args[1].get_state()  # type: ignore[no-any-return]

    def set_state(self, state: State) -> None:
        self.args[1].set_state(state)


class _AdapterFactory:
    """Factory of `_Adapters` of some seeds."""

    def __init__(self, factory: LoggerAdapterFactory, seeds: list[int]) -> None:
        self._factory, self._seeds = factory, seeds

    def create(self, algo: _Stack, experiment_name: str, n_steps_per_epoch: int) -> _Adapters:
        return _Adapters(self._factory, algo, experiment_name, n_steps_per_epoch)

    def holds_run(self, experiment_name: str) -> bool:
        return any(holds_run(self._factory, f"{experiment_name}/seed_{seed}") for seed in self._seeds)


class _Adapters(EpochAdapter):
    """Adapter that writes each seed's metrics to a separate adapter, under their usual names."""

    def __init__(self, factory: LoggerAdapterFactory, algo: _Stack, name: str, n_steps_per_epoch: int) -> None:
        super().__init__()
        self._stack = algo
        self._loggers = {
            run.name: BirlLogger(
                factory,
                f"{name}/{run.name}",
                with_timestamp=False,
                algo=run.algorithm,
                n_steps_per_epoch=n_steps_per_epoch,
            )
            for run in algo.runs()
        }

    @property
    def logdir(self) -> str | None:
        """The parent of all runs' folders; ``None`` if runs have no folders."""
        folder = getattr(next(iter(self._loggers.values())).adapter, "logdir", None)
        return None if folder is None else os.path.dirname(folder)

    def write_origin(self, origin: Mapping[str, Any]) -> None:
        for logger in self._loggers.values():
            logger.add_origin(origin)

    def write_params(self, params: dict[str, Any]) -> None:
        for run in self._stack.runs():
            self._loggers[run.name].add_params(run.algorithm.describe())

    def after_write_metric(self, epoch: int, step: int) -> None:
        for run, logger in self._loggers.items():
            others = tuple(
                f"{other}/" for other in self._loggers if other != run
            )  # times are measured for all seeds together
            metrics = [(name, value) for name, value in self._metrics.items() if not name.startswith(others)]
            logger.write(epoch, step, {name.removeprefix(f"{run}/"): value for name, value in metrics})

    def save_model(self, epoch: int, algo: object) -> None:
        for run in self._stack.runs():
            self._loggers[run.name].save_model(epoch, run.algorithm)

    def keep_models(self, newest: int) -> None:
        for logger in self._loggers.values():
            optional(logger.adapter, "keep_models")(newest)

    def close(self) -> None:
        for logger in self._loggers.values():
            logger.close()

    def get_state(self) -> State:
        return {name: logger.get_state() for name, logger in self._loggers.items()}

    def set_state(self, state: State) -> None:
        for name, logger in self._loggers.items():
            logger.set_state(state[name])
