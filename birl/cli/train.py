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

from birl.actions import actions_of
from birl.algorithm import Algorithm
from birl.algorithm.population import check_many, checked_seeds, fit_many
from birl.cli.common import algorithm_class, flags, import_own, load_dataset, load_model, note
from birl.cli.evaluate import acting_algorithm, check_target
from birl.cli.folder import RunFolder
from birl.cli.online import (
    BUFFER_SIZE,
    ExplorerName,
    exploration,
    prioritized_sampler,
    replay_buffer,
    training_environment,
    with_defaults,
)
from birl.cli.options import Device, Import
from birl.cli.settings import configure
from birl.dataset import MultiStepTransitionPicker
from birl.envs import Stepper, single_spaces
from birl.errors import ConfigError, CorruptFileError
from birl.logging import LoggingStrategy
from birl.metrics import EnvironmentEvaluator
from birl.preprocessing import MinMaxActionScaler
from birl.run.checkpoint import checkpoint_step, randomness_kept
from birl.seeding import seed as set_seed
from birl.types import ActionSpace, Array

_MOST_SEEDS = 1000
_STEPS = 50_000


def train(
    algo: Annotated[
        str, typer.Argument(metavar="ALGO", help="Name of an algorithm (see `birl algos`), or module:Class of yours.")
    ],
    more: Annotated[list[str] | None, typer.Argument(metavar="FIELD=VALUE", help="Settings, as with --set.")] = None,
    n_steps: Annotated[int, typer.Option(min=1, help="Updates (offline) or environment steps (online).")] = _STEPS,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run folder: models, metrics, checkpoint; by default runs/ALGO-DATA-seedN."),
    ] = None,
    dataset: Annotated[str | None, typer.Option(metavar="NAME|FILE.h5", help="Logged data to train from.")] = None,
    env_id: Annotated[
        str | None,
        typer.Option(help="Environment to train in; with --dataset, to evaluate in. Gymnasium id or module:factory."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of everything random.")] = 0,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N|S1,S2,…",
            help="Train N seeds (0, 1, …), or the listed ones, at once: each as if alone, in DIR/seed_<seed>.",
        ),
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
    n_steps_per_epoch: Annotated[
        int | None, typer.Option(min=1, help="Steps between evaluations and models; by default a tenth, at most 10000.")
    ] = None,
    n_trials: Annotated[int, typer.Option(min=1, help="Episodes of each evaluation.")] = 10,
    stop_at: Annotated[
        float | None, typer.Option(metavar="SCORE", help="End the run when an evaluation's mean return is as high.")
    ] = None,
    keep_models: Annotated[
        int | None, typer.Option(min=1, help="Number of newest models kept beside the best; by default all.")
    ] = None,
    target_return: Annotated[
        float | None, typer.Option(help="Return that a sequence model aims at in evaluations.")
    ] = None,
    multi_step: Annotated[
        int | None, typer.Option(min=1, help="Steps whose rewards a transition adds up (n-step returns).  [default: 1]")
    ] = None,
    prioritized: Annotated[
        bool, typer.Option("--prioritized", help="Draw steps by their errors (prioritised replay), not uniformly.")
    ] = False,
    priority_alpha: Annotated[
        float | None, typer.Option(min=0, max=1, help="How much errors count; 0 is uniform.  [default: 0.6]")
    ] = None,
    priority_beta: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Share of the bias that is corrected at first; it rises to 1.  [default: 0.4]"
        ),
    ] = None,
    num_envs: Annotated[
        int | None, typer.Option(min=1, help="Online: number of environments to train in at once.  [default: 1]")
    ] = None,
    frame_stack: Annotated[
        int | None, typer.Option(min=1, help="Online: last observations that are joined to one.  [default: 1]")
    ] = None,
    action_mask: Annotated[
        bool,
        typer.Option(
            "--action-mask", help="Take only actions that the environment allows by its masks, info[action_mask]."
        ),
    ] = False,
    explorer: Annotated[
        ExplorerName | None,
        typer.Option(
            help="Online: random or noisy actions instead of the greedy ones; by default epsilon-greedy (discrete) or "
            "noise (continuous actions), and none for policies that are random themselves, such as SAC's."
        ),
    ] = None,
    epsilon_start: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of random actions at first.  [default: 1]")
    ] = None,
    epsilon_end: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of random actions in the end.  [default: 0.05]")
    ] = None,
    epsilon_steps: Annotated[
        int | None, typer.Option(min=1, help="Steps between these two.  [default: a fifth of --n-steps]")
    ] = None,
    noise_std: Annotated[
        float | None,
        typer.Option(min=0, help="Deviation of the noise, in the environment's units.  [default: a 20th of the range]"),
    ] = None,
    random_steps: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Online: steps with random actions before the first update.  [default: a tenth of --n-steps, at most "
            "1000]",
        ),
    ] = None,
    buffer_size: Annotated[
        int | None, typer.Option(min=1, help=f"Online: newest steps that are kept.  [default: {BUFFER_SIZE}]")
    ] = None,
    update_interval: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Online: steps between updates; for AWR some 2048, as an update takes long.  [default: 1; 2 for "
            "DQN and its kind]",
        ),
    ] = None,
    n_updates: Annotated[
        int | None,
        typer.Option(
            min=1, help="Online: updates after every --update-interval steps.  [default: 1; 20 for REDQ and DroQ]"
        ),
    ] = None,
    logging_steps: Annotated[
        int | None, typer.Option(min=1, help="Write metrics every so many steps, not only once an epoch.")
    ] = None,
    log_gradients: Annotated[
        bool, typer.Option("--log-gradients", help="Write statistics of the gradients of every parameter, too.")
    ] = False,
    own: Import = None,
) -> None:
    """Train from logged data (--dataset) or in an environment (--env-id). Run it again to resume from DIR.

    Off-policy algorithms learn online from a buffer of their own steps: see --explorer and what follows it. On-policy
    ones (PPO) take none of that but --num-envs, --frame-stack and --action-mask.
    """
    if dataset is None and env_id is None:
        raise ConfigError("nothing to learn from: give --dataset NAME or FILE.h5, or --env-id ID")
    learning: dict[str, Any] = {"update_interval": update_interval, "n_updates": n_updates, "buffer_size": buffer_size}
    learning |= {"random_steps": random_steps, "explorer": explorer, "epsilon_start": epsilon_start}
    learning |= {"epsilon_end": epsilon_end, "epsilon_steps": epsilon_steps, "noise_std": noise_std}
    # Only what is given: settings of older runs have none.
    off_policy = {name: value for name, value in learning.items() if value is not None}
    online = {**off_policy, **({} if frame_stack is None else {"frame_stack": frame_stack})}
    drawing: dict[str, Any] = {"multi_step": multi_step, "prioritized": prioritized or None}
    drawing |= {"priority_alpha": priority_alpha, "priority_beta": priority_beta}
    drawing = {name: value for name, value in drawing.items() if value is not None}
    online_only = [*([] if num_envs is None else ["num_envs"]), *online]
    if dataset is not None and online_only:
        raise ConfigError(f"{flags(online_only)}: for training in environments only; leave out with --dataset")
    logging = _logging(logging_steps, log_gradients, seeds)
    several = None if seeds is None else _seeds(seeds, seed, env_id if dataset is None else None)
    ends = {"stop_at": stop_at, "keep_models": keep_models}
    ends = {name: value for name, value in ends.items() if value is not None}
    if ends and seeds is not None:
        raise ConfigError(f"{flags(ends)}: not with --seeds, whose runs go on together to their end; leave one out")
    if stop_at is not None and env_id is None:
        raise ConfigError("--stop-at is about returns in an environment: give --env-id, too")
    if action_mask and env_id is None:
        raise ConfigError("--action-mask is about an environment: give --env-id, too, or leave it out")
    if own is not None:
        import_own(own)
    algorithm = algorithm_class(algo)
    _check_source(algorithm, dataset)
    if algorithm.learns_from.on_policy and (off_policy or drawing):
        raise ConfigError(
            f"{flags([*off_policy, *drawing])}: {algorithm.__name__} updates after each rollout; --set rollout_length=…"
        )
    if target_return is not None:
        check_target(algorithm, target_return)
    if extend and fresh:
        raise ConfigError("--extend goes on with the run that --fresh removes: leave one of them out")
    words = [*(set_ or []), *(more or [])]
    chosen = {word.split("=")[0].split(".")[0] for word in words}
    begun = None if init_from is None else _initial(algorithm, init_from, several)
    config = configure(algorithm, words, None if begun is None else begun.config)
    out = _default_folder(algorithm, dataset or str(env_id), None if several else seed) if out is None else out
    folder = RunFolder(out, several)
    planned = n_steps if fresh else folder.planned_steps(n_steps, extend=extend)
    set_seed(seed)
    with _stopping(out):
        picker = MultiStepTransitionPicker(multi_step, config.gamma) if multi_step else None
        source = None if dataset is None else load_dataset(dataset, picker, prioritized_sampler(drawing, planned))
        env = None if env_id is None else training_environment(env_id, num_envs, frame_stack or 1, action_mask)
        notes = []
        if begun is None and source is None:
            config, online, why = with_defaults(config, chosen, env, online)
            notes.append(why)
        scaler, why = (None, "") if "action_scaler" in chosen or begun else _action_scaler(algorithm, source, env)
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
            **({} if init_from is None else {"init_from": str(init_from)}),
            **({} if stop_at is None else {"stop_at": stop_at}),
        }
        learner = config.create(device)
        probe = config.create(device)
        _check(probe, source, env, target_return)  # before anything is written
        if begun is not None:
            _check_initial(probe, begun)
        if several is not None:
            check_many(probe)
        options: Any = {}
        if source is None and not algorithm.learns_from.on_policy:
            options, why = exploration(learner, env, planned, off_policy)
            options |= {name: online[name] for name in ("update_interval", "n_updates") if name in online}
            each = n_updates or algorithm.learns_from.n_updates
            updates = (planned - options["random_steps"]) // online.get("update_interval", 1) * each
            sampler = prioritized_sampler(drawing, updates)
            options["buffer"] = replay_buffer(env, config, {**online, **drawing}, sampler)
            notes.append(why)
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
            _begin_with(learner, begun, source, env)
        if source is None:
            eval_env = training_environment(str(env_id), None, frame_stack or 1, action_mask)
            learner.fit_online(env, seed=seed, eval_env=eval_env, eval_n_trials=n_trials, **options)
        elif several is None:
            learner.fit(source, evaluators=_evaluators(env, seed, n_trials, target_return), **options)
        else:
            evaluators = partial(_evaluators, env, n_trials=n_trials, target_return=target_return)
            fit_many(config, source, seeds=several, device=device, evaluators=evaluators, **options)
        if resumed and checkpoint_step(out) == before:
            note("there was nothing left to do; --extend goes on with a larger --n-steps or another --stop-at")
        for line in folder.results():
            print(line)


