"""A learner, environments, evaluators and callbacks for tests of loops."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from birl.envs import environment_spec
from birl.errors import NonFiniteError
from birl.run.protocols import Rollout
from birl.types import tree_leaves


class Drift(gymnasium.Env):
    """A random walk. Observations hold the position and the step; it ends at random or after ``limit`` steps."""

    def __init__(self, discrete: bool = True, limit: int = 7, end: float = 0.1, kind: str = "box") -> None:
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        flag = spaces.Box(0, 255, (1,), np.uint8)
        kinds = {"box": box, "dict": spaces.Dict({"b": box, "a": flag}), "tuple": spaces.Tuple((box, flag))}
        self.observation_space = kinds[kind]
        self.action_space = spaces.Discrete(3) if discrete else spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.kind, self.limit, self.end = kind, limit, end
        self.seeds: list[Any] = []

    def _observation(self) -> Any:
        vector, flag = np.array([self.position, self.steps], np.float32), np.array([self.steps], np.uint8)
        # the dict is out of order on purpose: spaces sort their keys
        return {"box": vector, "dict": {"b": vector, "a": flag}, "tuple": (vector, flag)}[self.kind]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.position, self.steps = float(self.np_random.normal()), 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.position += float(np.sum(action)) * 0.1 + float(self.np_random.normal()) * 0.01
        terminated = bool(self.np_random.random() < self.end)
        return self._observation(), self.position, terminated, self.steps >= self.limit, {}


class Fails(Drift):
    """In the middle of an episode, does what the name of the first file in a folder says, and removes the file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(False)
        self.folder = str(folder)

    def step(self, action: Any) -> Any:
        if self.steps == 3 and (left := sorted(Path(self.folder).iterdir())):
            left[0].unlink()
            kind = left[0].suffix
            if kind == ".hang":
                time.sleep(600)
            else:
                os.kill(os.getpid(), getattr(signal, kind[1:]))
        return super().step(action)


class Hangs(Drift):
    """Hangs in the fourth step of every episode."""

    def step(self, action: Any) -> Any:
        time.sleep(600 if self.steps == 3 else 0)
        return super().step(action)


class MissionGrid(gymnasium.Env):  # type: ignore[type-arg]
    """An environment like MiniGrid's: an image with channels last, a direction, a pair, and a mission as text."""

    observation_space = spaces.Dict(
        {
            "direction": spaces.Discrete(4, start=1),
            "image": spaces.Box(0, 255, (7, 7, 3), np.uint8),
            "mission": spaces.Text(20),
            "pair": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (), np.float32))),
        }
    )
    action_space = spaces.Discrete(3)

    def _observation(self) -> Any:
        rng = self.np_random
        pair = rng.integers([2, 3]), np.float32(rng.random())
        image = rng.integers(0, 256, (7, 7, 3)).astype(np.uint8)
        return {"mission": "go", "image": image, "direction": np.int64(self.steps + 1), "pair": pair}  # out of order

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._observation(), float(action == 1), False, self.steps == 3, {}


class FakeConfig:
    batch_size = 4
    gamma = 0.9
    rollout_length = 5

    def __init__(self, rate: float = 0.01) -> None:
        self.rate = rate

    def serialize(self) -> dict[str, Any]:
        return {"type": "Fake", "params": {"batch_size": self.batch_size, "rate": self.rate}}


