"""``birl train``: train from logged data or in an environment; the same command again goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from birl.algorithm import Algorithm
from birl.algorithm.multi_seed import check_many, fit_many
from birl.cli.common import algorithm_class, flags, import_own, load_dataset, note
from birl.cli.default_scalers import action_scaler
from birl.cli.evaluate import acting_algorithm, check_target
from birl.cli.initial_model import begin_with, check_initial, initial_model
from birl.cli.online import (
    EXPLORATION,
    cluster_of,
    collector_environment,
    drawing_sampler,
    exploration,
    prioritized_sampler,
    replay_buffer,
    training_environment,
    with_defaults,
)
from birl.cli.options import Device, Import, TargetReturn
from birl.cli.overrides import configure, seeds_of
from birl.cli.run_folder import RunFolder
from birl.cli.run_processes import words_of
from birl.cli.sweep import train_seeds
from birl.cli.train_options import (
    ActionMasked,
    Address,
    AtariGame,
    BufferSize,
    CollectorOrder,
    Collectors,
    ConstantEpsilon,
    Demonstrations,
    EpochLength,
    EpsilonDecay,
    EpsilonEnd,
    EpsilonStart,
    EpsilonSteps,
    EvalEpsilon,
    EvalStatistics,
    EvalSteps,
    ExplorerKind,
    FragmentLength,
    FrameStacked,
    GradientsOf,
    Hindsight,
    HindsightShare,
    KeepModels,
    LoggingSteps,
    LogGradients,
    MultiStep,
    NoiseStd,
    NoiseTheta,
    NumEnvs,
    NUpdates,
    OnError,
    Prioritized,
    PriorityAlpha,
    PriorityBeta,
    RandomSteps,
    Recent,
    RecipeName,
    ReplayShards,
    Shift,
    StopAt,
    SynchronousLearners,
    Temperature,
    Trials,
    UpdateInterval,
    WholeEpisodes,
    Workers,
)
from birl.dataset import MultiStepTransitionPicker
from birl.engine.train_state import no_errors
from birl.envs import Stepper
from birl.errors import ConfigError
from birl.logging import LoggingStrategy
from birl.metrics import EnvironmentEvaluator
from birl.recipes import Recipe, find
from birl.run.checkpoint import checkpoint_step, preserve_random_state
from birl.seeding import seed as set_seed

_STEPS = 50_000
_EVALUATION = {name: name for name in ("eval_epsilon", "eval_statistics", "workers")} | {"eval_steps": "eval_n_steps"}


def train(
    context: typer.Context,
    algo: Annotated[
        str, typer.Argument(metavar="ALGO", help="Name of an algorithm (see `birl algos`), or module:Class of yours.")
    ],
    more: Annotated[list[str] | None, typer.Argument(metavar="FIELD=VALUE", help="Settings, as with --set.")] = None,
    n_steps: Annotated[
        int | None,
        typer.Option(min=1, help=f"Updates (offline) or environment steps (online).  [default: {_STEPS}]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run folder: models, metrics, checkpoint; by default runs/ALGO-DATA-seedN."),
    ] = None,
    dataset: Annotated[str | None, typer.Option(metavar="NAME|FILE.h5|DIR", help="Logged data to train from.")] = None,
    env_id: Annotated[
        str | None,
        typer.Option(help="Environment to train in; with --dataset, to evaluate in. Gymnasium id or module:factory."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of everything random.")] = 0,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N|S1,S2,…",
            help="Train N seeds (0, 1, …), or the listed ones, each as if alone, in DIR/seed_<seed>: from logged data "
            "all at once, in environments each in a process, see --jobs.",
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Online, of --seeds: runs at once; each has --collectors of its own.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE …", help="Hyper-parameters: gamma=0.9, q_func_factory=qr, …"),
    ] = None,
    device: Device = "cpu",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over: the run in DIR is removed.")] = False,
    extend: Annotated[
        bool, typer.Option("--extend", help="Go on with the run in DIR: a larger --n-steps, another --stop-at.")
    ] = False,
    init_from: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Begin with the networks and settings of a model or run of this ALGO."),
    ] = None,
    n_steps_per_epoch: EpochLength = None,
    n_trials: Trials = None,
    stop_at: StopAt = None,
    keep_models: KeepModels = None,
    target_return: TargetReturn = None,
    multi_step: MultiStep = None,
    prioritized: Prioritized = False,
    priority_alpha: PriorityAlpha = None,
    priority_beta: PriorityBeta = None,
    demonstrations: Demonstrations = None,
    num_envs: NumEnvs = None,
    frame_stack: FrameStacked = None,
    action_mask: ActionMasked = False,
    explorer: ExplorerKind = None,
    epsilon_start: EpsilonStart = None,
    epsilon_end: EpsilonEnd = None,
    epsilon_steps: EpsilonSteps = None,
    epsilon_decay: EpsilonDecay = None,
    epsilon: ConstantEpsilon = None,
    temperature: Temperature = None,
    noise_std: NoiseStd = None,
    noise_theta: NoiseTheta = None,
    random_steps: RandomSteps = None,
    buffer_size: BufferSize = None,
    whole_episodes: WholeEpisodes = False,
    recent: Recent = None,
    hindsight: Hindsight = None,
    hindsight_k: HindsightShare = None,
    random_shift: Shift = None,
    update_interval: UpdateInterval = None,
    n_updates: NUpdates = None,
    logging_steps: LoggingSteps = None,
    log_gradients: LogGradients = False,
    eval_steps: EvalSteps = None,
    eval_epsilon: EvalEpsilon = None,
    eval_statistics: EvalStatistics = False,
    workers: Workers = None,
    collectors: Collectors = None,
    order: CollectorOrder = None,
    fragment: FragmentLength = None,
    on_error: OnError = None,
    address: Address = None,
    learners: SynchronousLearners = None,
    gradients: GradientsOf = None,
    shards: ReplayShards = None,
    atari: AtariGame = False,
    recipe: RecipeName = None,
    own: Import = None,
) -> None:
    """Train from logged data (--dataset) or in an environment (--env-id). Run it again to resume from DIR.

    Off-policy algorithms learn online from a buffer of their own steps: see --explorer and what follows it. On-policy
    ones (PPO) take none of that but --num-envs, --frame-stack, --action-mask and --workers; ACER and IMPALA take
    --buffer-size, too, NStepDQN an explorer.
    """
    asked = {name for name, value in locals().items() if value is not None and value is not False}
    if dataset is None and env_id is None:
        raise ConfigError("nothing to learn from: give --dataset NAME, FILE.h5 or DIR, or --env-id ID")
    if own is not None:
        import_own(own)
    algorithm = algorithm_class(algo)
    several = None if seeds is None else seeds_of(seeds, seed)
    if jobs is not None and (several is None or dataset is not None):
        raise ConfigError("--jobs: for --seeds in environments only; leave it out")
    if several is not None and dataset is None:
        place = _default_folder(algorithm, str(env_id), None) if out is None else out
        placed = address if collectors is None else None
        own_words = ("seeds", "seed", "out", "jobs", *(["address"] if placed else []))
        train_seeds(words_of(context, own_words), several, place, jobs or 1, placed, device)
        return
    made = None if recipe is None else _recipe(algorithm, recipe, dataset, init_from)
    published = {} if made is None else made.options
    if explorer is not None or epsilon is not None:  # another one than the recipe's
        published = {name: value for name, value in published.items() if name not in EXPLORATION}
    if n_trials is not None and eval_steps is not None:
        raise ConfigError("--n-trials and --eval-steps: both say how long evaluations are; leave one out")
    for instead, name in ((epsilon_decay, "epsilon_steps"), (n_trials, "eval_steps")):
        if instead is not None:
            published.pop(name, None)

    def given(**values: Any) -> dict[str, Any]:
        """Options that are given, by the user or the recipe. Only these: settings of older runs have no others."""
        found = {k: published.get(k) if value is None or value is False else value for k, value in values.items()}
        return {name: value for name, value in found.items() if value is not None}

    learning = given(update_interval=update_interval, n_updates=n_updates, buffer_size=buffer_size)
    learning |= given(whole_episodes=whole_episodes, recent=recent, random_shift=random_shift)
    learning |= given(hindsight=hindsight, hindsight_k=hindsight_k)
    explored = given(explorer=explorer, epsilon_start=epsilon_start, epsilon_end=epsilon_end)
    explored |= given(epsilon_steps=epsilon_steps, epsilon_decay=epsilon_decay, epsilon=epsilon)
    explored |= given(temperature=temperature, noise_std=noise_std, noise_theta=noise_theta)
    off_policy = {**learning, **given(random_steps=random_steps), **explored}
    looks = given(eval_steps=eval_steps, eval_epsilon=eval_epsilon, eval_statistics=eval_statistics, workers=workers)
    online = {**off_policy, **given(frame_stack=frame_stack, atari=atari, demonstrations=demonstrations), **looks}
    drawing = given(multi_step=multi_step, prioritized=prioritized)
    drawing |= given(priority_alpha=priority_alpha, priority_beta=priority_beta)
    fixed = {"n_steps": _STEPS, "num_envs": None, "n_trials": 10, "n_steps_per_epoch": None, **published}
    n_steps, num_envs = n_steps or fixed["n_steps"], num_envs or fixed["num_envs"]
    n_trials, n_steps_per_epoch = n_trials or fixed["n_trials"], n_steps_per_epoch or fixed["n_steps_per_epoch"]
    frame_stack, atari, multi_step = online.get("frame_stack"), online.get("atari", False), drawing.get("multi_step")
    made_by = given(collectors=collectors, order=order, fragment=fragment)
    made_by |= given(learners=learners, gradients=gradients, shards=shards)
    cluster = cluster_of(made_by | given(on_error=on_error, address=address), num_envs)
    online |= made_by
    online_only = [*([] if num_envs is None else ["num_envs"]), *online]
    if dataset is not None and online_only:
        raise ConfigError(f"{flags(online_only)}: for training in environments only; leave out with --dataset")
    logging = _logging(logging_steps, log_gradients, seeds)
    ends = {"stop_at": stop_at, "keep_models": keep_models}
    ends = {name: value for name, value in ends.items() if value is not None}
    if ends and seeds is not None:
        raise ConfigError(f"{flags(ends)}: not with --seeds, whose runs go on together to their end; leave one out")
    if stop_at is not None and env_id is None:
        raise ConfigError("--stop-at is about returns in an environment: give --env-id, too")
    if action_mask and env_id is None:
        raise ConfigError("--action-mask is about an environment: give --env-id, too, or leave it out")
    check_source(algorithm, dataset, demonstrations)
    unused = {**learning, **given(random_steps=random_steps), **drawing}
    unused |= {} if algorithm.learns_from.explored else explored
    replays = algorithm.learns_from.replays
    if replays and unused.pop("buffer_size", None) is not None and "workers" in looks:
        raise ConfigError("--buffer-size: not with --workers, each of which keeps its own share of a million steps")
    if algorithm.learns_from.on_policy and unused:
        raise ConfigError(
            f"{flags(unused)}: {algorithm.__name__} updates after each rollout, from what its policy did in it: leave "
            f"this out; --set {'rollout_length' if hasattr(algorithm.config_class, 'rollout_length') else 'n_episodes'}"
            "=… says how often"
        )
    if prioritized and not algorithm.learns_from.errors:
        raise no_errors(algorithm.__name__)
    if target_return is not None:
        check_target(algorithm, target_return)
    if extend and fresh:
        raise ConfigError("--extend goes on with the run that --fresh removes: leave one of them out")
    words = [*(set_ or []), *(more or [])]
    chosen = {word.split("=")[0].split(".")[0] for word in words}
    begun = None if init_from is None else initial_model(algorithm, init_from, several)
    out = _default_folder(algorithm, dataset or str(env_id), None if several else seed) if out is None else out
    folder = RunFolder(out, several)
    planned = n_steps if fresh else folder.planned_steps(n_steps, extend=extend)
    base = begun.config if begun is not None else None if made is None else made.config(planned)
    config = configure(algorithm, words, base)
    set_seed(seed)
    with _stopping(out):
        picker = MultiStepTransitionPicker(multi_step, config.gamma) if multi_step else None
        source = None if dataset is None else load_dataset(dataset, picker, prioritized_sampler(drawing, planned))
        shown = None if demonstrations is None else load_dataset(demonstrations)
        playing: Any = {"frame_stack": frame_stack or 1, "action_mask": action_mask, "atari": atari}
        abreast = num_envs if cluster is None else None  # else collectors have theirs
        env = None if env_id is None else training_environment(env_id, abreast, training=True, **playing)
        notes: list[str] = []
        if made is not None:  # what it sets, without what the user does
            asked |= chosen | made.options.keys() - published.keys()
            notes = [f"recipe {made.name}: {made.origin}", *made.lines(planned, asked)]
        if begun is None and source is None and made is None:
            config, online, why = with_defaults(config, chosen, env, online)
            notes.append(why)
        scaler, why = (None, "") if "action_scaler" in chosen or begun else action_scaler(algorithm, source, env)
        if scaler is not None:
            config = dataclasses.replace(config, action_scaler=scaler)
            notes.append(why)

        settings = {
            "algorithm": config.serialize(),
            "dataset": dataset,
            "env_id": env_id,
            "n_steps": n_steps,
            "n_steps_per_epoch": n_steps_per_epoch or min(10_000, max(1, planned // 10)),
            "seed": seed,
            "device": device,
            "num_envs": num_envs,
            "n_trials": n_trials,
            "target_return": target_return,
            **logging,
            **online,
            **drawing,
            **({"action_mask": True} if action_mask else {}),
            **({} if several is None else {"seeds": several}),
            **({} if recipe is None else {"recipe": recipe}),
            **({} if init_from is None else {"init_from": str(init_from)}),
            **({} if stop_at is None else {"stop_at": stop_at}),
        }
        learner = config.create(device)
        probe = config.create(device)
        _check(probe, source, env, target_return, shown)  # before anything is written
        if begun is not None:
            check_initial(probe, begun)
        if several is not None:
            check_many(probe)
        options: Any = {}
        lanes = None if cluster is None else cluster.lanes
        if source is None and algorithm.learns_from.explored:
            found, why = exploration(learner, env, planned, {**explored, "random_steps": 0})
            options["explorer"] = found["explorer"]
            notes.append(why)
        elif source is None and not algorithm.learns_from.on_policy:
            options, why = exploration(learner, env, planned, {**off_policy, **made_by})
            options |= {name: online[name] for name in ("update_interval", "n_updates") if name in online}
            each = online.get("n_updates", algorithm.learns_from.n_updates)
            updates = (planned - options["random_steps"]) // online.get("update_interval", 1) * each
            sampler = drawing_sampler(env, online, updates, prioritized_sampler(drawing, updates))
            options["buffer"] = replay_buffer(env, config, {**online, **drawing}, sampler, lanes)
            notes.append(why)
        if source is None and replays and learner.config.replay_ratio and "workers" not in looks:
            options["buffer"] = replay_buffer(env, config, online, lanes=lanes)
        resumed = folder.prepare(settings, planned, fresh=fresh, extend=extend)
        before = checkpoint_step(out) if resumed else 0
        going_on = f", resuming at step {before}" if resumed and before < n_steps else ""
        kind = f"from {dataset}" if dataset is not None else f"in {env_id}"
        which = f"seed {seed}" if several is None else f"seeds {', '.join(map(str, several))}"
        for text in filter(None, notes):
            note(text)
        note(f"{algorithm.__name__} {kind}, {n_steps} steps, {which} -> {out}{going_on}")
        options |= {
            "n_steps": n_steps,
            "n_steps_per_epoch": settings["n_steps_per_epoch"],
            "experiment_name": out.name,
            "with_timestamp": False,
            "logger_adapter": folder,
            "checkpoint": out,
            **logging,
        }
        if several is None:
            score = None if env is None else "environment" if source is not None else "evaluation"
            options |= {"score": score, "stop_at": stop_at, "keep_models": keep_models, "go_on": extend}
        if logging_steps is not None:
            options["logging_strategy"] = LoggingStrategy.STEPS
        if begun is not None:
            begin_with(learner, begun, source, env)
        if source is None:
            eval_env = training_environment(str(env_id), **playing)
            options |= {_EVALUATION[name]: value for name, value in looks.items()}
            options |= {"demonstrations": shown, "eval_env": eval_env, "eval_n_trials": n_trials}
            if cluster is not None:
                options["cluster"] = cluster
                env = partial(collector_environment, name=str(env_id), own=own, options=playing)
            learner.fit_online(env, seed=seed, **options)
        elif several is None:
            learner.fit(source, evaluators=_evaluators(env, seed, n_trials, target_return), **options)
        else:
            evaluators = partial(_evaluators, env, n_trials=n_trials, target_return=target_return)
            fit_many(config, source, seeds=several, device=device, evaluators=evaluators, **options)
        if resumed and checkpoint_step(out) == before:
            note("there was nothing left to do; --extend goes on with a larger --n-steps or another --stop-at")
        for line in folder.results():
            print(line)


def _recipe(algorithm: type[Algorithm[Any, Any]], name: str, dataset: str | None, init_from: Path | None) -> Recipe:
    """The recipe of ``--recipe``.

    Raises:
        ConfigError: if there is none, or it has no place.
    """
    if dataset is not None or init_from is not None:
        other = "--dataset" if dataset is not None else "--init-from"
        raise ConfigError(f"--recipe {name} is for new runs in an environment: leave it or {other} out")
    return find(algorithm.__name__, name)


def _default_folder(algorithm: type[Algorithm[Any, Any]], source: str, seed: int | None) -> Path:
    """``runs/DQN-CartPole-v1-seed0``."""
    name = Path(source).stem if source.endswith((".h5", ".hdf5")) else source
    words = [algorithm.__name__, re.sub(r"[^\w.-]+", "_", name), *([] if seed is None else [f"seed{seed}"])]
    return Path("runs", "-".join(words))


def _logging(steps: int | None, gradients: bool, seeds: str | None) -> dict[str, Any]:
    """Logging settings that differ from the defaults."""
    given = {"logging_steps": steps, "log_gradients": gradients or None}
    given = {name: value for name, value in given.items() if value is not None}
    if given and seeds is not None:
        raise ConfigError(f"{flags(given)}: not with --seeds, whose runs are logged once an epoch; leave one out")
    return given


@contextlib.contextmanager
def _stopping(out: Path) -> Iterator[None]:
    """Say after Ctrl-C or SIGTERM whether the run can be resumed."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if checkpoint_step(out):
            note(f"stopped; give the same command again to resume from {out}")
        else:
            note("stopped before the first step: there is nothing to go on from; the same command starts again")
        raise