def _default_folder(algorithm: type[Algorithm[Any, Any]], source: str, seed: int | None) -> Path:
    """``runs/DQN-CartPole-v1-seed0``."""
    name = Path(source).stem if source.endswith((".h5", ".hdf5")) else source
    words = [algorithm.__name__, re.sub(r"[^\w.-]+", "_", name), *([] if seed is None else [f"seed{seed}"])]
    return Path("runs", "-".join(words))


def _initial(algorithm: type[Algorithm[Any, Any]], path: Path, several: Any) -> Any:
    """The model that a run begins with."""
    if several is not None:
        raise ConfigError("--init-from: not with --seeds, whose networks are made at once; leave one out")
    file, begun = load_model(path, "cpu")
    if type(begun) is not algorithm:
        raise ConfigError(
            f"--init-from {file} is a model of {type(begun).__name__}, not of {algorithm.__name__}: train "
            f"{type(begun).__name__}, or copy its networks in Python (copy_policy_from, copy_q_function_from)"
        )
    return begun


def _check_initial(probe: Any, begun: Any) -> None:
    """Check that a model's networks are those that the run needs."""
    if probe.spec != begun.spec:
        raise ConfigError(f"--init-from: the model was made for {begun.spec}, but this run has {probe.spec}")
    try:
        probe.engine.load_networks(begun.nets.state_dict())
    except CorruptFileError as error:
        own, asked = vars(begun.config), vars(probe.config)
        changed = [f"{name} {own[name]!r:.80} against {asked[name]!r:.80}" for name in own if own[name] != asked[name]]
        raise ConfigError(
            f"--init-from: the model has other networks than the settings ask for ({'; '.join(changed)}): leave out "
            "those settings that change networks, a model brings its own"
        ) from error