class FakeActor:
    """Sums the observations of an episode, so that its actions change if its memory is lost."""

    def __init__(self, learner: FakeLearner, greedy: bool, n: int) -> None:
        self.learner, self.greedy, self.memory = learner, greedy, np.zeros((n, 1), np.float32)
        self.extra: dict[str, Any] = {}

    def __call__(self, observation: Any, is_first: Any, reward: Any) -> Any:
        assert (reward[is_first] == 0).all()
        self.memory[is_first] = 0.0
        self.extra = {"state.actor": self.memory.copy()} if self.learner.remembers else {}
        vector = self.learner.vector(observation)
        self.memory += vector[:, :1]
        value = vector @ self.learner.weight.numpy()[:2] + self.memory[:, 0]
        if not self.greedy:
            value = value + torch.rand(len(value)).numpy()
        if self.learner.discrete:
            return np.floor(np.abs(value) * 10).astype(np.int64) % 3
        return np.tanh(np.stack([value, -value], 1)).astype(np.float32)

    def get_state(self) -> dict[str, Any]:
        return {"memory": self.memory.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.memory = np.array(state["memory"])


class FakeLearner:
    """Moves a vector towards sampled values, with noise from torch's global generator."""

    def __init__(self, rate: float = 0.01, discrete: bool = True, remembers: bool = False) -> None:
        self.config = FakeConfig(rate)
        self.discrete, self.remembers = discrete, remembers
        self.weight = torch.zeros(3)
        self.grad_step = 0
        self.poison_at = -1
        self.rollouts: list[Any] = []
        self.checked: list[Any] = []
        self.spec: Any = None
        self.action_size = 3 if discrete else 2
        self.action_scaler = None

    @property
    def gamma(self) -> float:
        return self.config.gamma

    reward_scaler = None
    policy: Any = SimpleNamespace(columns={}, explores=True)

    def describe(self) -> dict[str, Any]:
        return {"observation_shape": (2,), "action_size": self.action_size, "config": self.config.serialize()}

    def build_with_dataset(self, dataset: Any) -> None:
        self.spec = "dataset"

    def build_with_env(self, env: Any) -> None:
        self.spec = environment_spec(env)

    def check_env(self, env: Any) -> None:
        self.checked.append(env)

    @staticmethod
    def vector(observation: Any) -> Any:
        """Return the leaf with two dimensions of any tree."""
        return next(leaf for leaf in tree_leaves(observation) if leaf.shape[-1] == 2).astype(np.float32)

    @property
    def learner(self) -> FakeLearner:
        return self

    def start_run(self, source: Any, count: int, *, growing: bool = False, lanes: int = 1) -> Any:
        return source

    compiled = False
    update_statistics = None
    running_observation_scaler = False

    def updates_at_once(self, source: Any) -> int:
        return 1

    def update_many(self, source: Any, count: int) -> dict[str, torch.Tensor]:
        raise AssertionError("updates are made one by one")

    def sample(self, source: Any) -> Any:
        return source.sample_transition_batch(self.config.batch_size)

    def update(self, minibatch: Any) -> dict[str, torch.Tensor]:
        if isinstance(minibatch, Rollout):
            self.rollouts.append(minibatch)
            valid = minibatch.valid
            vector = self.vector(minibatch.observation)[valid].mean(0)
            return self._move(torch.tensor([*vector, minibatch.reward[valid].mean()]))
        vector, reward = self.vector(minibatch.observations), minibatch.rewards
        return self._move(torch.cat([torch.as_tensor(vector).mean(0), torch.as_tensor(reward).mean(0)]))

    def _move(self, target: torch.Tensor) -> dict[str, torch.Tensor]:
        self.grad_step += 1
        error = target + 0.1 * torch.randn(3) - self.weight
        self.weight = self.weight + self.config.rate * error
        loss = (error**2).sum()
        metrics = {"loss": loss * float("nan") if self.grad_step == self.poison_at else loss}
        return metrics if self.grad_step % 2 else {**metrics, "actor_loss": -loss}

    def actor(self, *, greedy: bool, n: int = 1) -> FakeActor:
        return FakeActor(self, greedy, n)

    def predict(self, x: Any) -> Any:
        value = self.vector(x).sum(1)
        return (value > 0).astype(np.int64) if self.discrete else np.stack([value, value], 1)

    sample_action = predict

    def save(self, fname: Any) -> None:
        with open(fname, "wb") as file:
            file.write(self.weight.numpy().tobytes())

    def check_finite(self) -> None:
        if not torch.isfinite(self.weight).all():
            raise NonFiniteError("the weight is not finite")

    def get_state(self) -> dict[str, Any]:
        self.check_finite()
        return {"weight": self.weight.clone(), "grad_step": self.grad_step}

    def set_state(self, state: dict[str, Any]) -> None:
        self.weight, self.grad_step = state["weight"].clone(), state["grad_step"]


SCORES = [1.0, 3.0, 2.0, float("nan"), 3.0, 5.0, 4.0]


class Scores:
    """An evaluator with given values, which continues with the next one when a run is resumed."""

    def __init__(self, values: list[float] = SCORES) -> None:
        self.values, self.calls = values, 0

    def __call__(self, algo: Any, dataset: Any) -> float:
        self.calls += 1
        return self.values[self.calls - 1]

    def get_state(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def set_state(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


class InterruptedScores(Scores):
    """Scores whose second call sends SIGTERM to this process, as long as ``armed`` is not empty."""

    def __init__(self, armed: list[bool]) -> None:
        super().__init__()
        self.armed = armed

    def __call__(self, algo: Any, dataset: Any) -> float:
        value = super().__call__(algo, dataset)
        if self.calls == 2 and self.armed:
            self.armed.clear()
            os.kill(os.getpid(), signal.SIGTERM)
        return value


def signal_at(stop: int | None, number: int = signal.SIGTERM) -> Callable[[Any, int, int], None]:
    """Make a callback that sends a signal to this process after step ``stop``."""

    def callback(algorithm: Any, epoch: int, step: int) -> None:
        if step == stop:
            os.kill(os.getpid(), number)

    return callback
