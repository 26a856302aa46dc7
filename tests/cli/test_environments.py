"""Environments on the command line: ranges of actions and pixels, ids of packages, environments that draw."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pytest
from cli.conftest import Shell

import birl
from birl.envs import make_env
from birl.errors import MissingExtraError
from birl.preprocessing import PixelObservationScaler

OWN = """
import gymnasium, numpy as np
from gymnasium import spaces

class Own(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Box(-np.inf, np.inf, (1,), np.float32)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}
    def step(self, action):
        return self.observation_space.sample(), 1.0, True, False, {}

class Pixels(Own):
    observation_space, action_space = spaces.Box(0, 255, (3, 36, 36), np.uint8), spaces.Discrete(2)

class Drawn(Pixels):
    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    def render(self):
        return np.zeros((8, 8, 3), np.uint8)

class NotDrawn(Own):
    observation_space, action_space = Drawn.observation_space, Drawn.action_space
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_ranges", raising=False)
    Path("own_ranges.py").write_text(OWN)
    return "own_ranges"


RUN = ["--n-steps", 20, "--n-trials", 1, "--set", "batch_size=8"]


def test_actions_without_bounds_are_refused(birl_: Shell, own: str) -> None:
    said = birl_("train", "SAC", "--env-id", f"{own}:Own", *RUN, "--out", "run", status=1)
    assert "no bounds" in said and "MinMaxActionScaler" in said and not Path("run").exists()


def test_pixels_are_scaled_and_said_to_be(birl_: Shell, own: str) -> None:
    small = ["--set", 'encoder_factory={"type": "pixel", "params": {"filters": [[4, 8, 4]], "feature_size": 8}}']
    birl_("train", "DQN", "--env-id", f"{own}:Pixels", *RUN, *small, "--out", "run")
    assert "observation_scaler=pixel is set" in birl_.notes
    model = birl.load_learnable("run/model_20.d3")
    assert isinstance(model.config.observation_scaler, PixelObservationScaler)


def test_environments_that_draw_themselves_are_recorded(birl_: Shell, own: str) -> None:
    pytest.importorskip("av")
    dqn = birl.algos.DQNConfig().create()
    dqn.create_impl((4,), 2)
    dqn.save("model.d3")
    birl_("record", "model.d3", "--env-id", f"{own}:Drawn", "--n-episodes", 1, "--out", "videos")
    assert len(list(Path("videos").glob("*.mp4"))) == 1
    said = birl_("record", "model.d3", "--env-id", f"{own}:NotDrawn", "--out", "none", status=1)
    assert "render_mode" in said


@pytest.mark.parametrize("name", ["MiniGrid-Own-v0", "BabyAI-Own-v0"])
def test_ids_of_packages_import_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(MissingExtraError, match="pip install 'minigrid'"):
        make_env(name)
    package: Any = ModuleType("minigrid")
    gymnasium.register(name, "gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    monkeypatch.setitem(sys.modules, "minigrid", package)
    assert make_env(name).observation_space.shape == (4,)
    gymnasium.registry.pop(name)