def _begin_with(learner: Any, begun: Any, source: Any, env: Any) -> None:
    """Give a new algorithm the networks of another; its optimisers and counters begin anew."""
    if source is not None:
        learner.build_with_dataset(source)
    else:
        learner.build_with_env(env)
    learner.engine.load_networks(begun.engine.get_state()["nets"])


def _logging(steps: int | None, gradients: bool, seeds: str | None) -> dict[str, Any]:
    """Logging settings that differ from the defaults."""
    given = {"logging_steps": steps, "log_gradients": gradients or None}
    given = {name: value for name, value in given.items() if value is not None}
    if given and seeds is not None:
        raise ConfigError(f"{flags(given)}: not with --seeds, whose runs are logged once an epoch; leave one out")
    return given


def _seeds(words: str, seed: int, env_id: str | None) -> list[int]:
    """The seeds that ``--seeds`` asks for."""
    if seed:
        raise ConfigError(f"--seed {seed} and --seeds {words} are both given: leave one out")
    if env_id is not None:
        raise ConfigError(
            f"--seeds trains from logged data (--dataset) only: to train in {env_id}, start a run for each seed "
            "(--seed)"
        )
    try:
        numbers = [int(word) for word in words.split(",")]
        if len(numbers) > 1 or numbers[0] <= _MOST_SEEDS:
            return checked_seeds(numbers[0] if len(numbers) == 1 else numbers)
    except (ValueError, ConfigError) as error:
        raise ConfigError(
            f"--seeds is {words!r}: give a number of seeds (--seeds 16 for 0 … 15) or different seeds (--seeds 3,5,7)"
        ) from error
    one = numbers[0]
    raise ConfigError(f"--seeds {words} asks for more than {_MOST_SEEDS} seeds; for this one alone: --seed {one}")


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


