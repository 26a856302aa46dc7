"""Spaces, seeding and stepping."""

from __future__ import annotations

import re
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from run.fakes import Drift

import birl.seeding
from birl.envs import (
    ActionMask,
    Stepper,
    check_environment,
    environment_spec,
    make_env,
    number_of_environments,
    reset_generator,
    sample_actions,
    seed_env,
)
from birl.errors import ArgumentError, ConfigError, EnvironmentMismatchError, NonFiniteError
from birl.spaces import Continuous, Discrete
from birl.spaces.specs import Spec
from birl.types import tree_leaves

MODES = list(AutoresetMode)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def vector(n: int, mode: AutoresetMode, **options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Drift(**options)] * n, autoreset_mode=mode)


def leaves(tree: Any) -> list[Any]:
    return list(tree_leaves(tree))


# -- spaces and making -----------------------------------------------------------------------------------------


def test_specs() -> None:
    assert environment_spec(Drift()) == Spec((2,), Discrete(3))
    assert environment_spec(Drift(discrete=False, kind="tuple")) == Spec(((2,), (1,)), Continuous(2))
    assert environment_spec(Drift(kind="dict")) == Spec({"a": (1,), "b": (2,)}, Discrete(3))
    assert environment_spec(vector(3, AutoresetMode.DISABLED)) == Spec((2,), Discrete(3))
    assert number_of_environments(vector(3, AutoresetMode.DISABLED)) == 3


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Box(0, 1, (0,)),
        spaces.Dict(move=spaces.Discrete(3), say=spaces.Text(3)),
        spaces.OneOf((spaces.Discrete(2), spaces.Box(0, 1, (1,)))),
        spaces.Tuple((spaces.Discrete(2), spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))))),
        spaces.Dict(),
        spaces.Tuple(()),
        spaces.Dict(nothing=spaces.Tuple(())),
    ],
)
def test_unsupported_action_spaces(space: Any) -> None:
    env = Drift()
    env.action_space = space
    with pytest.raises(EnvironmentMismatchError, match="TransformAction|is empty"):
        environment_spec(env)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Dict(), "is empty"),
        (spaces.Tuple((spaces.Dict(),)), "is empty"),
        (spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))), "the observation space is OneOf"),
        (spaces.Dict(x=spaces.OneOf((spaces.Discrete(2),)), y=spaces.Discrete(2)), "the part 'x' of the observation"),
    ],
)
def test_unsupported_observation_spaces(space: Any, words: str) -> None:
    env = Drift()
    env.observation_space = space
    with pytest.raises(EnvironmentMismatchError, match=words):
        environment_spec(env)


def test_unsupported_observation_space_and_foreign_object() -> None:
    env = Drift()
    env.observation_space = spaces.Text(4)
    with pytest.raises(EnvironmentMismatchError, match="TransformObservation"):
        environment_spec(env)
    with pytest.raises(EnvironmentMismatchError, match="not an environment"):
        environment_spec(object())


def test_random_actions_cover_the_space() -> None:
    rng = generator()
    discrete = sample_actions(spaces.Discrete(3), 200, rng)
    assert discrete.dtype == np.int64
    assert set(discrete) == {0, 1, 2}
    box = spaces.Box(np.array([-2, -np.inf, 0], np.float32), np.array([-1, np.inf, np.inf], np.float32))
    actions = sample_actions(box, 500, rng)
    assert actions.dtype == np.float32
    assert all(box.contains(action) for action in actions)
    assert actions[:, 0].std() > 0.2
    assert actions[:, 1].std() > 0.8


def test_options_of_environments_are_named() -> None:
    with pytest.raises(ArgumentError, match="no option 'render'; did you mean 'render_mode'"):
        make_env("CartPole-v1", render=True)


