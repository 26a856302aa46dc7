"""Named datasets: logged data together with the environment it comes from.

The files were collected by birl itself with ``scripts/collect_datasets.py`` and are part of the package.

=================== ======================================================================
name                what it holds
=================== ======================================================================
``cartpole-random`` CartPole-v1, uniformly random actions
``cartpole-replay`` CartPole-v1, everything an online DQN saw while it learned
``pendulum-random`` Pendulum-v1, uniformly random actions
``pendulum-replay`` Pendulum-v1, everything an online SAC saw while it learned
=================== ======================================================================
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Final

from birl.dataset import InfiniteBuffer, ReplayBuffer
from birl.envs import make_env
from birl.errors import ConfigError

__all__ = ["NAMES", "get_cartpole", "get_dataset", "get_pendulum"]

_ENVIRONMENTS: Final = {"cartpole": "CartPole-v1", "pendulum": "Pendulum-v1"}
_TYPES: Final = ("random", "replay")
_FOLDER: Final = Path(__file__).parent / "data"

NAMES: Final = tuple(f"{name}-{kind}" for name in _ENVIRONMENTS for kind in _TYPES)
"""Names that `get_dataset` knows."""


def get_dataset(env_name: str, **options: Any) -> tuple[ReplayBuffer, Any]:
    """Load a dataset by name.

    Args:
        env_name: one of `NAMES`.
        **options: arguments of `birl.dataset.ReplayBuffer` such as ``transition_picker`` and ``trajectory_slicer``.

    Returns:
        The dataset and an environment of the kind it was collected in.

    Raises:
        ConfigError: if there is no such dataset.
    """
    if env_name not in NAMES:
        near = difflib.get_close_matches(str(env_name), NAMES, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"no dataset is called {env_name!r}; {hint}known: {', '.join(NAMES)}. Data of your own: MDPDataset(…) for "
            "arrays, ReplayBuffer.load(file, InfiniteBuffer()) for .h5 files"
        )
    dataset = ReplayBuffer.load(str(_FOLDER / f"{env_name}.h5"), InfiniteBuffer(), **options)
    return dataset, make_env(_ENVIRONMENTS[env_name.partition("-")[0]])


def get_cartpole(dataset_type: str = "replay", **options: Any) -> tuple[ReplayBuffer, Any]:
    """CartPole-v1: ``"replay"`` (of an online DQN run) or ``"random"`` data. See `get_dataset`."""
    return get_dataset(f"cartpole-{dataset_type}", **options)


def get_pendulum(dataset_type: str = "replay", **options: Any) -> tuple[ReplayBuffer, Any]:
    """Pendulum-v1: ``"replay"`` (of an online SAC run) or ``"random"`` data. See `get_dataset`."""
    return get_dataset(f"pendulum-{dataset_type}", **options)