def _check(probe: Algorithm[Any, Any], source: Any, env: Any, target_return: float | None) -> None:
    """Check that algorithm, data and environment fit together, on an algorithm that is thrown away.

    The global random state is restored.
    """
    with randomness_kept():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are given when the run begins
            if source is not None:
                probe.build_with_dataset(source)
            else:
                probe.build_with_env(env)
            if env is not None:
                probe.check_env(env)
        if env is not None:
            if source is not None:
                acting_algorithm(probe, target_return)
            generator = np.random.Generator(np.random.PCG64(0))
            stepper = Stepper(env, generator, observations=probe.spec.observations)
            stepper.step(stepper.actions.sample(stepper.n, generator))


def _check_source(algorithm: type[Algorithm[Any, Any]], dataset: str | None) -> None:
    """Reject algorithms that cannot learn from this source."""
    name = algorithm.__name__
    if not algorithm.learns_from.loops:
        raise ConfigError(f"{name} does not learn: `birl algos` lists those that do")
    if dataset is not None and "fit" not in algorithm.learns_from.loops:
        raise ConfigError(f"{name} learns in an environment only: give --env-id ID and leave out --dataset {dataset}")
    if dataset is None and "fit_online" not in algorithm.learns_from.loops:
        raise ConfigError(f"{name} learns from logged data only: give --dataset NAME or FILE.h5, too")


def _action_scaler(algorithm: Any, source: Any, env: Any) -> tuple[MinMaxActionScaler | None, str]:
    """A scaler for actions that do not lie in [-1, 1], and a note about it."""
    bounds = _data_bounds(source) if env is None else actions_of(single_spaces(env)[1]).bounds
    if bounds is None or ActionSpace.CONTINUOUS not in algorithm.actions:
        return None, ""
    low, high = bounds
    if (low == -1).all() and (high == 1).all():
        return None, ""
    why = f"actions lie in {_words(low, high)}: action_scaler=min_max is set (--set action_scaler=… changes it)"
    return MinMaxActionScaler(minimum=low, maximum=high), why


def _data_bounds(source: Any) -> tuple[Array, Array] | None:
    """Bounds of logged continuous actions; actions within [-1, 1] are taken to have these bounds."""
    if source.dataset_info.actions.discrete:
        return None
    low, high = source.action_bounds()
    return (low, high) if (np.abs([low, high]) > 1).any() else None


def _words(low: Any, high: Any) -> str:
    pairs = sorted({(float(a), float(b)) for a, b in zip(low, high, strict=True)})
    return ", ".join(f"[{a:g}, {b:g}]" for a, b in pairs[:3]) + (", …" if len(pairs) > 3 else "")


def _evaluators(env: Any, seed: int, n_trials: int, target_return: float | None) -> dict[str, Any]:
    """The evaluator of training from logged data, if there is an environment for it."""
    if env is None:
        return {}
    evaluator = EnvironmentEvaluator(env, n_trials, seed=seed)
    return {"environment": lambda algorithm, _: evaluator(acting_algorithm(algorithm, target_return))}