def test_make_env() -> None:
    assert make_env("CartPole-v1").spec.id == "CartPole-v1"
    assert make_env("run.fakes:Drift", limit=3).limit == 3
    several = make_env("run.fakes:Drift", num_envs=2)
    assert several.num_envs == 2
    assert several.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    masked = make_env("Taxi-v4", num_envs=2, action_mask=True)
    assert masked.single_observation_space["action_mask"].shape == (6,)
    assert masked.reset(seed=0)[0]["action_mask"].shape == (2, 6)
    with pytest.raises(EnvironmentMismatchError, match="already have a part 'action_mask': leave ActionMask out"):
        make_env("Taxi-v4", wrapper=ActionMask, action_mask=True)
    with pytest.raises(ConfigError, match="action_mask is 1"):
        make_env("Taxi-v4", action_mask=1)  # type: ignore[arg-type]
    for name in ("NoSuchEnv-v0", "no.such.module:Thing"):
        with pytest.raises(ConfigError, match="module:factory"):
            make_env(name)
    with pytest.raises(ConfigError, match="num_envs"):
        make_env("CartPole-v1", num_envs=0)


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        (
            "builtins:dict",
            EnvironmentMismatchError,
            "'builtins:dict' does not return an environment: .*builtins.dict is not",
        ),
        ("gymnasium:Env", EnvironmentMismatchError, "'gymnasium:Env' does not return an environment: .*has no spaces"),
        ("os:system", ConfigError, r"'os:system' needs arguments \(command\): 'module:factory' must name a function"),
        ("os:path", ConfigError, "'os:path' is an object of type module: 'module:factory' must name"),
    ],
)
def test_what_makes_no_environment(name: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make_env(name)


def test_seed_env_decides_later_resets() -> None:
    def first(seed: int) -> Any:
        env = Drift()
        seed_env(gymnasium.wrappers.TimeLimit(env, 5), seed)
        return Stepper(env, reset_generator(env)).observation

    assert np.array_equal(first(3), first(3))
    assert not np.array_equal(first(3), first(4))


def test_birl_seed_decides_where_seed_env_does_not() -> None:
    draws = []
    for seed in (1, 1, 2):
        birl.seeding.seed(seed)
        draws.append(reset_generator(Drift()).integers(1 << 40))
    assert draws[0] == draws[1] != draws[2]


# -- stepping --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["box", "dict", "tuple"])
@pytest.mark.parametrize("mode", [None, *MODES])
def test_steps_join_into_episodes_in_every_mode(mode: AutoresetMode | None, kind: str) -> None:
    """Check that observations are consecutive, and that episodes begin at step 0 and keep their final observation."""
    env = Drift(limit=4, kind=kind) if mode is None else vector(3, mode, limit=4, kind=kind)
    stepper = Stepper(env, generator())
    rng, dummies, ended, totals = generator(1), 0, 0, np.zeros(stepper.n)
    which = 0 if kind != "dict" else 1
    following = leaves(stepper.observation)[which]
    for _ in range(60):
        before, first = leaves(stepper.observation)[which].copy(), stepper.is_first.copy()
        assert before.shape == (stepper.n, 2)
        step = stepper.step(sample_actions(stepper.action_space, stepper.n, rng))
        after, done = leaves(step.next_observation)[which], step.terminated | step.truncated
        valid = step.valid
        assert not (step.terminated & step.truncated).any()
        assert not done[~valid].any()
        assert (before[first, 1] == 0).all()
        assert np.array_equal(before[~first], following[~first])
        assert (after[valid, 1] == before[valid, 1] + 1).all()  # the true next observation, at the end as well
        assert np.allclose(step.reward[valid], after[valid, 0])
        assert (step.reward[~valid] == 0).all()
        assert (stepper.reward[stepper.is_first] == 0).all()
        totals += step.reward
        for index in np.flatnonzero(done):
            assert step.ended[index].value == pytest.approx(totals[index], abs=1e-4)
            totals[index] = 0
        assert set(step.ended) == set(np.flatnonzero(done))
        ended += len(step.ended)
        dummies += int((~valid).sum())
        following = after
    assert ended > 10
    assert (dummies > 0) == (mode is AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("kind", ["box", "dict", "tuple"])
@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("mode", [None, *MODES])
def test_state_brings_the_environment_back(mode: AutoresetMode | None, discrete: bool, kind: str) -> None:
    def make() -> Stepper:
        options: dict[str, Any] = {"discrete": discrete, "kind": kind}
        return Stepper(Drift(**options) if mode is None else vector(3, mode, **options), generator(5))

    def run(stepper: Stepper, rng: Any, steps: int) -> list[Any]:
        trace = []
        for _ in range(steps):
            step = stepper.step(sample_actions(stepper.action_space, stepper.n, rng))
            trace.append([*leaves(step.next_observation), step.reward, stepper.is_first, *leaves(stepper.observation)])
        return trace

    for steps in (0, 1, 37):
        original, rng = make(), generator(6)
        run(original, rng, steps)
        state, position = original.get_state(), rng.bit_generator.state
        expected = run(original, rng, 30)
        rng.bit_generator.state = position
        other = Stepper(original._env if mode else Drift(discrete, kind=kind), generator(99))
        other.set_state(state)
        assert not other.lost
        for one, two in zip(expected, run(other, rng, 30), strict=True):
            assert all(map(np.array_equal, one, two))


def test_a_plain_environment_repeats_the_present_episode_only() -> None:
    stepper = Stepper(Drift(limit=5, end=0.0), generator())
    for _ in range(23):
        stepper.step(np.array([1]))
    assert len(stepper.get_state()["actions"]) == 3


def test_an_environment_that_cannot_be_repeated_restarts() -> None:
    class Careless(Drift):
        count = 0

        def reset(self, **options: Any) -> Any:
            Careless.count += 1
            super().reset(**options)
            self.position = float(Careless.count)
            return self._observation(), {}

    stepper = Stepper(Careless(), generator())
    stepper.step(np.array([1]))
    other = Stepper(Careless(), generator())
    with pytest.warns(RuntimeWarning, match="not exact"):
        other.set_state(stepper.get_state())
    assert other.lost
    assert other.is_first.all()


def test_every_reset_has_a_seed() -> None:
    env = Drift(limit=3)
    stepper = Stepper(env, generator())
    for _ in range(20):
        stepper.step(np.array([0]))
    assert None not in env.seeds
    assert len(set(env.seeds)) == len(env.seeds) > 5


@pytest.mark.parametrize("reward", [np.nan, -np.inf, 1e39, -1e300])
def test_numbers_that_are_not_finite_are_refused(reward: float) -> None:
    class Broken(Drift):
        def step(self, action: Any) -> Any:
            observation, usual, *rest = super().step(action)
            return observation, (reward if self.steps == 3 else usual), *rest

    stepper = Stepper(SyncVectorEnv([Drift, Broken]), generator())
    with pytest.raises(NonFiniteError, match=re.escape(f"environment 1 returned the reward {reward}")):
        for _ in range(200):
            stepper.step(np.array([1, 1]))


def test_observations_that_are_not_finite_are_refused_wherever_they_come_from() -> None:
    class Broken(Drift):
        at = 0

        def _observation(self) -> Any:
            return super()._observation() * (np.nan if self.steps == self.at else 1.0)

    with pytest.raises(NonFiniteError, match="environment 0 returned the observation"):
        Stepper(Broken(), generator())
    last = Broken(limit=4, end=0.0)
    last.at = 4
    with pytest.raises(NonFiniteError, match="environment 1 returned the observation"):
        stepper = Stepper(SyncVectorEnv([Drift, lambda: last], autoreset_mode=AutoresetMode.SAME_STEP), generator())
        for _ in range(5):
            stepper.step(np.array([1, 1]))
    again = Broken(limit=2, end=0.0)
    again.at = 9
    stepper = Stepper(again, generator())
    stepper.step(np.array([1]))
    again.at = 0
    with pytest.raises(NonFiniteError, match="environment 0 returned the observation"):
        stepper.step(np.array([1]))


def test_vector_environment_must_say_when_it_resets() -> None:
    env = vector(2, AutoresetMode.NEXT_STEP)
    del env.metadata["autoreset_mode"]
    with pytest.raises(EnvironmentMismatchError, match="autoreset_mode"):
        Stepper(env, generator())


def test_native_and_asynchronous_vector_environments() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a worker process is forked while torch's threads exist
        asynchronous = AsyncVectorEnv([Drift, Drift], autoreset_mode=AutoresetMode.SAME_STEP)
    native = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    for env in (asynchronous, native):
        stepper, rng = Stepper(env, generator()), generator(1)
        for _ in range(40):
            stepper.step(sample_actions(stepper.action_space, stepper.n, rng))
        state, expected = stepper.get_state(), leaves(stepper.observation)[0]
        other = Stepper(env, generator(2))
        other.set_state(state)
        assert not other.lost
        assert np.array_equal(leaves(other.observation)[0], expected)
        env.close()


# -- checking --------------------------------------------------------------------------------------------------


def test_checker_accepts_sound_environments() -> None:
    check_environment(Drift(), 30)
    check_environment(Drift(discrete=False, kind="dict"), 30)
    check_environment(vector(2, AutoresetMode.NEXT_STEP, kind="tuple"), 30)


def test_checker_finds_faults() -> None:
    class Outside(Drift):
        def _observation(self) -> Any:
            return super()._observation().astype(np.float64)

    class Unseeded(Drift):
        def step(self, action: Any) -> Any:
            self.position += np.random.Generator(np.random.PCG64()).normal()
            return super().step(action)

    with pytest.raises(EnvironmentMismatchError, match="not in the declared space"):
        check_environment(Outside(), 10)
    with pytest.raises(EnvironmentMismatchError, match="np_random"):
        check_environment(Unseeded(), 10)
