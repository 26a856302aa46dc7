"""birl: deep reinforcement learning from logs and in live environments.

>>> import birl
>>> dataset, env = birl.datasets.get_dataset("cartpole-replay")
>>> cql = birl.algos.DiscreteCQLConfig().create()
>>> cql.fit(dataset, n_steps=10000)  # doctest: +SKIP

The public API is what ``birl.__all__`` lists: a few names and the public packages, each of which lists its own public
names. Packages are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from birl._version import __version__
from birl.errors import BirlError, import_name

if TYPE_CHECKING:
    from birl import (
        algorithm,
        algos,
        base,
        config,
        constants,
        dataset,
        datasets,
        distributed,
        envs,
        errors,
        logging,
        losses,
        metrics,
        models,
        notebook_utils,
        ope,
        optimizers,
        preprocessing,
        recipes,
        run,
        spaces,
        testing,
        types,
    )
    from birl.algorithm import load_learnable
    from birl.algorithm.multi_seed import fit_many
    from birl.logging import LoggingStrategy
    from birl.models import PositionEncodingType
    from birl.run.cluster import Cluster
    from birl.seeding import seed
    from birl.types import ActionSpace

__all__ = [
    "ActionSpace",
    "BirlError",
    "Cluster",
    "LoggingStrategy",
    "PositionEncodingType",
    "__version__",
    "algorithm",
    "algos",
    "base",
    "config",
    "constants",
    "dataset",
    "datasets",
    "distributed",
    "envs",
    "errors",
    "fit_many",
    "load_learnable",
    "logging",
    "losses",
    "metrics",
    "models",
    "notebook_utils",
    "ope",
    "optimizers",
    "preprocessing",
    "recipes",
    "run",
    "seed",
    "spaces",
    "testing",
    "types",
]

_HOMES: Final = {
    "ActionSpace": "birl.types",
    "Cluster": "birl.run.cluster",
    "LoggingStrategy": "birl.logging",
    "PositionEncodingType": "birl.models",
    "fit_many": "birl.algorithm.multi_seed",
    "load_learnable": "birl.base",  # it imports all algorithms, any of which a saved model may be of
    "seed": "birl.seeding",
}
"""Modules of the names that are imported on first use; all other names of ``__all__`` that are missing are packages."""

_RENAMED: Final = {"observations": "birl.spaces"}


def __getattr__(name: str) -> object:
    """Import a public package or name on first use."""
    if name not in _HOMES and (
        name in __all__ or name == "actions"
    ):  # a former path, which gives the new name of each of its names
        return import_module(f"birl.{name}")
    return import_name("birl", name, _HOMES, __all__, _RENAMED)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
