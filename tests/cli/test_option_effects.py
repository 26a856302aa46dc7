"""Every option of ``birl train --env-id`` reaches what is built from it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import birl
from birl.algorithm import Algorithm
from birl.algos import DQN, PPO, TD3
from birl.cli import train_options
from birl.cli.train import train
from birl.cli.train_options import CONFLICTS, NEEDS, TABLE
from birl.dataset import PrioritizedSampler, RandomShift
from birl.run import OnlineOptions, Options

DQN_RUN = ("DQN", "--env-id", "CartPole-v1", "--n-steps", 1000)
TD3_RUN = ("TD3", "--env-id", "Pendulum-v1", "--n-steps", 1000)
PPO_RUN = ("PPO", "--env-id", "CartPole-v1", "--n-steps", 1000)
BOLTZMANN, OU = (*DQN_RUN, "--explorer", "boltzmann"), (*TD3_RUN, "--explorer", "ou-noise")
PRIORITIZED = (*DQN_RUN, "--prioritized")
GOALS = "tests.algos.test_goal_chain:GoalChain"
HINDSIGHT = ("DQN", "--env-id", GOALS, "--n-steps", 1000, 'observation_keys=["observation", "desired_goal"]')
COLLECTORS = (*DQN_RUN, "--collectors", 2)
LEARNERS = (*COLLECTORS, "--learners", 2)

IMAGES = ("DQN", "--env-id", "tests.cli.test_option_effects:Images", "--n-steps", 1000)

Seen = dict[str, Any]


class Images(gymnasium.Env):
    """Blank images; episodes of one step."""

    observation_space = gymnasium.spaces.Box(0, 255, (1, 40, 40), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros((1, 40, 40), np.uint8), {}

    def step(self, action: Any) -> Any:
        return np.zeros((1, 40, 40), np.uint8), 0.0, True, False, {}


def option(name: str) -> Callable[[Seen], Any]:
    return lambda seen: seen.get(name)


def epsilon(step: int) -> Callable[[Seen], Any]:
    return lambda seen: round(seen["explorer"].compute_epsilon(step), 6)


def explorer(name: str) -> Callable[[Seen], Any]:
    return lambda seen: vars(seen["explorer"])[name]


def kind_of_explorer(seen: Seen) -> str:
    return type(seen["explorer"]).__name__


def cluster(name: str) -> Callable[[Seen], Any]:
    return lambda seen: getattr(seen["cluster"], name)


def sampler(name: str) -> Callable[[Seen], Any]:
    return lambda seen: getattr(seen["buffer"].reader.sources[0].sampler, name)


def buffer_of(seen: Seen) -> Any:
    return None if seen["buffer"] is None else type(seen["buffer"].buffer).__name__


def limit(seen: Seen) -> Any:
    return None if seen["buffer"] is None else seen["buffer"].buffer.limit


def n_step(seen: Seen) -> Any:
    return None if seen["buffer"] is None else seen["buffer"].transition_picker.n_steps


def kind_of_sampler(seen: Seen) -> Any:
    return None if seen["buffer"] is None else type(seen["buffer"].reader.sources[0].sampler).__name__


def augmentation(seen: Seen) -> Any:
    return None if seen["buffer"] is None else seen["buffer"].reader.sources[0].augmentation


def drift(seen: Seen) -> float:
    """How much of the noise is left after a step without any new noise."""
    noise = seen["explorer"]
    noise._sigma, noise._state, noise._fresh = 0.0, np.ones((1, 1)), np.zeros(1, np.bool_)
    return round(float(noise._noise((1, 1))[0, 0]), 6)


def spread(seen: Seen) -> float:
    """Deviation of the first noise of many environments."""
    return round(float(seen["explorer"]._noise((100_000, 1)).std()), 1)


# Options about other sources of data, other runs and what a run is made with; each has tests of its own.
TESTED_SEPARATELY = {
    *("algo", "more", "dataset", "env_id", "seeds", "jobs", "device", "fresh", "extend", "init_from", "target_return"),
    *("demonstrations", "action_mask", "workers", "atari", "recipe", "import", "context"),
}

# The run without the option, the option with its value, what is measured, its value without the option, and with it.
EFFECTS: list[tuple[tuple[Any, ...], tuple[Any, ...], Callable[[Seen], Any], Any, Any]] = [
    (DQN_RUN, ("--n-steps", 700), option("n_steps"), 1000, 700),
    (DQN_RUN, ("--n-steps-per-epoch", 50), option("n_steps_per_epoch"), 100, 50),
    (DQN_RUN, ("--seed", 5), option("seed"), 0, 5),
    (DQN_RUN, ("--set", "gamma=0.5"), lambda seen: seen["config"].gamma, 0.99, 0.5),
    (DQN_RUN, ("--out", "other"), lambda seen: seen["checkpoint"].name, "DQN-CartPole-v1-seed0", "other"),
    (DQN_RUN, ("--n-trials", 3), option("eval_n_trials"), 10, 3),
    (DQN_RUN, ("--eval-steps", 30), option("eval_n_steps"), None, 30),
    (DQN_RUN, ("--eval-epsilon", 0.2), option("eval_epsilon"), None, 0.2),
    (DQN_RUN, ("--eval-statistics",), option("eval_statistics"), None, True),
    (DQN_RUN, ("--eval-sample",), option("eval_sample"), None, True),
    (DQN_RUN, ("--stop-at", 30), option("stop_at"), None, 30),
    (DQN_RUN, ("--score", "rollout_return"), option("score"), "evaluation", "rollout_return"),
    (DQN_RUN, ("--score-direction", "minimize"), option("score_direction"), None, "minimize"),
    (DQN_RUN, ("--no-best",), option("keep_best"), True, False),
    (DQN_RUN, ("--keep-models", 2), option("keep_models"), None, 2),
    (DQN_RUN, ("--logging-steps", 20), option("logging_steps"), None, 20),
    (DQN_RUN, ("--log-gradients",), option("log_gradients"), None, True),
    (DQN_RUN, ("--num-envs", 3), lambda seen: getattr(seen["env"], "num_envs", 1), 1, 3),
    (DQN_RUN, ("--frame-stack", 2), lambda seen: seen["env"].observation_space.shape, (4,), (8,)),
    (DQN_RUN, ("--random-steps", 30), option("random_steps"), 100, 30),
    (DQN_RUN, ("--random-steps", 30), option("update_start_step"), 100, 30),
    (DQN_RUN, ("--update-interval", 5), option("update_interval"), 2, 5),
    (DQN_RUN, ("--n-updates", 3), option("n_updates"), None, 3),
    (DQN_RUN, ("--explorer", "greedy"), kind_of_explorer, "LinearDecayEpsilonGreedy", "Greedy"),
    (DQN_RUN, ("--epsilon-start", 0.5), epsilon(0), 1.0, 0.5),
    (DQN_RUN, ("--epsilon-end", 0.2), epsilon(10**6), 0.05, 0.2),
    (DQN_RUN, ("--epsilon-steps", 10), epsilon(10), 0.9525, 0.05),
    (DQN_RUN, ("--epsilon-decay", 0.5), epsilon(2), 0.9905, 0.25),
    (DQN_RUN, ("--epsilon", 0.3), epsilon(10**6), 0.05, 0.3),
    (BOLTZMANN, ("--temperature", 2.5), explorer("_temperature"), 1.0, 2.5),
    (TD3_RUN, ("--noise-std", 0.7), spread, 0.2, 0.7),
    (OU, ("--noise-std", 0.7), explorer("_sigma"), 0.4, 0.7),
    (OU, ("--noise-theta", 0.5), drift, 0.85, 0.5),
    (DQN_RUN, ("--buffer-size", 70), limit, None, 70),
    (DQN_RUN, ("--whole-episodes",), buffer_of, None, "EpisodicFIFOBuffer"),
    (DQN_RUN, ("--multi-step", 3), n_step, None, 3),
    (DQN_RUN, ("--recent", 0.9), kind_of_sampler, None, "RecentSampler"),
    ((*DQN_RUN, "--recent", 0.9), ("--recent", 0.8), sampler("eta"), 0.9, 0.8),
    (DQN_RUN, ("--prioritized",), kind_of_sampler, None, "PrioritizedSampler"),
    (PRIORITIZED, ("--priority-alpha", 0.3), sampler("alpha"), 0.6, 0.3),
    (PRIORITIZED, ("--priority-variant", "rank_based"), sampler("variant"), "proportional", "rank_based"),
    (PRIORITIZED, ("--priority-uniform", 0.3), sampler("uniform_ratio"), 0.0, 0.3),
    (PRIORITIZED, ("--priority-beta", 0.3), sampler("beta"), 0.4, 0.3),
    (IMAGES, ("--random-shift", 2), augmentation, None, RandomShift(2)),
    (HINDSIGHT, ("--hindsight", "final"), kind_of_sampler, None, "HindsightSampler"),
    ((*HINDSIGHT, "--hindsight", "final"), ("--hindsight", "future"), sampler("strategy"), "final", "future"),
    ((*HINDSIGHT, "--hindsight", "final"), ("--hindsight-k", 2), sampler("k"), 4.0, 2.0),
    (DQN_RUN, ("--collectors", 2), option("cluster"), None, "Cluster"),
    (COLLECTORS, ("--collectors", 3), cluster("collectors"), 2, 3),
    (COLLECTORS, ("--num-envs", 3), cluster("environments"), 1, 3),
    (COLLECTORS, ("--order", "together"), cluster("order"), None, "together"),
    (COLLECTORS, ("--fragment", 7), cluster("fragment"), None, 7),
    (COLLECTORS, ("--on-error", "restart"), cluster("on_error"), "stop", "restart"),
    (COLLECTORS, ("--address", "local"), cluster("address"), None, "local"),
    (COLLECTORS, ("--address", "local"), cluster("transport"), "processes", "ray"),
    (COLLECTORS, ("--learners", 2), cluster("learners"), 1, 2),
    (LEARNERS, ("--gradients", "pushed"), cluster("gradients"), "together", "pushed"),
    (COLLECTORS, ("--shards", 2), cluster("shards"), 0, 2),
    (PPO_RUN, ("--num-envs", 3), lambda seen: getattr(seen["env"], "num_envs", 1), 1, 3),
]


@pytest.mark.parametrize(
    ("words", "flag", "measure", "without", "expected"),
    EFFECTS,
    ids=[f"{row[0][0]}{row[1][0]}-{number}" for number, row in enumerate(EFFECTS)],
)
def test_options_have_an_effect(
    words: tuple[Any, ...],
    flag: tuple[Any, ...],
    measure: Callable[[Seen], Any],
    without: Any,
    expected: Any,
    birl_: Any,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[Seen] = []
    for kind in (DQN, TD3, PPO):
        monkeypatch.setattr(
            kind, "fit_online", lambda self, env, **options: seen.append({**options, "env": env, "config": self.config})
        )
    birl_("train", *words)
    birl_("train", *words, "--fresh", *flag)
    found = [measure(each) for each in seen]
    assert found[0] == without
    assert (type(found[1]).__name__ if expected == "Cluster" else found[1]) == expected


def test_no_option_is_forgotten() -> None:
    here = {row[1][0].removeprefix("--").replace("-", "_") for row in EFFECTS}
    names = {name.removesuffix("_") for name in inspect.signature(train).parameters}
    assert here | TESTED_SEPARATELY == names


# -- the table ---------------------------------------------------------------------------------------------------------

PARAMETERS = {
    "fit": {*inspect.signature(Algorithm.fit).parameters, *inspect.get_annotations(Options), *Options.__annotations__},
    "fit_online": {*inspect.signature(Algorithm.fit_online).parameters, *OnlineOptions.__annotations__},
    "Cluster": {*inspect.signature(birl.Cluster).parameters},
    "PrioritizedSampler": {*inspect.signature(PrioritizedSampler).parameters},
}


def read_by_the_command() -> set[str]:
    """Attributes of an ``options`` that the command's modules read, and names that they pass to ``options.given``."""
    found: set[str] = set()
    for name in ("train", "online"):
        tree = ast.parse((Path(train_options.__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("options"):
                found.add(node.attr)
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("options.given"):
                found |= {ast.literal_eval(each) for each in node.args}
    return found


@pytest.mark.parametrize("name", TABLE)
def test_every_row_of_the_table_is_consumed(name: str) -> None:
    """By a parameter that exists, or by code that reads it."""
    call, _, parameter = TABLE[name].feeds.partition(".")
    if call:
        assert (parameter or name) in PARAMETERS[call]
    else:
        assert name in read_by_the_command()


def test_rows_name_options_that_exist() -> None:
    assert {row.needs for row in TABLE.values()} - {""} == NEEDS.keys() <= TABLE.keys()
    assert {name for one, other, _ in CONFLICTS for name in (one, other)} <= TABLE.keys()
    assert all(
        (row.help.endswith((".", "…")) and row.help[0].isupper()) or name == "device" for name, row in TABLE.items()
    )


OPEN_BOUNDS = {
    "epsilon_decay": (0, "above"),
    "temperature": (0, "above"),
    "noise_theta": (0, "above"),
    "recent": (0, "above"),
    "hindsight_k": (0, "above"),
    "priority_uniform": (1, "below"),
}


def test_rows_with_open_bounds() -> None:
    found = {name: (row.above, "above") for name, row in TABLE.items() if row.above is not None}
    found |= {name: (row.below, "below") for name, row in TABLE.items() if row.below is not None}
    assert found == OPEN_BOUNDS


@pytest.mark.parametrize("name", OPEN_BOUNDS)
def test_open_bounds_are_refused_at_the_option(birl_: Any, name: str) -> None:
    bound, side = OPEN_BOUNDS[name]
    flag = f"--{name.replace('_', '-')}"
    said = birl_("train", "DQN", "--env-id", "CartPole-v1", flag, bound, status=2)
    assert said.startswith(f"birl: {flag} {bound}: ") and f"it must be {side} {bound}" in said


@pytest.mark.parametrize("flag", ["--temperature", "--std"])
def test_policies_have_open_bounds(birl_: Any, flag: str) -> None:
    assert f"birl: {flag} 0: " in birl_("export", "model.d3", "policy.onnx", flag, 0, status=2)