def _check(probe: Algorithm[Any, Any], source: Any, env: Any, target_return: float | None, shown: Any = None) -> None:
    """Check that algorithm, data and environment fit together, on an algorithm that is thrown away.

    The global random state is restored.
    """
    with preserve_random_state():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are given when the run begins
            if source is not None:
                probe.build_with_dataset(source)
            else:
                probe.build_with_env(env)
                if shown is not None:
                    probe.build_with_dataset(shown)
            if env is not None:
                probe.check_env(env)
        if env is not None:
            if source is not None:
                acting_algorithm(probe, target_return)
            generator = np.random.Generator(np.random.PCG64(0))
            stepper = Stepper(env, generator, observations=probe.spec.observations)
            stepper.step(stepper.actions.sample(stepper.n, generator))


def check_source(algorithm: type[Algorithm[Any, Any]], dataset: str | None, shown: str | None) -> None:
    """Reject algorithms that cannot learn from this source."""
    name = algorithm.__name__
    if not algorithm.learns_from.loops:
        raise ConfigError(f"{name} does not learn: `birl algos` lists those that do")
    if dataset is not None and "fit" not in algorithm.learns_from.loops:
        raise ConfigError(f"{name} learns in an environment only: give --env-id ID and leave out --dataset {dataset}")
    if dataset is None and "fit_online" not in algorithm.learns_from.loops:
        raise ConfigError(f"{name} learns from logged data only: give --dataset NAME, FILE.h5 or DIR, too")
    if algorithm.learns_from.demonstrated != (shown is not None):
        needs = "imitates an expert: give --demonstrations NAME or FILE.h5" if shown is None else "takes no"
        raise ConfigError(f"{name} {needs}{'' if shown is None else ' --demonstrations, which are for GAIL'}")


def _evaluators(env: Any, seed: int, n_trials: int, target_return: float | None) -> dict[str, Any]:
    """The evaluator of training from logged data, if there is an environment for it."""
    if env is None:
        return {}
    evaluator = EnvironmentEvaluator(env, n_trials, seed=seed)
    return {"environment": lambda algorithm, _: evaluator(acting_algorithm(algorithm, target_return))}
