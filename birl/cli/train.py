"""``birl train``: train from logged data or in an environment. The same command again resumes the run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from birl.algorithm import Algorithm
from birl.algorithm.building import dataset_spec, has_pixels
from birl.algorithm.multi_seed import check_many, checked_seeds, fit_many
from birl.algorithm.persistence import network_difference, planned_networks
from birl.cli.common import (
    flags,
    import_user_module,
    note,
    print_line,
    with_options,
)
from birl.cli.datasets import load_dataset
from birl.cli.evaluate import acting_algorithm, check_target
from birl.cli.loading import algorithm_class, load_model
from birl.cli.online import (
    EnvironmentSettings,
    collector_environment,
    exploration,
    make_cluster,
    minibatch_sampler,
    prioritized_sampler,
    replay_buffer,
    with_vector_defaults,
)
from birl.cli.run_folder import RunFolder
from birl.cli.run_processes import command_words
from birl.cli.sweep import train_seeds
from birl.cli.train_options import (
    EXPLORATION,
    N_STEPS,
    N_TRIALS,
    TABLE,
    GroupedCommand,
    TrainOptions,
    check_conflicts,
    check_needs,
    check_source_options,
    conflicting,
    typer_option,
)
from birl.config import AlgorithmConfig
from birl.dataset import MultiStepTransitionPicker, ReplayBufferBase
from birl.dataset.log_record import merge_records
from birl.envs import Stepper, environment_spec, single_spaces
from birl.errors import ConfigError, CorruptFileError
from birl.files.serializable import encode, kind_of
from birl.incompatible import check_compatible, prioritised_without_errors
from birl.logging import LoggingStrategy
from birl.metrics import EnvironmentEvaluator
from birl.preprocessing import MinMaxActionScaler, PixelObservationScaler
from birl.recipes import Recipe, find
from birl.run.checkpoint import checkpoint_step, differences
from birl.run.cluster import Cluster
from birl.run.protocols import EnvironmentLike
from birl.seeding import preserve_random_state
from birl.seeding import seed as set_seed
from birl.spaces import actions_from_space
from birl.spaces.observations import leaf_spaces, merge_columns
from birl.types import ActionSpace, Array, Environment

_MOST_SEEDS: Final = 1000
_LONGEST_EPOCH: Final = 10_000
_LITERALS: Final[dict[str, bool | None]] = {"True": True, "False": False, "None": None}

AlgorithmClass = type[Algorithm[Any, Any]]

COMMAND: Final[dict[str, Any]] = {"cls": GroupedCommand}
"""Arguments of typer for `train`."""


@with_options(TrainOptions, typer_option)
def train(
    context: typer.Context,
    algo: Annotated[
        str, typer.Argument(metavar="ALGO", help="Name of an algorithm (see `birl algos`), or module:Class of yours.")
    ],
    more: Annotated[
        list[str] | None, typer.Argument(metavar="FIELD=VALUE", help="Hyper-parameters, as with --set.")
    ] = None,
    *,
    options: TrainOptions,
) -> None:
    """Train from logged data (--dataset) or in an environment (--env-id). Run it again to resume from DIR.

    \b
    birl train DiscreteCQL --dataset cartpole-replay --n-steps 2000
    birl train PPO --env-id CartPole-v1 --n-steps 50000

    Options of exploration, replay and updates are for off-policy algorithms in environments, which learn from a replay
    buffer of their own steps. Of the on-policy algorithms, ACER and IMPALA accept --buffer-size and NStepDQN accepts
    --explorer.
    """  # noqa: D301 - \b is click's mark of a paragraph that it does not wrap
    if options.dataset is None and options.env_id is None:
        raise ConfigError("nothing to learn from: give --dataset NAME, FILE.h5 or DIR, or --env-id ID")
    if options.import_ is not None:
        import_user_module(options.import_)
    algorithm = algorithm_class(algo)
    seeds = None if options.seeds is None else parse_seeds(options.seeds, options.seed)
    if options.jobs is not None and (seeds is None or options.dataset is not None):
        raise ConfigError("--jobs: for --seeds in environments only; leave it out")
    if seeds is not None and options.dataset is None:
        _train_each_seed(context, algorithm, options, seeds)
        return
    words = [*(options.set_ or []), *(more or [])]
    recipe = None if options.recipe is None else _find_recipe(algorithm, options)
    check_conflicts(options)
    user, options = options, _complete(options, {} if recipe is None else recipe.options)
    check_options(algorithm, options)
    out = options.out or _default_folder(algorithm, options)
    initial = None if options.init_from is None else initial_model(algorithm, options.init_from, seeds)
    folder = RunFolder(out, seeds)
    planned = options.n_steps or N_STEPS
    if not options.fresh:
        planned = folder.planned_steps(planned, extend=options.extend)
    base = initial.config if initial is not None else None if recipe is None else recipe.config(planned)
    config = configure(algorithm, words, base)
    epoch = options.n_steps_per_epoch or min(_LONGEST_EPOCH, max(1, planned // 10))
    options = dataclasses.replace(options, out=out, n_steps_per_epoch=epoch)
    set_seed(options.seed)
    with _resumable(out):
        run = _Run(algorithm, config, options, folder, planned, seeds, initial)
        run.load()
        if recipe is not None:
            set_by_user = {*user.given(), *_fields_of(words)}
            left_out = set_by_user | {name for name in recipe.options if name not in options.given()}
            run.notes += [f"recipe {recipe.name}: {recipe.origin}", *recipe.lines(planned, left_out)]
        run.set_defaults(_fields_of(words), published=recipe is not None)
        run.train()


def _train_each_seed(
    context: typer.Context, algorithm: AlgorithmClass, options: TrainOptions, seeds: Sequence[int]
) -> None:
    """Train each seed in an environment, in a process of its own."""
    out = options.out or _default_folder(algorithm, options)
    address = options.address if options.collectors is None else None  # with collectors, it is an option of each run
    per_seed = ("seeds", "seed", "out", "jobs", *([] if address is None else ["address"]))
    train_seeds(command_words(context, per_seed), seeds, out, options.jobs or 1, address, options.device)


# -- options -----------------------------------------------------------------------------------------------------------


def _find_recipe(algorithm: AlgorithmClass, options: TrainOptions) -> Recipe:
    """Find the recipe of ``--recipe``.

    Raises:
        ConfigError: if the algorithm has none of this name, or the run does not start in an environment.
    """
    others = options.given("dataset", "init_from")
    if others:
        raise ConfigError(
            f"--recipe {options.recipe} is for new runs in an environment: leave it or {flags(list(others)[:1])} out"
        )
    return find(algorithm.__name__, str(options.recipe))


def _complete(options: TrainOptions, published: Mapping[str, Any]) -> TrainOptions:
    """Complete the user's options with those of a recipe, then with defaults.

    If the user sets an explorer, it replaces the explorer of the recipe and all its options. Any other option replaces
    the options that it excludes.
    """
    given = options.given()
    dropped = {*given, *conflicting(given)}
    if options.explorer is not None or options.epsilon is not None:
        dropped |= {*EXPLORATION}
    values = {name: value for name, value in published.items() if name not in dropped}
    known = {*given, *values}
    values = {name: value for name, value in values.items() if not (need := TABLE[name].needs) or need in known}
    by_episodes = "env_id" in known and "eval_steps" not in known
    defaults = {"n_steps": N_STEPS} | ({"n_trials": N_TRIALS} if by_episodes else {})
    values |= {name: value for name, value in defaults.items() if name not in known}
    return dataclasses.replace(options, **values)


def check_options(algorithm: AlgorithmClass, options: TrainOptions) -> None:
    """Reject options that do not fit each other, the source of data or the algorithm.

    Raises:
        ConfigError: if an option does not fit; the message names it.
    """
    if options.target_return is not None:
        check_target(algorithm, options.target_return)
    check_needs(options)
    check_source_options(options)
    check_source(algorithm, options.dataset, options.demonstrations)
    _check_replay_options(algorithm, options)
    if options.prioritized and not algorithm.learns_from.has_td_errors:
        check_compatible(prioritised_without_errors(algorithm.__name__))
    if options.multi_step is not None and not algorithm.learns_from.has_td_errors:
        raise ConfigError(f"--multi-step: {algorithm.__name__} does not learn from n-step returns: leave this out")


def _check_replay_options(algorithm: AlgorithmClass, options: TrainOptions) -> None:
    """Reject options of replay for algorithms that update after each rollout."""
    experience = algorithm.learns_from
    unused = [name for name in options.given() if TABLE[name].replays]
    if experience.allows_explorer:
        unused = [name for name in unused if not TABLE[name].explorers]
    if experience.replays and "buffer_size" in unused:
        if options.workers is not None:
            raise ConfigError("--buffer-size: not with --workers, which have a buffer of a million steps each")
        unused.remove("buffer_size")
    if experience.on_policy and unused:
        length = "rollout_length" if hasattr(algorithm.config_class, "rollout_length") else "n_episodes"
        raise ConfigError(
            f"{flags(unused)}: {algorithm.__name__} updates after each rollout of its policy: leave this out; "
            f"--set {length}=… sets how often"
        )


def check_source(algorithm: AlgorithmClass, dataset: str | None, demonstrations: str | None) -> None:
    """Reject algorithms that cannot learn from this source."""
    name = algorithm.__name__
    if not algorithm.learns_from.loops:
        raise ConfigError(f"{name} does not learn: `birl algos` lists those that do")
    if dataset is not None and "fit" not in algorithm.learns_from.loops:
        raise ConfigError(f"{name} learns in an environment only: give --env-id ID and leave out --dataset {dataset}")
    if dataset is None and "fit_online" not in algorithm.learns_from.loops:
        raise ConfigError(f"{name} learns from logged data only: give --dataset NAME, FILE.h5 or DIR, too")
    if algorithm.learns_from.needs_demonstrations and demonstrations is None:
        raise ConfigError(f"{name} imitates an expert: give --demonstrations NAME or FILE.h5")
    if not algorithm.learns_from.needs_demonstrations and demonstrations is not None:
        raise ConfigError(f"{name} takes no --demonstrations, which are for GAIL: leave them out")


def parse_seeds(text: str, seed: int) -> list[int]:
    """Parse the seeds of ``--seeds``.

    Raises:
        ConfigError: if ``--seed`` is given, too, or they are not different numbers.
    """
    if seed:
        raise ConfigError(f"--seed {seed} and --seeds {text} are both given: leave one out")
    try:
        numbers = [int(word) for word in text.split(",")]
        if len(numbers) > 1 or numbers[0] <= _MOST_SEEDS:
            return checked_seeds(numbers[0] if len(numbers) == 1 else numbers)
    except (ValueError, ConfigError) as error:
        raise ConfigError(
            f"--seeds is {text!r}: give a number of seeds (--seeds 16 for 0 … 15) or different seeds (--seeds 3,5,7)"
        ) from error
    raise ConfigError(f"--seeds {text} asks for more than {_MOST_SEEDS} seeds; for this one alone: --seed {numbers[0]}")


def _default_folder(algorithm: AlgorithmClass, options: TrainOptions) -> Path:
    """Return the default folder, such as ``runs/DQN-CartPole-v1-seed0``."""
    source = options.dataset or str(options.env_id)
    name = Path(source).stem if source.endswith((".h5", ".hdf5")) else source
    parts = [algorithm.__name__, re.sub(r"[^\w.-]+", "_", name)]
    return Path("runs", "-".join(parts if options.seeds is not None else [*parts, f"seed{options.seed}"]))


# -- the configuration -------------------------------------------------------------------------------------------------


def configure(
    algorithm: AlgorithmClass, assignments: Sequence[str], base: AlgorithmConfig | None = None
) -> AlgorithmConfig:
    """Make a configuration from ``field=value`` words; other fields are those of ``base`` or the algorithm's defaults.

    A value is JSON, or a plain word. Encoders, heads, optimisers and scalers are chosen by their short names
    (``q_func_factory=qr``), and their own fields follow after a dot (``q_func_factory.n_quantiles=64``).

    Raises:
        ConfigError: if a field or a value does not exist or does not fit, or if a field is set twice.
    """
    params: dict[str, Any] = (base or algorithm.config_class()).serialize()["params"]
    assigned: dict[str, str] = {}
    for word in assignments:
        path, equals, text = word.partition("=")
        if not equals or not path:
            raise ConfigError(f"{word!r} has no value: write field=value, such as gamma=0.9 or q_func_factory=qr")
        if path in assigned:
            raise ConfigError(f"{path} is set twice, to {assigned[path]} and to {text}: leave one out")
        assigned[path] = text
        _assign(algorithm.config_class, params, path, "", _parse_value(text))
    return AlgorithmConfig.deserialize({"type": algorithm.config_class.get_type(), "params": params})


def _fields_of(assignments: Sequence[str]) -> set[str]:
    """Return the fields that ``field=value`` words set."""
    return {word.split("=")[0].split(".")[0] for word in assignments}


def _parse_value(text: str) -> object:
    if text in _LITERALS:
        return _LITERALS[text]
    parsers: tuple[Callable[[str], object], ...] = (json.loads, float)
    for parse in parsers:
        try:
            return parse(text)
        except ValueError:
            continue
    return text


def _assign(owner: type[Any], params: dict[str, Any], path: str, before: str, value: Any) -> None:
    """Set the field ``path`` in ``params``, the JSON form of an ``owner``; ``before`` is the path to the owner."""
    head, _, rest = path.partition(".")
    kind, full = kind_of(owner, head), before + head
    if rest:
        inner = params.get(head)
        if kind is None or not isinstance(inner, dict) or "type" not in inner:
            raise ConfigError(
                f"{full} is {inner!r:.60} and has no field {rest!r}"
                + (f": choose one first, {full}=one of {', '.join(sorted(kind._known))}" if kind else "")
            )
        _assign(kind._known[inner["type"]], inner["params"], rest, f"{full}.", value)
        return
    if kind is not None and value is not None:
        try:
            value = kind.from_shorthand(value)
            value = encode(value if isinstance(value, kind) else kind.named(value))
        except ConfigError as error:
            raise ConfigError(f"{full}={value!s:.80}: {error}") from error
    if before and head not in params and head not in getattr(owner, "__dataclass_fields__", ()):
        raise ConfigError(f"{before.rstrip('.')} ({owner.__name__}) has no field {head!r}; it has: {', '.join(params)}")
    params[head] = value


# -- the run -----------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """A run that is being set up.

    Attributes:
        algorithm: class of the learner.
        config: its configuration.
        options: options of the user and the recipe, and defaults.
        folder: folder of the run.
        planned: number of steps that schedules follow.
        seeds: seeds that are trained together on logged data, or ``None``.
        initial: model of ``--init-from``, or ``None``.
        dataset, demonstrations: logged data, or ``None``.
        env: environment to train or evaluate in, or ``None``.
        notes: notes that are printed when the run starts.
    """

    algorithm: AlgorithmClass
    config: AlgorithmConfig
    options: TrainOptions
    folder: RunFolder
    planned: int
    seeds: list[int] | None
    initial: Algorithm[Any, Any] | None
    dataset: ReplayBufferBase | None = None
    demonstrations: ReplayBufferBase | None = None
    env: Environment | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def cluster(self) -> Cluster | None:
        """The collectors, if any."""
        return make_cluster(self.options)

    @property
    def environment(self) -> EnvironmentSettings:
        """How its environments are made."""
        settings = self.options.given("frame_stack", "action_mask", "atari")
        return EnvironmentSettings(str(self.options.env_id), **settings)

    def load(self) -> None:
        """Load logged data and make the environment."""
        options = self.options
        if options.dataset is not None:
            steps = options.multi_step
            picker = MultiStepTransitionPicker(steps, self.config.gamma) if steps is not None else None
            self.dataset = load_dataset(options.dataset, picker, prioritized_sampler(options, self.planned))
        if options.demonstrations is not None:
            self.demonstrations = load_dataset(options.demonstrations)
        if options.env_id is not None:  # collectors make environments of their own: one suffices to read the spaces
            num_envs = options.num_envs if options.collectors is None else None
            self.env = self.environment.make(num_envs, training=True)

    def set_defaults(self, fields: set[str], *, published: bool) -> None:
        """Replace defaults with which nothing is learned in this environment or with these actions.

        Args:
            fields: fields of the configuration that the user sets, which stay.
            published: whether there is a recipe, whose settings stay, too.
        """
        if self.initial is None and self.dataset is None and self.env is not None and not published:
            self.config, self.options, why = with_vector_defaults(self.config, fields, self.env, self.options)
            self.notes.append(why)
        if self.initial is None and "action_scaler" not in fields:
            scaler, why = default_action_scaler(self.algorithm, self.dataset, self.env)
            if scaler is not None:
                self.config = dataclasses.replace(self.config, action_scaler=scaler)
            self.notes.append(why)
        new = self.initial is None and "observation_scaler" not in fields
        if new and shows_pixels(self.config, self.dataset, self.env):
            self.config = dataclasses.replace(self.config, observation_scaler=PixelObservationScaler())
            why = "observation_scaler=pixel is set (--set observation_scaler=… changes it)"
            self.notes.append(f"observations are images of bytes: {why}")

    def train(self) -> None:
        """Check that everything fits together, prepare the folder, train, and print the results."""
        options, folder = self.options, self.folder
        learner = self.config.create(options.device)
        self._check(self.config.create(options.device))  # before anything is written
        with folder.undone_if_refused():
            self._train(learner)
        for line in folder.results():
            print_line(line)

    def _train(self, learner: Algorithm[Any, Any]) -> None:
        """Prepare the folder, and train."""
        options, folder = self.options, self.folder
        arguments = self._learning_arguments(learner) if self.dataset is None else {}
        resumed = folder.prepare(self._settings(), self.planned, fresh=options.fresh, extend=options.extend)
        before = checkpoint_step(folder.path) if resumed else 0
        self._announce(before)
        if self.initial is not None:
            copy_networks(learner, self.initial, self.dataset, self.env)
        arguments |= self._arguments()
        if self.dataset is None:
            self._fit_online(learner, arguments)
        elif self.seeds is None:
            learner.fit(self.dataset, evaluators=self._evaluators(options.seed), **arguments)
        else:
            several: Any = {"seeds": self.seeds, "device": options.device, "evaluators": self._evaluators}
            fit_many(self.config, self.dataset, **several, **arguments)
        if resumed and checkpoint_step(folder.path) == before:
            note("there was nothing left to do; --extend continues with a larger --n-steps or another --stop-at")

    def _check(self, probe: Algorithm[Any, Any]) -> None:
        """Check with a temporary algorithm that it fits the data, the environment and the initial model."""
        check_fit(probe, self.dataset, self.env, self.options.target_return, self.demonstrations)
        if self.initial is not None:
            check_same_networks(probe, self.initial)
        if self.seeds is not None:
            check_many(probe)

    def _settings(self) -> dict[str, Any]:
        """Return the settings that must be the same when the run is resumed, as JSON values."""
        settings = {"algorithm": self.config.serialize(), **self.options.settings()}
        if self.seeds is not None:
            settings["seeds"] = self.seeds
        if self.options.init_from is not None:
            settings["init_from"] = str(self.options.init_from)
        return settings

    def _announce(self, resumed_at: int) -> None:
        """Print the notes, and the algorithm with its data, steps, seeds and folder."""
        options = self.options
        for text in filter(None, self.notes):
            note(text)
        source = f"from {options.dataset}" if options.dataset is not None else f"in {options.env_id}"
        seeds = f"seed {options.seed}" if self.seeds is None else f"seeds {', '.join(map(str, self.seeds))}"
        resuming = f", resuming at step {resumed_at}" if 0 < resumed_at < (options.n_steps or 0) else ""
        note(f"{self.algorithm.__name__} {source}, {options.n_steps} steps, {seeds} -> {self.folder.path}{resuming}")

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of every training loop."""
        arguments = self.options.feeding("fit")
        arguments |= {"experiment_name": self.folder.path.name, "with_timestamp": False}
        arguments |= {"logger_adapter": self.folder, "checkpoint": self.folder.path}
        if self.options.logging_steps is not None:
            arguments["logging_strategy"] = LoggingStrategy.STEPS
        if self.seeds is not None:
            arguments.pop("go_on", None)  # runs of several seeds always continue
        elif self.env is not None:
            arguments.setdefault("score", "evaluation" if self.dataset is None else "environment")
            arguments["keep_best"] = not self.options.no_best
        return arguments

    def _learning_arguments(self, learner: Algorithm[Any, Any]) -> dict[str, Any]:
        """Return the explorer and replay buffer of a run in an environment."""
        assert self.env is not None
        options, env, experience = self.options, self.env, self.algorithm.learns_from
        lanes = None if self.cluster is None else self.cluster.lanes
        if experience.allows_explorer:
            explored, why = exploration(learner, env, self.planned, dataclasses.replace(options, random_steps=0))
            self.notes.append(why)
            arguments = {"explorer": explored["explorer"]}
        elif experience.on_policy:
            arguments = {}
        else:
            arguments, why = exploration(learner, env, self.planned, options)
            self.notes.append(why)
            updates = (self.planned - arguments["random_steps"]) // (options.update_interval or 1)
            sampler = minibatch_sampler(env, options, updates * (options.n_updates or experience.n_updates))
            arguments["buffer"] = replay_buffer(env, self.config, options, sampler, lanes)
        if experience.replays and not learner.config.replay_ratio and options.buffer_size is not None:
            raise ConfigError(
                f"--buffer-size {options.buffer_size} has no effect, because replay_ratio is 0 and "
                f"{type(learner).__name__} replays nothing: leave it out, or give --set replay_ratio=4"
            )
        if experience.replays and learner.config.replay_ratio and options.workers is None:
            arguments["buffer"] = replay_buffer(env, self.config, options, lanes=lanes)
        return arguments

    def _fit_online(self, learner: Algorithm[Any, Any], arguments: dict[str, Any]) -> None:
        options = self.options
        env: EnvironmentLike | None = self.env
        arguments = {**options.feeding("fit_online"), **arguments, "demonstrations": self.demonstrations}
        arguments["eval_env"] = self.environment.make()
        if arguments.get("eval_n_steps") is not None:  # instead of the default number of episodes
            arguments.pop("eval_n_trials", None)
        if self.cluster is not None:
            arguments["cluster"] = self.cluster
            env = partial(collector_environment, settings=self.environment, module=options.import_)
        assert env is not None  # there is no dataset
        learner.fit_online(env, **arguments)

    def _evaluators(self, seed: int) -> dict[str, Any]:
        """Return the evaluator of training from logged data, if there is an environment for it."""
        if self.env is None:
            return {}
        evaluator = EnvironmentEvaluator(self.env, self.options.n_trials or N_TRIALS, seed=seed)
        target = self.options.target_return
        return {"environment": lambda algorithm, _: evaluator.play(acting_algorithm(algorithm, target)).metrics()}


