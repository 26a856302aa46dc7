"""Named datasets with their environments: built-in, D4RL, Minari, Atari.

``scripts/collect_datasets.py`` collected the first four, which are part of the package. The others are read from local
files, which birl does not download.

=========================================== ====================================================================
name                                        content
=========================================== ====================================================================
``cartpole-random``                         CartPole-v1, uniformly random actions
``cartpole-replay``                         CartPole-v1, all transitions of an online run of DQN
``pendulum-random``                         Pendulum-v1, uniformly random actions
``pendulum-replay``                         Pendulum-v1, all transitions of an online run of SAC
``hopper-medium-v0`` and others             D4RL, see `get_d4rl`
``breakout-mixed-v0`` and others            DQN replay of Atari games, see `get_atari`
``mujoco/hopper/medium-v0`` and others      Minari, see `get_minari`
=========================================== ====================================================================

Files of other programs without a name here: Robomimic, LeRobot, OGBench, RLDS, RL Unplugged and RLlib's JSON; see
`FORMATS`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from birl.dataset import InfiniteBuffer, ReplayBuffer
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import TransitionPickerProtocol
from birl.datasets import atari, d4rl, minari
from birl.datasets.atari import get_atari, get_atari_transitions
from birl.datasets.d4rl import get_d4rl
from birl.datasets.formats import FORMATS, detect_format, import_format
from birl.datasets.lerobot import load_lerobot
from birl.datasets.minari import get_minari, write_minari
from birl.datasets.ogbench import load_ogbench
from birl.datasets.rl_unplugged import load_rl_unplugged
from birl.datasets.rlds import load_rlds
from birl.datasets.rllib_json import load_rllib_json
from birl.datasets.robomimic import load_robomimic
from birl.envs import make_env
from birl.errors import ConfigError, explain_missing_names

__all__ = [
    "FORMATS",
    "NAMES",
    "detect_format",
    "get_atari",
    "get_atari_transitions",
    "get_cartpole",
    "get_d4rl",
    "get_dataset",
    "get_minari",
    "get_pendulum",
    "import_format",
    "load_lerobot",
    "load_ogbench",
    "load_rl_unplugged",
    "load_rlds",
    "load_rllib_json",
    "load_robomimic",
    "write_minari",
]

_ENVIRONMENTS: Final = {"cartpole": "CartPole-v1", "pendulum": "Pendulum-v1"}
_TYPES: Final = ("random", "replay")
_FOLDER: Final = Path(__file__).parent.parent / "data"

NAMES: Final = tuple(f"{name}-{kind}" for name in _ENVIRONMENTS for kind in _TYPES)
"""Names of the datasets that are part of the package."""


def get_dataset(
    env_name: str,
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    render_mode: str | None = None,
    **options: object,
) -> tuple[ReplayBuffer, Any]:
    """Load a dataset by its name: one of `NAMES`, or a name of `get_d4rl`, `get_atari` or `get_minari`.

    Minari's names must contain a slash here; `get_minari` also takes names without one.

    Args:
        env_name: name.
        transition_picker: makes transitions from steps. For Atari ``num_stack`` selects it.
        trajectory_slicer: makes windows of steps.
        render_mode: render mode of the environment.
        **options: further arguments of the loading function, which is `ReplayBuffer.load` for `NAMES`.

    Returns:
        The dataset and its environment.

    Raises:
        ConfigError: if there is no such dataset, or no such option.
        FileError: if its files are not on this machine.
    """
    name = str(env_name)
    parts: dict[str, Any] = {"transition_picker": transition_picker, "trajectory_slicer": trajectory_slicer}
    if name in NAMES:
        _check_options(name, ReplayBuffer.load, options, "f", "buffer")
        parts |= options
        dataset = ReplayBuffer.load(str(_FOLDER / f"{name}.h5"), InfiniteBuffer(), **parts)
        return dataset, make_env(_ENVIRONMENTS[name.partition("-")[0]], render_mode=render_mode)
    game = atari.PATTERN.fullmatch(name)
    load: Callable[..., tuple[ReplayBuffer, Any]] | None = None
    if d4rl.PATTERN.fullmatch(name):
        load = get_d4rl
    elif game and game[1] in atari.GAMES:
        if transition_picker is not None or trajectory_slicer is not None:
            raise ConfigError(f"{name!r} takes num_stack= instead of a transition_picker and a trajectory_slicer")
        load, parts = get_atari, {}
    elif "/" in name and minari.PATTERN.fullmatch(name):
        load = get_minari
    if load is not None:
        _check_options(name, load, options)
        return load(name, render_mode=render_mode, **parts, **options)
    first = game[1] if game else name.partition("-")[0]
    others = difflib.get_close_matches(first, {*d4rl.FAMILIES, *atari.GAMES} - {first}, 1, 0.8)
    near = difflib.get_close_matches(name, NAMES, 1) or [name.replace(first, other, 1) for other in others]
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(
        f"no dataset is called {env_name!r}; {hint}known: {', '.join(NAMES)}, and those of D4RL ('hopper-medium-v0'), "
        "of Atari games ('breakout-mixed-v0') and of Minari ('mujoco/hopper/medium-v0'). Data of your own: "
        "MDPDataset(…) for arrays, ReplayBuffer.load(file, InfiniteBuffer()) for .h5 files"
    )


def _check_options(name: str, load: Callable[..., Any], options: dict[str, Any], *given: str) -> None:
    """Refuse options that the loading function does not take."""
    set_here = {"env_name", "transition_picker", "trajectory_slicer", "render_mode", *given}
    allowed = [parameter for parameter in inspect.signature(load).parameters if parameter not in set_here]
    for option in options:
        if option not in allowed:
            raise ConfigError(f"the dataset {name!r} has no option {option!r}; it has: {', '.join(allowed)}")


def get_cartpole(
    dataset_type: str = "replay",
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    render_mode: str | None = None,
    **options: object,
) -> tuple[ReplayBuffer, Any]:
    """Load data of CartPole-v1: ``"replay"``, of an online DQN run, or ``"random"``. See `get_dataset`."""
    return get_dataset(f"cartpole-{dataset_type}", transition_picker, trajectory_slicer, render_mode, **options)


def get_pendulum(
    dataset_type: str = "replay",
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    render_mode: str | None = None,
    **options: object,
) -> tuple[ReplayBuffer, Any]:
    """Load data of Pendulum-v1: ``"replay"``, of an online SAC run, or ``"random"``. See `get_dataset`."""
    return get_dataset(f"pendulum-{dataset_type}", transition_picker, trajectory_slicer, render_mode, **options)


explain_missing_names(__name__, __all__)
