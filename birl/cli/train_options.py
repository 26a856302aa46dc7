"""The options of ``birl train``: one table, from which its command, help, checks and calls are derived.

A new option is one field of `TrainOptions`: its name, help, where it is refused, and whether the run stores it. If
`Option.feeds` names a call, the option's value is passed to it; otherwise ``cli/train.py`` or ``cli/online.py`` reads
the value where it sets up the run. ``tests/cli/test_option_effects.py`` needs a row that shows the option's effect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, ParamSpec

import typer
from typer.core import TyperCommand

from birl.cli.common import between, flags
from birl.errors import ConfigError
from birl.run.cluster import AUTO

BUFFER_SIZE: Final = 1_000_000
N_STEPS: Final = 50_000
N_TRIALS: Final = 10


class ExplorerName(StrEnum):
    """Ways to choose actions for exploration."""

    EPSILON_GREEDY = "epsilon-greedy"
    EPSILON_LADDER = "epsilon-ladder"
    BOLTZMANN = "boltzmann"
    NOISE = "noise"
    OU_NOISE = "ou-noise"
    GREEDY = "greedy"
    NONE = "none"


class Order(StrEnum):
    """Orders in which a `birl.Cluster` takes the fragments of its collectors."""

    TOGETHER = "together"
    TURNS = "turns"
    ARRIVAL = "arrival"


class Gradients(StrEnum):
    """Ways in which the learners of a `birl.Cluster` combine their gradients."""

    TOGETHER = "together"
    PUSHED = "pushed"


class ErrorAction(StrEnum):
    """Reactions of a `birl.Cluster` to an error of an environment."""

    STOP = "stop"
    RESTART = "restart"


class HindsightGoals(StrEnum):
    """Sources of the goals of `birl.dataset.HindsightSampler`."""

    FUTURE = "future"
    FINAL = "final"
    EPISODE = "episode"


class PriorityVariant(StrEnum):
    """Variants of `birl.dataset.PrioritizedSampler`."""

    PROPORTIONAL = "proportional"
    RANK_BASED = "rank_based"


class Direction(StrEnum):
    """Whether higher or lower scores are better."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"


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
"""Options that others need, and the message if they are missing."""

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
        value: default value; ``None`` and ``False`` stand for options that are not given.
        default: description of the default in the help, for an option that is ``None``.
        metavar: placeholder of the value in the help.
        min, max: bounds of numbers.
        above, below: bounds that are not allowed themselves.
        parser: turns the word of the command line into the value.
        feeds: the call that takes the value as it is, and its parameter if it has another name than the option:
            ``"fit"`` (`Algorithm.fit` and `Algorithm.fit_online`), ``"fit_online.eval_n_trials"``, ``"Cluster"``,
            ``"PrioritizedSampler.alpha"``.
        online: whether it applies only to training in an environment.
        replays: whether only algorithms that replay single steps use it.
        explorers: the explorers that use it.
        needs: the option without which it has no effect; a key of `NEEDS`.
        single_seed: reason why it cannot be combined with ``--seeds`` on logged data.
        saved: whether it is a setting of the run, which must be the same when the run is resumed.
    """

    help: str
    group: Group
    value: bool | int | str | None = None
    default: str = ""
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None
    parser: Callable[[str], object] | None = None
    feeds: str = ""
    online: bool = False
    replays: bool = False
    explorers: tuple[ExplorerName, ...] = ()
    needs: str = ""
    single_seed: str = ""
    saved: bool = True


P = ParamSpec("P")


def _declares(row: Callable[P, Option]) -> Callable[P, Any]:
    """Return a function that declares a field of `TrainOptions` with its row of the table."""

    def declare(*args: P.args, **kwargs: P.kwargs) -> Any:
        option = row(*args, **kwargs)
        return dataclasses.field(default=option.value, metadata={"option": option})

    return declare


_option: Final = _declares(Option)
_run: Final = partial(_option, group=Group.RUN)
_schedule: Final = partial(_option, group=Group.SCHEDULE)
_evaluation: Final = partial(_schedule, online=True, feeds="fit_online")
_environment: Final = partial(_option, group=Group.ENVIRONMENT, online=True)
_explore: Final = partial(_option, group=Group.EXPLORATION, online=True, replays=True)
_replay: Final = partial(_option, group=Group.REPLAY, online=True, replays=True)
_priority: Final = partial(_replay, online=False, needs="prioritized")
_priority_share: Final = partial(_priority, min=0)
_process: Final = partial(_option, group=Group.PROCESSES, online=True)
_collect: Final = partial(_process, needs="collectors", feeds="Cluster")


def _fragment(word: str) -> int | str:
    """Parse a number of steps, or ``auto``."""
    return word if word == AUTO else int(word)


_ONCE_AN_EPOCH: Final = "whose runs are logged once an epoch"
_TO_THE_END: Final = "whose runs are trained together to their end"
_EPSILON_GREEDY: Final = (ExplorerName.EPSILON_GREEDY,)


@dataclass(frozen=True)
class TrainOptions:
    """The options of one ``birl train`` command. ``None`` and ``False`` stand for options that are not given."""

    n_steps: int | None = _run(
        "Number of updates (offline) or environment steps (online).", default=str(N_STEPS), min=1, feeds="fit"
    )
    out: Path | None = _run(
        "Run folder: models, metrics, checkpoint.", default="runs/ALGO-DATA-seedN", metavar="DIR", saved=False
    )
    dataset: str | None = _run("Logged data to train from.", metavar="NAME|FILE.h5|DIR")
    env_id: str | None = _run(
        "Environment to train in; with --dataset, to evaluate in. Gymnasium id or module:factory."
    )
    seed: int = _run("Random seed.", value=0, min=0, max=2**32 - 1, feeds="fit_online")
    seeds: str | None = _run(
        "Train N seeds (0, 1, …), or the listed ones, in DIR/seed_<seed>. Each ends as it would alone. On logged data "
        "all train in one process and save no best models; in environments each has its own process, see --jobs.",
        metavar="N|S1,S2,…",
    )
    jobs: int | None = _run(
        "With --seeds in environments: number of runs at the same time. Each has its own --collectors.",
        min=1,
        saved=False,
    )
    set_: list[str] | None = _run(
        "Hyper-parameters: gamma=0.9, q_func_factory=qr, …", metavar="FIELD=VALUE …", saved=False
    )
    recipe: str | None = _run(
        "Published settings, printed with their sources. Options and fields that you set take precedence. See "
        "birl.recipes.",
        metavar="NAME",
    )
    device: str = _run("cpu, cuda, cuda:1, …", value="cpu")
    fresh: bool = _run("Remove the run in DIR and start again.", value=False, saved=False)
    extend: bool = _run(
        "Continue the run in DIR with a larger --n-steps or another --stop-at.",
        value=False,
        saved=False,
        feeds="fit.go_on",
    )
    init_from: Path | None = _run(
        "Start with the networks and settings of a model or run of the same ALGO.", metavar="MODEL"
    )
    import_: str | None = _run(
        "Module in this folder (or installed) that defines your own encoders, algorithms and other classes that "
        "settings or models name.",
        metavar="MODULE",
        saved=False,
    )
    n_steps_per_epoch: int | None = _schedule(
        "Steps between evaluations and saved models.", default="a tenth of --n-steps, at most 10000", min=1, feeds="fit"
    )
    n_trials: int | None = _schedule(
        "Episodes of each evaluation.",
        default=str(N_TRIALS),
        min=1,
        needs="env_id",
        feeds="fit_online.eval_n_trials",
    )
    eval_steps: int | None = _evaluation(
        "Online: steps of each evaluation, instead of --n-trials episodes.", min=1, feeds="fit_online.eval_n_steps"
    )
    eval_epsilon: float | None = _evaluation(
        "Online: share of random actions in evaluations.", default="0", min=0, max=1
    )
    eval_statistics: bool = _evaluation(
        "Online: also log the median, standard deviation, minimum and maximum of the returns of evaluations.",
        value=False,
    )
    eval_sample: bool = _evaluation(
        "Online: sample the policy's actions in evaluations instead of taking the greedy ones.", value=False
    )
    target_return: float | None = _schedule("Return that a sequence model aims at in evaluations.", needs="env_id")
    stop_at: float | None = _schedule(
        "Stop as soon as the mean return of an evaluation, or the metric --score, reaches this value.",
        metavar="SCORE",
        needs="env_id",
        single_seed=_TO_THE_END,
        feeds="fit",
    )
    score: str | None = _schedule(
        "Metric that ranks models, such as evaluation_success_rate or rollout_return.",
        default="evaluation; environment with --dataset",
        metavar="METRIC",
        needs="env_id",
        single_seed=_TO_THE_END,
        feeds="fit",
    )
    score_direction: Direction | None = _schedule(
        "Whether higher or lower scores are better.",
        default="minimize if the name has a word such as error, loss or cost, else maximize",
        needs="env_id",
        single_seed=_TO_THE_END,
        feeds="fit",
    )
    no_best: bool = _schedule(
        "Do not save the best model; several --seeds on logged data never do.",
        value=False,
        needs="env_id",
        single_seed=_TO_THE_END,
        saved=False,
    )
    keep_models: int | None = _schedule(
        "Number of newest models to keep, in addition to the best one.",
        default="all",
        min=1,
        single_seed=_TO_THE_END,
        saved=False,
        feeds="fit",
    )
    logging_steps: int | None = _schedule(
        "Log metrics at this interval of steps, too, not only once an epoch.",
        min=1,
        single_seed=_ONCE_AN_EPOCH,
        feeds="fit",
    )
    log_gradients: bool = _schedule(
        "Log statistics of the gradients of every parameter, too.", value=False, single_seed=_ONCE_AN_EPOCH, feeds="fit"
    )
    num_envs: int | None = _environment(
        "Online: number of environments to train in at the same time.", default="1", min=1, feeds="Cluster.environments"
    )
    frame_stack: int | None = _environment(
        "Online: number of last observations that are stacked to one.", default="1", min=1
    )
    action_mask: bool = _environment(
        "Take only actions that the environment allows in info[action_mask].", value=False, online=False, needs="env_id"
    )
    atari: bool = _environment(
        "Online: the usual preprocessing of Atari games: grey frames of 84x84, four steps per action, no sticky "
        "actions; in training, clipped rewards and an episode per life.",
        value=False,
    )
    demonstrations: str | None = _environment(
        "Online, for GAIL: an expert's steps, such as `birl collect` writes.", metavar="NAME|FILE.h5"
    )
    explorer: ExplorerName | None = _explore(
        "How actions for exploration are chosen.",
        default="epsilon-greedy (discrete actions) or noise (continuous); none for policies such as SAC's",
        explorers=tuple(ExplorerName),
    )
    epsilon_start: float | None = _explore(
        "Initial share of random actions.", default="1", min=0, max=1, explorers=_EPSILON_GREEDY
    )
    epsilon_end: float | None = _explore(
        "Final share of random actions.", default="0.05", min=0, max=1, explorers=_EPSILON_GREEDY
    )
    epsilon_steps: int | None = _explore(
        "Steps from the initial to the final share.", default="a fifth of --n-steps", min=1, explorers=_EPSILON_GREEDY
    )
    epsilon_decay: float | None = _explore(
        "Factor by which the share falls in each step, instead of linearly.", above=0, max=1, explorers=_EPSILON_GREEDY
    )
    epsilon: float | None = _explore("Constant share of random actions.", min=0, max=1, explorers=_EPSILON_GREEDY)
    temperature: float | None = _explore(
        "With --explorer boltzmann: temperature of the softmax, in units of returns.",
        default="1",
        above=0,
        explorers=(ExplorerName.BOLTZMANN,),
    )
    noise_std: str | None = _explore(
        "Standard deviation of the noise (with ou-noise, per step), in units of the environment's actions: one "
        "number, or one per dimension.",
        default="a 20th of the range; a 10th for ou-noise",
        metavar="X[,Y…]",
        explorers=(ExplorerName.NOISE, ExplorerName.OU_NOISE),
    )
    noise_theta: float | None = _explore(
        "With --explorer ou-noise: rate at which the noise returns to 0.",
        default="0.15",
        above=0,
        max=1,
        explorers=(ExplorerName.OU_NOISE,),
    )
    random_steps: int | None = _explore(
        "Steps with random actions before the first update.", default="a tenth of --n-steps, at most 1000", min=0
    )
    update_interval: int | None = _replay(
        "Online: environment steps between updates. AWR's updates are long; 2048 is usual for it.",
        default="1; 2 for DQN and its variants",
        min=1,
        feeds="fit_online",
    )
    n_updates: int | None = _replay(
        "Online: number of updates after every --update-interval steps.",
        default="1; 20 for REDQ and DroQ",
        min=1,
        feeds="fit_online",
    )
    buffer_size: int | None = _replay(
        "Online: capacity of the replay buffer, in steps.", default=str(BUFFER_SIZE), min=1
    )
    whole_episodes: bool = _replay("Online: keep and remove whole episodes, not single steps.", value=False)
    multi_step: int | None = _replay("Length of n-step returns.", default="1", min=1, online=False)
    prioritized: bool = _replay(
        "Prioritised replay: sample steps by their TD errors, not uniformly.", value=False, online=False
    )
    priority_variant: PriorityVariant | None = _priority(
        "Whether steps are sampled in proportion to their TD errors or by the ranks of these.",
        default="proportional",
        feeds="PrioritizedSampler.variant",
    )
    priority_alpha: float | None = _priority_share(
        "Exponent of the priorities or ranks; 0 is uniform.", default="0.6", max=1, feeds="PrioritizedSampler.alpha"
    )
    priority_beta: float | None = _priority_share(
        "Initial exponent of the importance weights, annealed to 1.",
        default="0.4",
        max=1,
        feeds="PrioritizedSampler.beta",
    )
    priority_uniform: float | None = _priority_share(
        "Share of steps that are sampled uniformly.", default="0", below=1, feeds="PrioritizedSampler.uniform_ratio"
    )
    recent: float | None = _replay(
        "Online: sample recent steps more often (ERE). Lower values prefer them more; 0.996 is usual. The value is "
        "annealed to 1, which is uniform, over the run.",
        metavar="ETA",
        above=0,
        max=1,
    )
    hindsight: HindsightGoals | None = _replay(
        "Online: hindsight experience replay (HER): relabel goals with those that the same episode achieved after the "
        "step, at its end, or at any time. For environments with compute_reward, such as GoalEnv."
    )
    hindsight_k: float | None = _replay(
        "Relabelled steps for each step with its own goal.", default="4", metavar="K", above=0, needs="hindsight"
    )
    random_shift: int | None = _replay(
        "Online: shift the images of minibatches at random by up to this many pixels (DrQ); 4 is usual.",
        metavar="PIXELS",
        min=1,
    )
    workers: int | None = _process(
        "Processes that compute gradients, each in its own environments (A3C, NStepDQN).", min=1, feeds="fit_online"
    )
    collectors: int | None = _process(
        "Processes that step --num-envs environments each, while this process learns. See birl.Cluster.",
        min=1,
        feeds="Cluster",
    )
    order: Order | None = _collect(
        "With --collectors: take one fragment from each collector, then update; take fragments from the collectors in "
        "turn; or take them as they arrive, which is not reproducible.",
        default="turns; together for algorithms that learn from rollouts",
    )
    fragment: str | None = _collect(
        "With --collectors: number of steps of an environment that are sent together; auto measures a good number.",
        default="50",
        metavar="STEPS|auto",
        parser=_fragment,
    )
    on_error: ErrorAction | None = _collect(
        "With --collectors: after an error of an environment, stop the run or restart the environment.",
        default="stop",
        saved=False,
    )
    address: str | None = _collect(
        "With --collectors, or with --seeds: Ray cluster that starts the processes; auto finds it, local is this "
        "machine.",
        metavar="ADDRESS",
        saved=False,
    )
    learners: int | None = _collect(
        "With --collectors: number of processes that learn, each from its own share of the steps. This process is one "
        "of them.",
        min=1,
    )
    gradients: Gradients | None = _collect(
        "With --learners: average gradients in each update, or push them to this process one after another.",
        default="together",
    )
    shards: int | None = _collect(
        "With --collectors: number of processes that hold the replay buffer and sample minibatches.", min=0
    )

    def given(self, *names: str) -> dict[str, Any]:
        """Return the options that are given, or those among ``names``, with their values, in the order of the table."""
        values = {name: getattr(self, name) for name in (names or TABLE)}
        return {name: value for name, value in values.items() if value is not None and value is not False}

    def feeding(self, *calls: str) -> dict[str, Any]:
        """Return the given arguments of these calls (see `Option.feeds`), by the names of their parameters."""
        arguments: dict[str, Any] = {}
        for name, value in self.given().items():
            call, _, parameter = TABLE[name].feeds.partition(".")
            if call in calls:
                arguments[parameter or name] = str(value) if isinstance(value, StrEnum) else value
        return arguments

    def settings(self) -> dict[str, Any]:
        """Return the options that must be the same when the run is resumed."""
        return {name: value for name, value in self.given().items() if TABLE[name].saved}


TABLE: Final[Mapping[str, Option]] = {row.name: row.metadata["option"] for row in dataclasses.fields(TrainOptions)}
"""The rows by the names of their fields."""

EXPLORATION: Final = tuple(name for name, row in TABLE.items() if row.explorers)
"""Options of explorers."""


def check_needs(options: TrainOptions) -> None:
    """Reject options that have no effect without another one.

    Raises:
        ConfigError: if there are any; the message names all that lack the same option.
    """
    given = options.given()
    for need, message in NEEDS.items():
        lacking = [name for name in given if TABLE[name].needs == need and need not in given]
        if lacking:
            raise ConfigError(f"{flags(lacking)}: {message}")


def conflicting(names: Collection[str]) -> list[str]:
    """Return the options that conflict with one of these."""
    pairs = [pair for one, other, _ in CONFLICTS for pair in ((one, other), (other, one))]
    return [other for one, other in pairs if one in names]


def check_conflicts(options: TrainOptions) -> None:
    """Reject options that exclude each other.

    Raises:
        ConfigError: if there is such a pair; the message names the first one.
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
    """Command whose help lists the options under their headings."""

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


def typer_option(field: dataclasses.Field[Any]) -> object:
    """Return typer's form of a field of `TrainOptions`."""
    row = TABLE[field.name]
    return typer.Option(
        field.default,
        flags([field.name]),
        help=f"{row.help}  [default: {row.default}]" if row.default else row.help,
        metavar=row.metavar,
        min=row.min,
        max=row.max,
        callback=between(above=row.above, below=row.below),
        parser=row.parser,
        rich_help_panel=str(row.group),
    )