@contextlib.contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Print after Ctrl-C or SIGTERM whether the run can be resumed."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if checkpoint_step(out):
            note(f"stopped; give the same command again to resume from {out}")
        else:
            note("stopped before the first step: there is nothing to resume; the same command starts again")
        raise


def check_fit(
    probe: Algorithm[Any, Any],
    dataset: ReplayBufferBase | None,
    env: Environment | None,
    target_return: float | None,
    demonstrations: ReplayBufferBase | None = None,
) -> None:
    """Check with a temporary algorithm that algorithm, data and environment fit together.

    The global random state is restored.
    """
    with preserve_random_state():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they appear when the run starts
            if dataset is not None:
                probe.build_with_dataset(dataset)
            elif env is not None:
                probe.build_with_env(env)
                if demonstrations is not None:
                    probe.build_with_dataset(demonstrations)
            if env is not None:
                probe.check_env(env)
        if env is not None:
            if dataset is not None:
                acting_algorithm(probe, target_return)
            generator = np.random.Generator(np.random.PCG64(0))
            stepper = Stepper(env, generator, observations=probe.spec.observations)
            stepper.step(stepper.actions.sample(stepper.n, generator))


# -- the action scaler -------------------------------------------------------------------------------------------------


def default_action_scaler(
    algorithm: AlgorithmClass, dataset: ReplayBufferBase | None, env: Environment | None
) -> tuple[MinMaxActionScaler | None, str]:
    """Return a scaler for continuous actions that do not lie in [-1, 1], and a note about it."""
    bounds = None
    if env is not None:
        bounds = actions_from_space(single_spaces(env)[1]).bounds
    elif dataset is not None:
        bounds = _logged_bounds(dataset)
    if bounds is None or ActionSpace.CONTINUOUS not in algorithm.actions:
        return None, ""
    low, high = bounds
    if (low == -1).all() and (high == 1).all():
        return None, ""
    pairs = sorted({(float(a), float(b)) for a, b in zip(low, high, strict=True)})
    ranges = ", ".join(f"[{a:g}, {b:g}]" for a, b in pairs[:3]) + (", …" if len(pairs) > 3 else "")
    why = f"actions lie in {ranges}: action_scaler=min_max is set (--set action_scaler=… changes it)"
    return MinMaxActionScaler(minimum=low, maximum=high), why


