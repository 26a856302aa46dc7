"""The options of ``birl train``: one table, from which its command, help, checks and calls are derived.

A new option is one field of `TrainOptions`. `Option.feeds` names the parameter that takes its value; an option without
it is read where a run is set up.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from birl.cli.common import flags
from birl.errors import ConfigError
from birl.run.cluster import AUTO

BUFFER_SIZE: Final = 1_000_000
N_STEPS: Final = 50_000
N_TRIALS: Final = 10


class ExplorerName(StrEnum):
    """How actions for exploration are chosen."""

    EPSILON_GREEDY = "epsilon-greedy"
    EPSILON_LADDER = "epsilon-ladder"
    BOLTZMANN = "boltzmann"
    NOISE = "noise"
    OU_NOISE = "ou-noise"
    GREEDY = "greedy"
    NONE = "none"


class Order(StrEnum):
    """The order in which a `birl.Cluster` takes the fragments of its collectors."""

    TOGETHER = "together"
    TURNS = "turns"
    ARRIVAL = "arrival"


class Gradients(StrEnum):
    """How the learners of a `birl.Cluster` combine their gradients."""

    TOGETHER = "together"
    PUSHED = "pushed"


class ErrorAction(StrEnum):
    """What a `birl.Cluster` does when an environment raises an error."""

    STOP = "stop"
    RESTART = "restart"


class HindsightGoals(StrEnum):
    """Where `birl.dataset.HindsightSampler` takes goals from."""

    FUTURE = "future"
    FINAL = "final"
    EPISODE = "episode"


class Group(StrEnum):
    """Headings of ``birl train --help``."""

    RUN = "Options of the run"
    SCHEDULE = "Evaluations, models and logs"
    ENVIRONMENT = "The environment"
    EXPLORATION = "Exploration (online, off-policy algorithms)"
    REPLAY = "Replay and updates"
    PROCESSES = "Several processes (online)"


NEEDS: Final[Mapping[str, str]] = {
    "collectors": "for collectors only; give --collectors N, too",
    "prioritized": "for prioritised replay only; give --prioritized, too",
    "hindsight": "for hindsight only; give --hindsight, too",
    "env_id": "for runs with an environment only; give --env-id, too, or leave it out",
}
"""Options that others need, and what a message says about their absence."""

CONFLICTS: Final[tuple[tuple[str, str, str], ...]] = (
    ("n_trials", "eval_steps", "both set the length of evaluations"),
    ("epsilon", "epsilon_start", "a constant epsilon has no schedule"),
    ("epsilon", "epsilon_end", "a constant epsilon has no schedule"),
    ("epsilon", "epsilon_steps", "a constant epsilon has no schedule"),
    ("epsilon", "epsilon_decay", "a constant epsilon has no schedule"),
    ("epsilon_steps", "epsilon_decay", "epsilon falls linearly or by a factor"),
    ("prioritized", "recent", "both set which steps are sampled more often"),
    ("extend", "fresh", "--extend continues the run that --fresh removes"),
)
"""Pairs of options that exclude each other, and why."""


@dataclass(frozen=True)
class Option:
    """A row of the table.

    Attributes:
        help: text of ``birl train --help``.
        group: its heading there.
        default: how the help describes the default of an option that has no value otherwise.
        metavar: how the help shows the value.
        min, max: bounds of numbers.
        parser: turns the word of the command line into the value.
        feeds: the parameter that takes the value as it is: ``"fit.NAME"`` (of `Algorithm.fit` and
            `Algorithm.fit_online`), ``"fit_online.NAME"``, ``"Cluster.NAME"``, ``"PrioritizedSampler.NAME"``.
        online: whether it applies only to training in an environment.
        replays: whether only algorithms that replay single steps use it.
        explorers: the explorers that use it.
        needs: the option without which it has no effect; a key of `NEEDS`.
        single_seed: why it cannot be combined with ``--seeds`` on logged data.
        saved: whether it is a setting of the run, which must be the same when the run is resumed.
    """

    help: str
    group: Group
    default: str = ""
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    parser: Callable[[str], object] | None = None
    feeds: str = ""
    online: bool = False
    replays: bool = False
    explorers: tuple[ExplorerName, ...] = ()
    needs: str = ""
    single_seed: str = ""
    saved: bool = True


_Online: Final = partial(Option, online=True)
_Explore: Final = partial(Option, group=Group.EXPLORATION, online=True, replays=True)
_Replay: Final = partial(Option, group=Group.REPLAY, online=True, replays=True)
_Collect: Final = partial(Option, group=Group.PROCESSES, online=True, needs="collectors")


def _fragment(word: str) -> int | str:
    """Parse a number of steps, or ``auto``."""
    return word if word == AUTO else int(word)


_ONCE_AN_EPOCH: Final = "whose runs are logged once an epoch"
_TO_THE_END: Final = "whose runs are trained together to their end"


@dataclass(frozen=True)
class TrainOptions:
    """The options of one ``birl train`` command. ``None`` and ``False`` stand for options that are not given."""

    n_steps: Annotated[
        int | None,
        Option(
            "Number of updates (offline) or environment steps (online).",
            Group.RUN,
            default=str(N_STEPS),
            min=1,
            feeds="fit.n_steps",
        ),
    ] = None
    out: Annotated[
        Path | None,
        Option(
            "Run folder: models, metrics, checkpoint.",
            Group.RUN,
            default="runs/ALGO-DATA-seedN",
            metavar="DIR",
            saved=False,
        ),
    ] = None
    dataset: Annotated[str | None, Option("Logged data to train from.", Group.RUN, metavar="NAME|FILE.h5|DIR")] = None
    env_id: Annotated[
        str | None,
        Option("Environment to train in; with --dataset, to evaluate in. Gymnasium id or module:factory.", Group.RUN),
    ] = None
    seed: Annotated[int, Option("Random seed.", Group.RUN, min=0, max=2**32 - 1, feeds="fit_online.seed")] = 0
    seeds: Annotated[
        str | None,
        Option(
            "Train N seeds (0, 1, …), or the listed ones, in DIR/seed_<seed>. Each ends as it would alone. On logged "
            "data all train in one process; in environments each has its own, see --jobs.",
            Group.RUN,
            metavar="N|S1,S2,…",
        ),
    ] = None
    jobs: Annotated[
        int | None,
        Option(
            "With --seeds in environments: number of runs at the same time. Each has its own --collectors.",
            Group.RUN,
            min=1,
            saved=False,
        ),
    ] = None
    set_: Annotated[
        list[str] | None,
        Option("Hyper-parameters: gamma=0.9, q_func_factory=qr, …", Group.RUN, metavar="FIELD=VALUE …", saved=False),
    ] = None
    recipe: Annotated[
        str | None,
        Option(
            "Published settings, printed with their sources. Options and fields that you set take precedence. See "
            "birl.recipes.",
            Group.RUN,
            metavar="NAME",
        ),
    ] = None
    device: Annotated[str, Option("cpu, cuda, cuda:1, …", Group.RUN)] = "cpu"
    fresh: Annotated[bool, Option("Remove the run in DIR and start again.", Group.RUN, saved=False)] = False
    extend: Annotated[
        bool,
        Option(
            "Continue the run in DIR with a larger --n-steps or another --stop-at.",
            Group.RUN,
            feeds="fit.go_on",
            saved=False,
        ),
    ] = False
    init_from: Annotated[
        Path | None,
        Option("Start with the networks and settings of a model or run of the same ALGO.", Group.RUN, metavar="MODEL"),
    ] = None
    import_: Annotated[
        str | None,
        Option(
            "Module in this folder (or installed) that defines your own encoders, algorithms and other classes that "
            "settings or models name.",
            Group.RUN,
            metavar="MODULE",
            saved=False,
        ),
    ] = None
    n_steps_per_epoch: Annotated[
        int | None,
        Option(
            "Steps between evaluations and saved models.",
            Group.SCHEDULE,
            default="a tenth of --n-steps, at most 10000",
            min=1,
            feeds="fit.n_steps_per_epoch",
        ),
    ] = None
    n_trials: Annotated[
        int | None,
        Option(
            "Episodes of each evaluation.",
            Group.SCHEDULE,
            default=str(N_TRIALS),
            min=1,
            feeds="fit_online.eval_n_trials",
        ),
    ] = None
    eval_steps: Annotated[
        int | None,
        _Online(
            "Online: steps of each evaluation, instead of --n-trials episodes.",
            Group.SCHEDULE,
            min=1,
            feeds="fit_online.eval_n_steps",
        ),
    ] = None
    eval_epsilon: Annotated[
        float | None,
        _Online(
            "Online: share of random actions in evaluations.",
            Group.SCHEDULE,
            default="0",
            min=0,
            max=1,
            feeds="fit_online.eval_epsilon",
        ),
    ] = None
    eval_statistics: Annotated[
        bool,
        _Online(
            "Online: also log the median, standard deviation, minimum and maximum of the evaluations' returns.",
            Group.SCHEDULE,
            feeds="fit_online.eval_statistics",
        ),
    ] = False
    target_return: Annotated[float | None, Option("Return that a sequence model aims at.", Group.SCHEDULE)] = None
    stop_at: Annotated[
        float | None,
        Option(
            "Stop as soon as the mean return of an evaluation reaches this score.",
            Group.SCHEDULE,
            metavar="SCORE",
            feeds="fit.stop_at",
            needs="env_id",
            single_seed=_TO_THE_END,
        ),
    ] = None
    keep_models: Annotated[
        int | None,
        Option(
            "Number of newest models to keep, in addition to the best one.",
            Group.SCHEDULE,
            default="all",
            min=1,
            feeds="fit.keep_models",
            single_seed=_TO_THE_END,
            saved=False,
        ),
    ] = None
    logging_steps: Annotated[
        int | None,
        Option(
            "Log metrics at this interval of steps, too, not only once an epoch.",
            Group.SCHEDULE,
            min=1,
            feeds="fit.logging_steps",
            single_seed=_ONCE_AN_EPOCH,
        ),
    ] = None
    log_gradients: Annotated[
        bool,
        Option(
            "Log statistics of the gradients of every parameter, too.",
            Group.SCHEDULE,
            feeds="fit.log_gradients",
            single_seed=_ONCE_AN_EPOCH,
        ),
    ] = False
    num_envs: Annotated[
        int | None,
        _Online(
            "Online: number of environments to train in at the same time.",
            Group.ENVIRONMENT,
            default="1",
            min=1,
            feeds="Cluster.environments",
        ),
    ] = None
    frame_stack: Annotated[
        int | None,
        _Online(
            "Online: number of stacked frames: the last observations, as one.", Group.ENVIRONMENT, default="1", min=1
        ),
    ] = None
    action_mask: Annotated[
        bool,
        Option(
            "Take only the actions that the environment allows in info[action_mask].", Group.ENVIRONMENT, needs="env_id"
        ),
    ] = False
    atari: Annotated[
        bool,
        _Online(
            "Online: the usual preprocessing of Atari games: grey frames of 84x84, four steps per action, no sticky "
            "actions; in training, clipped rewards and an episode per life.",
            Group.ENVIRONMENT,
        ),
    ] = False
    demonstrations: Annotated[
        str | None,
        _Online(
            "Online, for GAIL: an expert's steps, such as `birl collect` writes.",
            Group.ENVIRONMENT,
            metavar="NAME|FILE.h5",
        ),
    ] = None
    explorer: Annotated[
        ExplorerName | None,
        _Explore(
            "How actions for exploration are chosen.",
            explorers=tuple(ExplorerName),
            default="epsilon-greedy (discrete actions) or noise (continuous); none for policies such as SAC's",
        ),
    ] = None
    epsilon_start: Annotated[
        float | None,
        _Explore(
            "Initial share of random actions.", explorers=(ExplorerName.EPSILON_GREEDY,), default="1", min=0, max=1
        ),
    ] = None
    epsilon_end: Annotated[
        float | None,
        _Explore(
            "Final share of random actions.", explorers=(ExplorerName.EPSILON_GREEDY,), default="0.05", min=0, max=1
        ),
    ] = None
    epsilon_steps: Annotated[
        int | None,
        _Explore(
            "Steps from the initial to the final share.",
            explorers=(ExplorerName.EPSILON_GREEDY,),
            default="a fifth of --n-steps",
            min=1,
        ),
    ] = None
    epsilon_decay: Annotated[
        float | None,
        _Explore(
            "Factor by which the share falls in each step, instead of linearly.",
            explorers=(ExplorerName.EPSILON_GREEDY,),
            min=0,
            max=1,
        ),
    ] = None
    epsilon: Annotated[
        float | None,
        _Explore("Constant share of random actions.", explorers=(ExplorerName.EPSILON_GREEDY,), min=0, max=1),
    ] = None
    temperature: Annotated[
        float | None,
        _Explore(
            "With --explorer boltzmann: temperature of the softmax, in units of returns.",
            explorers=(ExplorerName.BOLTZMANN,),
            default="1",
            min=0,
        ),
    ] = None
    noise_std: Annotated[
        str | None,
        _Explore(
            "Standard deviation of the noise (with ou-noise, per step), in units of the environment's actions: one "
            "number, or one per dimension.",
            explorers=(ExplorerName.NOISE, ExplorerName.OU_NOISE),
            default="a 20th of the range; a 10th for ou-noise",
            metavar="X[,Y…]",
        ),
    ] = None
    noise_theta: Annotated[
        float | None,
        _Explore(
            "With --explorer ou-noise: rate at which the noise returns to 0.",
            explorers=(ExplorerName.OU_NOISE,),
            default="0.15",
            min=0,
            max=1,
        ),
    ] = None
    random_steps: Annotated[
        int | None,
        _Explore(
            "Steps with random actions before the first update.", default="a tenth of --n-steps, at most 1000", min=0
        ),
    ] = None
    update_interval: Annotated[
        int | None,
        _Replay(
            "Online: steps between updates. For AWR choose about 2048, as its updates are long.",
            default="1; 2 for DQN and its variants",
            min=1,
            feeds="fit_online.update_interval",
        ),
    ] = None
    n_updates: Annotated[
        int | None,
        _Replay(
            "Online: number of updates after every --update-interval steps.",
            default="1; 20 for REDQ and DroQ",
            min=1,
            feeds="fit_online.n_updates",
        ),
    ] = None
    buffer_size: Annotated[
        int | None, _Replay("Online: capacity of the replay buffer, in steps.", default=str(BUFFER_SIZE), min=1)
    ] = None
    whole_episodes: Annotated[bool, _Replay("Online: keep and remove whole episodes, not single steps.")] = False
    multi_step: Annotated[
        int | None, Option("Length of n-step returns.", Group.REPLAY, default="1", min=1, replays=True)
    ] = None
    prioritized: Annotated[
        bool, Option("Prioritised replay: sample steps by their TD errors, not uniformly.", Group.REPLAY, replays=True)
    ] = False
    priority_alpha: Annotated[
        float | None,
        Option(
            "Exponent of the priorities; 0 is uniform.",
            Group.REPLAY,
            default="0.6",
            min=0,
            max=1,
            replays=True,
            needs="prioritized",
            feeds="PrioritizedSampler.alpha",
        ),
    ] = None
    priority_beta: Annotated[
        float | None,
        Option(
            "Initial exponent of the importance weights, annealed to 1.",
            Group.REPLAY,
            default="0.4",
            min=0,
            max=1,
            replays=True,
            needs="prioritized",
            feeds="PrioritizedSampler.beta",
        ),
    ] = None
    recent: Annotated[
        float | None,
        _Replay(
            "Online: sample recent steps more often (ERE): the lower, the more; 0.996 is usual. It is annealed to 1, "
            "which is uniform, over the run.",
            metavar="ETA",
            min=0,
            max=1,
        ),
    ] = None
    hindsight: Annotated[
        HindsightGoals | None,
        _Replay(
            "Online: hindsight experience replay (HER): relabel goals with those that the same episode achieved after "
            "the step, at its end, or at any time. For environments with compute_reward, such as GoalEnv."
        ),
    ] = None
    hindsight_k: Annotated[
        float | None,
        _Replay(
            "Relabelled steps for each step with its own goal.", default="4", metavar="K", min=0, needs="hindsight"
        ),
    ] = None
    random_shift: Annotated[
        int | None,
        _Replay(
            "Online: shift the images of minibatches at random by up to this many pixels (DrQ); 4 is usual.",
            metavar="PIXELS",
            min=1,
        ),
    ] = None
    workers: Annotated[
        int | None,
        _Online(
            "Processes that compute gradients, each in its own environments (A3C, NStepDQN).",
            Group.PROCESSES,
            min=1,
            feeds="fit_online.workers",
        ),
    ] = None
    collectors: Annotated[
        int | None,
        _Online(
            "Processes that step --num-envs environments each, while this process learns. See birl.Cluster.",
            Group.PROCESSES,
            min=1,
            feeds="Cluster.collectors",
        ),
    ] = None
    order: Annotated[
        Order | None,
        _Collect(
            "With --collectors: take one fragment from each, then update; take them one after another by number; or "
            "take them as they arrive, which is not reproducible.",
            feeds="Cluster.order",
            default="turns; together for algorithms that learn from rollouts",
        ),
    ] = None
    fragment: Annotated[
        str | None,
        _Collect(
            "With --collectors: steps that an environment makes before they are sent; auto measures how many.",
            feeds="Cluster.fragment",
            default="50",
            metavar="STEPS|auto",
            parser=_fragment,
        ),
    ] = None
    on_error: Annotated[
        ErrorAction | None,
        _Collect(
            "With --collectors: after an error of an environment, stop the run or restart the environment.",
            feeds="Cluster.on_error",
            default="stop",
            saved=False,
        ),
    ] = None
    address: Annotated[
        str | None,
        _Collect(
            "With --collectors, or with --seeds: Ray cluster that starts the processes; auto finds it, local is this "
            "machine.",
            feeds="Cluster.address",
            metavar="ADDRESS",
            saved=False,
        ),
    ] = None
    learners: Annotated[
        int | None,
        _Collect(
            "With --collectors: number of processes that learn, each from its own share of the steps. This process is "
            "one of them.",
            feeds="Cluster.learners",
            min=1,
        ),
    ] = None
    gradients: Annotated[
        Gradients | None,
        _Collect(
            "With --learners: gradients are averaged in each update, or pushed to this process in turn.",
            feeds="Cluster.gradients",
            default="together",
        ),
    ] = None
    shards: Annotated[
        int | None,
        _Collect(
            "With --collectors: number of processes that hold the replay buffer and sample minibatches.",
            feeds="Cluster.shards",
            min=0,
        ),
    ] = None

    def given(self, *names: str) -> dict[str, Any]:
        """Return the options that are given, or those among ``names``, with their values, in the order of the table."""
        values = {name: getattr(self, name) for name in (names or TABLE)}
        return {name: value for name, value in values.items() if value is not None and value is not False}

    def feeding(self, *calls: str) -> dict[str, Any]:
        """Return the given arguments of these calls (see `Option.feeds`), by the names of their parameters."""
        found: dict[str, Any] = {}
        for name, value in self.given().items():
            call, _, parameter = TABLE[name].feeds.partition(".")
            if call in calls:
                found[parameter] = str(value) if isinstance(value, StrEnum) else value
        return found

    def settings(self) -> dict[str, Any]:
        """Return the options that must be the same when the run is resumed."""
        return {name: value for name, value in self.given().items() if TABLE[name].saved}


TABLE: Final[Mapping[str, Option]] = {
    name: hint.__metadata__[0] for name, hint in typing.get_type_hints(TrainOptions, include_extras=True).items()
}
"""The rows by the names of their fields."""

EXPLORATION: Final = tuple(name for name, row in TABLE.items() if row.explorers)
"""Options of explorers."""


def check_needs(options: TrainOptions) -> None:
    """Reject options that have no effect without another one.

    Raises:
        ConfigError: naming all that lack the same option.
    """
    given = options.given()
    for need, message in NEEDS.items():
        lacking = [name for name in given if TABLE[name].needs == need and need not in given]
        if lacking:
            raise ConfigError(f"{flags(lacking)}: {message}")


def conflicting(names: Collection[str]) -> list[str]:
    """Return the options that one of these excludes."""
    pairs = [pair for one, other, _ in CONFLICTS for pair in ((one, other), (other, one))]
    return [other for one, other in pairs if one in names]


def check_conflicts(options: TrainOptions) -> None:
    """Reject options that exclude each other.

    Raises:
        ConfigError: naming the first pair.
    """
    given = options.given()
    for one, other, reason in CONFLICTS:
        if one in given and other in given:
            raise ConfigError(f"{flags([one, other])}: {reason}; leave one out")


def check_source_options(options: TrainOptions) -> None:
    """Reject options that do not apply to logged data, or to several seeds on logged data."""
    given = options.given()
    if options.dataset is None:
        return
    online = [name for name in given if TABLE[name].online]
    if online:
        raise ConfigError(f"{flags(online)}: for training in environments only; leave out with --dataset")
    single = [name for name in given if TABLE[name].single_seed] if options.seeds is not None else []
    for reason in dict.fromkeys(TABLE[name].single_seed for name in single):
        names = [name for name in single if TABLE[name].single_seed == reason]
        raise ConfigError(f"{flags(names)}: not with --seeds, {reason}; leave one out")


# -- the command -------------------------------------------------------------------------------------------------------


class GroupedCommand(TyperCommand):
    """Lists its options under the headings that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if param.param_type_name == "argument" else "Other options"
                sections.setdefault(getattr(param, "rich_help_panel", None) or default, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes ``options: TrainOptions`` a parameter for each row of the table.

    Its other parameters stay. Typer reads them all from the signature.
    """
    own = inspect.signature(command, eval_str=True).parameters
    hints = typing.get_type_hints(TrainOptions)
    parameters = [each for name, each in own.items() if name != "options"]
    for field in dataclasses.fields(TrainOptions):
        default = _typer_option(field.name, field.default)
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(field.name, keyword, default=default, annotation=hints[field.name]))

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        options = TrainOptions(**{name: values.pop(name) for name in TABLE})
        command(**values, options=options)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapper


def _typer_option(name: str, default: object) -> object:
    row = TABLE[name]
    return typer.Option(
        default,
        flags([name]),
        help=f"{row.help}  [default: {row.default}]" if row.default else row.help,
        metavar=row.metavar,
        min=row.min,
        max=row.max,
        parser=row.parser,
        rich_help_panel=str(row.group),
    )
