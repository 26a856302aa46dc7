"""``birl train``: train from logged data or in an environment; the same command again goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from birl.algorithm import Algorithm
from birl.algorithm.population import check_many, checked_seeds, fit_many
from birl.algos import LinearDecayEpsilonGreedy, NormalNoise
from birl.cli.common import algorithm_class, load_dataset, make_environment, note
from birl.cli.evaluate import acting_algorithm, check_target
from birl.cli.folder import RunFolder
from birl.cli.options import Device
from birl.cli.settings import configure
from birl.envs import Stepper, environment_spec
from birl.errors import ConfigError
from birl.logging import LoggingStrategy
from birl.metrics import EnvironmentEvaluator
from birl.preprocessing import MinMaxActionScaler
from birl.run.checkpoint import checkpoint_step, randomness_kept
from birl.seeding import seed as set_seed
from birl.types import ActionSpace, Array

_MOST_SEEDS = 1000


def train(
    algo: Annotated[str, typer.Argument(metavar="ALGO", help="Name of an algorithm: see `birl algos`.")],
    n_steps: Annotated[int, typer.Option(min=1, help="Updates (offline) or environment steps (online).")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Run folder: models, metrics, checkpoint.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="FIELD=VALUE", help="Settings, as with --set.")] = None,
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
    n_steps_per_epoch: Annotated[
        int | None, typer.Option(min=1, help="Steps between evaluations and models; by default a tenth, at most 10000.")
    ] = None,
    n_trials: Annotated[int, typer.Option(min=1, help="Episodes of each evaluation.")] = 10,
    num_envs: Annotated[int | None, typer.Option(min=1, help="Number of environments to train in at once.")] = None,
    update_interval: Annotated[
        int, typer.Option(min=1, help="Environment steps between updates; for AWR some 2048, as an update takes long.")
    ] = 1,
    n_updates: Annotated[int, typer.Option(min=1, help="Updates after every --update-interval steps.")] = 1,
    target_return: Annotated[
        float | None, typer.Option(help="Return that a sequence model aims at in evaluations.")
    ] = None,
    logging_steps: Annotated[
        int | None, typer.Option(min=1, help="Write metrics every so many steps, not only once an epoch.")
    ] = None,
    log_gradients: Annotated[
        bool, typer.Option("--log-gradients", help="Write statistics of the gradients of every parameter, too.")
    ] = False,
) -> None:
    """Train from logged data (--dataset) or in an environment (--env-id). Run it again to resume from DIR."""
    if dataset is None and env_id is None:
        raise ConfigError("nothing to learn from: give --dataset NAME or FILE.h5, or --env-id ID")
    updates = {"update_interval": update_interval, "n_updates": n_updates}
    updates = {name: value for name, value in updates.items() if value != 1}  # settings of older runs have none
    online_only = [*([] if num_envs is None else ["num_envs"]), *updates]
    if dataset is not None and online_only:
        raise ConfigError(f"{_flags(online_only)}: for training in environments only; leave out with --dataset")
    logging = _logging(logging_steps, log_gradients, seeds)
    several = None if seeds is None else _seeds(seeds, seed, env_id if dataset is None else None)
    algorithm = algorithm_class(algo)
    if updates and algorithm.learns_from.on_policy:
        raise ConfigError(f"{_flags(updates)}: {algorithm.__name__} updates after each rollout; --set rollout_length=…")
    _check_source(algorithm, dataset)
    if target_return is not None:
        check_target(algorithm, target_return)
    words = [*(set_ or []), *(more or [])]
    config = configure(algorithm, words)
    set_seed(seed)
    with _stopping(out):
        source = None if dataset is None else load_dataset(dataset)
        env = None if env_id is None else make_environment(env_id, num_envs)
        chosen_by_user = any(word.split("=")[0].split(".")[0] == "action_scaler" for word in words)
        scaler, why = (None, "") if chosen_by_user else _action_scaler(algorithm, source, env)
        if scaler is not None:
            config = dataclasses.replace(config, action_scaler=scaler)

        settings = {
            "algorithm": config.serialize(),
            "dataset": dataset,
            "env_id": env_id,
            "n_steps": n_steps,
            "n_steps_per_epoch": n_steps_per_epoch or min(10_000, max(1, n_steps // 10)),
            "seed": seed,
            "device": device,
            "num_envs": num_envs,
            "n_trials": n_trials,
            "target_return": target_return,
            **logging,
            **updates,
            **({} if several is None else {"seeds": several}),
        }
        learner = config.create(device)
        eval_env = None if dataset is not None or env_id is None else make_environment(env_id)
        probe = config.create(device)
        _check(probe, source, env, target_return)  # before anything is written
        if several is not None:
            check_many(probe)
        if why:
            note(why)
        folder = RunFolder(out, several)
        going_on = f", resuming at step {checkpoint_step(out)}" if folder.prepare(settings, fresh=fresh) else ""
        kind = f"from {dataset}" if dataset is not None else f"in {env_id}"
        which = f"seed {seed}" if several is None else f"seeds {', '.join(map(str, several))}"
        note(f"{algorithm.__name__} {kind}, {n_steps} steps, {which} -> {out}{going_on}")
        options: Any = {
            "n_steps": n_steps,
            "n_steps_per_epoch": settings["n_steps_per_epoch"],
            "experiment_name": out.name,
            "with_timestamp": False,
            "logger_adapter": folder,
            "checkpoint": out,
            **logging,
        }
        if logging_steps is not None:
            options["logging_strategy"] = LoggingStrategy.STEPS
        if source is None:
            if not algorithm.learns_from.on_policy:
                options |= _exploration(learner, env, n_steps) | updates
            learner.fit_online(env, seed=seed, eval_env=eval_env, eval_n_trials=n_trials, **options)
        elif several is None:
            learner.fit(source, evaluators=_evaluators(env, seed, n_trials, target_return), **options)
        else:
            evaluators = partial(_evaluators, env, n_trials=n_trials, target_return=target_return)
            fit_many(config, source, seeds=several, device=device, evaluators=evaluators, **options)
        for model in folder.newest_models():
            print(f"done: {n_steps} steps, model {model}")


def _logging(steps: int | None, gradients: bool, seeds: str | None) -> dict[str, Any]:
    """Logging settings that differ from the defaults."""
    given = {"logging_steps": steps, "log_gradients": gradients or None}
    given = {name: value for name, value in given.items() if value is not None}
    if given and seeds is not None:
        raise ConfigError(f"{_flags(given)}: not with --seeds, whose runs are logged once an epoch; leave one out")
    return given


def _flags(names: Iterable[str]) -> str:
    """Options as they are written on the command line."""
    return " and ".join("--" + name.replace("_", "-") for name in names)


def _seeds(words: str, seed: int, env_id: str | None) -> list[int]:
    """The seeds that ``--seeds`` asks for."""
    if seed:
        raise ConfigError(f"--seed {seed} and --seeds {words} are both given: leave one out")
    if env_id is not None:
        raise ConfigError(
            f"--seeds trains from logged data (--dataset) only: to train in {env_id}, start a run for each seed "
            "(--seed)"
        )
    if words.strip().isdecimal() and int(words) > _MOST_SEEDS:
        raise ConfigError(f"--seeds {words} asks for more than {_MOST_SEEDS} seeds; for this one alone: --seed {words}")
    try:
        numbers = [int(word) for word in words.split(",")]
        return checked_seeds(numbers[0] if len(numbers) == 1 else numbers)
    except (ValueError, ConfigError) as error:
        raise ConfigError(
            f"--seeds is {words!r}: give a number of seeds (--seeds 16 for 0 … 15) or different seeds (--seeds 3,5,7)"
        ) from error


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
    with randomness_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are given when the run begins
        if source is not None:
            probe.build_with_dataset(source)
        else:
            probe.build_with_env(env)
        if env is not None:
            probe.check_env(env)
            if source is not None:
                acting_algorithm(probe, target_return)
            generator = np.random.Generator(np.random.PCG64(0))
            stepper = Stepper(env, generator)
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
    bounds = _data_bounds(source) if env is None else environment_spec(env).actions.bounds
    if bounds is None or algorithm.actions is ActionSpace.DISCRETE:
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


def _exploration(learner: Any, env: Any, n_steps: int) -> dict[str, Any]:
    """Random steps at the start, and noise for policies that have none of their own."""
    first = min(1000, n_steps // 10)
    options: dict[str, Any] = {"update_start_step": first, "random_steps": first}
    if learner.acts.explores:
        return options
    if learner.actions is ActionSpace.DISCRETE:
        options["explorer"] = LinearDecayEpsilonGreedy(1.0, 0.05, max(1, n_steps // 5))
    else:
        low, high = environment_spec(env).actions.bounds or (-1.0, 1.0)
        options["explorer"] = NormalNoise(std=0.1 * float(np.mean(np.subtract(high, low)) / 2))
    return options