def shows_pixels(config: AlgorithmConfig, dataset: ReplayBufferBase | None, env: Environment | None) -> bool:
    """Return whether observations are images of bytes, which networks are to read as numbers from 0 to 1."""
    if dataset is not None:
        spec = dataset_spec(dataset, config.observation_keys)
        return has_pixels(config, spec, dataset.dataset_info.observation_signature.tree)
    if env is None:
        return False
    return has_pixels(config, environment_spec(env, config.observation_keys), leaf_spaces(single_spaces(env)[0]))


def _logged_bounds(dataset: ReplayBufferBase) -> tuple[Array, Array] | None:
    """Return the bounds of logged continuous actions; ``None`` if all lie within [-1, 1], the assumed bounds."""
    if dataset.dataset_info.actions.discrete:
        return None
    low, high = dataset.action_bounds()
    return (low, high) if (np.abs([low, high]) > 1).any() else None


# -- the initial model -------------------------------------------------------------------------------------------------


def initial_model(algorithm: AlgorithmClass, path: Path, seeds: Sequence[int] | None) -> Algorithm[Any, Any]:
    """Load the model of ``--init-from``.

    Raises:
        ConfigError: if it is a model of another algorithm, or if there are several seeds.
    """
    if seeds is not None:
        raise ConfigError("--init-from: not with --seeds, whose networks are made together; leave one out")
    file, initial = load_model(path, "cpu")
    if type(initial) is not algorithm:
        raise ConfigError(
            f"--init-from {file} is a model of {type(initial).__name__}, not of {algorithm.__name__}: train "
            f"{type(initial).__name__}, or copy its networks in Python (copy_policy_from, copy_q_function_from)"
        )
    return initial


def check_same_networks(probe: Algorithm[Any, Any], initial: Algorithm[Any, Any]) -> None:
    """Check that the run has the same networks as the initial model."""
    if probe.spec != initial.spec:
        raise ConfigError(f"--init-from: the model was made for {initial.spec}, but this run has {probe.spec}")
    try:
        probe.engine.load_networks(initial.nets.state_dict())
    except CorruptFileError as error:
        own, asked = (config.serialize()["params"] for config in (initial.config, probe.config))
        changed = [
            f"--set {each.replace('.params', '')}"
            for each in differences(own, asked)
            if _rebuilds(each, probe, initial)
        ]
        raise ConfigError(
            f"--init-from: the model has other networks than the settings ask for ({'; '.join(changed)}): leave these "
            "settings out, because a model brings its own networks"
        ) from error


def _rebuilds(difference: str, probe: Algorithm[Any, Any], initial: Algorithm[Any, Any]) -> bool:
    """Return whether the field of a difference changes the networks of the initial model."""
    field = re.split("[. [=]", difference)[0]
    try:
        config = dataclasses.replace(initial.config, **{field: getattr(probe.config, field)})
        return bool(network_difference(planned_networks(config, initial.spec), initial.nets.state_dict()))
    except ConfigError:  # the field does not fit the model's others
        return True


def copy_networks(
    learner: Algorithm[Any, Any],
    initial: Algorithm[Any, Any],
    dataset: ReplayBufferBase | None,
    env: Environment | None,
) -> None:
    """Build an algorithm with the networks of the initial model, but with new optimisers and counters."""
    if dataset is not None:
        learner.build_with_dataset(dataset)
    elif env is not None:
        learner.build_with_env(env)
    learner.engine.load_networks(initial.engine.get_state()["nets"])
    learner.learner.logs = merge_records(initial.logs, learner.logs, "the model", "the dataset")
    learner.learner.policy.columns.update(merge_columns(initial.columns, learner.columns, "the model", "the dataset"))
